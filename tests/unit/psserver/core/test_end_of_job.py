"""When nobody is left, and whether the job is done: so a server may end by itself. Time is told, nothing waits."""

import numpy as np
import pytest

from psserver.core.members.membership import JobEnd, Membership
from psserver.core.shard import Shard
from pswire.messages import Declaration, Gradient, Join, Leave, Push, Register, Sender, Tick
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step


def joined(members, *names):
    """Members of these names, which have just joined, at time 0."""
    return [members.join(Join(name), 0)[0] for name in names]


def test_the_job_is_done_when_the_last_one_has_left_in_good_order():
    members = Membership(lease=10)
    assert members.job_end is None, "it has not begun"
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    assert members.job_end is None
    members.leave(b, 5)
    assert members.job_end == JobEnd(since=5, workers=2, done=True)


@pytest.mark.parametrize("last", ["fails", "is lost"])
def test_who_has_failed_or_was_lost_is_not_waited_for_when_another_came_to_its_end(last):
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    if last == "is lost":
        assert members.expire(12) == [b]
    else:
        members.leave(b, 12, failed=True)
    assert members.job_end == JobEnd(12, 2, done=True)


@pytest.mark.parametrize("last", ["fails", "is lost"])
def test_a_job_without_anybody_who_came_to_its_end_is_over_but_not_done(last):
    members = Membership(lease=10)
    a, _ = joined(members, "a", "b")
    members.expire(11)
    assert members.job_end == JobEnd(11, 2, done=False)
    a, _ = members.join(Join("a"), 20)
    assert members.job_end is None
    if last == "is lost":
        members.expire(31)
    else:
        members.leave(a, 31, failed=True)
    assert members.job_end == JobEnd(31, 2, done=False)
    a, _ = members.join(Join("a"), 40)
    members.leave(a, 41)
    assert members.job_end == JobEnd(41, 2, done=True)


def test_who_comes_when_the_job_is_done_does_not_make_it_undone():
    members = Membership(lease=10)
    a, _ = joined(members, "a", "b")
    members.leave(a, 3)
    members.expire(11)
    members.join(Join("b", 1), 12)
    assert members.job_end is None, "b is back"
    members.expire(30)
    assert members.job_end == JobEnd(30, 2, done=True)
    c, _ = members.join(Join("c"), 31)
    members.leave(c, 32, failed=True)
    assert members.job_end == JobEnd(32, 3, done=True)
    members.join(Join("a", 1), 33)
    assert members.job_end is None, "the network has kept back a's first Join until now"
    members.expire(44)
    assert members.job_end == JobEnd(44, 3, done=True)


def test_who_comes_and_goes_before_the_training_has_not_come_to_the_jobs_end():
    shard, name = Shard(lease=10, one_job=True), "W"
    value = np.zeros(2, np.float32)
    me = Sender("a", 1)
    run_step(shard, 1, Join("visitor"), 0)
    run_step(shard, 2, Leave(Sender("visitor", 1)), 1)
    assert shard.job_end == JobEnd(1, 1, done=False)
    run_step(shard, 3, Join("a"), 2)
    run_step(shard, 4, Register(me, (Declaration(TensorSpec.of(name, value), value, GradientDescent(1.0)),)), 2)
    run_step(shard, 5, Push(me, 1, (Gradient(name, 0, value),)), 2)
    run_step(shard, 6, Tick(), 13)
    assert shard.job_end == JobEnd(13, 2, done=False), "a was lost, and the visitor's end is not the job's"
    answers = [reply.answer for reply in run_step(shard, 7, Join("a"), 14)]
    assert [answer.chief for answer in answers] == [True]
    run_step(shard, 8, Leave(Sender("a", 2)), 15)
    assert shard.job_end == JobEnd(15, 2, done=True)
    (late,) = run_step(shard, 9, Join("b"), 16)
    assert not late.answer.chief
