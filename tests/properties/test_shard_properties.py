"""Any interleaving of messages against the naive model: what is acknowledged is done once, what is refused changes
nothing, each example is handed out, and the same messages make the same shard, bit for bit.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pswire import errors
from pswire.messages import (
    Assign,
    Assigned,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Join,
    Leave,
    Outcome,
    Pull,
    Push,
    Pushed,
    QueueSpec,
    Register,
    Renew,
    Sender,
    Take,
    Tick,
)
from pswire.optimizers import Momentum
from pswire.tensors.values import TensorSpec
from tests.properties.bad_pushes import BAD_PUSHES, IN_THE_ELEMENTS
from tests.properties.model import BLOCK, EPOCHS, LEASE, SIZE, Model
from tests.properties.variables import (
    INITIAL,
    OPTIMIZERS,
    SHAPES,
    SIZES,
    declaration,
    full,
    gradient,
    gradients,
    integers,
    values,
)
from tests.properties.witness import Witness
from tests.shard_state import state_of

WORKERS = ("w0", "w1", "w2")
QUEUE = QueueSpec("mnist", SIZE, BLOCK, EPOCHS)

workers = st.sampled_from(WORKERS)


class AnyInterleaving(RuleBasedStateMachine):
    """Three workers, each of which may retry, die, come back, and be its own zombie."""

    def __init__(self):
        super().__init__()
        self.witness = Witness(LEASE)
        self.model = Model(INITIAL)
        self.zombies = []
        self.sequence = dict.fromkeys(WORKERS, 0)
        self.seen = {worker: dict.fromkeys(OPTIMIZERS, 0) for worker in WORKERS}
        self.sent = {worker: [] for worker in WORKERS}  # messages with a sequence number, carried out, of this life
        self.answers = {}

    # --- saying something -----------------------------------------------------------------------------------------

    def tell(self, message):
        answers, ticket = self.witness.tell(message, self.model.now)
        if hasattr(message, "sender"):
            self.model.renew(message.sender.worker)
        return answers, ticket

    def refused(self, message, error):
        self.witness.refused(message, self.model.now, error)

    def answer(self, message):
        """The answer to a message that is answered at once and sets nobody else free; None if nobody may say it."""
        if not self.model.live(message.sender.worker):
            self.refused(message, errors.NotJoined)
            return None
        answers, ticket = self.tell(message)
        assert list(answers) == [ticket]
        return answers[ticket]

    def me(self, worker):
        life = self.model.lives.get(worker)
        return Sender(worker, life.incarnation if life else 1)

    def next_sequence(self, worker, gap=1):
        self.sequence[worker] += gap
        return self.sequence[worker]

    # --- members --------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self):
        self.join("w0")
        assert self.answer(Register(self.me("w0"), tuple(map(declaration, SHAPES)))) is not None

    @rule(worker=workers)
    def join(self, worker):
        if worker in self.model.lives:
            self.zombies.append(self.me(worker))
        expected = self.model.join(worker)
        self.sequence[worker], self.sent[worker] = 0, []
        answers, ticket = self.tell(Join(worker))
        joined = answers.pop(ticket)
        assert (joined.incarnation, joined.number, joined.chief) == self.place(worker)
        assert (joined.lease, joined.global_step) == (LEASE, self.model.global_step)
        self.check_taken(answers, expected)

    @rule(worker=workers)
    def join_again(self, worker):
        """The same life: a retry of its join, or after it was lost."""
        if worker in self.model.lives:
            self.model.join_again(worker)
            answers, ticket = self.tell(Join(worker, self.model.lives[worker].incarnation))
            assert list(answers) == [ticket]
            joined = answers[ticket]
            assert (joined.incarnation, joined.number, joined.chief) == self.place(worker)

    def place(self, worker):
        life = self.model.lives[worker]
        return life.incarnation, life.number, worker == self.model.chief

    @rule(worker=workers, failed=st.booleans())
    def leave(self, worker, failed):
        message = Leave(self.me(worker), failed)
        if not self.model.live(worker):
            self.refused(message, errors.NotJoined)
            return
        expected = self.model.leave(worker, failed)
        answers, ticket = self.tell(message)
        answers.pop(ticket)
        self.check_taken(answers, expected)

    @rule(worker=workers)
    def renew(self, worker):
        answer = self.answer(Renew(self.me(worker)))
        if answer is not None:
            assert (answer.global_step, answer.chief) == (self.model.global_step, worker == self.model.chief)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0]), told=st.booleans())
    def pass_time(self, seconds, told):
        self.model.now += seconds
        if told:
            expected = self.model.lose()
            answers, _ = self.tell(Tick())
            for one in self.model.impatient():
                taken = answers.pop(one.ticket)
                assert (taken.block, taken.done, taken.chief) == (None, False, one.worker == self.model.chief)
                assert all(holder in taken.waiting_for for holder in self.model.held)
                self.check_reports(taken, self.model.reports[one.heard :])
            self.check_taken(answers, expected)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_zombie_is_refused(self, data):
        zombie = data.draw(st.sampled_from(self.zombies))
        sequence = data.draw(st.integers(1, 9))
        message = data.draw(
            st.sampled_from(
                [
                    Push(zombie, sequence, (Gradient("W", 0, np.ones(2)),)),
                    Assign(zombie, sequence, (Assignment("W", np.ones(2)),)),
                    Pull(zombie, ("W",)),
                    Register(zombie, (Declaration(TensorSpec("new", ()), np.float32(0)),)),
                    Take(zombie, QUEUE, Finished(0)),
                    Renew(zombie),
                    Leave(zombie),
                    Join(zombie.worker, zombie.incarnation),
                ]
            )
        )
        self.refused(message, errors.Zombie)

    # --- variables ------------------------------------------------------------------------------------------------

    @rule(worker=workers, number=integers)
    def register_late(self, worker, number):
        """Who comes later gets the value of now, whatever it brings."""
        spec = TensorSpec("W", SHAPES["W"], "float64")
        answer = self.answer(Register(self.me(worker), (Declaration(spec, full("W", number), OPTIMIZERS["W"]),)))
        if answer is not None:
            self.check_values(worker, answer.values, ["W"])

    @rule(worker=workers, shape=st.booleans())
    def register_another(self, worker, shape):
        spec = TensorSpec("W", (7,), "float64") if shape else TensorSpec("W", SHAPES["W"], "float64")
        message = Register(self.me(worker), (Declaration(spec, np.zeros(spec.shape), Momentum(learning_rate=1)),))
        self.refused(message, errors.AlreadyRegistered if self.model.live(worker) else errors.NotJoined)

    @rule(worker=workers, names=st.lists(st.sampled_from("".join(SHAPES)), unique=True))
    def pull(self, worker, names):
        answer = self.answer(Pull(self.me(worker), tuple(names)))
        if answer is not None:
            assert answer.global_step == self.model.global_step
            self.check_values(worker, answer.values, names)

    @rule(worker=workers, steps=st.lists(gradients, min_size=1, max_size=4), gap=st.integers(1, 3), pull=st.booleans())
    def train(self, worker, steps, gap, pull):
        for step in steps:
            self.push(worker, step, gap, pull)

    def push(self, worker, step, gap, pull):
        at = dict(self.seen[worker])
        chosen = tuple(Gradient(name, at[name], gradient(name, numbers)) for name, numbers in step.items())
        names = tuple(step) if pull else ()
        message = Push(self.me(worker), self.next_sequence(worker, gap), chosen, 0.5, names)
        answer = self.answer(message)
        if answer is None:
            return
        staleness = self.model.push(worker, step, at)
        assert (answer.outcome, answer.staleness) == (Outcome.APPLIED, staleness)
        assert answer.global_step == self.model.global_step
        self.check_values(worker, answer.values, names)
        self.remember(message, answer)

    @rule(worker=workers, values=values, add=st.booleans())
    def assign(self, worker, values, add):
        assignments = tuple(Assignment(name, full(name, number)) for name, number in values.items())
        message = Assign(self.me(worker), self.next_sequence(worker), assignments, add)
        answer = self.answer(message)
        if answer is None:
            return
        change = {name: [number] * SIZES[name] for name, number in values.items()}
        self.model.log.append(("assign_add" if add else "assign", change))
        versions = tuple(self.model.version(name) for name in values)
        assert answer == Assigned(Outcome.APPLIED, versions, self.model.global_step)
        self.remember(message, answer)

    @rule(worker=workers)
    def retry(self, worker):
        """Its last message once more: acknowledged as before, and not done again."""
        if not self.sent[worker]:
            return
        message = self.sent[worker][-1]
        answer = self.answer(message)
        if answer is None:
            return
        self.model.repeated += 1
        first = self.answers[message.sender, message.sequence]
        step = self.model.global_step if isinstance(answer, Pushed) else first.global_step
        assert (answer.outcome, answer.global_step) == (Outcome.REPEATED, step)
        if isinstance(answer, Pushed):
            assert answer.staleness == first.staleness
            self.check_values(worker, answer.values, message.pull)
        else:
            assert answer.versions == first.versions

    @rule(worker=workers, data=st.data(), kind=st.sampled_from([Push, Assign]))
    def too_late(self, worker, data, kind):
        """A message from before its last one, carried out or not."""
        if self.sent[worker] and self.model.live(worker):
            last = self.sent[worker][-1].sequence
            sequence = data.draw(st.integers(0, last - 1))
            content = Gradient("W", 0, np.ones(2)) if kind is Push else Assignment("W", np.ones(2))
            self.refused(kind(self.me(worker), sequence, (content,)), errors.OutOfOrder)

    @rule(worker=workers, what=st.sampled_from(sorted(BAD_PUSHES)), first=st.booleans())
    def bad_push(self, worker, what, first):
        bad, error = BAD_PUSHES[what]
        good = Gradient("M", self.seen[worker]["M"], np.ones(SHAPES["M"]))
        chosen = (*bad, good) if first else (good, *bad)
        message = Push(self.me(worker), self.next_sequence(worker), chosen, None, ("W", "nothing") if not bad else ())
        if self.model.live(worker):
            self.witness.refused(message, self.model.now, error, by_check=what not in IN_THE_ELEMENTS)
        else:
            self.refused(message, errors.NotJoined)

    def remember(self, message, answer):
        self.sent[message.sender.worker].append(message)
        self.answers[message.sender, message.sequence] = answer

    def check_values(self, worker, served, names):
        assert [value.name for value in served] == list(names)
        for value in served:
            assert value.version == self.model.version(value.name)
            expected = np.array(list(map(float, self.model.value(value.name)))).reshape(SHAPES[value.name])
            np.testing.assert_allclose(value.array, expected, rtol=1e-14, atol=1e-14)
            if value.name in OPTIMIZERS:
                assert value.version >= self.seen[worker][value.name], "versions never go back"
                self.seen[worker][value.name] = value.version

    # --- the data queue -------------------------------------------------------------------------------------------

    @rule(
        takers=st.lists(workers, min_size=1, max_size=6),
        cost=st.one_of(st.none(), st.integers(0, 9)),
        heard=st.integers(0, EPOCHS),
    )
    def read(self, takers, cost, heard):
        for worker in takers:
            self.take(worker, cost, heard)

    def take(self, worker, cost, heard=0):
        """The next block, with the one that it holds given back as done."""
        held = self.model.held.get(worker)
        self.say_take(worker, None if held is None else (held, cost), heard)

    @rule(worker=workers)
    def take_again(self, worker):
        """What it said last, once more: its answer was lost."""
        told = self.model.told.get(worker)
        self.say_take(worker, None if told is None else (told, 99))

    @rule(worker=workers, number=st.integers(0, 12))
    def finish_what_is_not_its_own(self, worker, number):
        if number != self.model.held.get(worker):
            self.say_take(worker, (number, 99))

    def say_take(self, worker, finished, heard=0):
        message = Take(self.me(worker), QUEUE, None if finished is None else Finished(*finished), heard)
        if not self.model.live(worker):
            self.refused(message, errors.NotJoined)
            return
        answers, ticket = self.tell(message)
        self.check_taken(answers, self.model.take(ticket, worker, finished, heard))

    def check_taken(self, answers, expected):
        ended = {ticket: one for ticket, one in answers.items() if isinstance(one, errors.ParamServerError)}
        assert {ticket: type(error).__name__ for ticket, error in ended.items()} == self.model.ended
        self.model.ended.clear()
        assert answers.keys() - ended.keys() == set(expected)
        for ticket, (number, done, reports, chief) in expected.items():
            taken = answers[ticket]
            assert (taken.done, taken.waiting_for, taken.chief) == (done, "", chief)
            assert (None if taken.block is None else taken.block.number) == number
            if number is not None:
                block = taken.block
                assert (block.epoch, block.start, block.stop) == self.model.blocks[number]
            self.check_reports(taken, reports)

    def check_reports(self, taken, reports):
        assert [(report.epoch, report.cost, report.examples) for report in taken.reports] == reports

    # --- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def status_is_the_models(self):
        if not self.model.lives:
            return
        report = self.witness.status(self.model.now)
        model = self.model
        assert (report.global_step, report.repeated) == (model.global_step, model.repeated)
        for one in report.variables:
            assert one.version == model.version(one.spec.name)
            assert one.updates == sum(kind == "push" and one.spec.name in change for kind, change in model.log)
        for one in report.workers:
            life = model.lives[one.name]
            assert (one.incarnation, one.number, one.chief, one.state) == (*self.place(one.name), life.state)
            assert (one.steps, one.staleness, one.staleness_sum) == (life.steps, life.staleness, life.staleness_sum)
            assert one.lease_left == (max(0.0, life.expires - model.now) if life.state == "live" else 0.0)
        assert [(epoch.epoch, epoch.cost, epoch.examples) for epoch in report.epochs] == model.reports

    def teardown(self):
        """At the end the rest of the data is read, by one more worker if one of the others is dead."""
        if not self.model.lives:
            return
        if self.model.deaths:
            self.pass_time(100, told=True)
            self.sequence["last"], self.sent["last"] = 0, []
            self.join("last")
        for worker in filter(self.model.live, [*WORKERS, "last"]):
            while worker in self.model.held or self.model.free:
                self.take(worker, 1)
        assert [epoch for epoch, _, _ in self.model.reports] == list(range(1, EPOCHS + 1))
        times = [len(holders) for holders in self.model.handed_out.values()]
        assert len(times) == len(self.model.blocks)
        assert max(times) == 1 or self.model.deaths
        assert state_of(self.witness.said_again()) == state_of(self.witness.shard)


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_any_interleaving_agrees_with_the_naive_model(examples):
    run_state_machine_as_test(
        AnyInterleaving,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
