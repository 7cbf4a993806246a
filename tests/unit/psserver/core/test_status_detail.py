"""What a shard counts about pushes, and the detail of its status."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.core import status
from psserver.core.members import push_counts
from psserver.core.status import ranges, upper_bound
from pswire.messages import (
    Finished,
    Gradient,
    Intervene,
    Join,
    Progress,
    Pull,
    Push,
    QueueSpec,
    Renew,
    Sender,
    Status,
    Take,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.compression import to_16_bits
from pswire.tensors.values import IndexedSlices
from tests.support.shards import A, B, ShardDriver, declared

ONES = np.ones(2, np.float32)


def job(**options):
    """A shard with variables W of two and V of three float32 zeros, from which each push subtracts its gradient."""
    sgd = GradientDescent(1.0)
    return ShardDriver(declared("W", 0 * ONES, sgd), declared("V", np.zeros(3, np.float32), sgd), **options)


def worker(shard, name):
    return next(one for one in shard.answer(Status()).workers if one.name == name)


def test_staleness_is_counted_by_worker_and_variable():
    """`b` computes from what W and V were at the beginning, after two pushes of `a` to W and one to V."""
    shard = job()
    shard.push("a", W=ONES, V=np.ones(3, np.float32))
    shard.push("a", version=1, W=ONES)
    shard.push("b", W=ONES, V=np.ones(3, np.float32))
    matrix = shard.answer(Status(detail=True)).detail.matrix
    assert matrix.variables == ("W", "V")
    rows = {row.worker: (row.incarnation, row.pushes, row.sums) for row in matrix.workers}
    assert rows == {"a": (1, (2, 1), (0, 0)), "b": (1, (1, 1), (2, 1))}


def test_a_status_has_no_detail_unless_it_is_asked_for():
    assert job().answer(Status()).detail is None


def test_the_matrix_has_the_first_variables_and_the_newest_live_workers(monkeypatch):
    monkeypatch.setattr(status, "MAX_CELLS", 4)
    monkeypatch.setattr(push_counts, "MAX_VARIABLES", 2)
    monkeypatch.setattr(status, "MAX_VARIABLES", 2)
    sgd = GradientDescent(1.0)
    shard = ShardDriver(*[declared(name, 0 * ONES, sgd) for name in "WVU"], workers="abc")
    shard.push("c", W=ONES, V=ONES, U=ONES)
    matrix = shard.answer(Status(detail=True)).detail.matrix
    assert matrix.variables == ("W", "V")
    assert [(row.worker, row.pushes) for row in matrix.workers] == [("b", (0, 0)), ("c", (1, 1))]


def test_the_counts_of_a_new_incarnation_begin_anew():
    shard = job()
    shard.push("a", loss=1.0, W=ONES)
    shard.answer(Join(worker="a", incarnation=2))
    found = worker(shard, "a")
    assert (found.cost, found.encoding, found.gradient) == (None, "", 0.0)
    row = shard.answer(Status(detail=True)).detail.matrix.workers[0]
    assert (row.incarnation, row.pushes) == (2, (0, 0))


def test_the_cost_of_a_worker_is_the_moving_average_of_its_losses_and_goes_on_after_nan():
    shard = job()
    losses, cost = [3.0, 1.0, 5.0], 3.0
    for loss in losses:
        shard.push("a", loss=loss, W=ONES)
        cost += (loss - cost) / 16
    assert worker(shard, "a").cost == pytest.approx(cost, rel=1e-12)
    shard.push("a", loss=math.nan, W=ONES)
    assert math.isnan(worker(shard, "a").cost)
    shard.push("a", loss=2.0, W=ONES)
    assert worker(shard, "a").cost == 2.0


def test_the_largest_norm_of_a_gradient_in_a_push_and_its_moving_average_are_counted():
    shard = job()
    shard.push("a", W=np.float32([0, -4]), V=np.float32([2, 2, 0]))
    assert (worker(shard, "a").gradient, worker(shard, "a").gradient_mean) == (4.0, 4.0)
    shard.push("a", version=1, W=np.float32([20, 0]))
    assert (worker(shard, "a").gradient, worker(shard, "a").gradient_mean) == (20.0, 4 + 16 / 16)


def test_the_encoding_of_a_worker_is_that_of_its_last_push():
    shard = job()
    rows = IndexedSlices(np.ones((1,), np.float32), np.array([1]), (2,))
    for sequence, (array, name) in enumerate(
        [(ONES, "float32"), (to_16_bits(ONES, "bfloat16"), "bfloat16"), (rows, "rows float32")], 1
    ):
        shard.step(Push(sender=A, sequence=sequence, gradients=(Gradient("W", sequence - 1, array),)))
        assert worker(shard, "a").encoding == name


def test_bytes_are_counted_by_variable_in_both_directions():
    """W has 8 bytes and V has 12, which were served at their registration."""
    shard = job()
    shard.push("a", W=ONES, V=np.ones(3, np.float32), pull=("V",))
    shard.answer(Pull(sender=B, names=("W",)))
    counts = {one.spec.name: (one.bytes_in, one.bytes_out) for one in shard.answer(Status()).variables}
    assert counts == {"W": (8, 8 + 8), "V": (12, 12 + 12)}


def test_a_held_push_shows_for_how_long_and_when_it_is_released_the_time_is_added_up():
    shard = job(consistency=parse_consistency("sync:2"))
    shard.now = 10.0
    shard.push("a", ticket=1, W=ONES)
    shard.now = 13.0
    report = shard.answer(Status())
    assert report.held == 1
    assert (worker(shard, "a").held, worker(shard, "a").waited) == (3.0, 3.0)
    shard.now = 14.0
    shard.push("b", ticket=2, W=ONES)
    assert (worker(shard, "a").held, worker(shard, "a").waited) == (0.0, 4.0)
    assert (worker(shard, "b").waited, shard.answer(Status()).held) == (0.0, 0)


def test_why_the_last_push_was_dropped_is_shown():
    shard = job(staleness=parse_staleness("drop:0"))
    shard.push("a", W=ONES)
    shard.push("b", W=ONES)
    assert "staleness" in worker(shard, "b").drop_reason
    assert worker(shard, "a").drop_reason == ""


def test_stalenesses_are_added_up_in_ranges_that_double_above_32():
    generator = np.random.default_rng(3)
    stalenesses = Counter(int(one) for one in np.exp(generator.uniform(0, 9, 2000)))
    found = {one.staleness: one.pushes for one in ranges(stalenesses.items())}
    bounds = [*range(33), *[2**power for power in range(6, 15)]]
    counts, _ = np.histogram(list(stalenesses.elements()), [-1, *[bound + 0.5 for bound in bounds]])
    assert found == {bound: count for bound, count in zip(bounds, counts, strict=True) if count}
    assert [upper_bound(one) for one in (0, 32, 33, 64, 65)] == [0, 32, 64, 64, 128]


def test_the_worker_of_a_job_has_the_longest_wait_and_the_last_error_of_its_shards():
    shards = [job(shard=shard, shards=2) for shard in (0, 1)]
    reports = []
    for number, shard in enumerate(shards):
        shard.step(Push(sender=Sender("a", 1), sequence=1, gradients=(Gradient("W", 0, ONES),), loss=4.0))
        report = shard.answer(Status())
        mine = replace(report.workers[0], waited=1.0 + number, error=f"error {number}", error_time=5.0 - number)
        reports.append(replace(report, workers=(mine,)))
    [merged] = merge_reports([ShardAnswer("h", report) for report in reports]).workers
    assert (merged.cost, merged.waited, merged.error, merged.gradient) == (4.0, 2.0, "error 0", math.sqrt(2))


def test_gradients_far_above_the_usual_ones_are_counted_as_jumps_and_do_not_become_usual_at_once():
    """Usual ones have a norm of sqrt(2), or up to 5 times that; the first large one is 100 times as large."""
    shard = job()
    for step in range(32):
        shard.push("a", version=step, W=ONES * (5 if step % 8 == 7 else 1))
    assert worker(shard, "a").jumps == 0
    shard.push("a", version=32, W=100 * ONES)
    found = worker(shard, "a")
    assert (found.jumps, found.jumped_at) == (1, 33)
    assert 100 / 2 < found.jump < 100
    for step in range(33, 36):
        shard.push("a", version=step, W=100 * ONES)
    assert worker(shard, "a").jumps == 4
    assert worker(shard, "a").jump == found.jump, "that of the first one"
    for step in range(36, 100):
        shard.push("a", version=step, W=100 * ONES)
    assert 4 < worker(shard, "a").jumps < 20, "in the end they are usual"


def test_a_worker_whose_first_gradients_are_small_or_zero_does_not_jump():
    shard = job()
    for step in range(15):
        shard.push("a", version=step, W=1e-6 * ONES)
    shard.push("a", version=15, W=ONES)
    for step in range(20):
        shard.push("b", version=16 + step, W=0 * ONES)
    shard.push("b", version=36, W=ONES)
    assert (worker(shard, "a").jumps, worker(shard, "b").jumps) == (0, 0)


def test_empty_pushes_are_counted_and_a_worker_is_in_training_from_its_first_push_until_it_is_idle():
    shard = job()
    assert not worker(shard, "a").training
    shard.push("a", W=ONES)
    shard.push("a")
    found = worker(shard, "a")
    assert (found.training, found.steps, found.empty) == (True, 2, 1)
    shard.answer(Renew(sender=A, idle=True))
    assert not worker(shard, "a").training


def test_the_first_loss_and_the_highest_cost_of_a_worker_are_kept():
    """A moving average goes a sixteenth of the way to each new loss."""
    shard = job()
    assert (worker(shard, "a").first_loss, worker(shard, "a").peak_cost) == (None, None)
    for loss in (2.0, 34.0, 0.0, 0.0):
        shard.push("a", W=ONES, loss=loss)
    found = worker(shard, "a")
    assert (found.first_loss, found.peak_cost) == (2.0, 4.0)
    assert found.cost == 4.0 * (15 / 16) ** 2


def test_a_worker_is_between_blocks_from_the_end_of_one_to_its_first_push_of_the_next():
    """As one that evaluates the model when it gets the report of an epoch, together with its next block."""
    shard, queue, seen = job(), QueueSpec(name="q", size=8, block=4, epochs=2), []

    def note():
        seen.append(worker(shard, "a").between_blocks)

    note()
    for block in range(2):
        shard.answer(Take(sender=A, queue=queue, finished=Finished(block - 1) if block else None))
        note()
        for position in (2, 4):
            progress = Progress(queue="q", block=block, position=4 * block + position)
            shard.answer(
                Push(
                    sender=A,
                    sequence=2 * block + position // 2,
                    gradients=(Gradient("W", 0, ONES),),
                    progress=(progress,),
                )
            )
            note()
    shard.answer(Take(sender=A, queue=queue, finished=Finished(1), give_back=True))
    note()
    assert seen == [False, True, False, False, True, False, False, True]
    assert not worker(shard, "b").between_blocks, "it has had no block"


def test_a_worker_in_quarantine_is_marked_until_it_is_released():
    shard = job()
    shard.answer(Intervene(by="me", reason="a test", quarantine=("a",)))
    assert [worker(shard, name).quarantined for name in "ab"] == [True, False]
    shard.answer(Intervene(by="me", reason="a test", release=("a",)))
    assert not worker(shard, "a").quarantined
