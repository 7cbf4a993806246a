"""Any interleaving of messages under each consistency against the naive model of a shard.

What is acknowledged is done once, by itself or as part of a mean; what is refused changes nothing; no worker gets
further ahead than the bound; an update has its number of gradients; each example is done once; and the same messages
make the same shard, bit for bit.
"""

import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pswire import errors, messages
from pswire.messages import Assign, Finished, Outcome, Push, Sender
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.consistency import Bounded, ScaleByStaleness, Synchronous, parse_consistency, parse_staleness
from pswire.specs.initializers import RowConstant
from pswire.specs.schedules import ExponentialDecay
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.properties.model import BLOCK, EPOCHS, HALVING, LEASE, ROW, SIZE, Held, Model, Taking
from tests.support.combinations import few_fast
from tests.support.shards import new_shard, restored, run_step, state_of

WORKERS = ("w0", "w1", "w2")
QUEUE = messages.QueueSpec(name="mnist", size=SIZE, block=BLOCK, epochs=EPOCHS)

# --- the variables of the model -----------------------------------------------------------------------------------

SHAPES = {"W": (2,), "M": (1, 3), "E": (3, ROW), "A": (2,), "c": (2,)}
SIZES = {name: math.prod(shape) for name, shape in SHAPES.items()}
OPTIMIZERS = {
    "W": GradientDescent(ExponentialDecay(1, decay_steps=HALVING, decay_rate=0.5, staircase=True)),
    "M": Momentum(learning_rate=0.5, momentum=0.5),
    "E": Momentum(learning_rate=0.5, momentum=0.5),
    "A": MovingAverage(decay=0.5),
}
INITIAL = {name: [number] * SIZES[name] for number, name in enumerate(SHAPES, 1)}

#: Multiples of 6: the mean of two or three is a whole number, too.
sixes = st.integers(-4, 4).map(lambda number: 6 * number)
gradients = st.fixed_dictionaries(
    {},
    optional={name: st.lists(sixes, min_size=SIZES[name], max_size=SIZES[name]) for name in "WMA"}
    | {"E": st.lists(st.tuples(st.integers(0, 2), st.tuples(sixes, sixes)), max_size=4)},
)
#: Whether it is for the worker's own block, else for which; how many of the block's examples are done; their cost.
progress = st.tuples(st.sampled_from([True, True, False]), st.integers(0, 5), st.integers(1, 4), st.integers(0, 9))
values = st.dictionaries(st.sampled_from("".join(SHAPES)), sixes, min_size=1)


def declaration(name, number=None):
    """The variable with its initial value, or this number everywhere."""
    spec, number = TensorSpec(name, SHAPES[name], "float64"), INITIAL[name][0] if number is None else number
    if name == "E":
        return messages.Declaration(spec, None, OPTIMIZERS[name], RowConstant(float(INITIAL["E"][0])))
    return messages.Declaration(spec, full(name, number), OPTIMIZERS.get(name))


def gradient(name, numbers, version):
    """As `gradients` draws it: `E` has pairs of an index and its row, and an index may come again."""
    array = np.array([row for _, row in numbers] if name == "E" else numbers, np.float64)
    if name != "E":
        return messages.Gradient(name, version, array.reshape(SHAPES[name]))
    indices = np.array([index for index, _ in numbers], np.int32)
    return messages.Gradient(name, version, IndexedSlices(array.reshape(len(numbers), ROW), indices, SHAPES[name]))


def full(name, number):
    """An array of the variable's shape with one number everywhere."""
    return np.full(SHAPES[name], float(number))


def bad_gradient(name, values, *indices, dtype="f8", version=0):
    """A gradient for the variable; with indices rows as they come over the wire, where these are anything."""
    array = np.array(values, dtype)
    if indices:
        array = IndexedSlices(array, np.array(indices), (3, array.shape[1]), check_range=False)
    return messages.Gradient(name, version, array)


#: Gradients that must be refused, by their fault, and the error. The last three are in the elements.
BAD_PUSHES = {
    "unknown variable": ([bad_gradient("nothing", [0, 0])], errors.UnknownVariable),
    "rows of another dtype": ([bad_gradient("E", [[1, 1]], 0, dtype="f4")], errors.ShapeMismatch),
    "from the future": ([bad_gradient("W", [0, 0], version=1000)], errors.InvalidMessage),
    "unknown value asked for": ([], errors.UnknownVariable),
    "infinity": ([bad_gradient("W", [-np.inf, np.inf])], errors.NotFinite),
    "NaN in a row": ([bad_gradient("E", [[1, 1], [np.nan, 1]], 2, 2)], errors.NotFinite),
    "row above": ([bad_gradient("E", [[1, 1], [1, 1]], 0, 3)], errors.InvalidMessage),
}
IN_THE_ELEMENTS = set(list(BAD_PUSHES)[-3:])

workers = st.sampled_from(WORKERS)
names = st.sampled_from(sorted(SHAPES))


class AnyInterleaving(RuleBasedStateMachine):
    """Three workers, each of which may retry, be idle, die, come back, and be its own zombie."""

    def __init__(self, consistency, staleness):
        super().__init__()
        options = {"consistency": parse_consistency(consistency), "staleness": parse_staleness(staleness)}
        self.new_shard = partial(new_shard, lease=LEASE, **options)
        self.shard, self.model = self.new_shard(), Model(**options, initial=INITIAL)
        self.history = []  # ticket, message, time and replies of each step
        self.zombies, self.restarts = [], 0
        self.sequence = {}
        self.seen = {worker: dict.fromkeys(SHAPES, 0) for worker in (*WORKERS, "last")}
        self.last_push = {}  # of each life: message, gradients, versions; held, settled or abandoned
        self.settled = {}  # of each life the last message with a sequence number that was settled, and its answer
        self.ever_ending = False
        for worker in WORKERS:
            self.join(worker)
        self.register("w0", sorted(SHAPES), None)

    # --- one message ----------------------------------------------------------------------------------------------

    def me(self, worker):
        life = self.model.lives.get(worker)
        return Sender(worker, life.incarnation if life else 1)

    def next_sequence(self, worker, gap=1):
        self.sequence[worker] += gap
        return self.sequence[worker]

    def step(self, message):
        """The answers by ticket, and this message's ticket."""
        ticket = len(self.history) + 1
        replies = run_step(self.shard, ticket, message, self.model.now)
        self.history.append((ticket, message, self.model.now, state_of(replies)))
        return {reply.ticket: reply.answer for reply in replies}, ticket

    def refused(self, message, error, *, by_check=True):
        """The shard must refuse the message, as `check` does, and not change in any bit.

        Without `by_check` the elements are wrong: `check`, which looks at none, must not refuse it.
        """
        sender = getattr(message, "sender", None)
        if error is not errors.Zombie and sender is not None and not self.model.live(sender.worker):
            error, by_check = errors.NotJoined, True
        before = state_of(self.shard)
        with pytest.raises(error) as refusal:
            run_step(self.shard, 0, message, self.model.now)
        if not by_check:
            self.shard.check(message)
        else:
            with pytest.raises(error, match=f"^{re.escape(str(refusal.value))}$"):
                self.shard.check(message)
        assert state_of(self.shard) == before, "refused, but something has changed"

    def send(self, message, happens=None):
        """Its answer, if it has one of its own; None if its worker is not live.

        `happens` does in the model what must happen, given the ticket; nothing else may be answered.
        """
        sender = getattr(message, "sender", None)
        if sender is not None and not self.model.live(sender.worker):
            self.refused(message, errors.NotJoined)
            return None
        before = state_of(self.shard)
        self.shard.check(message)
        assert state_of(self.shard) == before, "a check has changed something"
        answers, ticket = self.step(message)
        if sender is not None:
            self.model.lives[sender.worker].expires = self.model.now + LEASE
        if happens is not None:
            happens(ticket)
        due, self.model.due = self.model.due, {}
        own = None if ticket in due else answers.pop(ticket, None)
        assert answers.keys() == due.keys()
        for ticket, expected in due.items():
            if isinstance(expected, str):
                assert type(answers[ticket]).__name__ == expected
            elif isinstance(expected, Taking):
                self.check_taken(answers[ticket], expected)
            else:
                self.settled[expected.worker] = self.last_push[expected.worker][0], expected
                assert answers[ticket].outcome is (Outcome.APPLIED if expected.group else Outcome.DROPPED)
                self.check_settled(answers[ticket], expected, self.last_push[expected.worker][0].pull)
        return own

    def check_settled(self, answer, push, pull):
        assert bool(answer.reason) == (not push.group)
        assert (answer.staleness, answer.global_step) == (push.staleness, self.model.global_step)
        group = () if answer.group is None else tuple(member.sender.worker for member in answer.group.members)
        assert group == (push.group if len(push.group) > 1 else ())
        self.check_values(push.worker, answer.values, pull)

    def check_taken(self, taken, expected):
        assert (taken.done, taken.chief) == (expected.done, expected.chief)
        assert [(report.epoch, report.cost, report.examples) for report in taken.reports] == expected.reports
        if expected.number is not None:
            block = taken.block
            epoch, _, stop = self.model.blocks[expected.number]
            start = self.model.starts[expected.number]
            assert (block.number, block.epoch, block.start, block.stop) == (expected.number, epoch, start, stop)
        else:
            assert taken.block is None
            assert bool(taken.waiting_for) == (not expected.done)
            assert expected.done or all(holder in taken.waiting_for for holder in self.model.out)

    def check_values(self, worker, served, expected):
        assert [value.name for value in served] == list(expected)
        for value in served:
            assert value.version == self.model.version(value.name) >= self.seen[worker][value.name]
            self.seen[worker][value.name] = value.version
            self.check_array(value.array, self.model.value(value.name)[0], SHAPES[value.name])

    def check_array(self, array, expected, shape):
        """Within 2**-40 where all is a sum of small integers over powers of 2, of which float64 drops the last places.

        Where learning rates are divided by 3, 5 and so on, each of some 100 updates rounds numbers below 2**13, to 53
        places: in all by less than 100 * 2**(13 - 53) * 4, with the steps in between.
        """
        atol = 400 * 2.0**-40 if isinstance(self.model.staleness, ScaleByStaleness) else 2.0**-40
        np.testing.assert_allclose(array, np.array(list(map(float, expected))).reshape(shape), rtol=0, atol=atol)

    # --- members --------------------------------------------------------------------------------------------------

    @rule(worker=workers)
    def join(self, worker):
        if worker in self.model.lives:
            self.zombies.append(self.me(worker))
        before = self.model.global_step
        self.sequence[worker] = 0
        self.last_push.pop(worker, None)
        self.settled.pop(worker, None)
        self.model.join(worker)
        joined = self.send(messages.Join(worker=worker, resume=True, name_key=b"key"))
        self.check_joined(worker, joined)
        assert (joined.lease, joined.global_step) == (LEASE, before)
        assert (joined.consistency, joined.staleness) == (str(self.model.consistency), str(self.model.staleness))

    @rule(worker=workers)
    def join_again(self, worker):
        """The same life: a retry of its join, or after it was lost, or had left."""
        self.model.join_again(worker)
        self.check_joined(
            worker, self.send(messages.Join(worker=worker, incarnation=self.model.lives[worker].incarnation))
        )

    def check_joined(self, worker, joined):
        life = self.model.lives[worker]
        expected = life.incarnation, life.number, worker == self.model.chief
        assert (joined.incarnation, joined.number, joined.chief) == expected

    @rule(worker=workers, failed=st.booleans())
    def leave(self, worker, failed):
        self.send(messages.Leave(self.me(worker), failed), lambda _: self.model.leave(worker, failed))

    @rule(worker=workers, idle=st.booleans())
    def renew(self, worker, idle):
        """Idle also while a push of it is held, which it has then abandoned."""
        answer = self.send(
            messages.Renew(sender=self.me(worker), idle=idle), lambda _: idle and self.model.idle(worker)
        )
        if answer is not None:
            assert (answer.global_step, answer.chief) == (self.model.global_step, worker == self.model.chief)
            assert bool(answer.waiting_for) == any(one.worker == worker for one in self.model.held.values())

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0]), tick=st.booleans())
    def pass_time(self, seconds, tick):
        self.model.now += seconds
        if tick:
            self.send(self.shard.due(self.model.now), lambda _: self.model.tick())

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), sequence=st.integers(1, 9))
    def a_zombie_is_refused(self, data, sequence):
        zombie = data.draw(st.sampled_from(self.zombies))
        all_kinds = [
            Push(sender=zombie, sequence=sequence, gradients=(gradient("W", [6, 6], 0),)),
            Assign(sender=zombie, sequence=sequence, assignments=(messages.Assignment("W", np.ones(2)),)),
            messages.Tune(
                sender=zombie,
                sequence=sequence,
                names=("W",),
                optimizer=GradientDescent(8.0),
                fields=("learning_rate",),
            ),
            messages.Pull(sender=zombie, names=("W",)),
            messages.Register(sender=zombie, declarations=(declaration("W"),)),
            messages.Take(sender=zombie, queue=QUEUE, finished=Finished(0)),
            messages.Renew(sender=zombie, idle=True),
            messages.Leave(zombie),
            messages.Join(worker=zombie.worker, incarnation=zombie.incarnation),
        ]
        self.refused(data.draw(st.sampled_from(all_kinds)), errors.Zombie)

    # --- variables ------------------------------------------------------------------------------------------------

    @rule(worker=workers, names=st.lists(names, unique=True, min_size=1), number=sixes)
    def register(self, worker, names, number):
        """A worker that comes later gets the present values, whatever it brings and whatever was tuned since."""
        answer = self.send(
            messages.Register(sender=self.me(worker), declarations=tuple(declaration(name, number) for name in names))
        )
        if answer is not None:
            self.check_values(worker, answer.values, [name for name in names if name != "E"])

    @rule(worker=workers, names=st.lists(names, unique=True), rows=st.lists(st.integers(0, 2), max_size=4))
    def pull(self, worker, names, rows):
        """Whole variables, rows of the table, and a slot; also while a push of the worker is held."""
        choices = (messages.Choice("E", np.array(rows, np.int64)), messages.Choice("M", slot="momentum"))
        answer = self.send(messages.Pull(sender=self.me(worker), names=tuple(names), choices=choices))
        if answer is None:
            return
        *whole, chosen, slot = answer.values
        assert answer.global_step == self.model.global_step
        self.check_values(worker, whole, names)
        table = self.model.value("E")[0]
        self.check_array(chosen.array, [table[row * ROW + i] for row in rows for i in range(ROW)], (len(rows), ROW))
        self.check_array(slot.array, self.model.value("M")[1], SHAPES["M"])
        assert (chosen.version, slot.version) == (self.model.version("E"), self.model.version("M"))

    @rule(
        pushes=st.lists(st.tuples(workers, gradients, st.one_of(st.none(), progress)), min_size=2, max_size=8),
        gap=st.integers(1, 3),
        pull=st.sampled_from([(), tuple(SHAPES)]),
    )
    def train(self, pushes, gap, pull):
        for worker, numbers, done in pushes:
            self.train_one(worker, numbers, done, gap, pull)

    @rule(worker=workers, numbers=gradients, done=st.lists(progress, min_size=1, max_size=2), failed=st.booleans())
    def leave_in_the_middle_of_a_block(self, worker, numbers, done, failed):
        if self.model.live(worker) and worker not in self.model.out:
            self.take(worker, None)
        for one in done:
            self.train_one(worker, numbers, one)
        self.leave(worker, failed)

    def train_one(self, worker, numbers, done, gap=1, pull=()):
        if not self.model.live(worker):
            self.join_again(worker)
        at = dict(self.seen[worker])
        chosen = tuple(gradient(name, given, at[name]) for name, given in numbers.items())
        notes = () if done is None else self.progress(worker, *done)
        push = Push(
            sender=self.me(worker),
            sequence=self.next_sequence(worker, gap),
            gradients=chosen,
            loss=0.5,
            pull=pull,
            progress=notes,
        )
        self.push(push, numbers, at)

    def progress(self, worker, own, number, examples, cost):
        """Of its own block, or of one that it may not hold; a cost of 9 is not known."""
        number = self.model.out.get(worker, number) if own else number
        _, start, stop = self.model.blocks[number]
        return (
            messages.Progress(
                queue="mnist", block=number, position=min(start + examples, stop), cost_sum=None if cost == 9 else cost
            ),
        )

    def push(self, message, numbers, at):
        worker = message.sender.worker
        if self.model.live(worker):
            self.last_push[worker] = message, numbers, at
        done = [(one.block, one.position, one.cost_sum) for one in message.progress]
        self.send(message, lambda ticket: self.model.push(ticket, worker, numbers, at, *done or [None]))

    @rule(worker=workers)
    def retry(self, worker):
        """Its last push once more: it is applied if it was abandoned, and stays held if it was."""
        if worker in self.last_push and self.last_push[worker][0] is not self.settled.get(worker, [None])[0]:
            self.push(*self.last_push[worker])

    @rule(worker=workers)
    def retry_a_settled_message(self, worker):
        """Acknowledged as before, and not done again; a later push of the worker that is held stays so."""
        if worker not in self.settled:
            return
        message, first = self.settled[worker]
        answer = self.send(message)
        if answer is None:
            return
        self.model.repeated += 1
        if isinstance(first, Held):
            assert answer.outcome is (Outcome.REPEATED if first.group else Outcome.DROPPED)
            self.check_settled(answer, first, message.pull)
        else:
            assert answer == first

    @rule(worker=workers, data=st.data(), kind=st.sampled_from([Push, Assign]))
    def a_message_from_before_the_last_one_is_refused(self, worker, data, kind):
        if worker in self.settled:
            sequence = data.draw(st.integers(0, self.settled[worker][0].sequence - 1))
            if kind is Push:
                content = {"gradients": (gradient("W", [1, 1], 0),)}
            else:
                content = {"assignments": (messages.Assignment("W", np.ones(2)),)}
            self.refused(kind(sender=self.me(worker), sequence=sequence, **content), errors.OutOfOrder)

    @rule(worker=workers, fault=st.sampled_from(sorted(BAD_PUSHES)), first=st.booleans())
    def a_bad_push_is_refused(self, worker, fault, first):
        bad, error = BAD_PUSHES[fault]
        good = gradient("M", [1, 1, 1], self.seen[worker]["M"])
        chosen = (*bad, good) if first else (good, *bad)
        message = Push(
            sender=self.me(worker),
            sequence=self.next_sequence(worker),
            gradients=chosen,
            loss=None,
            pull=("W", "nothing") if not bad else (),
        )
        self.refused(message, error, by_check=fault not in IN_THE_ELEMENTS)

    @rule(worker=workers, values=values, add=st.booleans())
    def assign(self, worker, values, add):
        """Also while a push of the worker is held, which is then abandoned, and too late from then on."""
        assignments = tuple(messages.Assignment(name, full(name, number)) for name, number in values.items())
        change = {name: [number] * SIZES[name] for name, number in values.items()}
        message, before = (
            Assign(sender=self.me(worker), sequence=self.next_sequence(worker), assignments=assignments, add=add),
            self.model.global_step,
        )
        kind = "assign_add" if add else "assign"
        answer = self.send(message, lambda _: self.model.change(worker, kind, change))
        if answer is not None:
            versions = tuple(self.model.version(name) for name in values)
            assert answer == messages.Assigned(outcome=Outcome.APPLIED, versions=versions, global_step=before)
            self.settle(message, messages.Assigned(outcome=Outcome.REPEATED, versions=versions, global_step=before))

    @rule(worker=workers, rate=st.sampled_from([1, 2, 0.5]))
    def tune(self, worker, rate):
        optimizer = GradientDescent(float(rate))
        message = messages.Tune(
            sender=self.me(worker),
            sequence=self.next_sequence(worker),
            names=("W",),
            optimizer=optimizer,
            fields=("learning_rate",),
        )
        answer = self.send(message, lambda _: self.model.change(worker, "tune", rate))
        if answer is not None:
            assert answer == messages.Tuned(Outcome.APPLIED, self.model.global_step)
            self.settle(message, messages.Tuned(Outcome.REPEATED, self.model.global_step))

    def settle(self, message, repeated):
        worker = message.sender.worker
        self.settled[worker] = message, repeated
        if worker in self.last_push:
            self.refused(self.last_push.pop(worker)[0], errors.OutOfOrder)

    # --- the data queue -------------------------------------------------------------------------------------------

    @rule(
        takers=st.lists(workers, min_size=1, max_size=6),
        cost=st.one_of(st.none(), st.integers(0, 9)),
        reports_received=st.integers(0, EPOCHS),
    )
    def read(self, takers, cost, reports_received):
        """The next block, with the one that each holds given back as done."""
        for worker in takers:
            held = self.model.out.get(worker)
            self.take(worker, None if held is None else (held, cost), reports_received)

    @rule(worker=workers, number=st.one_of(st.none(), st.integers(0, 12)))
    def take_with_a_block_that_is_not_its_own(self, worker, number):
        """Or, for None, with the one that it finished last, because the answer was lost."""
        number = self.model.finished_last.get(worker) if number is None else number
        if number is None or number != self.model.out.get(worker):
            self.take(worker, None if number is None else (number, 99))

    def take(self, worker, finished, reports_received=0):
        done = None if finished is None else Finished(*finished)
        message = messages.Take(sender=self.me(worker), queue=QUEUE, finished=done, reports_received=reports_received)
        assert self.send(message, lambda ticket: self.model.take(ticket, worker, finished, reports_received)) is None

    @precondition(lambda self: all(self.model.lives[one.worker].out_of_data for one in self.model.waiting))
    @rule()
    def restart(self):
        """The shard goes on from its state as another one; leases, and the waits of those that wait, begin anew.

        Not while a worker waits for examples and has pushed since: then its request makes it out of data once more.
        """
        new, model = self.new_shard(), self.model
        assert restored(self.shard, new, model.now) == [], "what waited waits on"
        assert new.state() == self.shard.state()
        assert state_of(new._store) == state_of(self.shard._store)
        assert [message for _, message in new.waiting()] == [message for _, message in self.shard.waiting()]
        self.shard, self.restarts = new, self.restarts + 1
        for life in model.lives.values():
            if life.state == "live":
                life.expires = model.now + LEASE
        model.waiting = [one._replace(since=model.now) for one in model.waiting]

    # --- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_consistency_holds(self):
        clocks = [life.clock for life in self.model.training]
        if isinstance(self.model.consistency, Bounded) and clocks:
            assert max(clocks) - min(clocks) <= self.model.consistency.steps
        if isinstance(self.model.consistency, Synchronous):
            self.ever_ending |= self.model.ending
            sizes = {len(content) for kind, content, *_ in self.model.log if kind == "push"}
            assert max(sizes, default=0) <= self.model.consistency.workers
            assert self.ever_ending or sizes <= {self.model.consistency.workers}

    @invariant()
    def the_status_is_the_models(self):
        (report,), model = self.step(messages.Status())[0].values(), self.model
        assert (report.global_step, report.repeated) == (model.global_step, model.repeated)
        for one in report.variables:
            assert (one.version, one.updates) == (model.version(one.spec.name), model.updates(one.spec.name))
        held = {one.worker for one in model.held.values()}
        for one in report.workers:
            life = model.lives[one.name]
            chief = one.name == model.chief
            assert (one.incarnation, one.number, one.chief) == (life.incarnation, life.number, chief)
            assert (one.state, one.steps, one.dropped) == (life.state, life.steps, life.dropped)
            assert (one.staleness, one.staleness_sum) == (life.staleness, life.staleness_sum)
            assert bool(one.waiting_for) == (one.name in held)
            assert one.lease_left == (max(0.0, life.expires - model.now) if life.state == "live" else 0.0)
        assert [(epoch.epoch, epoch.cost, epoch.examples) for epoch in report.epochs] == model.reports
        for queue in report.queues:
            held = [model.noted.get(name, (start,))[0] - start for name, start in model.held_from().items()]
            assert queue.done == sum(examples for _, examples, _ in model.parts) + sum(held)
            assert (queue.epoch, queue.blocks_out) == (min(len(model.reports) + 1, EPOCHS), len(model.out))

    def teardown(self):
        """The data is read to its end, by another worker at last. Held pushes are answered if there were enough."""
        model = self.model
        self.read_all(WORKERS)
        if not model.deaths:
            assert [len(lives) for lives in model.handed_out.values()] == [1] * len(model.blocks)
        for worker in WORKERS:
            if worker not in [one.worker for one in model.held.values()]:
                self.leave(worker, failed=False)
        if model.held:
            assert len(model.held) < model.consistency.workers
            assert not model.ending, "no worker has ever finished"
        self.pass_time(100, tick=True)
        self.join("last")
        self.read_all(["last"])
        assert [epoch for epoch, _, _ in model.reports] == list(range(1, EPOCHS + 1))
        assert len(model.handed_out) == len(model.blocks)
        again = self.new_shard()
        for ticket, message, now, replies in self.history:
            answers = state_of(run_step(again, ticket, message, now))
            assert answers == replies or (self.restarts and isinstance(message, messages.Status))
        assert again.state() == self.shard.state(), "the same messages make the same shard, in every bit"
        assert state_of(again._store) == state_of(self.shard._store)
        assert self.restarts or state_of(again) == state_of(self.shard)

    def read_all(self, readers):
        for worker in filter(self.model.live, readers):
            while worker in self.model.out or self.model.free:
                self.read([worker], 1, 0)


JOBS = ["async scale", "bounded:0 drop:1", "sync:2,backup=1 none"]
MORE = ["async none", "async drop:1", "bounded:0 none", "bounded:2 none", "bounded:2 scale", "bounded:2 drop:1"]
MORE += ["sync:2 none", "sync:2,backup=1 scale", "sync:3 none", "sync:3 drop:1"]


@pytest.mark.parametrize(("examples", "steps"), few_fast([(2, 20), (5, 40), (30, 40)]))
@pytest.mark.parametrize("job", few_fast([*JOBS, *MORE], 3))
def test_any_interleaving_agrees_with_the_naive_model(job, examples, steps):
    run_state_machine_as_test(
        lambda: AnyInterleaving(*job.split()),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
