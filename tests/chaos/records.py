"""Reads the records of workers: one `History` for each process, with its pushes and the values it has received."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import scheme


@dataclass
class PushRecord:
    """One push, as recorded by its worker.

    Attributes:
        number: among those of its process, from 1.
        shards: those that it has gradients for.
        dense: whether it has one for the dense variable.
        seen, rows_seen: updates included in its weights, on every shard; and in its rows, on each of `shards`.
        epoch, examples: the data it was computed with.
        at: time of sending (monotonic).
        answered: time of its answer; None: none.
        dropped, staleness: as in the answer.
        placed: by shard, its update there as decoded from the worker's column; without shards where it changed nothing.
    """

    number: int
    shards: list[int]
    dense: bool
    seen: list[int]
    rows_seen: list[int]
    epoch: int
    examples: list[int]
    at: float
    answered: float | None = None
    dropped: bool = False
    staleness: int = 0
    placed: dict[int, scheme.Push] = field(default_factory=dict)


@dataclass
class Reading:
    """Received values: own column, updates and versions by shard, and shards where two variables differ."""

    own: list[float]
    updates: list[int]
    versions: list[int]
    torn: list[int]
    push: PushRecord | None = None  # the push whose answer brought them


@dataclass
class Wait:
    """A request for a block, from `begin` to `end` (None: no answer); `got`: the answer was a block."""

    begin: float
    end: float | None = None
    got: bool = False


@dataclass(frozen=True)
class Loss:
    """A worker was declared lost by a shard at this time (monotonic)."""

    name: str
    shard: int
    at: float


@dataclass
class History:
    """The actions of one worker process.

    Attributes:
        column, name, ended_by, code, faults: as of `cluster.WorkerProcess`.
        error: the last line of its output.
        joined, incarnation: time of joining; its incarnation.
        ended: time of its regular end.
        until: time of its last record.
        waits: its requests for blocks.
        reports: complete epochs that it received reports of, and examples in each.
    """

    column: int
    name: str
    ended_by: str = ""
    code: int | None = None
    faults: list[tuple[float, str]] = field(default_factory=list)
    error: str = ""
    joined: float | None = None
    incarnation: int = 0
    ended: float | None = None
    until: float = 0.0
    pushes: list[PushRecord] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    reports: list[tuple[int, int]] = field(default_factory=list)

    @property
    def open(self) -> PushRecord | None:
        return self.pushes[-1] if self.pushes and self.pushes[-1].answered is None else None

    def overtakes(self, other: History) -> bool:
        return self.name == other.name and self.incarnation > other.incarnation > 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """The records in a file; none if there is no file, because its worker was killed before."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_events(history: History, events: Iterable[dict[str, Any]]) -> History:
    for event in events:
        history.until = at = event["at"]
        match event["event"]:
            case "push":
                fields = ("number", "shards", "dense", "seen", "rows_seen", "epoch", "examples", "at")
                history.pushes.append(PushRecord(**{name: event[name] for name in fields}))
            case "answer":
                push = history.pushes[-1]
                assert push.number == event["number"]
                push.answered, push.dropped, push.staleness = at, event["dropped"], event["staleness"]
                history.readings.append(_reading(event, push))
            case "joined":
                history.joined, history.incarnation = at, event["incarnation"]
                history.readings.append(_reading(event))
            case "pulled":
                history.readings.append(_reading(event))
            case "take":
                history.waits.append(Wait(at))
            case "taken":
                history.waits[-1].end, history.waits[-1].got = at, event["block"] is not None
                history.reports += [(epoch, examples) for epoch, examples in event["reports"]]
            case "end":
                history.ended = at
    return history


def _reading(event: dict[str, Any], push: PushRecord | None = None) -> Reading:
    return Reading(event["own"], event["updates"], event["versions"], event["torn"], push)
