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
    update_order,
)
from psserver.core.policies.policy import Apply, CallView, Drop, ShardView, listed
from pswire.messages import ChangeId, Join, RemoteWeights, Sender, UpdateGroup
from pswire.specs import consistency


def view(clocks, finished="", lost="", settled=""):
    """A shard with these workers in training, and others that have finished or were lost.

    Of `settled` workers no part of a group comes any more.
    """
    members = Membership(lease=10)
    for name in [*clocks, *finished, *lost]:
        members.progress.start(members.join(Join(name), 0)[0])
    for name in [*clocks, *finished]:
        members[name].clock = clocks.get(name, 0)
        members.renew(members[name], 100)
    for name in finished:
        members.progress.finish(members[name])
    members.expire(50)
    return ShardView(0, members, lambda change: change.sender.worker in settled)


def pushes(names, group=None):
    """A held push of each of these workers, in this order; tickets count from 1."""
    return [CallView(ticket, name, False, 0, group) for ticket, name in enumerate(names, 1)]


def updates(decisions):
    """The tickets of each update; there is nothing but updates."""
    assert all(isinstance(decision, Apply) for decision in decisions)
    return [decision.tickets for decision in decisions]


@pytest.mark.parametrize(
    ("steps", "clocks", "held", "go"),
    [
        (2, {"a": 2, "b": 0}, "a", ""),
        (2, {"a": 2, "b": 0}, "ab", "ab"),  # b's push lets a's go
        (2, {"a": 2, "b": 0, "c": 0}, "ab", "b"),  # c is as slow, and computes
        (2, {"a": 7}, "a", "a"),  # alone
        (0, {"a": 4, "b": 4, "c": 4}, "ab", ""),
        (0, {"a": 4, "b": 4, "c": 4}, "cab", "cab"),  # all together
        (1, {"a": 1, "b": 1, "c": 0}, "abc", "abc"),
    ],
)
def test_bounded_staleness_applies_what_keeps_the_bound(steps, clocks, held, go):
    decisions = BoundedStaleness(steps).decide(pushes(held), view(clocks))
    assert updates(decisions) == [(held.index(name) + 1,) for name in go]


@pytest.mark.parametrize(
    ("workers", "training", "finished", "lost", "held", "update"),
    [
        (3, "abc", "", "", "ab", []),
        (3, "abcd", "", "", "dcba", [(1, 2, 3)]),  # the backup's is not waited for, whoever it is
        (3, "ab", "", "c", "ab", []),  # too few; the lost may come back
        (3, "ab", "c", "", "a", []),
        (3, "ab", "c", "", "ab", [(1, 2)]),  # the end of the data
        (3, "a", "b", "c", "a", [(1,)]),
        (3, "abcd", "e", "", "ab", []),  # enough are still there
        (3, "abcd", "e", "", "abcd", [(1, 2, 3)]),
        (2, "ab", "", "", "aa", []),  # one worker counts once
        (2, "ab", "", "", "aab", [(1, 3)]),
    ],
)
def test_synchronous_makes_an_update_of_the_first_pushes(workers, training, finished, lost, held, update):
    decisions = Synchronous(workers).decide(pushes(held), view(dict.fromkeys(training, 0), finished, lost))
    assert updates(decisions) == update


TRIO = UpdateGroup(7, tuple(ChangeId(Sender(name, 1), 5) for name in "abc"))


@pytest.mark.parametrize(
    ("settled", "held", "update"), [("", "ab", []), ("", "cab", [(1, 2, 3)]), ("c", "ab", [(1, 2)]), ("a", "b", [])]
)
def test_a_follower_makes_one_update_of_a_group_when_all_unsettled_parts_are_there(settled, held, update):
    decisions = Follower().decide(pushes(held, TRIO), view(dict.fromkeys("abcd", 0), settled=settled))
    assert updates(decisions) == update


class AllAsOne(Asynchronous):
    """Makes one update of all pushes."""

    def decide(self, calls, shard):
        return [Apply(tuple(one.ticket for one in calls))]


def test_all_pushes_of_an_update_that_are_too_stale_are_dropped_at_once_and_the_greatest_staleness_scales():
    calls = [CallView(ticket, name, False, ticket) for ticket, name in enumerate("abcd")]
    decisions = DropStale(AllAsOne(), 1).decide(calls, view(dict.fromkeys("abcd", 0)))
    assert [(type(decision), decision.ticket) for decision in decisions] == [(Drop, 2), (Drop, 3)]
    assert ScaleStale(AllAsOne()).decide(calls, view({})) == [Apply((0, 1, 2, 3), 1 / 3)]


@pytest.mark.parametrize("spec", consistency.CONSISTENCIES)
def test_shard_0_has_the_policy_of_its_spec_and_others_follow_where_one_decides(spec):
    chosen = {"async": Asynchronous, "bounded": BoundedStaleness, "sync": Synchronous}[spec.form.partition(":")[0]]
    one = spec() if spec is consistency.Asynchronous else spec(3)
    for shard, shards in ((0, 1), (0, 2), (1, 2)):
        policy = policy_for(one, consistency.IgnoreStaleness(), shard, shards)
        assert type(policy) is (Follower if shard and spec.decides else chosen)


def test_staleness_is_exact_among_the_changes_that_are_remembered_and_never_too_small(monkeypatch):
    monkeypatch.setattr(update_order, "MAX_REMEMBERED_CHANGES", 3)
    order = update_order.UpdateOrder()
    for name in ("V", "V", "U", "V", "U", "V"):
        order.add((), [name])
    assert [order.staleness([RemoteWeights("V", served_at)]) for served_at in (6, 5, 4, 2)] == [0, 1, 1, 2]
    assert order.staleness([RemoteWeights("V", 0)]) == 6, "V has missed 4, of which the first is forgotten"
    assert order.staleness([RemoteWeights("never changed", 0)]) == 0


def test_names_are_listed_as_in_a_sentence():
    texts = {"": "none", "a": "a", "ab": "a and b", "abcde": "a, b, c, d and e", "abcdef": "a, b, c, d and 2 others"}
    assert {names: listed(names) for names in texts} == texts
