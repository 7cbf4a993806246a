"""The expected behaviour of a shard with one data queue, computed naively and independently of its code.

Every value is computed anew, in exact fractions, from the log of the changes that were acknowledged. The variables: `W`
follows plain gradient descent, whose learning rate of 1 halves every `HALVING` updates until it is tuned. `M` follows
momentum 1/2 with learning rate 1/2, and so does the table `E`, of which only rows are pushed: pairs of an index and its
row of `ROW` numbers. `A` is a moving average, half old, half new, and `c` has no optimizer. Knows
`pswire.specs.consistency`, and nothing of the policies that carry it out.
"""

from collections import namedtuple
from fractions import Fraction

from pswire.specs.consistency import Bounded, DropStalePushes, ScaleByStaleness, Synchronous

LEASE, MAX_WAIT_SECONDS = 3.0, 2.0
SIZE, BLOCK, EPOCHS = 7, 4, 3
HALVING, ROW = 4, 2
HALF = Fraction(1, 2)

#: A worker that waits for a block.
Waiting = namedtuple("Waiting", "ticket worker since reports_received")

#: The answer to a Take: number of a block; or all is done; or neither, for one that waits.
Taking = namedtuple("Taking", "number done reports chief")


class Life:
    """A worker's latest life. `finished`: it trained and stopped in good order, or was `out_of_data`."""

    def __init__(self, incarnation, number, expires):
        self.incarnation, self.number, self.expires, self.state = incarnation, number, expires, "live"
        self.training = self.finished = self.out_of_data = False
        self.clock = self.steps = self.dropped = self.staleness = self.staleness_sum = 0


class Held:
    """A push; once settled with its staleness and the workers whose pushes made the update (none if dropped).

    `progress`: (number of a block, the place to which its examples are done, their cost), if the push tells.
    """

    def __init__(self, worker, gradients, at, progress):
        self.worker, self.gradients, self.at, self.staleness, self.group = worker, gradients, at, 0, None
        self.progress = progress


class Model:
    """The expected state.

    `due`: the answers that must have come, by ticket; for an error the name of its class. `log`: (push, gradients,
    scale), (assign or add, values), (tune, rate). `starts`: of each block, the first example that is not done. `parts`:
    (epoch, number of examples, cost) of all that is done; `noted`: (end, cost) of the latest push of each worker with a
    block. `handed_out`: the lives that each block went to. `known`: values at a length of the log.
    """

    def __init__(self, consistency, staleness, initial):
        self.consistency, self.staleness, self.initial = consistency, staleness, initial
        self.now, self.chief, self.deaths, self.last_clock, self.repeated = 0.0, "", 0, 0, 0
        self.lives, self.held, self.due, self.log, self.known = {}, {}, {}, [], {}
        starts = range(0, SIZE, BLOCK)
        self.blocks = [(epoch, at, min(at + BLOCK, SIZE)) for epoch in range(1, EPOCHS + 1) for at in starts]
        self.free, self.out, self.parts, self.waiting = set(range(len(self.blocks))), {}, [], []
        self.starts, self.noted = [start for _, start, _ in self.blocks], {}
        self.reports, self.finished_last, self.handed_out = [], {}, {}

    # --- members --------------------------------------------------------------------------------------------------

    def live(self, worker):
        return worker in self.lives and self.lives[worker].state == "live"

    def join(self, worker):
        before = self.lives.get(worker)
        if not any(map(self.live, self.lives)):  # a new job
            self.chief = worker
            for life in self.lives.values():
                life.finished = life.out_of_data = False
        elif worker == self.chief and before.state == "left":
            self.chief = "an earlier life of this worker, which has finished its work"
        incarnation, number = 1, len(self.lives)
        if before is not None:
            self.stop(before)
            self.deaths += 1
            incarnation, number = before.incarnation + 1, before.number
        self.lives[worker] = Life(incarnation, number, self.now + LEASE)
        self.gone([worker], "Zombie")

    def join_again(self, worker):
        life = self.lives[worker]
        life.state, life.expires = "live", self.now + LEASE
        self.elect()

    def elect(self, gone=()):
        """In place of a chief that is gone, or where there is none: the first of those that live."""
        if self.chief in ("", *gone):
            numbers = {life.number: worker for worker, life in self.lives.items() if life.state == "live"}
            self.chief = numbers[min(numbers)] if numbers else ""

    def leave(self, worker, failed):
        life = self.lives[worker]
        self.deaths += 1
        if failed:
            self.stop(life)
            life.finished &= life.out_of_data
        else:
            self.rest(life)
        life.state = "left"
        if failed:
            self.elect((worker,))
        self.gone([worker], "NotJoined")

    def idle(self, worker):
        self.rest(self.lives[worker])
        self.abandon([worker])
        self.go_on()

    def tick(self):
        """Ends the leases that are over, then answers those who have waited for long."""
        lost = [worker for worker, life in self.lives.items() if life.state == "live" and life.expires < self.now]
        for worker in lost:
            self.lives[worker].state = "lost"
            self.stop(self.lives[worker])
        self.deaths += len(lost)
        self.elect(tuple(lost))
        self.gone(lost, "NotJoined")
        for one in [one for one in self.waiting if self.now - one.since >= MAX_WAIT_SECONDS]:
            self.waiting.remove(one)
            self.answer(one, None, done=False)

    def gone(self, workers, error):
        self.abandon(workers, error)
        self.due.update({one.ticket: error for one in self.waiting if one.worker in workers})
        self.waiting = [one for one in self.waiting if one.worker not in workers]
        for worker in workers:
            if worker in self.out:
                number = self.out[worker]
                self.done(worker, *self.noted.get(worker, (self.starts[number], None)))
                if self.starts[number] < self.blocks[number][2]:
                    self.free.add(number)
        self.hand_out()
        self.go_on()

    # --- progress -------------------------------------------------------------------------------------------------

    @property
    def training(self):
        return [life for life in self.lives.values() if life.training]

    @property
    def least_clock(self):
        return min([life.clock for life in self.training], default=self.last_clock)

    @property
    def ending(self):
        return any(life.finished for life in self.lives.values())

    def rest(self, life, out_of_data=False):
        if life.training or life.clock or out_of_data:
            life.finished, life.out_of_data = True, life.out_of_data or out_of_data
        self.stop(life)

    def stop(self, life):
        self.last_clock = self.least_clock
        life.training = False

    # --- pushes ---------------------------------------------------------------------------------------------------

    def push(self, ticket, worker, gradients, at, progress):
        life = self.lives[worker]
        if not gradients:
            self.abandon([worker])
            self.held[ticket] = Held(worker, gradients, at, progress)
            self.settle(ticket, life.staleness, (worker,), empty=True)
            self.go_on()
            return
        if not life.training:
            life.clock = max(life.clock, self.least_clock)
            life.training, life.finished, life.out_of_data = True, False, False
        self.abandon([worker])
        self.held[ticket] = Held(worker, gradients, at, progress)
        self.go_on()

    def change(self, worker, *entry):
        """An assign or a tune; one of its worker's held push is the last."""
        self.abandon([worker])
        self.log.append(entry)
        if entry[0] != "tune":
            self.go_on()  # pushes may be too late by it

    def abandon(self, workers, error="Unavailable"):
        for ticket in [ticket for ticket, one in self.held.items() if one.worker in workers]:
            del self.held[ticket]
            self.due[ticket] = error

    def go_on(self):
        """Settles what may go, one update after the other, until nothing may."""
        while True:
            late, going = self.next()
            if not late and not going:
                return
            stalenesses = {ticket: self.late_by(self.held[ticket]) for ticket in (*late, *going)}
            most = max([stalenesses[ticket] for ticket in going], default=0)
            if isinstance(self.staleness, DropStalePushes) and most > self.staleness.above:
                late, going = [*late, *going], []
            for ticket in late:
                self.settle(ticket, stalenesses[ticket], ())
            if going:
                scale = Fraction(1, max(1, most)) if isinstance(self.staleness, ScaleByStaleness) else Fraction(1)
                pushes = [self.held[ticket] for ticket in going]
                self.log.append(("push", [one.gradients for one in pushes], scale))
                for ticket in going:
                    self.settle(ticket, stalenesses[ticket], tuple(one.worker for one in pushes))

    def settle(self, ticket, staleness, group, *, empty=False):
        one = self.due[ticket] = self.held.pop(ticket)
        one.staleness, one.group = 0 if empty else staleness, group
        life = self.lives[one.worker]
        life.clock += not empty
        if one.progress is not None:
            number, end, cost = one.progress
            if self.out.get(one.worker) == number and end >= self.noted.get(one.worker, (self.starts[number],))[0]:
                self.noted[one.worker] = end, cost
        if group:
            life.steps, life.staleness = life.steps + 1, staleness
            life.staleness_sum += one.staleness
        else:
            life.dropped += 1

    def next(self):
        """Tickets of those who are dropped for being late, and of those who make the next update together."""
        if isinstance(self.consistency, Synchronous):
            late = [ticket for ticket, one in self.held.items() if self.late_by(one)]
            timely = [ticket for ticket in self.held if ticket not in late]
            fewest = max(1, len(self.training)) if self.ending else self.consistency.workers
            size = min(self.consistency.workers, fewest)
            return late, timely[:size] if len(timely) >= size else []
        going = list(self.held)
        if isinstance(self.consistency, Bounded):
            going = self.within_the_bound(going)
        return [], going[:1]

    def within_the_bound(self, going):
        """All, but those who would then be too far ahead, and those who would be without these, and so on."""
        while True:
            after = {id(life): life.clock for life in self.training}
            after |= {id(life): life.clock + 1 for life in (self.lives[self.held[ticket].worker] for ticket in going)}
            floor = min([after[id(life)] for life in self.training], default=self.least_clock + 1)
            most = floor + self.consistency.steps
            kept = [ticket for ticket in going if self.lives[self.held[ticket].worker].clock < most]
            if kept == going:
                return going
            going = kept

    # --- variables ------------------------------------------------------------------------------------------------

    @property
    def global_step(self):
        return self.updates()

    def updates(self, name=None):
        pushes = [content for kind, content, *_ in self.log if kind == "push"]
        return sum(name is None or any(name in given for given in gradients) for gradients in pushes)

    def version(self, name):
        return self.updates(name) + sum(kind.startswith("assign") and name in what for kind, what, *_ in self.log)

    def late_by(self, one):
        return max([self.version(name) - one.at[name] for name in one.gradients], default=0)

    def value(self, name):
        """The value, and its momentum."""
        if (name, len(self.log)) not in self.known:
            self.known[name, len(self.log)] = self.replayed(name)
        return self.known[name, len(self.log)]

    def replayed(self, name):
        """By going through the log from its beginning."""
        value = [Fraction(number) for number in self.initial[name]]
        momentum = [Fraction(0)] * len(value)
        tuned, step = None, -1
        for kind, content, *scale in self.log:
            step += kind == "push"
            if kind == "tune":
                tuned = Fraction(content)
            elif kind == "push":
                rate = HALF ** (step // HALVING) if tuned is None else tuned
                for place, number in mean(name, content).items():
                    if name == "A":
                        value[place] = HALF * value[place] + HALF * number
                    elif name == "W":
                        value[place] -= scale[0] * rate * number
                    else:
                        momentum[place] = HALF * momentum[place] + number
                        value[place] -= scale[0] * HALF * momentum[place]
            elif name in content:
                old = value if kind == "assign_add" else [0] * len(value)
                value = [Fraction(before + number) for before, number in zip(old, content[name], strict=True)]
        return value, momentum

    # --- the data queue -------------------------------------------------------------------------------------------

    def take(self, ticket, worker, finished, reports_received):
        if finished is not None and self.out.get(worker) == finished[0]:
            self.finish(worker, finished[1])
        new = Waiting(ticket, worker, self.now, reports_received)
        if worker in [one.worker for one in self.waiting]:
            self.due.update({one.ticket: "Unavailable" for one in self.waiting if one.worker == worker})
            self.waiting = [new if one.worker == worker else one for one in self.waiting]
        else:
            self.waiting.append(new)
        self.hand_out()
        if new in self.waiting:  # its next push is not waited for
            self.rest(self.lives[worker], out_of_data=True)
            self.abandon([worker])
            self.go_on()

    def finish(self, worker, cost):
        self.finished_last[worker] = self.out[worker]
        self.done(worker, self.blocks[self.out[worker]][2], cost)

    def done(self, worker, end, cost):
        """The block of this worker is done to `end`, and not the worker's any more."""
        number = self.out.pop(worker)
        self.noted.pop(worker, None)
        if end > self.starts[number]:
            self.parts.append((self.blocks[number][0], end - self.starts[number], cost))
        self.starts[number] = end
        for epoch in range(len(self.reports) + 1, EPOCHS + 1):
            parts = [(examples, cost) for of, examples, cost in self.parts if of == epoch]
            if sum(examples for examples, _ in parts) < SIZE:
                break
            known = [(examples, cost) for examples, cost in parts if cost is not None]
            examples, cost = map(sum, zip(*known, strict=True)) if known else (0, 0)
            self.reports.append((epoch, cost / examples if known else None, SIZE))

    def held_from(self):
        """The position where each worker's block begins, as it got it."""
        return {worker: self.starts[number] for worker, number in self.out.items()}

    def hand_out(self):
        for one in list(self.waiting):
            if one.worker not in self.out and self.free:
                number = self.out[one.worker] = min(self.free)
                self.free.remove(number)
                self.handed_out.setdefault(number, set()).add((one.worker, self.lives[one.worker].incarnation))
            if one.worker in self.out or sum(examples for _, examples, _ in self.parts) == SIZE * EPOCHS:
                self.waiting.remove(one)
                self.answer(one, self.out.get(one.worker), done=one.worker not in self.out)
        for worker in self.out:
            self.lives[worker].finished = self.lives[worker].out_of_data = False

    def answer(self, one, number, done):
        self.due[one.ticket] = Taking(number, done, self.reports[one.reports_received :], one.worker == self.chief)


def mean(name, pushes):
    """The mean over the pushes that have a gradient for it, by place; rows that one has not are zero in it."""
    pushes = [given[name] for given in pushes if name in given]
    total = {}
    for given in pushes:
        numbers = enumerate(given)
        if name == "E":
            numbers = [(row * ROW + column, number) for row, both in given for column, number in enumerate(both)]
        for place, number in numbers:
            total[place] = total.get(place, 0) + Fraction(number, len(pushes))
    return total
