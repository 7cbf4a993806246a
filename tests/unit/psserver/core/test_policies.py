"""What policies decide that no scenario shows; each has its own in `tests/scenarios/`."""

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
from psserver.core.policies.policy import Apply, Drop, PushView, ShardView, join_names
from pswire.messages import RemoteWeights
from pswire.specs import consistency


class AllAsOne(Asynchronous):
    """Makes one update of all pushes."""

    def decide(self, pushes, shard):
        return [Apply(tuple(one.ticket for one in pushes))]


def test_all_pushes_of_an_update_that_are_too_stale_are_dropped_at_once_and_the_greatest_staleness_scales():
    pushes = [PushView(ticket, name, ticket) for ticket, name in enumerate("abcd")]
    view = ShardView(0, Membership(lease=10))
    decisions = DropStale(AllAsOne(), 1).decide(pushes, view)
    assert [(type(decision), decision.ticket) for decision in decisions] == [(Drop, 2), (Drop, 3)]
    assert ScaleStale(AllAsOne()).decide(pushes, view) == [Apply((0, 1, 2, 3), 1 / 3)]


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
    assert {names: join_names(names) for names in texts} == texts
