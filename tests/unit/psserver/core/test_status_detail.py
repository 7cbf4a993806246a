"""What a shard counts about pushes, and the detail of its status."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.core import status
from psserver.core.members import push_counts
from psserver.core.status import ranges, upper_bound
from pswire.messages import (
    Gradient,
    Join,
    Pull,
    Push,
    Sender,
    Status,
)
from pswire.optimizers import GradientDescent
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
