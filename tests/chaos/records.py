"""The records of workers: one `History` for each process, with its pushes and the values it has received."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos import scheme


@dataclass
class PushRecord:
    """One push, as recorded by its worker.

    Attributes:
        column, number: of its process; among those of its process, from 1.
        shards: those that it has gradients for.
        dense: whether it has one for the dense variable.
        seen, rows_seen: updates included in its weights, on every shard; and in its rows, on each of `shards`.
        epoch, examples: the data it was computed with.
        at, answered: times of sending and of its answer (monotonic); None: no answer.
        dropped, staleness: as in the answer.
        placed: by shard, its update there as decoded from the worker's column; without shards where it changed nothing.
    """

    column: int
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

    def __str__(self) -> str:
        return f"push {self.number} of process {self.column}"


class Reading(NamedTuple):
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


class Loss(NamedTuple):
    """A worker was declared lost by a shard at this time (monotonic)."""

    name: str
    shard: int
    at: float


class Final(NamedTuple):
    """The final values of one shard by column: the small variables, its first row of the dense variable and its rows of
    the table; and the reported version of the first variable."""

    first: list[float]
    second: list[float]
    dense: list[float]
    table: list[list[float]]
    version: int


@dataclass
class History:
    """The actions of one worker process.

    Attributes:
        column: its number, from 1 (`scheme`).
        name: of the worker; several processes may have the same.
        ended_by: the kind of the fault that ended it; "": none.
        faults: injected into it, with times (monotonic).
        code: its exit code; None: it runs.
        error: the last line of its output.
        joined, ended, until: times of joining, of its regular end, and of its last record.
        waits: its requests for blocks.
        reports: complete epochs that it received reports of, and examples in each.
    """

    column: int
    name: str
    ended_by: str = ""
    faults: list[tuple[float, str]] = field(default_factory=list)
    code: int | None = None
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
        """The last push, if it has no answer."""
        return self.pushes[-1] if self.pushes and self.pushes[-1].answered is None else None

    def overtakes(self, other: History) -> bool:
        return self.name == other.name and self.incarnation > other.incarnation > 0

    def add(self, event: str, at: float, **fields: Any) -> None:
        """Adds a line of the worker's records."""
        self.until = at
        push = self.pushes[-1] if event == "answer" else None
        match event:
            case "push":
                self.pushes.append(PushRecord(self.column, at=at, **fields))
            case "answer":
                assert push.number == fields["number"]
                push.answered, push.dropped, push.staleness = at, fields["dropped"], fields["staleness"]
            case "joined":
                self.joined, self.incarnation = at, fields["incarnation"]
            case "take":
                self.waits.append(Wait(at))
            case "taken":
                self.waits[-1].end, self.waits[-1].got = at, fields["got"]
                self.reports += [(epoch, examples) for epoch, examples in fields["reports"]]
            case "end":
                self.ended = at
        if "reading" in fields:
            self.readings.append(Reading(**fields["reading"], push=push))
