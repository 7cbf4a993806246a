"""A data queue that is restored from its state, after JSON, goes on as the one that it was made of."""

import math

import pytest

from psserver.core.data.data_queue import DataQueue
from psserver.core.shard import Shard
from psserver.storage.checkpoints import state_from_json, state_to_json
from pswire.errors import AlreadyRegistered
from pswire.messages import Finished, Join, Progress, QueueSpec, Sender, Take

A, B = Sender("a", 1), Sender("b", 1)


SPECS = [
    QueueSpec(name="q", size=size, block=block, epochs=epochs, limit=limit)
    for size in (0, 100)
    for block in (1, 10)
    for epochs in ((0, 1, 2) if size else (0,))
    for limit in (0, 5, 150)
]


@pytest.mark.parametrize("first", SPECS, ids=str)
def test_a_queue_that_is_asked_for_with_any_other_parameters_is_extended_or_refused_with_both(first):
    for second in SPECS:
        shard = Shard()
        shard.step(1, Join(worker="a"), 0.0)
        (reply,) = shard.step(1, Take(sender=A, queue=first), 0.0).replies
        assert not isinstance(reply.answer, Exception)
        same = (first.size, first.block) == (second.size, second.block)
        ends_later = (first.total or math.inf) < (second.total or math.inf)
        if second == first or (same and ends_later):
            (reply,) = shard.step(1, Take(sender=A, queue=second), 0.0).replies
            assert reply.answer.block.number == 0
            continue
        with pytest.raises(AlreadyRegistered, match=r"data queue 'q' has .* but this worker requests"):
            shard.step(1, Take(sender=A, queue=second), 0.0)


def taken(shard, sender, spec, finished=None):
    (reply,) = shard.step(1, Take(sender=sender, queue=spec, finished=finished), 0.0).replies
    block = reply.answer.block
    return None if block is None else (block.number, block.start, block.stop)


def restored(shard):
    again = Shard.for_state(shard.state())
    again.restore(state_from_json(state_to_json(shard.state()), {}), {}, 0.0)
    return again


@pytest.mark.parametrize(
    "spec",
    [
        QueueSpec(name="q", size=10, block=4, epochs=0),
        QueueSpec(name="q", size=10, block=4, epochs=3, limit=25, in_order=True),
        QueueSpec(name="q", size=0, block=16, epochs=0),
    ],
    ids=str,
)
def test_a_restored_queue_has_the_status_of_the_first(spec):
    queue = DataQueue(spec)
    block = queue.take("a", result := Shard().step(1, Join(worker="a"), 0.0))
    queue.note("a", Progress(queue="q", block=0, position=3, cost_sum=1.5))
    again = DataQueue.restored(queue.state())
    assert again.status() == queue.status()
    assert (again.status().done, again.status().blocks_out, again.done) == (3, 1, False)
    queue.finish("a", Finished(block.number), result)
    assert DataQueue.restored(queue.state()).status().done == block.stop


def test_a_queue_keeps_the_reports_of_the_last_1000_epochs_and_counts_all():
    """A worker that comes late gets these, and the others each one; so does a queue that is restored."""
    shard, spec = Shard(), QueueSpec(name="q", size=1, block=1, epochs=0)
    for name in "ab":
        shard.step(1, Join(worker=name, name_key=b"key"), 0.0)
    taken(shard, A, spec)
    for number in range(2500):
        (reply,) = shard.step(
            1, Take(sender=A, queue=spec, finished=Finished(number, 0.5), reports_received=number), 0.0
        ).replies
        assert [one.epoch for one in reply.answer.reports] == [number + 1]
    for one, sender in ((shard, B), (again := restored(shard), B)):
        if one is again:
            sender = Sender("b", one.step(1, Join(worker="b", name_key=b"key"), 0.0).replies[0].answer.incarnation)
        for received, first in ((0, 1501), (1500, 1501), (1501, 1502), (2500, None)):
            (reply,) = one.step(1, Take(sender=sender, queue=spec, reports_received=received), 0.0).replies
            epochs = [report.epoch for report in reply.answer.reports]
            assert epochs == ([] if first is None else list(range(first, 2501)))
        (queue,) = one.status(0.0).queues
        assert (queue.epoch, queue.done) == (2501, 2500)
    assert len(shard.state().queues[0].reports) == 1000
