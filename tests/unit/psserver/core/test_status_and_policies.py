"""Status and metrics of a shard, and what policies see and decide that no scenario shows."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from psserver.core.members.membership import Membership
from psserver.core.part import MAX_LISTED
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
from psserver.core.traffic import INTERVAL, MIN_PERIOD, WINDOW, TrafficMeter
from psserver.core.updates.staleness import EXACT, percentile, rounded
from pswire.messages import Assign, Assignment, Join, Leave, RemoteWeights, Sender, Status, Tune
from pswire.optimizers import GradientDescent
from pswire.specs import consistency
from tests.support.shards import A, ShardDriver, declared


def job(workers="ab", **options):
    """A shard with a variable W of two zeros, from which each push subtracts its gradient."""
    return ShardDriver(declared("W", np.zeros(2), GradientDescent(1.0)), workers=workers, **options)


class AllAsOne(Asynchronous):
    """Makes one update of all pushes as soon as there are two."""

    def decide(self, pushes, shard):
        return [Apply(tuple(push.ticket for push in pushes))] if len(pushes) > 1 else []


def test_each_push_of_an_update_counts_with_its_own_staleness_and_all_bytes():
    """W has 16 bytes, sent and served at its registration; so have three assigns, two gradients, and a value served."""
    shard = job(policy=AllAsOne())
    for sequence in (1, 2, 3):
        shard.answer(Assign(sender=A, sequence=sequence, assignments=(Assignment("W", np.zeros(2)),)))
    shard.push("a", 1, sequence=4, version=3, pull=("W",), W=np.ones(2))
    assert set(shard.push("b", 2, W=np.ones(2))) == {1, 2}
    shard.now = 2.0
    status = shard.answer(Status())
    assert [worker.staleness for worker in status.workers] == [0, 3]
    assert (status.staleness.p50, status.staleness.p99) == (0, 3)
    traffic = status.traffic
    assert (traffic.pushes, traffic.bytes_in, traffic.bytes_out) == (2 / 2, 6 * 16 / 2, 2 * 16 / 2)


@pytest.mark.slow
def test_of_very_many_workers_and_changes_a_status_lists_the_live_and_the_newest():
    shard = job("a")
    for number in range(1, 1500):
        shard.answer(Join(worker=f"w{number}"))
        shard.answer(Leave(Sender(f"w{number}", 1)))
    for count in range(MAX_LISTED + 2):
        shard.answer(
            Tune(
                sender=A,
                sequence=1 + count,
                names=("W",),
                optimizer=GradientDescent(float(count)),
                fields=("learning_rate",),
            )
        )
    status = shard.answer(Status())
    assert [worker.number for worker in status.workers] == [0, *range(501, 1500)]
    assert [change.optimizer.learning_rate for change in status.changes] == list(range(2, MAX_LISTED + 2))


def test_a_policy_sees_pushes_in_order_of_arrival_and_values_agree_with_their_versions():
    seen = []

    def decide(pushes, shard):
        """Applies one push at a time as soon as there are two."""
        seen.append((list(pushes), shard.global_step))
        return [Apply((pushes[0].ticket,))] if len(pushes) > 1 or shard.global_step else []

    shard = job(policy=SimpleNamespace(decide=decide))
    shard.push("a", 7, pull=("W",), W=np.ones(2))
    answers = shard.push("b", 8, pull=("W",), W=np.full(2, 10.0))
    assert [(answer.values[0].version, *answer.values[0].array) for answer in answers.values()] == [(2, -11, -11)] * 2
    assert seen == [
        ([PushView(7, "a")], 0),
        ([PushView(7, "a"), PushView(8, "b")], 0),
        ([PushView(8, "b", staleness=1)], 1),
    ]


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1e-4, INTERVAL * 0.9, INTERVAL, 1.0, 3.0])
def test_however_often_it_ticks_a_rate_is_right_and_memory_bounded(step):
    meter, ticks = TrafficMeter(), round(3 * WINDOW / step)
    for number in range(ticks):
        if number * step >= meter.next_snapshot:
            meter.tick(number * step)
        meter.pushes += 2
    assert meter.traffic(ticks * step).pushes == pytest.approx(2 / step, rel=2 * step / WINDOW)
    assert len(meter._snapshots) <= WINDOW / INTERVAL + 1


def test_a_rate_is_right_at_the_start_and_when_ticks_stop():
    meter = TrafficMeter()
    meter.tick(7.0)
    meter.pushes += 6
    assert meter.traffic(10.0).pushes == 2.0
    assert meter.traffic(7.0 + MIN_PERIOD / 1000).pushes == meter.traffic(7.0).pushes == 6.0 / MIN_PERIOD
    meter.tick(8.0)
    meter.pushes += 94
    assert meter.traffic(7.0 + 50.0).pushes == 94 / 49, "since the last tick, at 8 s"


def test_a_percentile_is_numpys_by_nearest_rank_below_1024_and_at_most_one_part_in_512_too_low_above():
    for pushes in (1, 2, 3, 7, 99, 100, 101, 1000, 4321):
        random = np.random.default_rng(pushes)
        for staleness in (random.geometric(0.05, pushes) - 1, np.exp(random.uniform(0, 27.0, pushes)).astype(int)):
            counts = Counter(one if one < EXACT else rounded(one) for one in map(int, staleness))
            for percent in (0, 1, 3, 20, 25, 50, 77, 90, 99, 100):
                exact = int(np.percentile(staleness, percent, method="inverted_cdf"))
                found = percentile(counts, percent)
                assert found == exact if exact < 1024 else exact * 511 / 512 < found <= exact


# --- policies ---------------------------------------------------------------------------------------------------------


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
