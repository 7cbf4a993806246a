"""Membership: names, incarnations and leases, with the time as an argument."""

import pytest

from psserver.core.membership import Membership
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
    member.state = "left"
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
    with pytest.raises(NotJoined, match="speaks as incarnation 5, this shard knows it as 4"):
        members.check(Sender("a", 5))
    with pytest.raises(Zombie):
        members.check_join(Join("a", 3))
    with pytest.raises(InvalidMessage, match="needs a name"):
        members.check_join(Join(""))
    for join in (Join("a"), Join("a", 4), Join("a", 5), Join("b", 1)):
        members.check_join(join)
