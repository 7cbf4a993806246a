"""What a worker says to a shard besides gradients: tunes, and heartbeats that bring news of whom it waits for."""

import dataclasses

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.core.status import MOST_LISTED
from pswire.errors import (
    AlreadyRegistered,
    InvalidMessage,
    NoOptimizer,
    OutOfOrder,
    Unavailable,
    UnknownVariable,
)
from pswire.messages import (
    Assign,
    Assignment,
    Change,
    ChangeId,
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
    Renewed,
    Sender,
    Status,
    Tick,
    Tune,
    Tuned,
    UpdateGroup,
)
from pswire.optimizers import Adagrad, Adam, GradientDescent, Momentum, MovingAverage, RMSProp
from pswire.specs.consistency import (
    Asynchronous,
    Bounded,
    DelayCompensation,
    DropStalePushes,
    IgnoreStaleness,
    ScaleByStaleness,
    Synchronous,
)
from pswire.specs.schedules import ExponentialDecay
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step, state_of

LEASE = 10.0


def tune(sequence, names, optimizer, *fields, worker="a"):
    """The message; without names of fields, all of them are to change."""
    every = tuple(field.name for field in dataclasses.fields(optimizer))
    return Tune(Sender(worker, 1), sequence, tuple(names), optimizer, fields or every)


class Job:
    """A shard with some workers, and a variable of two zeros for each optimizer that is named."""

    def __init__(self, workers="a", optimizers=None, **options):
        self.now = 0.0
        self.shard = Shard(lease=LEASE, **options)
        self.sequences = dict.fromkeys(workers, 0)
        for worker in workers:
            self.tell(Join(worker))
        self.optimizers = optimizers or {"W": GradientDescent(1.0)}
        self.register()

    def register(self):
        declarations = [
            Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), optimizer)
            for name, optimizer in self.optimizers.items()
        ]
        return self.tell(Register(Sender("a", 1), tuple(declarations)))

    def tell(self, message, ticket=0):
        """The answers that the message sets free, by ticket."""
        return {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, self.now)}

    def say(self, message):
        """The one answer."""
        (answer,) = self.tell(message).values()
        return answer

    def push(self, worker, ticket, gradient=1.0, name="W", version=0):
        self.sequences[worker] += 1
        chosen = Gradient(name, version, np.full(2, float(gradient)))
        return self.tell(Push(Sender(worker, 1), self.sequences[worker], (chosen,), None, (name,)), ticket)

    def tune(self, names, optimizer, *fields, sequence=None):
        self.sequences["a"] += sequence is None
        return self.say(tune(sequence or self.sequences["a"], names, optimizer, *fields))

    def renew(self, worker, *, idle=False):
        return self.tell(Renew(Sender(worker, 1), idle), -1)

    def refused(self, message, error, match):
        before = state_of(self.shard)
        with pytest.raises(error, match=match) as caught:
            self.tell(message)
        assert type(caught.value) is error
        assert state_of(self.shard) == before

    def value(self, name="W"):
        return self.say(Pull(Sender("a", 1), (name,))).values[0].array.tolist()


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_pushes_after_a_tune_follow_it_and_those_before_do_not():
    job = Job(optimizers={"W": GradientDescent(1.0), "V": GradientDescent(1.0)})
    job.push("a", 1)
    assert job.tune("W", GradientDescent(0.25)) == Tuned(Outcome.APPLIED, 1)
    for name in "WV":
        job.push("a", 1, name=name)
    assert (job.value("W"), job.value("V")) == ([-1.25, -1.25], [-1, -1])
    versions = [(one.version, one.updates) for one in job.say(Status()).variables]
    assert versions == [(2, 2), (1, 1)], "a tune is no change of the value"


def test_slots_stay_and_go_on_under_the_new_hyperparameters():
    job = Job(optimizers={"W": Momentum(1.0, 0.5)})
    job.push("a", 1, 8)
    job.tune("W", Momentum(ExponentialDecay(0.5, 1, 0.5, staircase=True), 0.25))
    job.push("a", 1, 4)
    (slot,) = job.say(Pull(Sender("a", 1), (), (Choice("W", slot="momentum"),))).values
    assert slot.array.tolist() == [0.25 * 8 + 4] * 2
    assert job.value() == [-8 - 0.25 * 6] * 2, "the schedule is at global step 1"


def test_a_tune_ends_a_push_of_its_worker_that_is_held():
    job = Job("ab", consistency=Synchronous(2))
    assert job.push("a", 1) == {}
    job.sequences["a"] += 1
    answers = job.tell(tune(2, ["W"], GradientDescent(0.5)), 2)
    assert {ticket: type(answer) for ticket, answer in answers.items()} == {1: Unavailable, 2: Tuned}
    assert job.push("b", 3) == {}, "the push that was given up is none of the two"


def test_a_tune_that_is_sent_again_counts_once():
    job = Job()
    first = job.tune("W", GradientDescent(0.5))
    job.push("a", 1)
    job.refused(tune(1, "W", GradientDescent(0.5)), OutOfOrder, "too late")
    second = job.tune("W", GradientDescent(0.25))
    again = job.tune("W", GradientDescent(0.25), sequence=3)
    assert (first.outcome, second.outcome, again.outcome) == (Outcome.APPLIED, Outcome.APPLIED, Outcome.REPEATED)
    status = job.say(Status())
    assert status.repeated == 1
    assert status.changes == (
        Change(0, "a", ("W",), GradientDescent(0.5)),
        Change(1, "a", ("W",), GradientDescent(0.25)),
    )
    assert status.variables[0].optimizer == GradientDescent(0.25)
    job.refused(Push(Sender("a", 1), 3, ()), InvalidMessage, "sequence number 3 was used for another kind of message")


def test_a_tune_that_cannot_be_is_refused_for_all_its_variables():
    job = Job(
        optimizers={"W": Adam(0.5), "m": Momentum(0.5), "r": RMSProp(0.5), "none": None, "mean": MovingAverage(0.5)}
    )
    for names, optimizer, error, match in (
        (["W", "gone"], Adam(0.25), UnknownVariable, "no variable 'gone'"),
        (["W", "none"], Adam(0.25), NoOptimizer, "'none' has no optimizer whose hyperparameters could change"),
        (["W", "m"], Adam(0.25), InvalidMessage, "'m' has the optimizer momentum, and keeps it.*not to those of adam"),
        (["W"], Adam(0.5, amsgrad=True), InvalidMessage, "has the slots m, v, and .*amsgrad=True.* would need others"),
        (["r"], RMSProp(0.5, centered=True), InvalidMessage, "at the start only"),
    ):
        job.refused(tune(1, names, optimizer), error, match)
    assert job.tune(["mean"], MovingAverage(0.25)).outcome is Outcome.APPLIED
    job.push("a", 1, 8, name="mean")
    assert job.value("mean") == [6, 6]


def test_who_comes_after_a_tune_declares_what_the_script_says_and_is_not_refused():
    job = Job(optimizers={"W": Adagrad(0.5)})
    job.tune("W", Adagrad(0.125))
    job.register()
    assert job.say(Status()).variables[0].optimizer == Adagrad(0.125)
    spec = TensorSpec("W", (2,), "float64")
    job.say(Register(Sender("a", 1), (Declaration(spec, np.zeros(2), Adagrad(0.125)),)))
    another = Register(Sender("a", 1), (Declaration(spec, np.zeros(2), Adagrad(0.25)),))
    job.refused(another, AlreadyRegistered, r"0\.5.*\(by now it is .*0\.125.*\), this worker.*set_hyperparameters")


def test_a_tune_changes_the_fields_that_it_names_of_each_variable_and_says_what_has_come_of_it():
    job = Job(optimizers={"W": Momentum(1.0, 0.5), "V": Momentum(0.25, 0.75)})
    job.tune("WV", Momentum(0.5, 0.9), "learning_rate")
    job.tune("W", Momentum(8.0, 0.25), "momentum")
    status = job.say(Status())
    assert [one.optimizer for one in status.variables] == [Momentum(0.5, 0.25), Momentum(0.5, 0.75)]
    assert [change.optimizer for change in status.changes] == [Momentum(0.5, 0.75), Momentum(0.5, 0.25)]
    for name in "WV":
        job.push("a", 1, 8, name=name)
        job.push("a", 1, 8, name=name)
    assert (job.value("W"), job.value("V")) == ([-4 - 0.5 * 10] * 2, [-4 - 0.5 * 14] * 2)


def test_what_is_assigned_is_no_update_for_the_correction_of_adams_moments():
    """By hand, with t = 2: m = 0.19 g and v = 0.001999 g^2, which the corrections of t = 3 would not make g and g^2."""
    job = Job(optimizers={"W": Adam(0.5)})
    job.push("a", 1, 4)
    for value in (1.0, 0.0):
        job.sequences["a"] += 1
        job.say(Assign(Sender("a", 1), job.sequences["a"], (Assignment("W", np.full(2, value)),)))
    job.push("a", 1, 4)
    np.testing.assert_allclose(job.value("W"), [-0.5] * 2, rtol=1e-8)


def test_a_tune_of_fields_that_there_are_not_is_refused():
    job = Job(optimizers={"W": Momentum(1.0, 0.5)})
    job.refused(tune(1, "W", Momentum(0.5), "beta", "learning_rate"), InvalidMessage, "'W': momentum has no beta")
    assert job.say(Status()).changes == ()


def test_a_push_that_is_held_follows_the_hyperparameters_of_the_moment_when_it_is_applied():
    job = Job("ab", consistency=Synchronous(2))
    assert job.push("a", 1, 4) == {}
    job.say(tune(1, "W", GradientDescent(0.5), worker="b"))
    job.sequences["b"] = 1
    job.push("b", 2, 8)
    assert job.value() == [-3, -3]


# --- consistency ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", [Asynchronous(), Bounded(3), Synchronous(2), Synchronous(2, 1)], ids=str)
@pytest.mark.parametrize(
    "staleness", [IgnoreStaleness(), ScaleByStaleness(), DelayCompensation(0.5), DropStalePushes(4)], ids=str
)
def test_who_joins_hears_what_the_shard_was_started_with(consistency, staleness):
    shard = Shard(consistency=consistency, staleness=staleness)
    joined, status = (run_step(shard, 0, message, 0.0)[0].answer for message in (Join("a"), Status()))
    assert (joined.consistency, joined.staleness) == (str(consistency), str(staleness))
    assert (status.consistency, status.handling) == (str(consistency), str(staleness))


def test_a_worker_that_is_too_far_ahead_waits_hears_why_and_goes_on_when_the_slow_one_is_idle():
    job = Job("ab", consistency=Bounded(1))
    for _ in range(2):
        assert set(job.push("b", 1)) == {1}
    assert set(job.push("a", 2)) == {2}, "it enters the race at the least clock, that of b"
    assert job.renew("a")[-1] == Renewed(3, chief=True)
    assert job.push("a", 5) == {}
    heard = job.renew("a")[-1]
    assert heard.waiting_for == "bounded:1: b is at step 2, 1 behind"
    assert [one.waiting_for for one in job.say(Status()).workers] == [heard.waiting_for, ""]
    freed = job.renew("b", idle=True)
    assert set(freed) == {-1, 5}
    assert freed[5].outcome is Outcome.APPLIED
    assert job.renew("a")[-1].waiting_for == ""


@pytest.mark.parametrize("how", ["idle", "leave", "lost", "joins anew"])
def test_whoever_stops_racing_frees_those_who_wait_for_it(how):
    job = Job("ab", consistency=Bounded(0))
    job.push("b", 1)
    assert job.push("a", 2) == {}, "a round of both"
    assert set(job.push("b", 3)) == {2, 3}
    assert job.push("a", 4) == {}
    match how:
        case "idle":
            freed = job.renew("b", idle=True)
        case "leave":
            freed = job.tell(Leave(Sender("b", 1)))
        case "lost":
            job.now += LEASE
            job.renew("a")
            job.now += 1
            freed = job.tell(Tick())
        case "joins anew":
            freed = job.tell(Join("b"))
    assert freed[4].outcome is Outcome.APPLIED
    assert set(job.push("a", 5)) == {5}


def test_a_heartbeat_without_idle_leaves_a_worker_in_the_race():
    job = Job("ab", consistency=Bounded(0))
    job.push("b", 1)
    job.push("a", 2)
    assert set(job.renew("b")) == {-1}
    assert job.renew("a")[-1].waiting_for == "bounded:0: b is at step 1, which is not done"


def test_pushes_that_are_applied_together_are_one_update_of_their_mean_and_know_their_group():
    job = Job("abc", consistency=Synchronous(2, 1))
    assert job.push("b", 1, 2) == {}
    assert "sync:2,backup=1: 1 of 2 gradients of step 0 have come" in job.renew("b")[-1].waiting_for
    freed = job.push("a", 2, 6)
    assert {ticket: (answer.outcome, answer.global_step) for ticket, answer in freed.items()} == {
        1: (Outcome.APPLIED, 1),
        2: (Outcome.APPLIED, 1),
    }
    assert {answer.group for answer in freed.values()} == {
        UpdateGroup(0, (ChangeId(Sender("b", 1), 1), ChangeId(Sender("a", 1), 1)))
    }
    assert job.value() == [-4, -4]
    (late,) = job.push("c", 3, 100).values()
    assert (late.outcome, late.staleness, late.group) == (Outcome.DROPPED, 1, None)
    assert late.reason == "sync:2,backup=1: late by 1 change of its weights; step 1 needs gradients of the new ones"
    assert late.values[0].array.tolist() == [-4, -4]
    status = job.say(Status())
    assert (status.global_step, status.dropped) == (1, 1)
    assert [(one.steps, one.dropped) for one in status.workers] == [(1, 0), (1, 0), (0, 1)]


def test_the_learning_rate_of_a_stale_push_is_divided_by_its_staleness():
    job = Job("ab", staleness=ScaleByStaleness())
    for ticket in range(4):
        job.push("a", ticket, 1, version=ticket)
    assert job.value() == [-4, -4]
    (answer,) = job.push("b", 9, 8, version=0).values()
    assert answer.staleness == 4
    assert job.value() == [-6, -6]


def test_a_status_lists_the_newest_changes_of_hyperparameters_of_very_many():
    job = Job()
    for count in range(MOST_LISTED + 2):
        job.tune(("W",), GradientDescent(float(count)), "learning_rate")
    changes = job.say(Status()).changes
    assert [change.optimizer.learning_rate for change in changes] == [float(2 + count) for count in range(MOST_LISTED)]
