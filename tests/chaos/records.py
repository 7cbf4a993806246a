"""The records of a run: one `History` for each worker process, and the final values of each shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos import scheme


@dataclass
class PushRecord:
    """One push, as recorded by its worker."""

    column: int  # of its process
    number: int  # among those of its process, from 1
    shards: list[int]  # those that it has gradients for
    dense: bool  # whether it has one for the dense variable
    seen: list[int]  # updates included in its weights, on every shard
    rows_seen: list[int]  # updates included in its rows of the table, on each of `shards`
    epoch: int
    examples: list[int]
    at: float  # time of sending (monotonic)
    answered: float | None = None  # time of its answer
    dropped: bool = False
    staleness: int = 0  # as in the answer
    #: By shard, its update there as decoded from the worker's column; without shards where it changed nothing.
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
    """The actions of one worker process; times are monotonic."""

    column: int  # its number, from 1 (`scheme`)
    name: str  # of the worker; several processes may have the same
    ended_by: str = ""  # the kind of the fault that ended it
    faults: list[tuple[float, str]] = field(default_factory=list)  # injected into it, with times
    code: int | None = None  # its exit code; None: it runs
    error: str = ""  # the last line of its output
    joined: float | None = None
    incarnation: int = 0
    ended: float | None = None  # time of its regular end
    until: float = 0.0  # time of its last record
    pushes: list[PushRecord] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    reports: list[tuple[int, int]] = field(default_factory=list)  # of complete epochs: (epoch, examples)

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
                self.waits[-1] = Wait(self.waits[-1].begin, at, fields["got"])
                self.reports += map(tuple, fields["reports"])
            case "end":
                self.ended = at
        if "reading" in fields:
            self.readings.append(Reading(**fields["reading"], push=push))
