"""The portions of one evaluation on shard 0: which are left, in the hands of workers, claimed, and counted. Pure.

    left -> out (with one worker, or also with another as a backup) -> claimed (by the first that is done) -> counted

A worker that is gone gives back what it had in hand. What it had claimed is to be computed again and pushed alone,
since its sum may have reached some of the other shards.
"""

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping

from pswire.messages import Evaluation, OutPortion, Portion, PortionsState, WorkerPortions
from pswire.tensors.sums import exact_sum

#: In place of a worker: portions that are left, and are no one's.
NOBODY = ""

#: Portions that a worker has in hand at most: one to compute, and the next.
MOST_HELD = 2


class Portions:
    """Hands out the portions of an evaluation.

    A worker gets first what it had in the evaluation before, as `had` says by portion, since it may have that data in
    memory. `workers` are those that are live. `backups` counts the portions that were given to a second worker, and
    `backups_won` those of which that one was first.
    """

    def __init__(self, evaluation: Evaluation, had: Mapping[int, str], workers: Container[str]) -> None:
        self.evaluation = evaluation
        self.backups = self.backups_won = 0
        self.had = dict(had)
        self._left: dict[str, deque[int]] = {}  # without empty ones
        self._out: dict[int, list[str]] = {}  # the holders of each, that is out for longest first
        self._single: dict[int, None] = {}  # those with one holder, in the same order
        self._held: dict[str, dict[int, None]] = {}
        self._claimed: dict[str, set[int]] = {}
        self._losses: dict[int, float] = {}  # of those that are claimed or counted
        self._alone: set[int] = set()
        for number in range(evaluation.portions):
            worker = had.get(number, NOBODY)
            self._left.setdefault(worker if worker in workers else NOBODY, deque()).append(number)

    def state(self) -> PortionsState:
        """All portions, without the counts of backups."""
        had: dict[str, list[int]] = {}
        for number, worker in sorted(self.had.items()):
            had.setdefault(worker, []).append(number)
        workers = {**self._left, **self._claimed, **had}  # those with portions left come first: their order decides
        return PortionsState(
            out=tuple([OutPortion(number, tuple(holders)) for number, holders in self._out.items()]),
            workers=tuple(
                [
                    WorkerPortions(
                        worker=worker,
                        left=tuple(self._left.get(worker, ())),
                        claimed=tuple(sorted(self._claimed.get(worker, ()))),
                        had=tuple(had.get(worker, ())),
                    )
                    for worker in workers
                ]
            ),
            losses=tuple([self._losses[number] for number in sorted(self._losses)]),
            alone=tuple(sorted(self._alone)),
        )

    @classmethod
    def restored(cls, evaluation: Evaluation, state: PortionsState, counted: Collection[int]) -> "Portions":
        """The portions of a `state`, of which these are counted."""
        had = {number: one.worker for one in state.workers for number in one.had}
        portions = cls(evaluation, had, ())
        portions._left = {one.worker: deque(one.left) for one in state.workers if one.left}
        for one in state.out:
            portions._out[one.number] = list(one.holders)
            for worker in one.holders:
                portions._held.setdefault(worker, {})[one.number] = None
        portions._single = {number: None for number, holders in portions._out.items() if len(holders) == 1}
        portions._claimed = {one.worker: set(one.claimed) for one in state.workers if one.claimed}
        claimed = {number for numbers in portions._claimed.values() for number in numbers}
        portions._losses = dict(zip(sorted(claimed.union(counted)), state.losses, strict=True))
        portions._alone = set(state.alone)
        return portions

    # --- handing out ----------------------------------------------------------------------------------------------

    def take(self, worker: str, holding: Collection[int]) -> Portion | None:
        """A portion for a worker that says what it has in hand; None: there is none for it now, or it has enough.

        One that it was given and does not name is given again: the answer was lost. A worker with nothing in hand and
        nothing to push gets a backup when no portion is left: the one that is out for longest, with one other worker.
        """
        held = self._held.get(worker, {})
        if lost := [number for number in held if number not in holding]:
            return self._portion(min(lost))
        if len(held) >= MOST_HELD:
            return None
        if (new := self._next(worker)) is not None:
            self._out[new], self._single[new] = [worker], None
        elif not (held or worker in self._claimed) and (new := self._backup(worker)) is not None:
            self._out[new].append(worker)
            del self._single[new]
            self.backups += 1
        if new is None:
            return None
        self._held.setdefault(worker, {})[new] = None
        return self._portion(new)

    def push_is_due(self, worker: str) -> bool:
        """Whether a worker should push its sum: there is nothing left for it to add."""
        return worker in self._claimed and not self._left and worker not in self._held

    def to_stop(self, worker: str, holding: Iterable[int]) -> tuple[int, ...]:
        """Of the portions that a worker has in hand, those that it need not compute any more."""
        held, claimed = self._held.get(worker, {}), self._claimed.get(worker, set())
        return tuple([n for n in holding if not (n in held or n in claimed or self._is_done_by(worker, n))])

    def _is_done_by(self, worker: str, number: int) -> bool:
        return number in self._losses and self.had.get(number) == worker

    def _next(self, worker: str) -> int | None:
        """The next portion: its own, else an unassigned one, else the last one of the worker with most of them."""
        if not self._left:
            return None
        owner = next((one for one in (worker, NOBODY) if one in self._left), None)
        if owner is not None:
            number = self._left[owner].popleft()
        else:
            owner = max(self._left, key=lambda one: len(self._left[one]))
            number = self._left[owner].pop()
        if not self._left[owner]:
            del self._left[owner]
        return number

    def _backup(self, worker: str) -> int | None:
        return next((number for number in self._single if self._out[number] != [worker]), None)

    def _portion(self, number: int) -> Portion:
        start = number * self.evaluation.portion
        stop = min(start + self.evaluation.portion, self.evaluation.examples)
        return Portion(number=number, start=start, stop=stop, alone=number in self._alone)

    # --- claims ---------------------------------------------------------------------------------------------------

    def claim(self, worker: str, number: int, loss: float) -> tuple[bool, list[str]]:
        """Whether the claim of a portion counts, and the other workers that had it in hand.

        The first one of a worker that holds the portion counts, and a repetition of it.
        """
        if number not in self._held.get(worker, ()):
            return number in self._claimed.get(worker, ()), []
        holders = self._out.pop(number)
        self._single.pop(number, None)
        for holder in holders:
            self._let_go(holder, number)
        self.backups_won += worker != holders[0]
        self._claimed.setdefault(worker, set()).add(number)
        self._losses[number], self.had[number] = loss, worker
        return True, [holder for holder in holders if holder != worker]

    def refusal(self, worker: str, numbers: Collection[int]) -> str:
        """Why the sum of these portions cannot be counted; "": it can."""
        claimed = self._claimed.get(worker, set())
        for number in numbers:
            if number not in claimed:
                return f"portion {number} is no claim of worker {worker!r}"
            if number in self._alone and len(numbers) > 1:
                return f"portion {number} is to be pushed alone"
        return ""

    def count(self, worker: str, numbers: Collection[int]) -> None:
        """Count the claims of a worker, whose sum has come."""
        self._unclaim(worker, numbers)

    def withdraw(self, worker: str, numbers: Iterable[int]) -> list[int]:
        """Hand out again the claims of a worker whose sum was dropped, to be pushed alone; others are ignored."""
        withdrawn = sorted(self._claimed.get(worker, set()).intersection(numbers))
        self._unclaim(worker, withdrawn)
        for number in withdrawn:
            del self._losses[number]
        self._alone.update(withdrawn)
        self._give_back(withdrawn)
        return withdrawn

    def release(self, worker: str) -> tuple[list[int], list[int]]:
        """Give back all portions of a worker; returns those that nobody has in hand now, and those it had claimed."""
        returned = []
        for number in sorted(self._held.pop(worker, ())):
            holders = self._out.pop(number)
            self._single.pop(number, None)
            holders.remove(worker)
            if holders:
                self._out[number], self._single[number] = holders, None
            else:
                returned.append(number)
        self._give_back(returned)
        claimed = self.withdraw(worker, self._claimed.get(worker, ()))
        if left := self._left.pop(worker, None):
            self._left.setdefault(NOBODY, deque()).extend(left)
        return returned, claimed

    def _let_go(self, worker: str, number: int) -> None:
        held = self._held[worker]
        del held[number]
        if not held:
            del self._held[worker]

    def _unclaim(self, worker: str, numbers: Collection[int]) -> None:
        if claimed := self._claimed.get(worker):
            claimed.difference_update(numbers)
            if not claimed:
                del self._claimed[worker]

    def _give_back(self, numbers: Collection[int]) -> None:
        """Hand out these portions before others that are nobody's."""
        if numbers:
            self._left.setdefault(NOBODY, deque()).extendleft(sorted(numbers, reverse=True))

    # --- how far it is --------------------------------------------------------------------------------------------

    @property
    def out(self) -> int:
        """The number of portions that workers have in hand."""
        return len(self._out)

    @property
    def claimed(self) -> int:
        """The number of claims whose sum has not come."""
        return sum(map(len, self._claimed.values()))

    def loss(self) -> float:
        """The sum of the losses of all claimed and counted portions, exactly rounded."""
        return exact_sum([self._losses[number] for number in sorted(self._losses)])

    def missing(self) -> list[str]:
        """The workers that others wait for, each with what it has: texts for people."""
        held = {worker: _named("portion", sorted(numbers)) for worker, numbers in self._held.items()}
        claimed = {worker: f"the sum of {len(numbers):,} to push" for worker, numbers in self._claimed.items()}
        texts = [
            f"{worker} ({' and '.join(one[worker] for one in (held, claimed) if worker in one)})"
            for worker in sorted({*held, *claimed})
        ]
        left = sum(map(len, self._left.values()))
        return [*texts, *[f"workers that take the {left:,} portions left"] * bool(left)]


def _named(thing: str, numbers: list[int]) -> str:
    """The first of some numbers, and how many others there are: "portion 3", "portions 3, 4 and 7 others"."""
    shown = ", ".join(map(str, numbers[:3]))
    others = f" and {len(numbers) - 3:,} others" if len(numbers) > 3 else ""
    return f"{thing}{'s' * (len(numbers) > 1)} {shown}{others}"
