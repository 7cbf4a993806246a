"""Delay compensation: g + strength * g * g * (w_now - w_served), with the weights that the same worker was served.

The reference keeps every version of the weights in float64, so it knows what any worker was served without a book.
"""

import numpy as np
import pytest

from psserver.core.array_tasks import run
from psserver.core.shard import Shard
from pswire.messages import (
    Assign,
    Assignment,
    Choice,
    Declaration,
    Gradient,
    Join,
    Leave,
    Pull,
    Push,
    Register,
    Sender,
    Status,
)
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.consistency import DelayCompensation
from pswire.specs.initializers import RowNormal, rows_of
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_state import run_step

RATE, STRENGTH = 0.25, 0.75
SHAPE = (6, 3)
START = np.random.default_rng(1).normal(size=SHAPE)
TABLE = RowNormal(1.0, seed=3)


class Job:
    """Workers a and b, a variable `W` and a table `E` of the same shape; `history[name]` has all their versions."""

    def __init__(self, dtype="float64", optimizer=None, memory_limit=None):
        self.shard = Shard(memory_limit=memory_limit, staleness=DelayCompensation(STRENGTH))
        self.sequence = 0
        self.dtype = dtype
        optimizer = optimizer or GradientDescent(RATE)
        for worker in "ab":
            self.tell(Join(worker))
        declarations = (
            Declaration(TensorSpec("W", SHAPE, dtype), START.astype(dtype), optimizer),
            Declaration(TensorSpec("E", SHAPE, dtype), None, optimizer, TABLE),
        )
        for worker in "ab":
            self.tell(Register(Sender(worker, 1), declarations))
        table = rows_of(TABLE, np.arange(SHAPE[0]), SHAPE[1:], dtype)
        self.history = {"W": [START.astype(dtype).astype(float)], "E": [table.astype(float)]}

    def tell(self, message):
        (reply,) = run_step(self.shard, 0, message, 0.0)
        return reply.answer

    def value(self, name):
        """Its value, without a worker's having been served it: by one who comes for that only."""
        incarnation = self.tell(Join("reader")).incarnation
        (value,) = self.tell(Pull(Sender("reader", incarnation), (name,))).values
        return value.array

    def push(self, worker, gradient, version, name="W", then=None, pull=()):
        """Pushes, and does in the reference what ought to be done, with the weights of `then`, if it is compensated."""
        self.sequence += 1
        array = gradient.astype(self.dtype)
        self.tell(Push(Sender(worker, 1), self.sequence, (Gradient(name, version, array),), None, pull))
        dense = gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient
        now = self.history[name][-1]
        moved = 0 if then is None else now - then
        self.history[name].append(now - RATE * (dense + STRENGTH * dense**2 * moved))

    def agrees(self, name="W"):
        """One update rounds each element some 8 times: 4 ulps of the largest are more than 5 updates make of it."""
        reference = self.history[name][-1]
        tolerance = 16 * np.finfo(self.dtype).eps * np.abs(reference).max()
        np.testing.assert_allclose(self.value(name).astype(float), reference, rtol=0, atol=tolerance)


def normal(seed):
    """Some numbers that every dtype has."""
    return np.random.default_rng(seed).integers(-64, 64, size=SHAPE) / 32


def some_rows(seed, indices):
    return IndexedSlices(normal(seed)[: len(indices)], np.array(indices), SHAPE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "late", [normal(5), some_rows(5, [4, 0]), some_rows(5, [2, 5, 2])], ids=["dense", "rows", "rows that come twice"]
)
def test_a_late_gradient_is_corrected_by_the_change_of_the_weights(late, dtype):
    job = Job(dtype)
    for version in range(3):
        job.push("b", normal(version), version, then=job.history["W"][version], pull=("W",))
    job.push("a", late, 0, then=job.history["W"][0])
    assert np.abs(job.history["W"][-2] - job.history["W"][0]).max() > 0.5, "else it would not show"
    job.agrees()


def test_the_weights_served_last_by_a_push_or_a_pull_count():
    job = Job()
    job.push("a", normal(1), 0, then=START, pull=("W",))
    job.push("b", normal(2), 0, then=START)
    job.push("a", normal(3), 1, then=job.history["W"][1])
    job.tell(Pull(Sender("a", 1), ("W",)))
    job.push("b", normal(4), 0, then=START)
    job.push("a", normal(5), 3, then=job.history["W"][3])
    job.agrees()


def test_a_gradient_that_is_not_late_stays_as_it_is():
    compensated, plain = Job(), Shard()
    run_step(plain, 0, Join("a"), 0.0)
    declaration = Declaration(TensorSpec("W", SHAPE, "float64"), START, GradientDescent(RATE))
    run_step(plain, 0, Register(Sender("a", 1), (declaration,)), 0.0)
    compensated.push("a", normal(1), 0)
    (reply,) = run_step(plain, 0, Push(Sender("a", 1), 1, (Gradient("W", 0, normal(1)),), None, ("W",)), 0.0)
    np.testing.assert_array_equal(compensated.value("W"), reply.answer.values[0].array)


def test_a_gradient_of_an_earlier_version_than_served_last_is_not_compensated():
    job = Job()
    job.push("b", normal(1), 0, then=START)
    job.tell(Pull(Sender("a", 1), ("W",)))
    job.push("a", normal(2), 0, then=None)
    job.agrees()


def test_weights_of_another_version_do_not_compensate():
    job = Job()
    job.push("b", normal(1), 0, then=START)
    job.tell(Pull(Sender("a", 1), ("W",)))
    job.push("b", normal(3), 0, then=START)
    job.push("a", normal(2), 0, then=None)
    job.agrees()


def test_served_weights_belong_to_a_worker_and_are_dropped_when_it_leaves():
    job = Job()
    job.push("b", normal(1), 0, then=START)
    assert job.tell(Status()).nbytes == (2 + 2) * START.nbytes, "values, and W for each worker"
    job.tell(Pull(Sender("b", 1), ("W",)))
    job.push("a", normal(2), 0, then=START)
    job.push("b", normal(3), 1, then=job.history["W"][1])
    job.tell(Leave(Sender("a", 1)))
    assert job.tell(Status()).nbytes == (2 + 1) * START.nbytes
    job.agrees()


def test_weights_beyond_the_memory_limit_are_not_kept():
    value = START.nbytes
    job = Job(memory_limit=3 * value)  # W and E, and W for one worker: a, which came first
    assert job.tell(Status()).nbytes == 3 * value
    job.push("b", normal(1), 0)
    job.push("b", normal(2), 0, then=None)
    job.push("a", normal(3), 0, then=START)
    job.agrees()
    job.tell(Leave(Sender("a", 1)))
    assert job.tell(Status()).nbytes == 2 * value
    job.tell(Pull(Sender("b", 1), ("W",)))
    assert job.tell(Status()).nbytes == 3 * value


def test_rows_of_a_table_are_compensated_by_the_rows_that_were_chosen_and_others_stay():
    job = Job()
    job.tell(Pull(Sender("a", 1), (), (Choice("E", np.array([5, 1, 1, 3])),)))
    job.tell(Pull(Sender("b", 1), ("E",)))
    for version in range(3):
        job.push("b", normal(version), version, "E", then=job.history["E"][version], pull=("E",))
    served = job.history["E"][0]
    then = job.history["E"][-1].copy()
    then[[1, 3, 5]] = served[[1, 3, 5]]
    job.push("a", some_rows(4, [3, 2, 5, 3, 0]), 0, "E", then=then)
    job.agrees("E")


@pytest.mark.parametrize("how", ["no rows", "a slot", "rows of another version", "an array"])
def test_rows_and_slots_that_were_not_served_do_not_compensate(how):
    job = Job(optimizer=Momentum(RATE, 0.0))
    choice = Choice("E", np.array([], np.int64)) if how == "no rows" else Choice("E", np.array([0, 1]))
    if how == "a slot":
        choice = Choice("E", slot="momentum")
    job.tell(Pull(Sender("a", 1), (), (choice,)))
    job.push("b", normal(1), 0, "E")
    if how == "rows of another version":
        job.tell(Pull(Sender("a", 1), (), (choice,)))
    gradient = normal(2) if how == "an array" else some_rows(2, [0, 1, 2])
    job.push("a", gradient, 0, "E", then=None)
    job.agrees("E")


def test_observations_of_a_moving_average_are_no_gradients():
    shard = Shard(staleness=DelayCompensation(STRENGTH))
    run_step(shard, 0, Join("a"), 0.0)
    declaration = Declaration(TensorSpec("m", (2,), "float64"), np.zeros(2), MovingAverage(0.5))
    run_step(shard, 0, Register(Sender("a", 1), (declaration,)), 0.0)
    for sequence in (1, 2):
        push = Push(Sender("a", 1), sequence, (Gradient("m", 0, np.full(2, 8.0)),), None, ("m",))
        (reply,) = run_step(shard, 0, push, 0.0)
    assert reply.answer.values[0].array.tolist() == [6, 6]


def test_a_correction_is_bounded_so_that_the_update_stays_ordinary():
    """A gradient of 1e9 and a way of 1e6 would add 7.5e23; 5e9 is half of what an ordinary gradient may have."""
    job = Job("float32")
    job.tell(Assign(Sender("b", 1), 1, (Assignment("W", np.full(SHAPE, 1e6, np.float32)),)))
    work = job.shard.step(9, Push(Sender("a", 1), 1, (Gradient("W", 0, np.full(SHAPE, 1e9, np.float32)),)), 0.0)
    run(work.tasks)
    np.testing.assert_allclose(job.value("W"), 1e6 - RATE * (1e9 + 5e9), rtol=1e-6)
