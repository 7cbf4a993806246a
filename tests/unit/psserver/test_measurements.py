"""What a server measures: histograms, refusals by class, and waits by reason, against times that the test sets."""

import asyncio

import numpy as np
import pytest

from psserver.measurements import Histogram, JournalMeasurements, Measurements, Waits
from psserver.rpc.admission import Admission
from psserver.runtime.executor import AnswerTooLarge, Executor
from psserver.storage.journal import Journal
from psserver.storage.journal_segments import SEGMENT_HEADER, segment_path
from pswire import messages as ms
from pswire.errors import NotFinite, Unavailable
from pswire.optimizers import GradientDescent
from pswire.specs.checkpoints import JournalSync
from pswire.specs.consistency import parse_consistency
from pswire.tensors.values import TensorSpec
from tests.support.commands import BOUND
from tests.support.shards import new_shard


def test_a_value_at_a_bound_counts_under_it_and_one_above_all_bounds_in_the_last_count():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        histogram.add(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 2], 107.5)


def test_answers_count_by_outcome_with_staleness_and_duration_and_clipped_ones_beside():
    measured = Measurements()
    applied = ms.Pushed(outcome=ms.Outcome.APPLIED, staleness=3, global_step=1)
    for answer in (
        applied,
        ms.Pushed(outcome=ms.Outcome.APPLIED, staleness=1, global_step=2, reason="scaled down"),
        ms.Pushed(outcome=ms.Outcome.DROPPED, staleness=9, global_step=2, reason="too stale"),
        ms.Pushed(outcome=ms.Outcome.REPEATED, staleness=3, global_step=2),
        ms.Pulled((), 2),
        ms.Left(),
    ):
        measured.answered(answer, 0.25)
    assert measured.pushes == {"applied": 2, "dropped": 1, "repeated": 1, "refused": 0}
    assert measured.clipped == 1
    assert (sum(measured.staleness.counts), measured.staleness.sum) == (2, 4)
    assert (sum(measured.push_seconds.counts), measured.push_seconds.sum) == (4, 1.0)
    assert measured.pull_seconds.sum == 0.25


@pytest.mark.parametrize(
    ("error", "name"),
    [(NotFinite("W"), "NotFinite"), (AnswerTooLarge("W"), "TooLarge"), (KeyError("W"), "InternalError")],
)
def test_a_refused_call_counts_under_the_class_that_the_caller_gets(error, name):
    measured = Measurements()
    measured.refuse(error)
    assert {kind: count for kind, count in measured.refused.items() if count} == {name: 1}


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_a_push_that_the_policy_holds_waits_until_it_is_decided_and_one_that_is_not_held_does_not():
    now = 0.0

    async def scenario():
        nonlocal now
        executor = Executor(new_shard(consistency=parse_consistency("sync:2")), clock=lambda: now)
        senders = [ms.Sender(name, (await executor.step(ms.Join(worker=name))).incarnation) for name in ("w0", "w1")]
        declared = ms.Declaration(TensorSpec("W", (2,), "float32"), np.zeros(2, np.float32), GradientDescent(1.0))
        for sender in senders:
            await executor.step(ms.Register(sender=sender, declarations=(declared,)))
        gradient = ms.Gradient("W", 0, np.ones(2, np.float32))
        first, second = [ms.Push(sender=sender, sequence=1, gradients=(gradient,)) for sender in senders]
        waits = executor.measurements.waits["policy"]
        held = asyncio.create_task(executor.step(first))
        await until(lambda: waits.now)
        assert (waits.now, waits.count) == (1, 0)
        now = 2.5
        await executor.step(second)
        await held
        assert (waits.now, waits.count, waits.seconds) == (0, 1, 2.5)
        cancelled = asyncio.create_task(executor.step(ms.Barrier(senders[0], 1)))
        await until(lambda: executor.measurements.waits["barrier"].now)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert executor.measurements.waits["barrier"].now == 0
        await executor.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), BOUND))


def test_a_transfer_that_finds_no_room_waits_also_if_it_is_refused_in_the_end():
    async def scenario():
        waits = Waits()
        admission = Admission(10, 0.01, waits)
        async with admission.reserve("w0", 6):
            assert (waits.now, waits.count) == (0, 0)
            with pytest.raises(Unavailable, match="no room"):
                await admission.reserve("w1", 5).__aenter__()
        assert (waits.now, waits.count) == (0, 1)
        assert waits.seconds > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("sync", "least"), [(JournalSync.EVERY, 3), (JournalSync.OFF, 0)])
def test_a_journal_counts_the_bytes_of_its_records_and_its_syncs(tmp_path, sync, least):
    async def scenario():
        measured = JournalMeasurements()
        journal = Journal(tmp_path, 5, sync, measured)
        journal.begin_segment(1)
        for size in (10, 20, 1 << 20):
            journal.append([bytes(size)])
            if (written := journal.written()) is not None:
                await written
        await journal.close()
        assert measured.appended == segment_path(tmp_path, 1).stat().st_size - SEGMENT_HEADER
        assert sum(measured.sync_seconds.counts) >= least

    asyncio.run(asyncio.wait_for(scenario(), BOUND))
