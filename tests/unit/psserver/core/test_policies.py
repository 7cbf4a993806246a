"""Consistency policies, one decision at a time."""

import pytest

from psserver.core.members.membership import Membership
from psserver.core.policies import (
    Asynchronous,
    BoundedStaleness,
    DropStale,
    Follower,
    ScaleStale,
    Synchronous,
    policy_for,
)
from psserver.core.policies.policy import Apply, CallView, Drop, ShardView, listed
from pswire.messages import ChangeId, Join, Sender, UpdateGroup
from pswire.specs import consistency


def view(clocks, step=0, through="", gone="", settled=""):
    """A shard at `step` with these workers in the race; `through` are in good order, `gone` have been lost.

    Of `settled` workers no part of a group comes any more.
    """
    members = Membership(lease=10)
    for name in [*clocks, *through, *gone]:
        members.progress.start(members.join(Join(name), 0)[0])
    for name, clock in clocks.items():
        members.get(name).clock = clock
        members.renew(members.get(name), 100)
    for name in through:
        members.progress.finish(members.get(name))
        members.renew(members.get(name), 100)
    members.expire(50)
    return ShardView(step, members, lambda delivery: delivery.sender.worker in settled)


def pushes(names, staleness=0, group=None):
    """A held push of each of these workers, in this order; tickets count from 1."""
    return [CallView(ticket, name, False, staleness, group) for ticket, name in enumerate(names, 1)]


def applied(verdicts):
    """The tickets of each update."""
    return [verdict.tickets for verdict in verdicts if isinstance(verdict, Apply)]


# --- asynchronous -----------------------------------------------------------------------------------------------------


# --- bounded staleness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "clocks", "held", "go"),
    [
        (2, {"a": 0, "b": 0}, "a", "a"),
        (2, {"a": 1, "b": 0}, "a", "a"),
        (2, {"a": 2, "b": 0}, "a", ""),
        (2, {"a": 2, "b": 0}, "ab", "ab"),  # b's push makes room for a's
        (2, {"a": 2, "b": 0, "c": 0}, "ab", "b"),  # c is as slow, and computes
        (2, {"a": 3, "b": 1, "c": 1}, "acb", "acb"),
        (2, {"a": 14, "b": 12}, "a", ""),
        (2, {"a": 7}, "a", "a"),  # alone in the race
        (0, {"a": 4, "b": 4, "c": 4}, "ab", ""),
        (0, {"a": 4, "b": 4, "c": 4}, "cab", "cab"),  # all together
        (1, {"a": 1, "b": 1, "c": 0}, "ab", ""),
        (1, {"a": 1, "b": 1, "c": 0}, "abc", "abc"),
        (1, {"a": 1, "b": 0, "c": 0}, "bca", "bca"),
    ],
)
def test_bounded_applies_what_keeps_the_bound(steps, clocks, held, go):
    verdicts = BoundedStaleness(steps).decide(pushes(held), view(clocks))
    assert verdicts == [Apply((held.index(name) + 1,)) for name in go]


# --- synchronous ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "racing", "through", "gone", "held", "update"),
    [
        (3, "abc", "", "", "ab", []),
        (3, "abc", "", "", "cab", [(1, 2, 3)]),
        (3, "abcd", "", "", "dcba", [(1, 2, 3)]),  # the backup's is not waited for, whoever it is
        (3, "ab", "", "", "ab", []),  # too few
        (3, "ab", "", "c", "ab", []),  # the lost may come back
        (3, "ab", "c", "", "a", []),
        (3, "ab", "c", "", "ab", [(1, 2)]),  # the end of the data
        (3, "a", "bc", "", "a", [(1,)]),
        (3, "a", "b", "c", "a", [(1,)]),
        (3, "abcd", "e", "", "ab", []),  # enough are still there
        (3, "abcd", "e", "", "abc", [(1, 2, 3)]),
        (1, "ab", "", "", "b", [(1,)]),
        (2, "ab", "", "", "aa", []),  # one worker counts once
        (2, "ab", "", "", "aab", [(1, 3)]),
    ],
)
def test_synchronous_makes_an_update_of_the_first_pushes(workers, racing, through, gone, held, update):
    verdicts = Synchronous(workers).decide(pushes(held), view(dict.fromkeys(racing, 0), 0, through, gone))
    assert applied(verdicts) == update
    assert len(verdicts) == len(update)


# --- following --------------------------------------------------------------------------------------------------------

TRIO = UpdateGroup(7, tuple(ChangeId(Sender(name, 1), 5) for name in "abc"))


@pytest.mark.parametrize(
    ("settled", "held", "update"),
    [("", "ab", []), ("", "cab", [(1, 2, 3)]), ("c", "ab", [(1, 2)]), ("ac", "b", [(1,)]), ("a", "b", [])],
)
def test_a_follower_makes_one_update_of_a_group_when_all_unsettled_parts_are_there(settled, held, update):
    seen = view(dict.fromkeys("abcd", 0), settled=settled)
    assert applied(Follower().decide(pushes(held, group=TRIO), seen)) == update


# --- staleness --------------------------------------------------------------------------------------------------------


class AllAsOne(Asynchronous):
    """Makes one update of all pushes."""

    def decide(self, waiting, view):
        return [Apply(tuple(one.ticket for one in waiting))]


def test_drop_takes_all_that_are_too_stale_out_of_a_group_at_once():
    waiting = [CallView(ticket, name, False, ticket) for ticket, name in enumerate("abcd")]
    verdicts = DropStale(AllAsOne(), 1).decide(waiting, view(dict.fromkeys("abcd", 0)))
    assert [(type(verdict), verdict.ticket) for verdict in verdicts] == [(Drop, 2), (Drop, 3)]


def test_scale_takes_the_greatest_staleness_of_an_update():
    waiting = [CallView(1, "a", False, 2), CallView(2, "b", False, 8), CallView(3, "c", False, 0)]
    assert ScaleStale(AllAsOne()).decide(waiting, view(dict.fromkeys("abc", 0))) == [Apply((1, 2, 3), 1 / 8)]


# --- which policy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", consistency.CONSISTENCIES)
def test_shard_0_has_the_policy_of_its_spec_and_others_follow_where_one_decides(spec):
    chosen = {"async": Asynchronous, "bounded": BoundedStaleness, "sync": Synchronous}[spec.form.partition(":")[0]]
    one = spec() if spec is consistency.Asynchronous else spec(3)
    for shard, shards in ((0, 1), (0, 2), (1, 2)):
        policy = policy_for(one, consistency.IgnoreStaleness(), shard, shards)
        assert type(policy) is (Follower if shard and spec.decides else chosen)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", "none"),
        ("a", "a"),
        ("ab", "a and b"),
        ("abcde", "a, b, c, d and e"),
        ("abcdef", "a, b, c, d and 2 others"),
    ],
)
def test_names_are_listed_as_in_a_sentence(names, text):
    assert listed(names) == text
