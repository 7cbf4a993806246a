"""Status and counts of a shard, and the order in which its policy sees calls."""

import numpy as np

from psserver.core.policies.policy import Apply, PushView
from psserver.core.shard import MAX_LISTED
from pswire.messages import Assign, Assignment, Join, Leave, Sender, Status, Tune
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.shard_driver import A, ShardDriver, declared


def job(workers="ab", **options):
    """A shard with a variable W of two zeros, from which each push subtracts its gradient."""
    return ShardDriver(declared("W", np.zeros(2), GradientDescent(1.0)), workers=workers, **options)


class InPairs:
    """Makes updates of two pushes."""

    def decide(self, pushes, shard):
        return [Apply(tuple(push.ticket for push in pushes[:2]))] if len(pushes) > 1 else []


def test_each_push_of_an_update_counts_with_its_own_staleness_and_all_bytes():
    """W has 16 bytes, sent and served at its registration; so have three assigns, two gradients, and a value served."""
    shard = job(policy=InPairs())
    for sequence in (1, 2, 3):
        shard.answer(Assign(A, sequence, (Assignment("W", np.zeros(2)),)))
    shard.push("a", 1, sequence=4, version=3, pull=("W",), W=np.ones(2))
    assert set(shard.push("b", 2, W=np.ones(2))) == {1, 2}
    shard.now = 2.0
    status = shard.answer(Status())
    assert [worker.staleness for worker in status.workers] == [0, 3]
    assert (status.staleness.p50, status.staleness.p99) == (0, 3)
    traffic = status.traffic
    assert (traffic.pushes, traffic.bytes_in, traffic.bytes_out) == (2 / 2, 6 * 16 / 2, 2 * 16 / 2)


def test_of_very_many_workers_and_changes_a_status_lists_the_live_and_the_newest():
    shard = job("a")
    for number in range(1, 1500):
        shard.answer(Join(f"w{number}"))
        shard.answer(Leave(Sender(f"w{number}", 1)))
    for count in range(MAX_LISTED + 2):
        shard.answer(Tune(A, 1 + count, ("W",), GradientDescent(float(count)), ("learning_rate",)))
    status = shard.answer(Status())
    assert [worker.number for worker in status.workers] == [0, *range(501, 1500)]
    assert [change.optimizer.learning_rate for change in status.changes] == list(range(2, MAX_LISTED + 2))


def test_a_worker_that_joins_gets_the_consistency_of_the_shard():
    for consistency, staleness in (("async", "none"), ("bounded:3", "scale"), ("sync:2,backup=1", "drop:4")):
        shard = job(consistency=parse_consistency(consistency), staleness=parse_staleness(staleness))
        joined, status = shard.answer(Join("c")), shard.answer(Status())
        assert (joined.consistency, joined.staleness) == (consistency, staleness)
        assert (status.consistency, status.handling) == (consistency, staleness)


def test_a_policy_sees_pushes_in_order_of_arrival_and_values_agree_with_their_versions():
    seen = []

    class OneByOne:
        """Applies one push at a time as soon as there are two."""

        def decide(self, pushes, shard):
            seen.append((list(pushes), shard.global_step))
            return [Apply((pushes[0].ticket,))] if len(pushes) > 1 or shard.global_step else []

    shard = job(policy=OneByOne())
    shard.push("a", 7, pull=("W",), W=np.ones(2))
    answers = shard.push("b", 8, pull=("W",), W=np.full(2, 10.0))
    assert [(answer.values[0].version, *answer.values[0].array) for answer in answers.values()] == [(2, -11, -11)] * 2
    assert seen == [
        ([PushView(7, "a")], 0),
        ([PushView(7, "a"), PushView(8, "b")], 0),
        ([PushView(8, "b", staleness=1)], 1),
    ]
