"""A profile: the spans of some steps after a warm-up, their sums by phase and by op, and the trace of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pswire.errors import ConfigurationError
from psworker.profiling.phases import PHASES, timed_phases
from psworker.profiling.spans import PROGRAM, Span, Spans


class ProfileDone(SystemExit):
    """Ends the program when all steps are measured: its `with` blocks are left, and the exit code is 0."""


@dataclass(frozen=True)
class Sum:
    """The calls of one function in a phase, and their own nanoseconds."""

    name: str
    calls: int
    nanoseconds: int


@dataclass
class Profile:
    """The profile of `steps` steps after `warmup` others, once `measuring` is entered.

    Attributes:
        ends: of the steps, in nanoseconds: the last of the warm-up, then the measured ones.
    """

    steps: int
    warmup: int
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._spans = Spans()
        self._warmed = 0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within the block steps of this thread are measured; raises `ProfileDone` after the last one."""
        with timed_phases(self._spans, self._after_step):
            if not self.warmup:
                self.ends.append(self._spans.clock())
            yield

    def _after_step(self) -> None:
        now = self._spans.clock()
        if self.ends:
            self.ends.append(now)
            if len(self.ends) > self.steps:
                raise ProfileDone(0)
            return
        self._warmed += 1
        if self._warmed == self.warmup:
            self._spans.clear()
            self.ends.append(self._spans.clock())

    @property
    def measured(self) -> int:
        """The number of steps that were measured."""
        return max(0, len(self.ends) - 1)

    @property
    def total(self) -> int:
        """Nanoseconds of all measured steps."""
        return self.ends[-1] - self.ends[0]

    @property
    def durations(self) -> list[int]:
        """Nanoseconds of each step, from the end of the one before."""
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]

    @property
    def median(self) -> float:
        """The median of these."""
        return median(self.durations)

    @property
    def spans(self) -> list[Span]:
        """Those of the measured steps."""
        return [span for span in self._spans.found if span.begin + span.duration <= self.ends[-1]]

    def sums(self) -> dict[str, list[Sum]]:
        """By phase, in the order of a step, the functions in it, the longest first; together they take the `total`."""
        found: dict[tuple[str, str], list[int]] = {}
        for span in self.spans:
            entry = found.setdefault((span.phase, span.name), [0, 0])
            entry[0] += 1
            entry[1] += span.own
        rest = self.total - sum(own for _, own in found.values())
        found.setdefault((PROGRAM, "outside of these"), [self.measured, 0])[1] += rest
        sums: dict[str, list[Sum]] = {}
        for phase in PHASES:
            inside = [Sum(name, *entry) for (of, name), entry in found.items() if of == phase]
            if inside:
                sums[phase] = sorted(inside, key=lambda one: -one.nanoseconds)
        return sums

    def write_trace(self, path: Path) -> None:
        """Write a trace of the steps, for chrome://tracing and Perfetto. Raises `ConfigurationError` if it cannot be.

        Source: Trace Event Format of Chromium: an object with `traceEvents`, of which a complete event (`ph` is "X")
        has `ts` and `dur` in microseconds, and lies within another one of its `tid` or beside it.
        """
        begin = self.ends[0]
        event: Callable[..., dict[str, Any]] = lambda name, phase, at, duration: {
            "name": name,
            "cat": phase,
            "ph": "X",
            "ts": (at - begin) / 1000,
            "dur": duration / 1000,
            "pid": os.getpid(),
            "tid": 1,
        }
        steps = zip(self.ends, self.durations, strict=False)
        events = [event(f"step {number}", "step", at, duration) for number, (at, duration) in enumerate(steps, 1)]
        events += [event(one.name, one.phase, one.begin, one.duration) for one in sorted(self.spans, key=_outer_first)]
        try:
            path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
        except OSError as error:
            raise ConfigurationError(f"the trace {path} cannot be written: {error.strerror}") from error


def _outer_first(span: Span) -> tuple[int, int]:
    return span.begin, -span.duration
