"""Records of a run, and its check: compares what workers have recorded with the final values on the servers. Pure.

All conclusions follow from values of variables (`scheme`) and the records; versions and staleness reported by servers
are verified, not relied on.
"""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from psserver.core import events
from psserver.core.members.member import Member
from pswire.specs.consistency import (
    Bounded,
    Consistency,
    DelayCompensation,
    DropStalePushes,
    StalenessSpec,
    Synchronous,
)
from tests.chaos import scheme

#: Seconds after which a request for a block counts as having waited.
AT_ONCE = 0.2

#: Leases after a fault in which it may still cause a worker to be declared lost: its longest duration plus a lease.
QUIET = 3


@dataclass(repr=False)
class PushRecord:
    """One push, as recorded by its worker."""

    column: int  # of its process
    number: int  # among those of its process, from 1
    at: float  # time of sending (monotonic)
    shards: list[int]  # those that it has gradients for
    dense: bool  # whether it has one for the dense variable
    seen: list[list[int]]  # by shard, updates included in its weights and, on one of `shards`, in its rows of the table
    epoch: int
    examples: list[int]
    cost: float | None = None  # of its images, if it has any
    answered: float | None = None  # time of its answer
    dropped: bool = False
    staleness: int = 0  # as in the answer
    #: By shard, its update there as decoded from the worker's column; without shards where it changed nothing.
    placed: dict[int, scheme.Push] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"push {self.number} of process {self.column}"


class Reading(NamedTuple):
    """Received values: own column, updates and versions by shard, and shards where two variables differ."""

    own: list[float]
    updates: list[int]
    versions: list[int]
    torn: list[int]
    push: PushRecord | None = None  # the push whose answer brought them


class Wait(NamedTuple):
    """A request for a block; `got`: the answer was a block."""

    begin: float
    end: float = math.inf
    got: bool = False


class Final(NamedTuple):
    """The final values of one shard by column (the dense variable: its first row), and the first variable's version."""

    first: list[float]
    second: list[float]
    dense: list[float]
    table: list[list[float]]
    version: int
    marks: Sequence[int] = ()  # how often each example is in the pushes that this shard has, if workers mark them


@dataclass
class History:
    """The actions of one worker process; times are monotonic."""

    column: int  # its number, from 1 (`scheme`)
    name: str  # of the worker; several processes may have the same
    ended_by: str = ""  # the kind of the fault that ended it
    faults: list[tuple[float, str]] = field(default_factory=list)  # injected into it, with times
    losses: list[tuple[float, int]] = field(default_factory=list)  # times at which a shard declared its name lost
    code: int | None = None  # its exit code; None: it runs
    error: str = ""  # the last line of its output
    joined: float = math.inf
    incarnation: int = 0
    ended: float | None = None  # time of its regular end
    until: float = 0.0  # time of its last record
    pushes: list[PushRecord] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    reports: list[tuple[int, int, float]] = field(default_factory=list)  # of complete epochs: (epoch, examples, cost)

    def add(self, event: str, at: float, reading: dict[str, Any] | None = None, **fields: Any) -> None:
        """Adds a line of the worker's records."""
        self.until = at
        push = None
        match event:
            case "push":
                self.pushes.append(PushRecord(self.column, len(self.pushes) + 1, at, **fields))
            case "answer":
                push = self.pushes[-1]
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
        if reading:
            self.readings.append(Reading(**reading, push=push))


def losses(log: Iterable[str], name: str, lease: float) -> list[float]:
    """The times, in seconds since 1970, at which a server declared this worker lost, from its log."""
    text = events.lost(Member(name, 0), lease).text
    return [datetime.fromisoformat(line[:23]).timestamp() for line in log if line.endswith(text)]


@dataclass
class Check:
    """The check of one run, made when it is constructed."""

    consistency: Consistency
    staleness: StalenessSpec
    histories: Sequence[History]  # of all worker processes
    finals: Sequence[Final]  # of all shards
    lease: float  # seconds
    examples: int  # of the data queue
    epochs: int
    half_pushes: int  # half-applied pushes, as reported by the servers
    complete: bool  # whether the job completed
    cuts: Mapping[int, Sequence[Final]] = field(default_factory=dict)  # checkpoints by number, the values by shard
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)  # sentences by kind
    #: Of violations by kind, answered pushes, dropped and half-applied ones, reads of a shard's variables, and examples
    #: trained on again in their epoch; and the worst staleness of an applied push.
    counts: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.most = self.consistency.workers if isinstance(self.consistency, Synchronous) else 1
        self.unit = scheme.unit_of(self.most)
        # By shard, the pushes that were applied at each of its steps.
        self._applied: list[dict[int, list[PushRecord]]] = [defaultdict(list) for _ in self.finals]
        for history in self.histories:
            self._exactly_once(history)
        self._half_pushes()
        self._cuts()
        for shard, final in enumerate(self.finals):
            self._variables_agree(shard, final)
            self._updates_add_up(shard, final)
            self._staleness(shard)
        if isinstance(self.consistency, Synchronous):
            self._groups()
        if isinstance(self.consistency, Bounded):
            self._bound(self.consistency.steps)
        self._workers()
        self._examples()

    def _break(self, kind: str, line: str) -> None:
        self.counts[kind] += 1
        self.violations[kind].append(line)

    # --- exactly once -------------------------------------------------------------------------------------------------

    def _exactly_once(self, history: History) -> None:
        """Each reading, and the end, shows the push before it exactly once, and nothing else."""
        last = next((push for push in history.pushes[-1:] if push.answered is None), None)
        shown = [(reading.own, reading.push) for reading in history.readings]
        shown.append(([final.first[history.column] for final in self.finals], last))
        before: Sequence[float] = [0.0] * len(self.finals)
        for own, push in shown:
            for shard, (old, new) in enumerate(zip(before, own, strict=True)):
                self._increment(history.column, push, shard, new - old)
            before = own
        for reading in history.readings:
            self.counts["reads"] += len(reading.own)
            self.counts["pushes"] += reading.push is not None
            self.counts["dropped"] += reading.push is not None and reading.push.dropped
            for shard in reading.torn:
                self._break("torn", f"shard {shard}, process {history.column}: two variables of one shard differ")
            if reading.versions != reading.updates:
                counts = f"versions {reading.versions}, updates {reading.updates}"
                self._break("version", f"process {history.column}: {counts}")
        self.counts["half"] += sum(0 < len(push.placed) < len(push.shards) for push in history.pushes)
        if last is not None and history.code == 0:
            self._break("half push", f"{last} has no answer, and its worker finished")

    def _increment(self, column: int, push: PushRecord | None, shard: int, increment: float) -> None:
        """Classifies the change of a column on a shard after a push, if there was one."""
        name, times = f"shard {shard}: {push or f'process {column}'}", f"{increment / scheme.BASE:.2f} times"
        if push is None or push.dropped or shard not in push.shards:
            if increment:
                what = "was dropped, but is present" if push and push.dropped else "is present without a push"
                self._break("doubled", f"{name} {what}, {times}")
            return
        placed = scheme.decode(increment, self.unit)
        if placed is not None and placed.gradients <= self.most:
            push.placed[shard] = placed
            self._applied[shard][placed.step].append(push)
        elif increment > 0:
            self._break("doubled", f"{name} is present {times}")
        elif increment or not (push.answered is None or self._too_late(push, shard)):
            self._break("lost", f"{name} was acknowledged, but is missing")

    def _too_late(self, push: PushRecord, shard: int) -> bool:
        """Whether a part of an answered push may have arrived too late for this shard.

        Where changes have one order over all shards, others wait for a part only until the lease of its worker ends.
        """
        ordered = isinstance(self.consistency, Synchronous) or isinstance(self.staleness, DropStalePushes)
        return ordered and shard > 0 and push.answered - push.at > self.lease

    def _half_pushes(self) -> None:
        """The servers report the right number of half-applied pushes.

        They also count a push that shard 0, which counts every step, has received without gradients, or the reverse.
        That changes no variable, so there they may report more than the records show.
        """
        everywhere = all(len(push.shards) == len(self.finals) for history in self.histories for push in history.pushes)
        known, reported = self.counts["half"], self.half_pushes
        if reported < known or (reported > known and everywhere):
            self._break("half pushes", f"the servers report {reported}, the records show {known}")

    def _cuts(self) -> None:
        """Each checkpoint has the first pushes of each process, the same on all shards, and nothing else.

        Of a process that was declared lost it may have the push that was under way on some shards only: a cut does not
        wait for such a process, which may come back and go on. The steps of pushes may differ from those of the job,
        because late ones are applied at the end.
        """
        lost = {history.column for history in self.histories if history.losses}
        sums: dict[int, list[list[int]]] = {}  # by column and shard, the units of the first pushes
        for history in self.histories:
            sums[history.column] = [
                list(itertools.accumulate([_units(push, shard, self.unit) for push in history.pushes], initial=0))
                for shard in range(len(self.finals))
            ]
        for number, finals in self.cuts.items():
            self.counts["checkpoints"] += 1
            for shard, final in enumerate(finals):
                rows = [[own] * len(row) for own, row in zip(final.first, final.table, strict=False)]
                if final.first != final.second or final.table != rows:
                    self._break("checkpoint", f"checkpoint {number}, shard {shard}: its variables differ")
            for column, by_shard in sums.items():
                values = [scheme.count_updates(final.first[column])[0] for final in finals]
                first = [
                    [count for count, total in enumerate(totals) if total == value]
                    for totals, value in zip(by_shard, values, strict=True)
                ]
                if not _agree(first, within=0):
                    self.counts["half in checkpoint"] += 1
                    if column not in lost or not _agree(first, within=1):
                        line = f"checkpoint {number}: of process {column} it has the first {first} pushes, by shard"
                        self._break("checkpoint", line)

    def _variables_agree(self, shard: int, final: Final) -> None:
        if final.first != final.second:
            self._break("torn", f"shard {shard}: two variables differ at the end")
        for column, row in enumerate(final.table):
            if any(value != final.first[column] for value in row):
                self._break("part of a push", f"shard {shard}: the table's row of process {column} differs")
        for history in self.histories:
            placed = [push.placed[shard] for push in history.pushes if push.dense and shard in push.placed]
            if final.dense[history.column] != sum(scheme.increment_of(one, self.unit) for one in placed):
                self._break("part of a push", f"shard {shard}: the dense variable of process {history.column}")
        known = {0, *(history.column for history in self.histories)}
        for column, value in enumerate(final.first):
            if value and column not in known:
                self._break("doubled", f"shard {shard}: column {column} belongs to no process, but is {value:.0f}")

    def _updates_add_up(self, shard: int, final: Final) -> None:
        """The shard has made exactly the updates of known pushes, each with the right number of gradients."""
        applied = self._applied[shard]
        updates, total = self._updates(shard)
        if final.version != updates:
            self._break("version", f"shard {shard}: version {final.version} after {updates} updates")
        if (updates, total) != (len(applied), sum(applied)):
            known = f"the records show {len(applied)} (steps add up to {total:,} and {sum(applied):,})"
            self._break("updates", f"shard {shard}: {updates} updates, {known}")
        for step, pushes in applied.items():
            sizes = {push.placed[shard].gradients for push in pushes}
            if sizes != {len(pushes)}:
                line = f"shard {shard}, step {step}: a mean of {sorted(sizes)} gradients, known are {pushes}"
                self._break("updates", line)

    def _updates(self, shard: int) -> tuple[int, int]:
        """The number of updates of a shard, and the sum of their steps, by column 0.

        A compensated column 0 does not show them: then the version is the number, and the sum is that of the records.
        """
        final = self.finals[shard]
        if isinstance(self.staleness, DelayCompensation):
            return final.version, sum(self._applied[shard])
        return scheme.count_updates(final.first[0])

    # --- staleness and consistency ------------------------------------------------------------------------------------

    def _staleness(self, shard: int) -> None:
        """No applied push exceeds the limit of staleness: updates before it, less those included in its weights."""
        bound = self.staleness.above if isinstance(self.staleness, DropStalePushes) else math.inf
        if isinstance(self.consistency, Synchronous):
            bound = 0
        applied = self._applied[shard]
        order = sorted(applied)
        all_known = self._updates(shard)[0] == len(order)
        for step, pushes in applied.items():
            before = bisect.bisect_left(order, step)
            for push in pushes:
                missed = before - min(push.seen[shard])
                self.counts["worst staleness"] = max(self.counts["worst staleness"], missed)
                if before < max(push.seen[shard]) and all_known:
                    self._break("staleness", f"shard {shard}: {push} includes updates that were made after it")
                if missed > bound:
                    self._break("too stale", f"shard {shard}: {push} was applied with staleness {missed}")
                elif push.answered and missed > push.staleness:
                    line = f"shard {shard}: {push} has staleness {missed}, but its answer has {push.staleness}"
                    self._break("staleness", line)

    def _groups(self) -> None:
        """A synchronous update has N gradients, except at the end of the data, and is the same on all shards."""
        for step, pushes in sorted(self._applied[0].items()):
            if len(pushes) < self.most and not self._a_worker_has_no_data(pushes):
                self._break("group", f"step {step}: an update of {len(pushes)}: {pushes}")
        for one, other in itertools.permutations(range(len(self.finals)), 2):
            for step, pushes in sorted(self._applied[one].items()):
                steps = {push.placed[other].step for push in pushes if other in push.placed}
                if len(steps) > 1:
                    self._break("group", f"step {step} of shard {one} is steps {sorted(steps)} of shard {other}")

    def _a_worker_has_no_data(self, pushes: Sequence[PushRecord]) -> bool:
        """Whether a worker may have been without data when this update was made."""
        begin = max(push.at for push in pushes)
        end = min((push.answered for push in pushes if push.answered is not None), default=math.inf)
        for history in self.histories:
            waits = [wait for wait in history.waits if not wait.got or wait.end - wait.begin > AT_ONCE]
            ended = history.ended is not None and history.ended <= end
            if ended or any(wait.begin <= end and wait.end >= begin for wait in waits):
                return True
        return False

    def _bound(self, steps: int) -> None:
        """Between two pushes of a worker in one block, another worker makes at most twice the bound plus two pushes.

        It may be that far behind at the first and that far ahead at the second.
        """
        for history in self.histories:
            for one, other in itertools.pairwise(history.pushes):
                if other.answered is None or 0 not in one.placed or 0 not in other.placed:
                    continue
                asked = any(one.at <= wait.begin <= other.at for wait in history.waits)
                if asked or other.answered - one.at > self.lease / 2:
                    continue  # no worker waited for it: it had no examples, or its lease may have ended
                between = range(one.placed[0].step + 1, other.placed[0].step)
                theirs = Counter(push.column for step in between for push in self._applied[0].get(step, []))
                for column, count in theirs.items():
                    if count > 2 * steps + 2:
                        self._break("bound", f"{count} pushes of process {column} between two of {history.column}")

    # --- workers and data ---------------------------------------------------------------------------------------------

    def _workers(self) -> None:
        """Workers finish unless a fault or a newer incarnation ends them; then no push of theirs is accepted any more.

        No worker without a recent fault is declared lost while it lives.
        """
        for history in self.histories:
            name = f"process {history.column}, {history.name},"
            same_name = [other for other in self.histories if other.name == history.name]
            newer = [other for other in same_name if other.incarnation > history.incarnation > 0]
            if history.code not in (0, None) and not history.ended_by and not newer:
                self._break("failed", f"{name} ended with: {history.error}")
            for other, push in itertools.product(newer, history.pushes):
                if push.at > other.joined and push.placed:
                    self._break("twin", f"{push} was accepted after process {other.column} had joined")
            for lost, shard in history.losses:
                since = lost - QUIET * self.lease
                there = history.joined < since and history.until > lost
                if there and not any(since < at < lost for at, _ in history.faults):
                    self._break("lease", f"{name} was declared lost by shard {shard}")
        if not self.complete:
            self._break("not done", "the job did not complete in time")

    def _examples(self) -> None:
        """Every example of every epoch is trained on and counted exactly once, also when its worker is killed.

        Twice only if shard 0 declared a living worker lost, since its block is then handed out though it goes on.
        A push without an answer counts if it is on shard 0, which hands out the examples. Whether it was dropped, or a
        push without gradients for shard 0 has arrived there, is not known: then its examples need not be trained again.
        """
        drops = isinstance(self.consistency, Synchronous) or isinstance(self.staleness, DropStalePushes)
        trained: dict[tuple[int, int], list[History]] = defaultdict(list)
        unknown: set[tuple[int, int]] = set()
        costs: dict[int, float] = {}
        for history in self.histories:
            for push in history.pushes:
                examples = [(push.epoch, example) for example in push.examples]
                if push.answered is not None or 0 in push.placed:
                    for one in examples:
                        trained[one].append(history)
                elif drops or 0 not in push.shards:
                    unknown.update(examples)
            for epoch, count, cost in history.reports:
                if count != self.examples:
                    self._break("examples", f"epoch {epoch} is done with {count} of {self.examples}")
                if costs.setdefault(epoch, cost) != cost:
                    self._break("examples", f"epoch {epoch} is done with cost {cost} and {costs[epoch]}")
        for (epoch, example), authors in trained.items():
            self.counts["examples twice"] += len(authors) - 1
            if len(authors) > 1 and not any(map(_was_lost_alive, authors)):
                self._break("examples", f"example {example} of epoch {epoch} was trained on {len(authors)} times")
        missing = self.epochs * self.examples - len(trained.keys() | unknown)
        if missing and self.complete:
            self._break("examples", f"{missing} were never trained on")


def _agree(counts: Sequence[Sequence[int]], within: int) -> bool:
    """Whether one of the counts of each shard may be chosen so that they differ by no more than this."""
    return any(
        all(any(low <= one <= low + within for one in some) for some in counts) for low in itertools.chain(*counts)
    )


def _units(push: PushRecord, shard: int, unit: int) -> int:
    """The units that a push has added to its process's column on a shard."""
    return unit // push.placed[shard].gradients if shard in push.placed else 0


def _was_lost_alive(history: History) -> bool:
    """Whether shard 0 declared the process lost while it lived."""
    return any(not shard and history.joined < lost < history.until for lost, shard in history.losses)
