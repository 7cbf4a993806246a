"""Consistency policies, one decision at a time: who waits, where they are in the race, and what may happen."""

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
from psserver.core.policies.policy import Apply, CallView, Drop, Serve, ShardView, listed
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


def test_bounded_waits_neither_for_the_idle_nor_for_the_lost_nor_holds_a_pull():
    waiting = [*pushes("a"), CallView(9, "b", applied=True)]
    assert BoundedStaleness(0).decide(waiting, view({"a": 5, "b": 3})) == [Serve(9)]
    assert BoundedStaleness(0).decide(waiting[:1], view({"a": 5}, through="b", gone="c")) == [Apply((1,))]


@pytest.mark.parametrize(
    ("steps", "clocks", "sentence"),
    [
        (2, {"a": 16, "b": 14}, "bounded:2: b is at step 14, 2 behind"),
        (2, {"a": 16, "b": 14, "c": 14, "d": 15}, "bounded:2: b and c are at step 14, 2 behind"),
        (0, {"a": 4, "b": 4}, "bounded:0: b is at step 4, which is not done"),
    ],
)
def test_bounded_names_the_slowest(steps, clocks, sentence):
    assert BoundedStaleness(steps).explain(*_one(pushes("a")), view(clocks)) == sentence


def _one(waiting):
    return waiting[0], waiting


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
def test_synchronous_makes_an_update_of_the_first_who_come(workers, racing, through, gone, held, update):
    verdicts = Synchronous(workers).decide(pushes(held), view(dict.fromkeys(racing, 0), 0, through, gone))
    assert applied(verdicts) == update
    assert len(verdicts) == len(update)


def test_synchronous_drops_the_late_and_says_which_step_it_is():
    waiting = [CallView(1, "a", False, 2), CallView(2, "b", False, 1), CallView(3, "c", False), CallView(4, "d", True)]
    late_by_two, late_by_one, served = Synchronous(2, backup=1).decide(waiting, view(dict.fromkeys("abcd", 0), 17))
    assert late_by_two == Drop(
        1, "sync:2,backup=1: late by 2 changes of its weights; step 17 needs gradients of the new ones"
    )
    assert late_by_one == Drop(
        2, "sync:2,backup=1: late by 1 change of its weights; step 17 needs gradients of the new ones"
    )
    assert served == Serve(4)


@pytest.mark.parametrize(
    ("racing", "through", "held", "sentence"),
    [
        ("abcd", "", "ab", "2 of 3 gradients of step 17 have come; not here yet: c and d"),
        (
            "ab",
            "",
            "ab",
            "2 of 3 gradients of step 17 have come; workers: a and b; start 1 more worker or lower N",
        ),
        (
            "a",
            "",
            "a",
            "1 of 3 gradients of step 17 have come; workers: a; start 2 more workers or lower N",
        ),
        ("ab", "c", "a", "1 of 2 gradients of step 17 have come; not here yet: b"),
    ],
)
def test_synchronous_counts_who_has_come_and_names_who_has_not(racing, through, held, sentence):
    seen = view(dict.fromkeys(racing, 5), 17, through)
    assert Synchronous(3).explain(*_one(pushes(held)), seen) == f"sync:3: {sentence}"


# --- following --------------------------------------------------------------------------------------------------------

TRIO = UpdateGroup(7, tuple(ChangeId(Sender(name, 1), 5) for name in "abc"))


@pytest.mark.parametrize(
    ("settled", "held", "update"),
    [("", "ab", []), ("", "cab", [(1, 2, 3)]), ("c", "ab", [(1, 2)]), ("ac", "b", [(1,)]), ("a", "b", [])],
)
def test_following_makes_one_update_of_a_group_when_all_that_are_not_settled_have_come(settled, held, update):
    seen = view(dict.fromkeys("abcd", 0), settled=settled)
    assert applied(Follower().decide(pushes(held, group=TRIO), seen)) == update


def test_following_keeps_groups_apart():
    pair, other = (
        UpdateGroup(number, tuple(ChangeId(Sender(name, 1), 5) for name in names))
        for number, names in ((3, "ab"), (4, "cd"))
    )
    waiting = [CallView(1, "a", False, 0, pair), CallView(2, "c", False, 0, other), CallView(3, "d", False, 0, other)]
    seen = view(dict.fromkeys("abcd", 0))
    assert applied(Follower().decide(waiting, seen)) == [(2, 3)]
    assert Follower().explain(*_one(waiting), seen) == "shard 0 made update 3 of a and b; not here yet: b"


# --- staleness --------------------------------------------------------------------------------------------------------


def test_drop_refuses_nothing_that_is_held_or_its_worker_would_get_ahead_by_it():
    policy, held = DropStale(BoundedStaleness(1), 0), pushes("a", staleness=9)
    assert policy.decide(held, view({"a": 3, "b": 2})) == []
    assert policy.explain(*_one(held), view({"a": 3, "b": 2})) == "bounded:1: b is at step 2, 1 behind"
    assert [type(verdict) for verdict in policy.decide(held, view({"a": 3, "b": 3}))] == [Drop]


def test_drop_takes_the_stale_out_of_a_group_and_leaves_the_rest_for_later():
    class Both(Asynchronous):
        def decide(self, waiting, view):
            return [Apply((1, 2)), Serve(1)]

    waiting = [CallView(1, "a", False, 0), CallView(2, "b", False, 3)]
    (dropped,) = DropStale(Both(), 2).decide(waiting, view({"a": 0, "b": 0}))
    assert dropped.ticket == 2


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


@pytest.mark.parametrize(("staleness", "scale"), [(0, 1.0), (1, 1.0), (2, 1 / 2), (8, 1 / 8)])
def test_scale_divides_the_learning_rate_by_the_staleness(staleness, scale):
    waiting = [CallView(5, "b", True), *pushes("a", staleness)]
    assert ScaleStale(Asynchronous()).decide(waiting, view({"a": 0})) == [Serve(5), Apply((1,), scale)]
    assert ScaleStale(Asynchronous()).decide(waiting[:1], view({"a": 0})) == [Serve(5)]


# --- which policy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", consistency.CONSISTENCIES)
def test_shard_0_has_the_policy_of_its_spec_and_others_follow_where_one_decides(spec):
    chosen = {"async": Asynchronous, "bounded": BoundedStaleness, "sync": Synchronous}[spec.form.partition(":")[0]]
    one = spec() if spec is consistency.Asynchronous else spec(3)
    for shard, shards in ((0, 1), (0, 2), (1, 2)):
        policy = policy_for(one, consistency.IgnoreStaleness(), shard, shards)
        assert type(policy) is (Follower if shard and spec.decides else chosen)


def test_dropping_is_for_shard_0_alone_and_scaling_for_each_shard():
    asynchronous, bounded = consistency.Asynchronous(), consistency.Bounded(1)
    assert type(policy_for(asynchronous, consistency.DropStalePushes(2), 1, 2)) is Follower
    for one, inner in ((asynchronous, Asynchronous), (bounded, Follower)):
        scaled = policy_for(one, consistency.ScaleByStaleness(), 1, 2)
        assert (type(scaled), type(scaled.inner)) == (ScaleStale, inner)


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
def test_names_are_listed_as_people_do(names, text):
    assert listed(names) == text
