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
from typing import Any

from pswire.consistency import Bounded, Consistency, Dropped, StalenessSpec, Synchronous
from tests.chaos import scheme
from tests.chaos.records import Look, Sent, Story

#: Seconds after which a worker that asks for a block has not got it at once: there was none.
AT_ONCE = 0.2

#: Lines that are shown of one kind of violation.
MOST_SHOWN = 3


@dataclass
class Verdict:
    """What was found; `violations` by kind, each a sentence."""

    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    half: int = 0
    torn: int = 0
    reads: int = 0
    dropped: int = 0
    worst: int = 0  # staleness of a push that was applied
    twice: int = 0  # examples that were trained twice
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def passed(self) -> bool:
        """Whether all promises were kept."""
        return not any(self.violations.values())

    def lines(self) -> list[str]:
        """The violations, some of each kind."""
        told = []
        for kind, every in self.violations.items():
            told += [f"{kind}: {one}" for one in every[:MOST_SHOWN]]
            if len(every) > MOST_SHOWN:
                told.append(f"{kind}: {len(every) - MOST_SHOWN} more")
        return told


class Check:
    """One run.

    Args:
        consistency, staleness: what the servers were started with.
        stories: of all lives.
        finals: what each shard has at the end (`cluster.Final`).
        lease: seconds.
        examples, epochs: of the data queue.
        complete: whether the job came to its end.
    """

    def __init__(
        self,
        consistency: Consistency,
        staleness: StalenessSpec,
        stories: Sequence[Story],
        finals: Sequence[Any],
        lease: float,
        examples: int,
        epochs: int,
        *,
        complete: bool,
    ) -> None:
        self.consistency, self.staleness = consistency, staleness
        self.stories, self.finals, self.lease = stories, finals, lease
        self.examples, self.epochs, self.complete = examples, epochs, complete
        self.most = consistency.workers if isinstance(consistency, Synchronous) else 1
        self.unit = scheme.unit_of(self.most)
        self.verdict = Verdict()
        self._steps: list[dict[int, list[tuple[Story, Sent]]]] = [defaultdict(list) for _ in finals]

    def __call__(self) -> Verdict:
        """All of it."""
        for story in self.stories:
            self._exactly_once(story)
        self._variables_agree()
        self._steps_add_up()
        self._staleness()
        if isinstance(self.consistency, Synchronous):
            self._groups()
        if isinstance(self.consistency, Bounded):
            self._bound(self.consistency.steps)
        self._twins()
        self._ends()
        self._data()
        return self.verdict

    def _break(self, kind: str, line: str) -> None:
        self.verdict.violations[kind].append(line)

    # --- exactly once -------------------------------------------------------------------------------------------------

    def _exactly_once(self, story: Story) -> None:
        """Each look shows what the push before it has left, once, and nothing else."""
        before = [0.0] * len(self.finals)
        for look in story.looks:
            self._whole(story, look)
            push = look.push
            if push is not None:
                self.verdict.acknowledged += 1
                self.verdict.dropped += push.dropped
            for shard, (old, new) in enumerate(zip(before, look.own, strict=True)):
                due = push is not None and not push.dropped and shard in push.shards
                self._increment(story, push, shard, new - old, due=due)
            before = look.own
        last = story.open
        for shard, final in enumerate(self.finals):
            increment = final.first[story.column] - before[shard]
            if last is None or shard not in last.shards or increment:
                self._increment(story, last, shard, increment, due=last is not None and shard in last.shards)
        if last is not None and 0 < len(last.placed) < len(last.shards):
            self.verdict.half += 1
            if story.code == 0:
                self._break("half push", f"{_push(story, last)} is on shards {sorted(last.placed)} of {last.shards}")

    def _increment(self, story: Story, push: Sent | None, shard: int, increment: float, *, due: bool) -> None:
        if not due:
            if increment:
                self.verdict.doubled += 1
                what = "was dropped, and is there" if push is not None and push.dropped else "changed without a push"
                self._break(
                    "doubled", f"shard {shard}: column of {_push(story, push)} {what}: {increment / scheme.BASE:.2f}"
                )
            return
        assert push is not None
        placed = scheme.decode(increment, self.unit)
        if placed is not None and placed.gradients <= self.most:
            push.placed[shard] = placed
            self._steps[shard][placed.step].append((story, push))
        elif increment <= 0:
            self.verdict.lost += 1
            self._break("lost", f"shard {shard}: {_push(story, push)} was acknowledged, and is not there")
        else:
            self.verdict.doubled += 1
            self._break("doubled", f"shard {shard}: {_push(story, push)} is there {increment / scheme.BASE:.2f} times")

    def _whole(self, story: Story, look: Look) -> None:
        self.verdict.reads += len(look.own)
        self.verdict.torn += len(look.torn)
        for shard in look.torn:
            self._break("torn read", f"shard {shard}, life {story.column}: two variables of one shard differ")
        if look.versions != look.updates:
            self._break("version", f"life {story.column}: versions {look.versions}, updates {look.updates}")

    def _variables_agree(self) -> None:
        """All variables of a shard have the same pushes."""
        for shard, final in enumerate(self.finals):
            if final.first != final.second:
                self.verdict.torn += 1
                self._break("torn read", f"shard {shard}: two variables differ at the end")
            updates, _ = scheme.count_updates(final.first[0])
            if final.versions[0] != updates:
                self._break("version", f"shard {shard}: version {final.versions[0]} after {updates} updates")
            for column, row in enumerate(final.table):
                if any(one != final.first[column] for one in row):
                    self._break("part of a push", f"shard {shard}: row of life {column} is not as its column")
            for story in self.stories:
                mine = [push.placed[shard] for push in story.pushes if push.dense and shard in push.placed]
                dense = sum(scheme.increment_of(placed, self.unit) for placed in mine)
                if final.dense[story.column] != dense:
                    self._break("part of a push", f"shard {shard}: dense variable of life {story.column}")
            known = {story.column for story in self.stories}
            for column in range(1, scheme.COLUMNS):
                if final.first[column] and column not in known:
                    self._break("doubled", f"shard {shard}: column {column} of nobody is not 0")

    def _steps_add_up(self) -> None:
        """Column 0 has each update that pushes are known of, and no other; an update has the pushes that it says."""
        for shard, (final, steps) in enumerate(zip(self.finals, self._steps, strict=True)):
            updates, total = scheme.count_updates(final.first[0])
            if (updates, total) != (len(steps), sum(steps)):
                self._break(
                    "updates",
                    f"shard {shard}: {updates} updates, ledgers know {len(steps)} (steps: {total}, {sum(steps)})",
                )
            for step, pushes in steps.items():
                sizes = {push.placed[shard].gradients for _, push in pushes}
                if sizes != {len(pushes)}:
                    names = ", ".join(_push(story, push) for story, push in pushes)
                    self._break(
                        "updates", f"shard {shard}, step {step}: a mean of {sizes}, known are {len(pushes)}: {names}"
                    )

    # --- staleness ----------------------------------------------------------------------------------------------------

    def _staleness(self) -> None:
        """No applied push was staler than promised: updates before it, against those that its weights had seen."""
        bound = math.inf
        if isinstance(self.staleness, Dropped):
            bound = self.staleness.above
        if isinstance(self.consistency, Synchronous):
            bound = 0
        for shard, steps in enumerate(self._steps):
            order = sorted(steps)
            for step, pushes in steps.items():
                before = bisect.bisect_left(order, step)
                for story, push in pushes:
                    missed = before - push.seen[shard]
                    if missed < 0:
                        self._break("staleness", f"shard {shard}: {_push(story, push)} has seen what was not there yet")
                    self.verdict.worst = max(self.verdict.worst, missed)
                    if missed > bound:
                        self._break(
                            "too stale", f"shard {shard}: {_push(story, push)} was applied with staleness {missed}"
                        )
                    elif push.answered and missed > push.staleness:
                        self._break(
                            "staleness",
                            f"shard {shard}: {_push(story, push)} has staleness {missed}, its answer said {push.staleness}",
                        )

    # --- consistency --------------------------------------------------------------------------------------------------

    def _groups(self) -> None:
        """An update has exactly N gradients, but for the end of the data; and the same on all shards."""
        for step, pushes in sorted(self._steps[0].items()):
            if len(pushes) < self.most and not self._ending(pushes):
                names = ", ".join(_push(story, push) for story, push in pushes)
                self._break("group", f"step {step}: an update of {len(pushes)} gradients: {names}")
            for shard in range(1, len(self.finals)):
                there = {push.placed[shard].step for _, push in pushes if shard in push.placed}
                missing = [(story, push) for story, push in pushes if shard not in push.placed]
                if len(there) > 1:
                    self._break("group", f"step {step} of shard 0 is steps {sorted(there)} of shard {shard}")
                for story, push in missing:
                    if push.answered is not None:
                        self._break("group", f"shard {shard}: {_push(story, push)} is not in its update")
        for shard in range(1, len(self.finals)):
            for pushes in self._steps[shard].values():
                if len({push.placed[0].step for _, push in pushes if 0 in push.placed}) > 1:
                    self._break("group", f"shard {shard}: an update of pushes of several updates of shard 0")

    def _ending(self, pushes: Sequence[tuple[Story, Sent]]) -> bool:
        """Whether some worker had nothing to do when this update was made, as far as can be known."""
        begin = max(push.at for _, push in pushes)
        end = min((push.answered for _, push in pushes if push.answered is not None), default=math.inf)
        for story in self.stories:
            if story.ended is not None and story.ended <= end:
                return True
            for since, until, got in story.waits:
                slow = until is None or until - since > AT_ONCE or not got
                if slow and since <= end and (until is None or until >= begin):
                    return True
        return False

    def _bound(self, steps: int) -> None:
        """Between two pushes of one block of a worker, no other worker has more than twice the bound, and two."""
        for story in self.stories:
            for one, other in itertools.pairwise(story.pushes):
                if not (one.answered and other.answered and 0 in one.placed and 0 in other.placed):
                    continue
                if other.answered - one.at > self.lease / 2 or any(
                    one.at <= since <= other.answered for since, _, _ in story.waits
                ):
                    continue
                between = Counter(
                    theirs.column
                    for step in range(one.placed[0].step + 1, other.placed[0].step)
                    for theirs, _ in self._steps[0].get(step, [])
                )
                for column, count in between.items():
                    if count > 2 * steps + 2:
                        self._break("bound", f"life {column} has {count} pushes between two of life {story.column}")

    # --- workers and data ---------------------------------------------------------------------------------------------

    def _twins(self) -> None:
        """When a worker has joined, no push is taken any more of an older one of its name."""
        for older in self.stories:
            for newer in self.stories:
                if self._overtakes(newer, older) and newer.joined is not None:
                    late = [push for push in older.pushes if push.at > newer.joined and push.placed]
                    for push in late:
                        self._break("twin", f"{_push(older, push)} was taken after life {newer.column} had joined")

    def _overtakes(self, newer: Story, older: Story) -> bool:
        return newer.name == older.name and newer.incarnation > older.incarnation > 0

    def _ends(self) -> None:
        """Workers to which nothing was done that ends one come to their end."""
        for story in self.stories:
            overtaken = any(self._overtakes(newer, story) for newer in self.stories)
            if story.code not in (0, None) and not story.fate and not overtaken:
                self._break("failed", f"life {story.column} ({story.name}) ended with code {story.code}: {story.said}")
        if not self.complete:
            self._break("not done", "the job did not come to its end in time")

    def _data(self) -> None:
        """Every example of every epoch is trained, and once, unless its worker was hurt."""
        trained: dict[tuple[int, int], list[Story]] = defaultdict(list)
        for story in self.stories:
            for push in story.pushes:
                if push.answered is not None:
                    for example in push.examples:
                        trained[push.epoch, example].append(story)
            for epoch, examples in story.reports:
                if examples != self.examples:
                    self._break("epoch", f"epoch {epoch} is done with {examples} of {self.examples} examples")
        if not self.complete:
            return
        missing = self.epochs * self.examples - len(trained)
        if missing:
            self._break("examples", f"{missing} were never trained")
        for (epoch, example), lives in trained.items():
            self.verdict.twice += len(lives) - 1
            if len(lives) > 1 and not any(story.hurt for story in lives):
                self._break("examples", f"example {example} of epoch {epoch} was trained {len(lives)} times")


def _push(story: Story, push: Sent | None) -> str:
    return f"life {story.column}" if push is None else f"push {push.number} of life {story.column}"
