"""What a shard ought to do with pushes that race, wait for each other or are dropped, said naively.

Every value is computed anew, in exact fractions, from the log of what was acknowledged. The variables: `W` follows
plain gradient descent, whose learning rate can be tuned; `M` follows momentum 1/2 with learning rate 1/2, and so does
the table `E`, of which only rows are pushed. Knows `pswire.specs.consistency`, and nothing of the policies that carry
it out.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from pswire.specs.consistency import Bounded, Consistency, DropStalePushes, ScaleByStaleness, StalenessSpec, Synchronous

LEASE = 3.0
SIZES = {"W": 2, "M": 3, "E": 6}
ROW = 2  # numbers in a row of E
HALF = Fraction(1, 2)


@dataclass
class Life:
    """A worker's latest life; `clock` is its step in the race, `through` says that it was in it and went in order."""

    incarnation: int
    expires: float
    state: str = "live"
    racing: bool = False
    through: bool = False
    clock: int = 0
    steps: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Fate:
    """What became of a push: with whom it was applied, or nobody if it was dropped."""

    staleness: int
    global_step: int
    group: tuple[str, ...]


@dataclass
class Held:
    """A push that has not been settled."""

    ticket: int
    worker: str
    gradients: dict
    at: dict[str, int]
    fate: Fate | None = None


@dataclass
class RaceModel:
    """The shard as it ought to be. `log` has what was done: updates with their scale, values set, learning rates.

    `ended` has the tickets of the calls that must have ended with an error since somebody looked, and its class.
    """

    consistency: Consistency
    handling: StalenessSpec
    now: float = 0.0
    lives: dict[str, Life] = field(default_factory=dict)
    line: int = 0
    held: list[Held] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    settled: dict[str, Fate] = field(default_factory=dict)
    log: list[tuple] = field(default_factory=list)
    known: dict[tuple[str, int], tuple] = field(default_factory=dict)  # values, at a length of the log

    # --- members --------------------------------------------------------------------------------------------------

    def live(self, worker):
        return worker in self.lives and self.lives[worker].state == "live"

    def join(self, worker):
        """A new life; where nobody lives, of the next job, to which those through with the last do not count."""
        if not any(life.state == "live" for life in self.lives.values()):
            for life in self.lives.values():
                life.through = False
        incarnation = 1
        if worker in self.lives:
            self.stop(self.lives[worker])
            incarnation = self.lives[worker].incarnation + 1
        self.lives[worker] = Life(incarnation, self.now + LEASE)
        self.settled.pop(worker, None)
        self.give_up(worker, "Zombie")
        return self.go_on()

    def leave(self, worker, failed=False):
        life = self.lives[worker]
        if failed:
            self.stop(life)
            life.through = False
        else:
            self.rest(life)
        life.state = "left"
        self.give_up(worker, "NotJoined")
        return self.go_on()

    def idle(self, worker):
        self.rest(self.lives[worker])
        self.give_up(worker)
        return self.go_on()

    def lose(self):
        for worker, life in self.lives.items():
            if life.state == "live" and life.expires < self.now:
                life.state = "lost"
                self.stop(life)
                self.give_up(worker, "NotJoined")
        return self.go_on()

    def give_up(self, worker, why="Unavailable"):
        self.ended.update({one.ticket: why for one in self.held if one.worker == worker})
        self.held = [one for one in self.held if one.worker != worker]

    # --- the race -------------------------------------------------------------------------------------------------

    @property
    def racers(self):
        return [life for life in self.lives.values() if life.racing]

    @property
    def least(self):
        return min([life.clock for life in self.racers], default=self.line)

    def rest(self, life):
        life.through |= life.racing or life.clock > 0
        self.stop(life)

    def stop(self, life):
        self.line = self.least
        life.racing = False

    def push(self, ticket, worker, gradients, at):
        """Whom this sets free."""
        life = self.lives[worker]
        if not life.racing:
            life.clock = max(life.clock, self.least)
            life.racing, life.through = True, False
        self.give_up(worker)
        self.held.append(Held(ticket, worker, gradients, at))
        return self.go_on()

    def assign(self, worker, name, number):
        """Whom this sets free: those whose weights have seen a change too many."""
        self.give_up(worker)
        self.log.append(("assign", [{name: number}]))
        return self.go_on()

    def go_on(self):
        """Settles who may go, one update after the other, until nobody may."""
        freed = {}
        while True:
            late, going = self.next()
            if not late and not going:
                return freed
            staleness = max([self.staleness(one) for one in going], default=0)
            if isinstance(self.handling, DropStalePushes) and staleness > self.handling.above:
                late, going = [*late, *going], []
            for one in late:
                self.lives[one.worker].dropped += 1
                self.settle(one, Fate(self.staleness(one), self.global_step, ()), freed)
            if not going:
                continue
            scale = Fraction(1, max(1, staleness)) if isinstance(self.handling, ScaleByStaleness) else Fraction(1)
            stalenesses = [self.staleness(one) for one in going]
            self.log.append(("push", [one.gradients for one in going], scale))
            group = tuple(one.worker for one in going)
            for one, mine in zip(going, stalenesses, strict=True):
                self.lives[one.worker].steps += 1
                self.settle(one, Fate(mine, self.global_step, group), freed)

    def settle(self, one, fate, freed):
        one.fate = fate
        self.held.remove(one)
        self.lives[one.worker].clock += 1
        self.settled[one.worker] = fate
        freed[one.ticket] = one

    def next(self):
        """Those who are dropped for being late, and those who make the next update together."""
        if isinstance(self.consistency, Synchronous):
            late = [one for one in self.held if self.staleness(one)]
            timely = [one for one in self.held if one not in late]
            return late, timely[: self.wanted] if len(timely) >= self.wanted else []
        going = list(self.held)
        if isinstance(self.consistency, Bounded):
            going = self.within_the_bound(going)
        return [], going[:1]

    @property
    def wanted(self):
        """How many gradients make an update of the synchronous kind."""
        ending = any(life.through for life in self.lives.values())
        fewest = max(1, len(self.racers)) if ending else self.consistency.workers
        return min(self.consistency.workers, fewest)

    def within_the_bound(self, going):
        """All of them, but those who would then be too far ahead, and those who would be without these, and so on."""
        while True:
            after = {id(life): life.clock for life in self.racers}
            for one in going:
                life = self.lives[one.worker]
                after[id(life)] = life.clock + 1
            floor = min([after[id(life)] for life in self.racers], default=self.least + 1)
            kept = [one for one in going if self.lives[one.worker].clock + 1 <= floor + self.consistency.steps]
            if kept == going:
                return going
            going = kept

    # --- variables ------------------------------------------------------------------------------------------------

    @property
    def global_step(self):
        return sum(kind == "push" for kind, *_ in self.log)

    def version(self, name):
        return sum(kind != "tune" and any(name in given for given in content) for kind, content, *_ in self.log)

    def staleness(self, one):
        return max([self.version(name) - one.at[name] for name in one.gradients], default=0)

    def value(self, name, initial):
        """The value, and its momentum."""
        if (name, len(self.log)) not in self.known:
            self.known[name, len(self.log)] = self.replayed(name, initial)
        return self.known[name, len(self.log)]

    def replayed(self, name, initial):
        """By going through the log from its beginning."""
        value = [Fraction(initial)] * SIZES[name]
        momentum = [Fraction(0)] * len(value)
        rate = Fraction(1)
        for kind, content, *scale in self.log:
            if kind == "tune":
                rate = content
            elif not any(name in given for given in content):
                continue
            elif kind == "assign":
                value = [Fraction(content[0][name])] * len(value)
            else:
                for place, number in self.mean(name, content).items():
                    if name == "W":
                        value[place] -= scale[0] * rate * number
                    else:
                        momentum[place] = HALF * momentum[place] + number
                        value[place] -= scale[0] * HALF * momentum[place]
        return value, momentum

    def mean(self, name, pushes):
        """The mean over the pushes that have a gradient for it, at each place; rows that one has not are zero in it."""
        total = {}
        pushes = [given for given in pushes if name in given]
        for given in pushes:
            if name == "E":
                numbers = [
                    (row * ROW + i, number) for row, both in given.get(name, ()) for i, number in enumerate(both)
                ]
            else:
                numbers = enumerate(given.get(name, ()))
            for place, number in numbers:
                total[place] = total.get(place, 0) + Fraction(number, len(pushes))
        return total
