"""Whether a run was as is promised: ledgers of workers against what the servers have at the end. Pure.

Everything follows from the values of variables (`scheme`) and from what the workers wrote down; what the servers say of
versions and staleness is checked, and not relied on. May import scheme and records.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pswire.specs.consistency import Bounded, Consistency, DropStalePushes, StalenessSpec, Synchronous
from tests.chaos import scheme
from tests.chaos.records import History, Loss, PushRecord, Reading

#: Seconds after which a worker that asks for a block has not got it at once: there was none.
AT_ONCE = 0.2

#: Leases, after a fault, in which a worker may still be taken for dead by it: as long as one goes on, and a lease.
QUIET = 3

#: Lines that are shown of one kind of violation.
MOST_SHOWN = 3


@dataclass(frozen=True)
class Final:
    """What one shard has at the end, all by column: the small variables, its first row of the dense one, its rows of
    the table; and the version of the first of them, as the server says."""

    first: Sequence[float]
    second: Sequence[float]
    dense: Sequence[float]
    table: Sequence[Sequence[float]]
    version: int


@dataclass
class Verdict:
    """What was found; `violations` by kind, each a sentence.

    Attributes:
        acknowledged, dropped: pushes that were answered, and of these those that were not applied.
        lost, doubled: parts of acknowledged pushes that are not there, or more than once; `doubled` has all that is
            there and should not be.
        half: pushes that are on some of their shards: those whose worker ended before it had an answer, and those of a
            worker whose lease ended meanwhile. (Any other one is lost as well.)
        reads, torn: of a shard's variables, and of these those with two that differ.
        worst: the greatest staleness of a push that was applied.
        twice: examples of an epoch that were trained again.
    """

    acknowledged: int = 0
    dropped: int = 0
    lost: int = 0
    doubled: int = 0
    half: int = 0
    reads: int = 0
    torn: int = 0
    worst: int = 0
    twice: int = 0
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def passed(self) -> bool:
        """Whether all promises were kept."""
        return not any(self.violations.values())

    def lines(self) -> list[str]:
        """The violations, some of each kind."""
        lines = []
        for kind, every in self.violations.items():
            lines += [f"{kind}: {one}" for one in every[:MOST_SHOWN]]
            if len(every) > MOST_SHOWN:
                lines.append(f"{kind}: {len(every) - MOST_SHOWN} more")
        return lines


class Check:
    """The check of one run: `Check(...)()`.

    Args:
        consistency, staleness: what the servers were started with.
        histories: of all processes of workers.
        finals: of all shards.
        lease: seconds.
        examples, epochs: of the data queue.
        half_pushes, losses: what the servers say of pushes, and of workers that they have taken for dead.
        complete: whether the job came to its end.
    """

    def __init__(
        self,
        consistency: Consistency,
        staleness: StalenessSpec,
        histories: Sequence[History],
        finals: Sequence[Final],
        *,
        lease: float,
        examples: int,
        epochs: int,
        half_pushes: int = 0,
        losses: Sequence[Loss] = (),
        complete: bool = True,
    ) -> None:
        self.consistency, self.staleness = consistency, staleness
        self.histories, self.finals, self.lease = histories, finals, lease
        self.examples, self.epochs, self.complete = examples, epochs, complete
        self.half_pushes, self.losses = half_pushes, losses
        self.most = consistency.workers if isinstance(consistency, Synchronous) else 1
        self.unit = scheme.unit_of(self.most)
        self.verdict = Verdict()
        # By shard, the pushes that were applied at each of its steps.
        self._applied: list[dict[int, list[tuple[History, PushRecord]]]] = [defaultdict(list) for _ in finals]

    def __call__(self) -> Verdict:
        """All of it."""
        for history in self.histories:
            self._exactly_once(history)
        self._half_pushes()
        for shard in range(len(self.finals)):
            self._variables_agree(shard)
            self._updates_add_up(shard)
            self._staleness(shard)
        if isinstance(self.consistency, Synchronous):
            self._groups()
        if isinstance(self.consistency, Bounded):
            self._bound(self.consistency.steps)
        self._incarnations()
        self._leases()
        self._ends()
        self._examples()
        return self.verdict

    def _break(self, kind: str, line: str) -> None:
        self.verdict.violations[kind].append(line)

    # --- exactly once -------------------------------------------------------------------------------------------------

    def _exactly_once(self, history: History) -> None:
        """Each reading shows what the push before it has left, once, and nothing else; so does the end."""
        before: Sequence[float] = [0.0] * len(self.finals)
        for reading in history.readings:
            self._reading(history, reading)
            push = reading.push
            if push is not None:
                self.verdict.acknowledged += 1
                self.verdict.dropped += push.dropped
            for shard, (old, new) in enumerate(zip(before, reading.own, strict=True)):
                self._increment(history, push, shard, new - old)
            before = reading.own
        last = history.open
        for shard, final in enumerate(self.finals):
            increment = final.first[history.column] - before[shard]
            if increment:
                self._increment(history, last, shard, increment)
        self.verdict.half += sum(0 < len(push.placed) < len(push.shards) for push in history.pushes)
        if last is not None and history.code == 0:
            self._break("half push", f"{_push(history, last)} has no answer, and its worker came to its end")

    def _reading(self, history: History, reading: Reading) -> None:
        self.verdict.reads += len(reading.own)
        self.verdict.torn += len(reading.torn)
        for shard in reading.torn:
            self._break("torn read", f"shard {shard}, process {history.column}: two variables of one shard differ")
        if reading.versions != reading.updates:
            counts = f"versions {reading.versions}, updates {reading.updates}"
            self._break("version", f"process {history.column}: {counts}")

    def _increment(self, history: History, push: PushRecord | None, shard: int, increment: float) -> None:
        """What a push, if there was one, has left in its column on a shard."""
        times = f"{increment / scheme.BASE:.2f} times"
        if push is None or push.dropped or shard not in push.shards:
            if increment:
                self.verdict.doubled += 1
                dropped = push is not None and push.dropped
                what = "was dropped, and is there" if dropped else "is there without a push"
                self._break("doubled", f"shard {shard}: {_push(history, push)} {what}, {times}")
            return
        placed = scheme.decode(increment, self.unit)
        if placed is not None and placed.gradients <= self.most:
            push.placed[shard] = placed
            self._applied[shard][placed.step].append((history, push))
        elif increment == 0 and self._gone_without(push, shard):
            return
        elif increment <= 0:
            self.verdict.lost += 1
            self._break("lost", f"shard {shard}: {_push(history, push)} was acknowledged, and is not there")
        else:
            self.verdict.doubled += 1
            self._break("doubled", f"shard {shard}: {_push(history, push)} is there {times}")

    def _half_pushes(self) -> None:
        """The servers know how many pushes are on some of their shards only.

        They count one also where shard 0, which counts every step, has one for which it has no gradients, or the
        reverse. That leaves nothing in a variable, so there they may say more than the ledgers.
        """
        everywhere = all(len(push.shards) == len(self.finals) for history in self.histories for push in history.pushes)
        known, said = self.verdict.half, self.half_pushes
        if said < known or (said > known and everywhere):
            self._break("half pushes", f"the servers say {said}, the ledgers know {known}")

    def _gone_without(self, push: PushRecord, shard: int) -> bool:
        """Whether the others may have gone on without a part that came too late for this shard.

        Where changes have one order over all shards, these wait for a part until the lease of its worker has ended.
        """
        late = push.answered is not None and push.answered - push.at > self.lease
        ordered = isinstance(self.consistency, Synchronous) or isinstance(self.staleness, DropStalePushes)
        return late and shard > 0 and ordered

    def _variables_agree(self, shard: int) -> None:
        """All variables of a shard have the same pushes."""
        final = self.finals[shard]
        if final.first != final.second:
            self.verdict.torn += 1
            self._break("torn read", f"shard {shard}: two variables differ at the end")
        for column, row in enumerate(final.table):
            if any(one != final.first[column] for one in row):
                self._break("part of a push", f"shard {shard}: the table's row of process {column} is another")
        for history in self.histories:
            placed = [push.placed[shard] for push in history.pushes if push.dense and shard in push.placed]
            if final.dense[history.column] != sum(scheme.increment_of(one, self.unit) for one in placed):
                self._break("part of a push", f"shard {shard}: the dense variable of process {history.column}")
        known = {0, *(history.column for history in self.histories)}
        for column, value in enumerate(final.first):
            if value and column not in known:
                self._break("doubled", f"shard {shard}: column {column} is nobody's, and {value:.0f}")

    def _updates_add_up(self, shard: int) -> None:
        """The shard has made the updates that pushes are known of, and no other; each of the pushes that it says."""
        final, applied = self.finals[shard], self._applied[shard]
        updates, total = scheme.count_updates(final.first[0])
        if final.version != updates:
            self._break("version", f"shard {shard}: version {final.version} after {updates} updates")
        if (updates, total) != (len(applied), sum(applied)):
            known = f"ledgers know {len(applied)} (steps add up to {total:,} and {sum(applied):,})"
            self._break("updates", f"shard {shard}: {updates} updates, {known}")
        for step, pushes in applied.items():
            sizes = {push.placed[shard].gradients for _, push in pushes}
            if sizes != {len(pushes)}:
                means = f"a mean of {' and '.join(map(str, sorted(sizes)))}"
                self._break("updates", f"shard {shard}, step {step}: {means}, known are {_pushes(pushes)}")

    # --- staleness ----------------------------------------------------------------------------------------------------

    def _staleness(self, shard: int) -> None:
        """No applied push was staler than promised: updates before it, less those that its weights had seen."""
        bound = math.inf
        if isinstance(self.staleness, DropStalePushes):
            bound = self.staleness.above
        if isinstance(self.consistency, Synchronous):
            bound = 0
        applied = self._applied[shard]
        order = sorted(applied)
        all_known = scheme.count_updates(self.finals[shard].first[0])[0] == len(order)
        for step, pushes in applied.items():
            before = bisect.bisect_left(order, step)
            for history, push in pushes:
                rows = push.rows_seen[push.shards.index(shard)]
                missed = before - min(push.seen[shard], rows)
                name = f"shard {shard}: {_push(history, push)}"
                self.verdict.worst = max(self.verdict.worst, missed)
                if before < max(push.seen[shard], rows) and all_known:
                    self._break("staleness", f"{name} has seen updates that were made after it")
                if missed > bound:
                    self._break("too stale", f"{name} was applied with staleness {missed}")
                elif push.answered and missed > push.staleness:
                    self._break("staleness", f"{name} has staleness {missed}, its answer said {push.staleness}")

    # --- consistency --------------------------------------------------------------------------------------------------

    def _groups(self) -> None:
        """A synchronous update has N gradients, but for the end of the data; and is the same on all shards."""
        for step, pushes in sorted(self._applied[0].items()):
            if len(pushes) < self.most and not self._somebody_has_no_work(pushes):
                self._break("group", f"step {step}: an update of {len(pushes)}: {_pushes(pushes)}")
            for shard in range(1, len(self.finals)):
                steps = {push.placed[shard].step for _, push in pushes if shard in push.placed}
                if len(steps) > 1:
                    self._break("group", f"step {step} of shard 0 is steps {sorted(steps)} of shard {shard}")
        for shard in range(1, len(self.finals)):
            for step, pushes in sorted(self._applied[shard].items()):
                if len({push.placed[0].step for _, push in pushes if 0 in push.placed}) > 1:
                    self._break("group", f"step {step} of shard {shard} is of several updates of shard 0")

    def _somebody_has_no_work(self, pushes: Sequence[tuple[History, PushRecord]]) -> bool:
        """Whether some worker had come to the end of the data when this update was made, as far as can be known."""
        begin = max(push.at for _, push in pushes)
        end = min((push.answered for _, push in pushes if push.answered is not None), default=math.inf)
        for history in self.histories:
            if history.ended is not None and history.ended <= end:
                return True
            for wait in history.waits:
                until = math.inf if wait.end is None else wait.end
                no_work = not wait.got or until - wait.begin > AT_ONCE
                if no_work and wait.begin <= end and until >= begin:
                    return True
        return False

    def _bound(self, steps: int) -> None:
        """Between two pushes of one block of a worker, no other worker has more than twice the bound, and two.

        It may have been that far behind at the first, and be that far ahead at the second.
        """
        for history in self.histories:
            for one, other in itertools.pairwise(history.pushes):
                if other.answered is None or 0 not in one.placed or 0 not in other.placed:
                    continue
                asked = any(one.at <= wait.begin <= other.at for wait in history.waits)
                if asked or other.answered - one.at > self.lease / 2:
                    continue  # nobody waited for it: it had no examples, or its lease may have ended
                between = range(one.placed[0].step + 1, other.placed[0].step)
                theirs = Counter(author.column for step in between for author, _ in self._applied[0].get(step, []))
                for column, count in theirs.items():
                    if count > 2 * steps + 2:
                        self._break("bound", f"{count} pushes of process {column} between two of {history.column}")

    # --- workers and data ---------------------------------------------------------------------------------------------

    def _incarnations(self) -> None:
        """When a worker has joined, no push is taken any more of an older incarnation."""
        for older, newer in itertools.permutations(self.histories, 2):
            if newer.overtakes(older) and newer.joined is not None:
                for push in older.pushes:
                    if push.at > newer.joined and push.placed:
                        self._break("twin", f"{_push(older, push)} was taken after process {newer.column} had joined")

    def _leases(self) -> None:
        """No worker is taken for dead that lives on, and to which nothing was done for long before."""
        for loss, history in itertools.product(self.losses, self.histories):
            since = loss.at - QUIET * self.lease
            there = history.joined is not None and history.joined < since and history.until > loss.at
            if history.name == loss.name and there and not any(since < at < loss.at for at, _ in history.faults):
                line = f"process {history.column}, {history.name}, was taken for dead by shard {loss.shard}"
                self._break("lease", line)

    def _ends(self) -> None:
        """Workers that nobody ends, and that no newer incarnation takes the place of, come to their end."""
        for history in self.histories:
            overtaken = any(other.overtakes(history) for other in self.histories)
            if history.code not in (0, None) and not history.ended_by and not overtaken:
                self._break("failed", f"process {history.column}, {history.name}: {history.error}")
        if not self.complete:
            self._break("not done", "the job did not come to its end in time")

    def _examples(self) -> None:
        """Every example of every epoch is trained, and counted once; twice only if something was done to a worker."""
        trained: dict[tuple[int, int], list[History]] = defaultdict(list)
        for history in self.histories:
            for push in history.pushes:
                if push.answered is not None:
                    for example in push.examples:
                        trained[push.epoch, example].append(history)
            for epoch, examples in history.reports:
                if examples != self.examples:
                    self._break("examples", f"epoch {epoch} is done with {examples} of {self.examples}")
        for (epoch, example), authors in trained.items():
            self.verdict.twice += len(authors) - 1
            if len(authors) > 1 and not any(history.faults for history in authors):
                self._break("examples", f"example {example} of epoch {epoch} was trained {len(authors)} times")
        missing = self.epochs * self.examples - len(trained)
        if missing and self.complete:
            self._break("examples", f"{missing} were never trained")


def _push(history: History, push: PushRecord | None) -> str:
    return f"process {history.column}" if push is None else f"push {push.number} of process {history.column}"


def _pushes(pushes: Sequence[tuple[History, PushRecord]]) -> str:
    return ", ".join(_push(history, push) for history, push in pushes)
