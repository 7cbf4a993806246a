"""What a shard with three variables and one data queue ought to do, said naively and without a look at its code.

Every number is computed anew, in exact fractions, from the log of the changes that were acknowledged. The variables:
`W` follows plain gradient descent, with a learning rate of 1 that halves every `HALVING` pushes to the shard. `M`
follows momentum 1/2 with learning rate 1/2, and so does `E`, of which only rows are pushed: pairs of an index and its
row of `ROW` numbers. `A` is a moving average, half old, half new, and `c` has no optimizer.
"""

from dataclasses import dataclass, field
from fractions import Fraction

LEASE = 3.0
PATIENCE = 2.0
SIZE, BLOCK, EPOCHS = 3, 2, 2
HALVING = 4
ROW = 2

HALF = Fraction(1, 2)


@dataclass
class Life:
    """A worker's latest life."""

    incarnation: int
    number: int
    expires: float
    state: str = "live"
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0


@dataclass
class Parked:
    """A worker that waits for a block."""

    ticket: int
    worker: str
    since: float
    heard: int


@dataclass
class Model:
    """The shard as it ought to be."""

    initial: dict[str, list[int]]
    now: float = 0.0
    lives: dict[str, Life] = field(default_factory=dict)
    chief: str = ""
    deaths: int = 0
    log: list[tuple[str, dict[str, list[int]]]] = field(default_factory=list)
    repeated: int = 0
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    free: set[int] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    done: dict[int, int | None] = field(default_factory=dict)
    parked: list[Parked] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)  # calls that must have ended with an error of this class
    reports: list[tuple[int, float | None, int]] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)  # the block that each worker finished last
    handed_out: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # to whom, and to which life

    def __post_init__(self):
        self.blocks = [
            (epoch, start, min(start + BLOCK, SIZE))
            for epoch in range(1, EPOCHS + 1)
            for start in range(0, SIZE, BLOCK)
        ]
        self.free = set(range(len(self.blocks)))

    # --- members --------------------------------------------------------------------------------------------------

    def live(self, worker: str) -> bool:
        return worker in self.lives and self.lives[worker].state == "live"

    def join(self, worker: str) -> dict:
        before = self.lives.get(worker)
        if not any(map(self.live, self.lives)):
            self.chief = worker
        elif worker == self.chief and before.state == "left":
            self.chief = "the one that has done its work, and was this worker's life before"
        self.deaths += before is not None
        incarnation, number = (1, len(self.lives)) if before is None else (before.incarnation + 1, before.number)
        self.lives[worker] = Life(incarnation, number, self.now + LEASE)
        return self.gone([worker], "Zombie")

    def renew(self, worker: str) -> None:
        self.lives[worker].expires = self.now + LEASE

    def join_again(self, worker: str) -> None:
        life = self.lives[worker]
        life.state, life.expires = "live", self.now + LEASE
        self.appoint()

    def appoint(self, gone: tuple[str, ...] = ()) -> None:
        """In the place of a chief that is gone, or where there is none: the first of those that live."""
        if self.chief in ("", *gone):
            numbers = {life.number: worker for worker, life in self.lives.items() if life.state == "live"}
            self.chief = numbers[min(numbers)] if numbers else ""

    def leave(self, worker: str, failed: bool) -> dict:
        self.lives[worker].state = "left"
        self.deaths += 1
        if failed:
            self.appoint((worker,))
        return self.gone([worker])

    def lose(self) -> dict:
        """Ends the leases that are over."""
        lost = [worker for worker, life in self.lives.items() if life.state == "live" and life.expires < self.now]
        for worker in lost:
            self.lives[worker].state = "lost"
        self.deaths += len(lost)
        self.appoint(tuple(lost))
        return self.gone(lost)

    def gone(self, workers: list[str], error: str = "NotJoined") -> dict:
        self.ended.update({one.ticket: error for one in self.parked if one.worker in workers})
        self.parked = [one for one in self.parked if one.worker not in workers]
        for worker in workers:
            if worker in self.held:
                self.free.add(self.held.pop(worker))
        return self.freed()

    # --- variables ------------------------------------------------------------------------------------------------

    def version(self, name: str) -> int:
        return sum(name in change for _, change in self.log)

    @property
    def global_step(self) -> int:
        return sum(kind == "push" for kind, _ in self.log)

    def value(self, name: str) -> list[Fraction]:
        """By going through the log from its beginning."""
        value = [Fraction(number) for number in self.initial[name]]
        momentum = [Fraction(0)] * len(value)
        step = -1
        for kind, change in self.log:
            step += kind == "push"
            if name not in change:
                continue
            numbers = change[name]
            if kind == "assign":
                value = [Fraction(number) for number in numbers]
            elif kind == "assign_add":
                value = [v + number for v, number in zip(value, numbers, strict=True)]
            elif name == "W":
                rate = HALF ** (step // HALVING)
                value = [v - rate * number for v, number in zip(value, numbers, strict=True)]
            elif name == "A":
                value = [HALF * v + HALF * number for v, number in zip(value, numbers, strict=True)]
            elif name == "M":
                momentum = [HALF * m + number for m, number in zip(momentum, numbers, strict=True)]
                value = [v - HALF * m for v, m in zip(value, momentum, strict=True)]
            else:
                for row in {index for index, _ in numbers}:
                    for column in range(ROW):
                        place = row * ROW + column
                        total = sum(given[column] for index, given in numbers if index == row)
                        momentum[place] = HALF * momentum[place] + total
                        value[place] -= HALF * momentum[place]
        return value

    def push(self, worker: str, gradients: dict[str, list[int]], at: dict[str, int]) -> int:
        """Its staleness."""
        staleness = max([self.version(name) - at[name] for name in gradients], default=0)
        life = self.lives[worker]
        life.steps += 1
        life.staleness = staleness
        life.staleness_sum += staleness
        self.log.append(("push", gradients))
        return staleness

    # --- the data queue -------------------------------------------------------------------------------------------

    def take(self, ticket: int, worker: str, finished: tuple[int, int | None] | None, heard: int) -> dict:
        """Whom this sets free: ticket -> (number of the block or None, whether all is done, reports, is it chief)."""
        if finished is not None and self.held.get(worker) == finished[0]:
            self.finish(worker, finished[1])
        new = Parked(ticket, worker, self.now, heard)
        if worker in [one.worker for one in self.parked]:
            self.ended.update({one.ticket: "Unavailable" for one in self.parked if one.worker == worker})
            self.parked = [new if one.worker == worker else one for one in self.parked]
        else:
            self.parked.append(new)
        return self.freed()

    def finish(self, worker: str, cost: int | None) -> None:
        self.told[worker] = self.held.pop(worker)
        self.done[self.told[worker]] = cost
        for epoch in range(1, EPOCHS + 1):
            numbers = [n for n, block in enumerate(self.blocks) if block[0] == epoch]
            if not all(n in self.done for n in numbers):
                break
            if epoch > len(self.reports):
                self.reports.append((epoch, self.mean_cost(numbers), SIZE))

    def mean_cost(self, numbers: list[int]) -> float | None:
        with_cost = [n for n in numbers if self.done[n] is not None]
        examples = sum(self.blocks[n][2] - self.blocks[n][1] for n in with_cost)
        return sum(self.done[n] for n in with_cost) / examples if examples else None

    def freed(self) -> dict:
        answers = {}
        for one in list(self.parked):
            if one.worker not in self.held and self.free:
                number = self.held[one.worker] = min(self.free)
                self.free.remove(number)
                self.handed_out.setdefault(number, set()).add((one.worker, self.lives[one.worker].incarnation))
            number = self.held.get(one.worker)
            if number is not None or len(self.done) == len(self.blocks):
                answers[one.ticket] = number, number is None, self.reports[one.heard :], one.worker == self.chief
                self.parked.remove(one)
        return answers

    def impatient(self) -> list[Parked]:
        """Those who have waited for long, and are to be told for whom."""
        told = [one for one in self.parked if self.now - one.since >= PATIENCE]
        self.parked = [one for one in self.parked if one not in told]
        return told
