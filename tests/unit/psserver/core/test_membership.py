"""Membership: names, incarnations, leases and the race, with the time as an argument."""

import pytest

from psserver.core.members.membership import MOST_INCARNATIONS, Membership
from pswire.errors import InvalidMessage, NotJoined, Zombie
from pswire.messages import Join, Sender


def test_numbers_go_by_first_joining_and_stay():
    members = Membership(lease=10)
    assert [members.join(Join(name), 0)[0].number for name in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]
    assert [member.name for member in members] == ["a", "b", "c"]


def test_incarnations_count_up_unless_the_worker_names_one():
    members = Membership(lease=10)
    joins = [Join("a"), Join("a"), Join("a", 7), Join("a"), Join("b", 3), Join("b")]
    assert [members.join(join, 0)[0].incarnation for join in joins] == [1, 2, 7, 8, 3, 4]


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


def test_who_has_left_is_not_lost_as_well():
    members = Membership(lease=10)
    member, _ = members.join(Join("a"), 0)
    members.leave(member, 1)
    assert members.expire(100) == []
    with pytest.raises(NotJoined, match="'a' has left"):
        members.check(Sender("a", 1))


def test_renewing_moves_the_end_of_the_lease():
    members = Membership(lease=10)
    member, _ = members.join(Join("a"), 0)
    members.renew(member, 8)
    assert members.expire(18) == []
    assert members.expire(19) == [member]


def test_strangers_and_zombies_are_told_apart():
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


def test_a_refusal_is_the_error_that_a_check_would_raise():
    members = Membership(lease=10)
    for name in "ab":
        members.join(Join(name, 4), 0)
    members.leave(members["b"], 1)
    for sender in (Sender("c", 1), Sender("a", 3), Sender("a", 5), Sender("b", 4)):
        with pytest.raises((NotJoined, Zombie)) as caught:
            members.check(sender)
        refusal = members.refusal(sender)
        assert (type(refusal), str(refusal)) == (type(caught.value), str(caught.value))
    with pytest.raises(AssertionError, match="is a live member"):
        members.refusal(Sender("a", 4))


def test_incarnations_end_before_the_protocol_cannot_carry_the_next_one():
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


def test_the_first_is_the_chief_and_nobody_before_it():
    members = Membership(lease=10)
    assert (chief(members), members.chief.is_chief("a")) == ("", False)
    joined(members, "a", "b")
    assert chief(members) == "a"
    assert (members.chief.is_chief("a"), members.chief.is_chief("b")) == (True, False)


def test_a_chief_that_is_lost_hands_over_to_the_first_of_those_that_live_and_does_not_get_it_back():
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


def test_nobody_becomes_the_chief_who_is_lost_at_the_same_moment():
    members = Membership(lease=10)
    _, _, c = joined(members, "a", "b", "c")
    members.renew(c, 5)
    members.expire(11)
    assert chief(members) == "c"


def test_a_chief_that_has_failed_hands_over_and_one_that_has_come_to_its_end_does_not():
    members = Membership(lease=10)
    a, b, c = joined(members, "a", "b", "c")
    members.leave(a, 5, failed=True)
    assert chief(members) == "b"
    members.leave(b, 5)
    assert chief(members) == "b", "its work is done"
    members.leave(c, 5, failed=True)
    assert chief(members) == "b", "and nobody shall do it again"


def test_a_chief_that_starts_again_before_its_lease_ends_stays_it():
    members = Membership(lease=10)
    joined(members, "a", "b")
    members.join(Join("a"), 9)
    assert chief(members) == "a"
    members.expire(12)
    assert (members["b"].state, chief(members)) == ("lost", "a")


@pytest.mark.parametrize("how", ["is lost", "fails"])
def test_where_the_last_one_did_not_come_to_its_end_whoever_joins_next_is_the_chief(how):
    for join in (Join("b", 1), Join("b"), Join("c")):
        members = Membership(lease=10)
        a, b = joined(members, "a", "b")
        members.leave(b, 5)
        if how == "is lost":
            members.expire(11)
        else:
            members.leave(a, 5, failed=True)
        assert chief(members) == ""
        members.join(join, 12)
        assert chief(members) == join.worker


def test_a_new_life_where_nobody_lives_begins_a_new_job_as_its_chief_and_an_old_one_does_not():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.leave(a, 5)
    members.expire(11)
    members.join(Join("b", 1), 12)
    assert chief(members) == "a", "b goes on with the job whose chief has done its work"
    members.leave(b, 5)
    members.join(Join("c"), 13)
    members.join(Join("a"), 13)
    assert chief(members) == "c"


def test_a_chief_that_has_come_to_its_end_does_not_do_its_work_again_in_another_life():
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
def test_where_there_is_one_job_nobody_who_comes_when_it_is_done_is_its_chief(late):
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
def test_where_there_is_one_job_whose_chief_did_not_come_to_its_end_who_comes_is_the_chief(how):
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


def test_a_visitor_before_the_training_does_not_take_the_chief_away_from_the_one_job():
    members = Membership(lease=10, one_job=True)
    (visitor,) = joined(members, "visitor")
    members.leave(visitor, 1, trained=False)
    joined(members, "a", "b")
    assert chief(members) == "a"


def test_only_the_first_of_several_shards_has_a_chief():
    members = Membership(lease=10, has_chief=False)
    a, _ = joined(members, "a", "b")
    members.leave(a, 5, failed=True)
    assert (chief(members), members.chief.is_chief("b")) == ("", False)


# --- the race ---------------------------------------------------------------------------------------------------------


def race(members):
    """Who is in the race, and where."""
    return {name: member.clock for name, member in members.progress.training.items()}


def test_a_member_is_in_the_race_from_its_first_push_until_it_is_idle_leaves_or_is_lost():
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


def test_who_enters_starts_with_the_slowest_and_who_was_ahead_stays_ahead():
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


def test_an_empty_race_goes_on_from_where_the_last_one_left_it():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.start(a)
    a.clock = 50
    members.progress.finish(a)
    assert members.progress.least_clock == 50
    members.progress.start(b)
    assert race(members) == {"b": 50}, "or a could not go on before b has made 50 steps"


def test_the_same_life_keeps_its_clock_and_a_new_one_has_none():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.start(a)
    members.progress.start(b)
    a.clock, b.clock = 9, 8
    members.expire(11)
    again, _ = members.join(Join("a", 1), 12)
    assert (again.clock, again.training) == (9, False)
    anew, _ = members.join(Join("b"), 12)
    assert (anew.clock, anew.training, anew.dropped) == (0, False, 0)


def test_a_new_life_takes_the_old_one_out_of_the_race():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.start(a)
    members.progress.start(b)
    members.join(Join("a"), 1)
    assert race(members) == {"b": 0}
    assert members.get("a").incarnation == 2
    assert members.get("nobody") is None


def test_the_end_has_begun_when_one_that_was_in_the_race_went_in_good_order():
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


def test_who_leaves_because_it_has_failed_is_not_through():
    members = Membership(lease=10)
    a, _ = joined(members, "a", "b")
    members.progress.start(a)
    members.leave(a, 1, failed=True)
    assert (race(members), a.state, a.finished, members.progress.ending) == ({}, "left", False, False)


@pytest.mark.parametrize("last", ["leaves", "fails", "is lost"])
def test_when_nobody_lives_any_more_the_end_of_that_job_is_of_no_account_to_the_next(last):
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
def test_a_server_of_one_job_remembers_who_was_through_with_it(end):
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


def test_who_fails_is_not_through_by_having_been_idle_but_by_having_had_no_examples_left():
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


def test_one_without_work_is_through_even_if_it_never_raced_and_not_when_it_gets_some():
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.progress.finish(b, out_of_data=True)
    assert (members.progress.ending, b.finished, b.training) == (True, True, False)
    members.progress.resume(["a", "nobody"])
    assert members.progress.ending, "a was not through"
    members.progress.resume(["b"])
    assert (members.progress.ending, a.finished, b.finished) == (False, False, False)


def test_saying_idle_again_changes_nothing():
    members = Membership(lease=10)
    (a,) = joined(members, "a")
    members.progress.start(a)
    a.clock = 3
    for _ in range(2):
        members.progress.finish(a)
        assert (a.training, a.finished, a.clock, members.progress.least_clock) == (False, True, 3, 3)
