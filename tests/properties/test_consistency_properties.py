"""Any interleaving of workers under each consistency against the naive model: who waits, is dropped, and is applied.

What is acknowledged is in the values once, by itself or as part of a mean; nobody gets further ahead than the bound;
an update has its number of gradients; and the same messages make the same shard, bit for bit.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pswire import errors
from pswire.messages import (
    Assign,
    Assigned,
    Assignment,
    Choice,
    Declaration,
    Gradient,
    Join,
    Leave,
    Outcome,
    Pull,
    Push,
    Register,
    Renew,
    Sender,
    Tick,
    Tune,
    Tuned,
)
from pswire.optimizers import GradientDescent, Momentum
from pswire.specs.consistency import Bounded, ScaleByStaleness, Synchronous, parse_consistency, parse_staleness
from pswire.specs.initializers import RowConstant
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.properties.race_model import LEASE, ROW, RaceModel
from tests.properties.witness import Witness
from tests.shard_state import state_of

WORKERS = ("w0", "w1", "w2")
SHAPES = {"W": (2,), "M": (3,), "E": (3, ROW)}
INITIAL = {"W": 1, "M": 2, "E": 3}

workers = st.sampled_from(WORKERS)
#: Multiples of 6: the mean of two or three is a whole number, too.
sixes = st.integers(-4, 4).map(lambda number: 6 * number)
gradients = st.fixed_dictionaries(
    {},
    optional={
        "W": st.lists(sixes, min_size=2, max_size=2),
        "M": st.lists(sixes, min_size=3, max_size=3),
        "E": st.lists(st.tuples(st.integers(0, 2), st.tuples(sixes, sixes)), max_size=4),
    },
)


def declaration(name):
    spec = TensorSpec(name, SHAPES[name], "float64")
    if name == "E":
        return Declaration(spec, None, Momentum(0.5, 0.5), RowConstant(float(INITIAL[name])))
    optimizer = GradientDescent(1.0) if name == "W" else Momentum(0.5, 0.5)
    return Declaration(spec, np.full(SHAPES[name], float(INITIAL[name])), optimizer)


def gradient(name, numbers, version):
    if name != "E":
        return Gradient(name, version, np.array(numbers, np.float64))
    values = np.array([row for _, row in numbers], np.float64).reshape(len(numbers), ROW)
    return Gradient(name, version, IndexedSlices(values, np.array([i for i, _ in numbers], np.int64), SHAPES[name]))


class Race(RuleBasedStateMachine):
    """Three workers, each of which may retry, rest, die, come back, and be its own zombie."""

    def __init__(self, consistency, handling):
        super().__init__()
        options = {"consistency": parse_consistency(consistency), "staleness": parse_staleness(handling)}
        self.witness = Witness(LEASE, **options)
        self.model = RaceModel(options["consistency"], options["staleness"])
        self.zombies = []
        self.sequence = dict.fromkeys(WORKERS, 0)
        self.seen = {worker: dict.fromkeys(SHAPES, 0) for worker in WORKERS}
        self.said = {}  # the last push of each life, held or settled
        self.acknowledged = {}  # the last that was settled, if nothing else was said with a sequence number since
        self.versions = dict.fromkeys(SHAPES, 0)
        self.ending = False  # whether somebody was ever through
        for worker in WORKERS:
            self.join(worker)
        self.register("w0", sorted(SHAPES))

    # --- saying something -----------------------------------------------------------------------------------------

    def me(self, worker):
        life = self.model.lives.get(worker)
        return Sender(worker, life.incarnation if life else 1)

    def next_sequence(self, worker):
        self.sequence[worker] += 1
        return self.sequence[worker]

    def tell(self, message):
        """The answers by ticket, and this message's ticket; (None, None) if nobody may say it."""
        sender = getattr(message, "sender", None)
        if sender is not None and not self.model.live(sender.worker):
            self.witness.refused(message, self.model.now, errors.NotJoined)
            return None, None
        answers, ticket = self.witness.tell(message, self.model.now)
        if sender is not None:
            self.model.lives[sender.worker].expires = self.model.now + LEASE
        return answers, ticket

    def answer(self, message):
        """The answer to what is answered at once, and sets nobody else free."""
        answers, ticket = self.tell(message)
        assert answers is None or list(answers) == [ticket]
        return answers and answers[ticket]

    def check_freed(self, answers, freed):
        """The pushes that were settled by a message, those that have ended with an error, and nothing else."""
        ended = {ticket: one for ticket, one in answers.items() if isinstance(one, errors.ParamServerError)}
        assert {ticket: type(error).__name__ for ticket, error in ended.items()} == self.model.ended
        self.model.ended.clear()
        assert answers.keys() - ended.keys() == set(freed)
        for ticket, one in freed.items():
            self.acknowledged[one.worker] = self.said[one.worker]
            assert answers[ticket].outcome is (Outcome.APPLIED if one.fate.group else Outcome.DROPPED)
            self.check_fate(one.worker, answers[ticket], one.fate)

    def check_fate(self, worker, answer, fate):
        assert bool(answer.reason) == (not fate.group)
        assert (answer.staleness, answer.global_step) == (fate.staleness, self.model.global_step)
        workers = () if answer.group is None else tuple(member.sender.worker for member in answer.group.members)
        assert workers == (fate.group if len(fate.group) > 1 else ())
        self.check_values(worker, answer.values, SHAPES)

    def check_values(self, worker, served, names):
        assert [value.name for value in served] == list(names)
        for value in served:
            assert value.version == self.model.version(value.name) >= self.seen[worker][value.name]
            expected, _ = self.model.value(value.name, INITIAL[value.name])
            self.check_array(value.array, expected, SHAPES[value.name])
            self.seen[worker][value.name] = value.version

    def check_array(self, array, expected, shape):
        """Within 2**-40 where all is a sum of small integers over powers of 2, of which float64 drops the last places.

        Where learning rates are divided by 3, 5 and so on, each of some 100 updates rounds numbers below 2**13, to 53
        places: in all by less than 100 * 2**(13 - 53) * 4, with the steps in between.
        """
        atol = 400 * 2.0**-40 if isinstance(self.model.handling, ScaleByStaleness) else 2.0**-40
        np.testing.assert_allclose(array, np.array(list(map(float, expected))).reshape(shape), rtol=0, atol=atol)

    # --- members --------------------------------------------------------------------------------------------------

    @rule(worker=workers)
    def join(self, worker):
        if worker in self.model.lives:
            self.zombies.append(self.me(worker))
        before = self.model.global_step
        freed = self.model.join(worker)
        self.sequence[worker] = 0
        self.said.pop(worker, None)
        self.acknowledged.pop(worker, None)
        answers, ticket = self.tell(Join(worker))
        joined = answers.pop(ticket)
        assert (joined.incarnation, joined.global_step) == (self.me(worker).incarnation, before)
        assert (joined.consistency, joined.staleness) == (str(self.model.consistency), str(self.model.handling))
        self.check_freed(answers, freed)

    @rule(worker=workers)
    def join_again(self, worker):
        """The same life: a retry of its join, or after it was lost, or had left."""
        life = self.model.lives[worker]
        life.state, life.expires = "live", self.model.now + LEASE
        answers, ticket = self.tell(Join(worker, life.incarnation))
        assert list(answers) == [ticket]

    @rule(worker=workers, failed=st.booleans())
    def leave(self, worker, failed=False):
        self.stop(Leave(self.me(worker), failed), partial(self.model.leave, failed=failed))

    @rule(worker=workers)
    def idle(self, worker):
        """Also while it waits, for a push that it has given up."""
        self.stop(Renew(self.me(worker), idle=True), self.model.idle)

    def stop(self, message, happens):
        answers, ticket = self.tell(message)
        if answers is not None:
            answers.pop(ticket)
            self.check_freed(answers, happens(message.sender.worker))

    @rule(worker=workers)
    def renew(self, worker):
        answer = self.answer(Renew(self.me(worker)))
        if answer is not None:
            assert bool(answer.waiting_for) == any(one.worker == worker for one in self.model.held)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    def pass_time(self, seconds):
        self.model.now += seconds
        freed = self.model.lose()
        answers, _ = self.tell(Tick())
        self.check_freed(answers, freed)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), sequence=st.integers(1, 9))
    def a_zombie_is_refused(self, data, sequence):
        zombie = data.draw(st.sampled_from(self.zombies))
        messages = [
            Push(zombie, sequence, (gradient("W", [6, 6], 0),)),
            Assign(zombie, sequence, (Assignment("W", np.ones(2)),)),
            Tune(zombie, sequence, ("W",), GradientDescent(8.0), ("learning_rate",)),
            Pull(zombie, ("W",)),
            Register(zombie, (declaration("W"),)),
            Renew(zombie, idle=True),
            Leave(zombie),
            Join(zombie.worker, zombie.incarnation),
        ]
        self.witness.refused(data.draw(st.sampled_from(messages)), self.model.now, errors.Zombie)

    # --- variables ------------------------------------------------------------------------------------------------

    @rule(worker=workers, names=st.lists(st.sampled_from(sorted(SHAPES)), unique=True, min_size=1))
    def register(self, worker, names):
        """Who comes later gets the values of now, and declares what was declared first, whatever was tuned since."""
        answer = self.answer(Register(self.me(worker), tuple(map(declaration, names))))
        if answer is not None:
            self.check_values(worker, answer.values, [name for name in names if name != "E"])

    @rule(
        worker=workers,
        names=st.lists(st.sampled_from(sorted(SHAPES)), unique=True),
        rows=st.lists(st.integers(0, 2), max_size=4),
    )
    def pull(self, worker, names, rows):
        """Wholes, rows of the table, and a slot; also while it waits."""
        choices = (Choice("E", np.array(rows, np.int64)), Choice("M", slot="momentum"))
        answer = self.answer(Pull(self.me(worker), tuple(names), choices))
        if answer is None:
            return
        *whole, chosen, slot = answer.values
        self.check_values(worker, whole, names)
        table, _ = self.model.value("E", INITIAL["E"])
        _, momentum = self.model.value("M", INITIAL["M"])
        expected = [table[row * ROW + column] for row in rows for column in range(ROW)]
        self.check_array(chosen.array, expected, (len(rows), ROW))
        self.check_array(slot.array, momentum, SHAPES["M"])
        assert (chosen.version, slot.version) == (self.model.version("E"), self.model.version("M"))

    @rule(pushes=st.lists(st.tuples(workers, gradients), min_size=2, max_size=8))
    def train(self, pushes):
        for worker, step in pushes:
            if not self.model.live(worker):
                self.join_again(worker)
            self.push(worker, step)

    def push(self, worker, step):
        at = dict(self.seen[worker])
        chosen = tuple(gradient(name, numbers, at[name]) for name, numbers in step.items())
        self.say_push(Push(self.me(worker), self.next_sequence(worker), chosen, 0.5, tuple(SHAPES)), step, at)

    def say_push(self, message, step, at):
        worker = message.sender.worker
        answers, ticket = self.tell(message)
        if answers is None:
            return
        if self.said.get(worker, (None,))[0] is not message:
            self.said[worker] = message, step, at
        self.check_freed(answers, self.model.push(ticket, worker, step, at))

    @rule(worker=workers)
    def retry(self, worker):
        """Its last push once more: it is applied if it was given up, and goes on being held if it was."""
        last = self.said.get(worker)
        if last is not None and last is not self.acknowledged.get(worker):
            self.say_push(*last)

    @rule(worker=workers)
    def retry_what_was_acknowledged(self, worker):
        """As it was, and not done again; a later push of the worker that is held stays so."""
        if worker in self.acknowledged:
            message, _, _ = self.acknowledged[worker]
            answer, fate = self.answer(message), self.model.settled[worker]
            if answer is not None:
                assert answer.outcome is (Outcome.REPEATED if fate.group else Outcome.DROPPED)
                self.check_fate(worker, answer, fate)

    @rule(worker=workers, name=st.sampled_from(sorted(SHAPES)), number=sixes)
    def assign(self, worker, name, number):
        """Also while a push of it is held, which is then given up, as an earlier one that comes too late would be."""
        assignment = Assignment(name, np.full(SHAPES[name], float(number)))
        answers, ticket = self.tell(Assign(self.me(worker), self.next_sequence(worker), (assignment,)))
        if answers is not None:
            before = self.model.global_step
            freed = self.model.assign(worker, name, number)
            assert answers.pop(ticket) == Assigned(Outcome.APPLIED, (self.model.version(name),), before)
            self.check_freed(answers, freed)
            self.gone_on(worker)

    @rule(worker=workers, rate=st.sampled_from([1, 2, 0.5]))
    def tune(self, worker, rate):
        sequence, optimizer = self.next_sequence(worker), GradientDescent(float(rate))
        message = Tune(self.me(worker), sequence, ("W",), optimizer, ("learning_rate",))
        answers, ticket = self.tell(message)
        if answers is not None:
            assert answers.pop(ticket) == Tuned(Outcome.APPLIED, self.model.global_step)
            self.model.give_up(worker)
            self.check_freed(answers, {})
            assert self.answer(message) == Tuned(Outcome.REPEATED, self.model.global_step)
            self.model.log.append(("tune", rate))
            self.gone_on(worker)

    def gone_on(self, worker):
        """A push from before comes too late, be it held or a retry."""
        self.acknowledged.pop(worker, None)
        if worker in self.said:
            message, _, _ = self.said.pop(worker)
            self.witness.refused(message, self.model.now, errors.OutOfOrder)

    # --- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_rules_of_the_race_hold(self):
        clocks = [life.clock for life in self.model.racers]
        if isinstance(self.model.consistency, Bounded) and clocks:
            assert max(clocks) - min(clocks) <= self.model.consistency.steps
        if isinstance(self.model.consistency, Synchronous):
            self.ending |= any(life.through for life in self.model.lives.values())
            sizes = {len(content) for kind, content, *_ in self.model.log if kind == "push"}
            assert max(sizes, default=0) <= self.model.consistency.workers
            assert self.ending or sizes <= {self.model.consistency.workers}

    @invariant()
    def status_is_the_models(self):
        report = self.witness.status(self.model.now)
        assert report.global_step == self.model.global_step
        for one in report.variables:
            assert one.version == self.model.version(one.spec.name) >= self.versions[one.spec.name]
            self.versions[one.spec.name] = one.version
        held = {one.worker for one in self.model.held}
        for one in report.workers:
            life = self.model.lives[one.name]
            assert (one.state, one.incarnation) == (life.state, life.incarnation)
            assert (one.steps, one.dropped, bool(one.waiting_for)) == (life.steps, life.dropped, one.name in held)

    def teardown(self):
        """When those who are not waiting go, those who wait are answered: if there ever were enough of them."""
        for worker in WORKERS:
            if worker not in {one.worker for one in self.model.held}:
                self.leave(worker)
        if self.model.held:
            assert len(self.model.held) < self.model.consistency.workers
            assert not any(life.through for life in self.model.lives.values()), "nobody has ever gone in good order"
        assert state_of(self.witness.said_again()) == state_of(self.witness.shard)


JOBS = ["async scale", "bounded:0 drop:1", "sync:2,backup=1 none"]
MORE = ["async none", "async drop:1", "bounded:0 none", "bounded:2 none", "bounded:2 scale", "bounded:2 drop:1"]
MORE += ["sync:2 none", "sync:2,backup=1 scale", "sync:3 none", "sync:3 drop:1"]


@pytest.mark.parametrize("job", [*JOBS, *(pytest.param(job, marks=pytest.mark.slow) for job in MORE)])
def test_any_race_agrees_with_the_naive_model(job):
    run_state_machine_as_test(
        lambda: Race(*job.split()),
        settings=settings(
            max_examples=10,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
