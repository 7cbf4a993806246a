"""When a job is over: somebody has come to its end, and nobody is left. So a server may end by itself."""

import pytest

from psserver.core.membership import Membership
from pswire.messages import Join


def joined(members, *names):
    """Members of these names, which have just joined, at time 0."""
    return [members.join(Join(name), 0)[0] for name in names]


def test_the_job_is_over_when_the_last_one_has_left_in_good_order():
    members = Membership(lease=10)
    assert members.over_since is None, "it has not begun"
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    assert members.over_since is None
    members.leave(b, 5)
    assert members.over_since == 5


@pytest.mark.parametrize("last", ["fails", "is lost"])
def test_who_has_failed_or_was_lost_is_not_waited_for_when_another_came_to_its_end(last):
    members = Membership(lease=10)
    a, b = joined(members, "a", "b")
    members.leave(a, 3)
    if last == "is lost":
        assert members.expire(12) == [b]
    else:
        members.leave(b, 12, failed=True)
    assert members.over_since == 12


@pytest.mark.parametrize("first", ["fails", "is lost"])
def test_a_job_without_anybody_who_came_to_its_end_is_not_over(first):
    members = Membership(lease=10)
    (a,) = joined(members, "a")
    if first == "is lost":
        members.expire(11)
    else:
        members.leave(a, 11, failed=True)
    assert members.over_since is None
    a, new = members.join(Join("a"), 20)
    assert (new, members.over_since) == (True, None)
    members.leave(a, 21)
    assert members.over_since == 21


def test_one_that_comes_back_goes_on_with_the_same_job():
    members = Membership(lease=10)
    a, _ = joined(members, "a", "b")
    members.leave(a, 3)
    members.expire(11)
    assert members.over_since == 11
    members.join(Join("b", 1), 12)
    assert members.over_since is None
    members.expire(30)
    assert members.over_since == 30, "a has come to its end"


def test_a_new_life_where_nobody_lives_is_another_job_and_must_come_to_its_own_end():
    members = Membership(lease=10)
    (a,) = joined(members, "a")
    members.leave(a, 3)
    b, _ = members.join(Join("b"), 8)
    assert members.over_since is None
    members.leave(b, 9, failed=True)
    assert members.over_since is None
    again, _ = members.join(Join("b"), 20)
    members.leave(again, 21)
    assert members.over_since == 21
