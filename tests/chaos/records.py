"""The ledgers of workers, read: one `History` for each process, with its pushes and what it has read of variables.

Pure, but for reading files. May import the scheme.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import scheme


@dataclass
class PushRecord:
    """One push, as its worker has written it down.

    Attributes:
        number: among those of its process, from 1.
        shards: that it has gradients for.
        dense: whether it had one for the dense variable.
        seen, rows_seen: updates that the weights had seen, on every shard; and the rows, on each of `shards`.
        epoch, examples: that it was computed with.
        at: when it was sent (monotonic).
        answered: when its answer had come; None: never.
        dropped, staleness: what the answer said.
        placed: by shard, what became of it there, as the worker's column tells; shards where it left nothing are not
            in it.
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
    """Values that came from the servers: own column, updates and versions by shard, and shards where two differ."""

    own: list[float]
    updates: list[int]
    versions: list[int]
    torn: list[int]
    push: PushRecord | None = None  # that they came with


@dataclass
class Wait:
    """A question for a block, from `begin` to `end` (None: no answer came); `got`: the answer was a block."""

    begin: float
    end: float | None = None
    got: bool = False


@dataclass(frozen=True)
class Loss:
    """A worker was taken for dead by a shard, at a moment (monotonic)."""

    name: str
    shard: int
    at: float


@dataclass
class History:
    """What one process of a worker did.

    Attributes:
        column, name, ended_by, code, faults: as of `cluster.WorkerProcess`.
        error: the last line that it said.
        joined, incarnation: when, and as which.
        ended: when it came to its end in good order.
        until: when it has last written something down.
        waits: its questions for blocks.
        reports: the epochs of which it heard that they are complete, and examples in each.
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
        """The push that was not answered, if there is one."""
        return self.pushes[-1] if self.pushes and self.pushes[-1].answered is None else None

    def overtakes(self, other: History) -> bool:
        """Whether this is a newer incarnation of the same worker."""
        return self.name == other.name and self.incarnation > other.incarnation > 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger; none where there is no file, for its worker was killed before."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_events(history: History, events: Iterable[dict[str, Any]]) -> History:
    """The history with what was written down in it."""
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
