"""Membership: incarnations and leases, chief election, training progress, the end of the job. Time is an argument."""

import numpy as np
import pytest

from psserver.core.members.membership import MOST_INCARNATIONS, JobEnd, Membership
from psserver.core.shard import Shard
from pswire.errors import InvalidMessage, NotJoined, Zombie
from pswire.messages import Declaration, Gradient, Join, Leave, Push, Register, Sender, Tick
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step


def test_a_new_life_begins_with_no_steps_and_the_same_life_goes_on():
    members = Membership(lease=10)
    first, new = members.join(Join("a", 2), 0)
    first.steps = 5
    assert new
    again, new = members.join(Join("a", 2), 3)
    assert (again, new, again.steps, again.expires) == (first, False, 5, 13)
    second, new = members.join(Join("a"), 0)
    assert (new, second.steps, second.incarnation) == (True, 0, 3)


def test_a_lease_ends_after_its_last_second_and_only_once():
    members = Membership(lease=10)
    member, _ = members.join(Join("a"), 5)
    assert members.expire(15) == []
    assert members.expire(15.001) == [member]
    assert members.expire(100) == []
    with pytest.raises(NotJoined, match="'a' was silent for more than its lease of 10 s: join again"):
        members.check(Sender("a", 1))
    members.join(Join("a", 1), 200)
    assert members.check(Sender("a", 1)) is member
    assert members.expire(209) == []


def test_unknown_workers_and_zombies_get_different_errors():
    members = Membership(lease=10)
    members.join(Join("a", 4), 0)
    with pytest.raises(NotJoined, match="'b' has not joined"):
        members.check(Sender("b", 1))
    with pytest.raises(Zombie, match="incarnation 3, but incarnation 4 has joined since"):
        members.check(Sender("a", 3))
    with pytest.raises(NotJoined, match="sends as incarnation 5, this shard knows it as 4"):
        members.check(Sender("a", 5))
    with pytest.raises(Zombie):
        members.check_join(Join("a", 3))
    with pytest.raises(InvalidMessage, match="needs a name"):
        members.check_join(Join(""))
    for join in (Join("a"), Join("a", 4), Join("a", 5), Join("b", 1)):
        members.check_join(join)


def test_incarnations_stay_within_the_protocol():
    members = Membership(lease=10)
    for incarnation in (MOST_INCARNATIONS, MOST_INCARNATIONS + 1):
        with pytest.raises(InvalidMessage, match=f"incarnation {incarnation} of worker 'a': no worker starts so often"):
            members.check_join(Join("a", incarnation))
    members.check_join(Join("a", MOST_INCARNATIONS - 1))
    members.join(Join("a", MOST_INCARNATIONS - 1), 0)
    members.check_join(Join("a"))
    member, _ = members.join(Join("a"), 0)
    assert member.incarnation == MOST_INCARNATIONS
    with pytest.raises(InvalidMessage, match="worker 'a': no worker starts so often"):
        members.check_join(Join("a"))
    members.check_join(Join("b"))


# --- the chief --------------------------------------------------------------------------------------------------------


def chief(members):
    return "".join(member.name for member in members if members.chief.is_chief(member.name))


def joined(members, *names):
    """Members of these names, which have just joined, at time 0."""
    return [members.join(Join(name), 0)[0] for name in names]


def test_the_first_worker_is_the_chief():
    members = Membership(lease=10)
    assert (chief(members), members.chief.is_chief("a")) == ("", False)
    joined(members, "a", "b")
    assert chief(members) == "a"
    assert (members.chief.is_chief("a"), members.chief.is_chief("b")) == (True, False)


def test_a_lost_chief_is_replaced_by_the_first_live_worker_and_does_not_return_as_chief():
    members = Membership(lease=10)
    _, b, c, d = joined(members, "a", "b", "c", "d")
    members.leave(b, 5)
    for member in (c, d):
        members.renew(member, 5)
    members.expire(11)
    assert chief(members) == "c"
    members.join(Join("a", 1), 12)
    assert chief(members) == "c", "the network had cut it off"
    members.join(Join("a"), 12)
    assert chief(members) == "c", "it was started again"
    members.expire(16)
    assert (d.state, chief(members)) == ("lost", "a"), "of those that live it was the first"


def test_a_failed_chief_is_replaced_and_a_finished_one_is_not():
    members = Membership(lease=10)
    a, b, c = joined(members, "a", "b", "c")
    members.leave(a, 5, failed=True)
    assert chief(members) == "b"
    members.leave(b, 5)
    assert chief(members) == "b", "its work is done"
    members.leave(c, 5, failed=True)
    assert chief(members) == "b", "and nobody shall do it again"


def test_a_finished_chief_is_not_elected_again_in_another_life():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.leave(a, 5)
    a, new = members.join(Join("a"), 6)
    assert (new, members.chief.is_chief("a"), members.chief.is_chief("b")) == (True, False, False)
    members.leave(a, 7, failed=True)
    assert not members.chief.is_chief("b")
    members.leave(b, 8)
    members.join(Join("a"), 9)
    assert members.chief.is_chief("a"), "nobody lived: a new job"


@pytest.mark.parametrize("late", [Join("c"), Join("a"), Join("b", 1)])
def test_with_one_job_no_worker_that_joins_after_it_is_done_is_chief(late):
    members = Membership(lease=10, one_job=True)
    a, b = joined(members, "a", "b")
    for member in (a, b):
        members.leave(member, 5)
    _, new = members.join(late, 6)
    assert (new, members.chief.is_chief(late.worker)) == (late.worker != "b", False)
    members.expire(17)
    members.join(Join("d"), 18)
    assert not members.chief.is_chief("d"), "the late one was lost, and was not the chief"


@pytest.mark.parametrize("how", ["fails", "is lost"])
def test_with_one_job_a_worker_that_joins_after_an_unfinished_chief_is_chief(how):
    for late in (Join("a"), Join("c")):
        members = Membership(lease=10, one_job=True)
        a, b = joined(members, "a", "b")
        members.leave(b, 5)
        if how == "is lost":
            members.expire(11)
        else:
            members.leave(a, 11, failed=True)
        assert chief(members) == ""
        members.join(late, 12)
        assert members.chief.is_chief(late.worker), "what is to be done once is not done yet"


def test_only_the_first_of_several_shards_has_a_chief():
    members = Membership(lease=10, has_chief=False)
    a, _ = joined(members, "a", "b")
    members.leave(a, 5, failed=True)
    assert (chief(members), members.chief.is_chief("b")) == ("", False)


# --- the race ---------------------------------------------------------------------------------------------------------


def race(members):
    """Who is in the race, and where."""
    return {name: member.clock for name, member in members.progress.training.items()}


def test_a_member_trains_from_its_first_push_until_it_is_idle_leaves_or_is_lost():
    members = Membership(lease=10)
    a, b, c, d = joined(members, "a", "b", "c", "d")
    assert race(members) == {}
    for member in (b, a, c):
        members.progress.start(member)
    members.progress.start(b)
    assert list(race(members)) == ["b", "a", "c"]
    members.renew(d, 20)
    members.renew(a, 20)
    members.progress.finish(b)
    members.leave(c, 1)
    assert list(race(members)) == ["a"]
    members.expire(25)
    assert list(race(members)) == ["a"]
    members.expire(31)
    assert race(members) == {}
    assert [member.training for member in (a, b, c, d)] == [False] * 4


def test_a_member_starts_at_the_least_clock_or_keeps_its_lead():
    members = Membership(lease=10)
    a, b, c = joined(members, "a", "b", "c")
    members.progress.start(a)
    members.progress.start(b)
    a.clock, b.clock = 7, 5
    members.progress.start(c)
    assert (race(members), members.progress.least_clock) == ({"a": 7, "b": 5, "c": 5}, 5)
    members.progress.finish(a)
    members.progress.finish(c)
    b.clock = 6
    members.progress.start(c)
    members.progress.start(a)
    assert race(members) == {"b": 6, "c": 6, "a": 7}


def test_the_least_clock_stays_while_no_member_trains():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.start(a)
    a.clock = 50
    members.progress.finish(a)
    assert members.progress.least_clock == 50
    members.progress.start(b)
    assert race(members) == {"b": 50}, "or a could not go on before b has made 50 steps"


def test_training_is_ending_when_a_member_that_trained_stops_in_good_order():
    members = Membership(lease=10)
    a, b, c = joined(members, "a", "b", "c")
    members.progress.finish(c)
    assert not members.progress.ending, "c was never in the race: it evaluates"
    for member in (a, b):
        members.progress.start(member)
    members.expire(11)
    assert not members.progress.ending, "those that were lost may come back"
    members.join(Join("a", 1), 12)
    members.progress.start(a)
    a.clock = 1
    members.progress.finish(a)
    assert (members.progress.ending, a.finished) == (True, True)
    members.progress.start(a)
    assert (members.progress.ending, a.finished) == (False, False)
    members.join(Join("b", 1), 12)
    members.leave(a, 1)
    assert (members.progress.ending, a.state) == (True, "left")
    members.join(Join("a"), 13)
    assert not members.progress.ending, "a new life begins anew"


@pytest.mark.parametrize("last", ["leaves", "fails", "is lost"])
def test_the_end_of_a_job_does_not_count_for_the_next(last):
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.start(a)
    members.leave(a, 1)
    assert members.progress.ending, "b may still wait in vain"
    if last == "is lost":
        assert members.expire(11) == [b]
    else:
        members.leave(b, 1, failed=last == "fails")
    members.join(Join("b", 1), 12)
    assert members.progress.ending, "b goes on with the life it had, and the job is the same"
    members.leave(members["b"], 13, failed=True)
    members.join(Join("c"), 14)
    assert not members.progress.ending


@pytest.mark.parametrize("end", ["leaves", "is idle and lost"])
def test_with_one_job_finished_members_count_to_the_end(end):
    members = Membership(lease=10, one_job=True)
    (a,) = joined(members, "a")
    members.progress.start(a)
    if end == "leaves":
        members.leave(a, 1)
    else:
        members.progress.finish(a)
        assert members.expire(11) == [a]
    members.join(Join("c"), 12)
    assert members.progress.ending


def test_a_failed_member_has_finished_only_if_there_was_no_data_for_it():
    members = Membership(lease=10)
    a, b, c = joined(members, "a", "b", "c")
    members.progress.start(a)
    members.progress.finish(a)
    members.leave(a, 1, failed=True)
    assert not members.progress.ending, "it left its loop by an error"
    members.progress.finish(b, out_of_data=True)
    members.progress.finish(b)
    members.leave(b, 1, failed=True)
    assert members.progress.ending, "it would not have pushed any more"
    members.progress.resume(["b"])
    members.progress.finish(b)
    members.leave(b, 1, failed=True)
    assert not members.progress.ending
    assert not c.finished


# --- the end of the job -----------------------------------------------------------------------------------------------


def test_the_job_is_done_when_the_last_one_has_left_in_good_order():
    members = Membership(lease=10)
    assert members.job_end is None, "it has not begun"
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    assert members.job_end is None
    members.leave(b, 5)
    assert members.job_end == JobEnd(since=5, workers=2, done=True)


@pytest.mark.parametrize("last", ["fails", "is lost"])
def test_a_job_that_one_worker_finished_is_done_whatever_becomes_of_the_last(last):
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    if last == "is lost":
        assert members.expire(12) == [b]
    else:
        members.leave(b, 12, failed=True)
    assert members.job_end == JobEnd(12, 2, done=True)


@pytest.mark.parametrize("last", ["fails", "is lost"])
def test_a_job_that_no_worker_finished_ends_but_is_not_done(last):
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


def test_a_worker_that_joins_a_done_job_leaves_it_done():
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


def test_a_worker_that_leaves_before_the_first_update_has_not_finished_the_job():
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
