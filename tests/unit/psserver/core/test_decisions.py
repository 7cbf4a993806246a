"""The order of changes over shards, as shard 0 remembers it."""

from psserver.core.policies import update_order
from pswire.messages import RemoteWeights


def test_staleness_is_exact_among_the_changes_that_are_remembered_and_never_too_small(monkeypatch):
    monkeypatch.setattr(update_order, "REMEMBERED", 3)
    decided = update_order.UpdateOrder()
    for name in ("V", "V", "U", "V", "U", "V"):
        decided.add((), [name])
    found = [decided.staleness([RemoteWeights("V", served_at)]) for served_at in (6, 5, 4, 2)]
    assert found == [0, 1, 1, 2]
    assert decided.staleness([RemoteWeights("V", 0)]) == 6, "V has missed 4, of which the first is forgotten"
    assert decided.staleness([RemoteWeights("never changed", 0)]) == 0
