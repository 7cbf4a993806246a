"""The order of changes over shards: groups, parts of abandoned pushes, staleness of variables on other shards."""

import numpy as np
import pytest

from psserver.core.policies import update_order
from psserver.core.shard import Shard
from pswire.errors import InvalidMessage
from pswire.messages import (
    ChangeId,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Place,
    Push,
    Register,
    RemoteWeights,
    Renew,
    Sender,
    UpdateGroup,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import DropStalePushes, Synchronous
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step, state_of

LEASE = 10.0


class Job:
    """A synchronous shard with a variable W of two zeros."""

    def __init__(self, workers="ab", shard=0, shards=2):
        self.place, self.sequences = (shard, shards), {}
        self.shard = Shard(shard, shards, LEASE, None, Synchronous(2))
        for worker in workers:
            self.join(worker)
        declaration = Declaration(TensorSpec("W", (2,), "float64"), np.zeros(2), GradientDescent(1.0))
        places = () if shard else (Place("W", 0), Place("V", 1))
        self.tell(0, Register(Sender("a", 1), (declaration,), places))

    def join(self, worker):
        self.sequences[worker] = 0
        return self.tell(0, Join(worker, 0, *self.place))

    def tell(self, ticket, message):
        """The answers by ticket; of a push its outcome, step and value."""
        answers = {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, 0.0)}
        pushed = {ticket: answer for ticket, answer in answers.items() if hasattr(answer, "outcome")}
        told = {ticket: (one.outcome.value, one.global_step, *one.values[0].array) for ticket, one in pushed.items()}
        return answers | told

    def push(self, ticket, worker, gradient=1.0, at=0, **options):
        self.sequences[worker] += 1
        gradients = (Gradient("W", at, np.full(2, gradient)),)
        return self.tell(ticket, Push(Sender(worker, 1), self.sequences[worker], gradients, None, ("W",), **options))


def pair(number):
    """Of the worker's first pushes for 0, of their second ones for 1."""
    return UpdateGroup(number, tuple(ChangeId(Sender(worker, 1), number + 1) for worker in "ab"))


def test_a_follower_waits_in_a_second_loop_for_a_worker_that_was_idle_before():
    """Else it would make two updates where shard 0 has made one."""
    job = Job(shard=1)
    for ticket, worker in enumerate("ab"):
        job.push(ticket, worker, group=pair(0))
    for worker in "ab":
        job.tell(9, Renew(Sender(worker, 1), idle=True))
    assert job.push(1, "a", 2.0, at=1, group=pair(1)) == {}
    assert job.push(2, "b", 4.0, at=1, group=pair(1)) == dict.fromkeys((1, 2), ("applied", 2, -4, -4))


def test_a_follower_does_not_wait_for_an_abandoned_part():
    job = Job("abc", shard=1)
    assert job.push(1, "a", group=pair(0)) == {}
    assert set(job.tell(2, Renew(Sender("c", 1), settled=1))) == {2}, "which is not in the group"
    assert job.tell(3, Renew(Sender("b", 1), settled=1))[1] == ("applied", 1, -1, -1)


@pytest.mark.parametrize("options", [{"after": (ChangeId(Sender("a", 1), 1),)}, {"group": pair(0)}])
def test_a_follower_does_not_wait_for_a_push_of_an_earlier_life(options):
    job = Job(shard=1)
    assert job.push(1, "b", **options) == {}
    assert job.join("a")[1] == ("applied", 1, -1, -1)


def group_of(worker, incarnation, sequence):
    return UpdateGroup(4, (ChangeId(Sender(worker, incarnation), sequence),))


def test_groups_are_refused_on_shard_0_and_from_workers_outside_of_them():
    for shard, group, match in (
        (0, pair(0), "shard 0 decides which pushes make an update: a push to it has no group"),
        (1, group_of("b", 1, 1), "a push of worker 'a' for update 4 of shard 0, which it is not in"),
        (1, group_of("a", 2, 1), "which it is not in"),
        (1, group_of("a", 1, 2), "which it is not in"),
    ):
        job = Job(shard=shard)
        before = state_of(job.shard)
        with pytest.raises(InvalidMessage, match=match):
            job.push(1, "a", group=group)
        assert state_of(job.shard) == before


def test_a_push_is_late_by_changes_of_variables_on_other_shards():
    job = Job("abc")
    there = {"shards": (1,), "remote": (RemoteWeights("V", 0),)}
    for ticket, worker in enumerate("ab"):
        job.push(ticket, worker, **there)
    message = Push(Sender("c", 1), 1, (), None, ("W",), **there)
    (reply,) = run_step(job.shard, 1, message, 0.0)
    assert (reply.answer.outcome, reply.answer.staleness) == (Outcome.DROPPED, 1)
    there["remote"] = (RemoteWeights("V", 1),)
    assert job.tell(2, Push(Sender("c", 1), 2, (), None, ("W",), **there)) == {}
    freed = job.push(3, "a", at=1, **there)
    assert {ticket: answer[:2] for ticket, answer in freed.items()} == {2: ("applied", 2), 3: ("applied", 2)}


def test_staleness_is_the_greatest_over_the_variables_of_all_shards():
    shard = Shard(0, 2, staleness=DropStalePushes(2))
    run_step(shard, 0, Join("a", 0, 0, 2), 0.0)
    declaration = Declaration(TensorSpec("V", (), "float64"), np.zeros(()), GradientDescent(1.0))
    run_step(shard, 0, Register(Sender("a", 1), (declaration,), (Place("V", 0), Place("there", 1))), 0.0)
    one, cases = (
        np.ones(()),
        (
            (0, 0, Outcome.APPLIED, 0),
            (0, 1, Outcome.APPLIED, 1),  # V has changed since, the other has not
            (2, 0, Outcome.APPLIED, 2),
            (0, 3, Outcome.DROPPED, 3),
            (3, 0, Outcome.DROPPED, 3),
            (1, 2, Outcome.APPLIED, 2),
        ),
    )
    for sequence, (version, served_at, outcome, staleness) in enumerate(cases, 1):
        order = {"shards": (1,), "remote": (RemoteWeights("there", served_at),)}
        push = Push(Sender("a", 1), sequence, (Gradient("V", version, one),), **order)
        (reply,) = run_step(shard, 0, push, 0.0)
        assert (reply.answer.outcome, reply.answer.staleness) == (outcome, staleness)


def test_staleness_is_exact_among_the_changes_that_are_remembered_and_never_too_small(monkeypatch):
    monkeypatch.setattr(update_order, "REMEMBERED", 3)
    decided = update_order.UpdateOrder()
    for name in ("V", "V", "U", "V", "U", "V"):
        decided.add((), [name])
    found = [decided.staleness([RemoteWeights("V", served_at)]) for served_at in (6, 5, 4, 2)]
    assert found == [0, 1, 1, 2]
    assert decided.staleness([RemoteWeights("V", 0)]) == 6, "V has missed 4, of which the first is forgotten"
    assert decided.staleness([RemoteWeights("never changed", 0)]) == 0
