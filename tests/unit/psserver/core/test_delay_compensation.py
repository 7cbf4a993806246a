"""Delay compensation: g + strength * g * g * (w_now - w_served), with the weights that the same worker was served.

The reference keeps every version of the weights in float64.
"""

import numpy as np
import pytest

from pswire.messages import Assign, Assignment, Choice, Declaration, Join, Leave, Pull, Register, Sender, Status
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.consistency import DelayCompensation
from pswire.specs.initializers import RowNormal, rows_of
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_driver import A, B, ShardDriver, declared

RATE, STRENGTH = 0.25, 0.75
SHAPE = (6, 3)
START = np.random.default_rng(1).normal(size=SHAPE)
TABLE = RowNormal(1.0, seed=3)


class Job(ShardDriver):
    """Workers a and b, a variable `W` and a table `E` of the same shape; `history[name]` has all their versions."""

    def __init__(self, dtype="float64", optimizer=None, **options):
        optimizer, value = optimizer or GradientDescent(RATE), START.astype(dtype)
        table = Declaration(TensorSpec("E", SHAPE, dtype), None, optimizer, TABLE)
        declarations = declared("W", value, optimizer), table
        super().__init__(*declarations, staleness=DelayCompensation(STRENGTH), **options)
        self.answer(Register(B, declarations))
        self.dtype = dtype
        rows = rows_of(TABLE, np.arange(SHAPE[0]), SHAPE[1:], dtype)
        self.history = {"W": [value.astype(float)], "E": [rows.astype(float)]}

    def value(self, name):
        """Its value, read by a worker that comes for that only."""
        incarnation = self.answer(Join("reader")).incarnation
        (value,) = self.answer(Pull(Sender("reader", incarnation), (name,))).values
        return value.array

    def train(self, worker, gradient, version, name="W", then=None, pull=()):
        """Pushes, and updates the reference, compensated for the way from the weights of `then`."""
        self.push(worker, version=version, pull=pull, **{name: gradient.astype(self.dtype)})
        dense = gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient
        now = self.history[name][-1]
        moved = 0 if then is None else now - then
        self.history[name].append(now - RATE * (dense + STRENGTH * dense**2 * moved))

    def check(self, name="W"):
        """One update rounds each element some 8 times: 4 ulps of the largest are more than 5 updates make of it."""
        reference = self.history[name][-1]
        tolerance = 16 * np.finfo(self.dtype).eps * np.abs(reference).max()
        np.testing.assert_allclose(self.value(name).astype(float), reference, rtol=0, atol=tolerance)


def normal(seed):
    """Some numbers that every dtype has."""
    return np.random.default_rng(seed).integers(-64, 64, size=SHAPE) / 32


def some_rows(seed, indices):
    return IndexedSlices(normal(seed)[: len(indices)], np.array(indices), SHAPE)


@pytest.mark.parametrize(
    ("late", "dtype"),
    [(normal(5), "float32"), (some_rows(5, [4, 0]), "float64"), (some_rows(5, [2, 5, 2]), "float32")],
    ids=["dense", "rows", "rows that come twice"],
)
def test_a_late_gradient_is_corrected_by_the_change_of_the_weights(late, dtype):
    job = Job(dtype)
    for version in range(3):
        job.train("b", normal(version), version, then=job.history["W"][version], pull=("W",))
    job.train("a", late, 0, then=job.history["W"][0])
    assert np.abs(job.history["W"][-2] - job.history["W"][0]).max() > 0.5, "else it would not show"
    job.check()


def test_the_weights_served_last_by_a_push_or_a_pull_count():
    job = Job()
    job.train("a", normal(1), 0, then=START, pull=("W",))
    job.train("b", normal(2), 0, then=START)
    job.train("a", normal(3), 1, then=job.history["W"][1])
    job.answer(Pull(A, ("W",)))
    job.train("b", normal(4), 0, then=START)
    job.train("a", normal(5), 3, then=job.history["W"][3])
    job.check()


def test_a_gradient_that_is_not_late_has_the_bits_of_one_without_compensation():
    compensated, plain = Job(), ShardDriver(declared("W", START, GradientDescent(RATE)))
    compensated.train("a", normal(1), 0)
    plain.push(W=normal(1))
    np.testing.assert_array_equal(compensated.value("W"), plain.answer(Pull(A, ("W",))).values[0].array)


@pytest.mark.parametrize("more", [False, True])
def test_weights_of_another_version_than_served_last_do_not_compensate(more):
    job = Job()
    job.train("b", normal(1), 0, then=START)
    job.answer(Pull(A, ("W",)))
    if more:
        job.train("b", normal(3), 0, then=START)
    job.train("a", normal(2), 0)
    job.check()


def test_served_weights_belong_to_a_worker_and_are_dropped_when_it_leaves():
    job = Job()
    job.train("b", normal(1), 0, then=START)
    assert job.answer(Status()).nbytes == (2 + 2) * START.nbytes, "values, and W for each worker"
    job.answer(Pull(B, ("W",)))
    job.train("a", normal(2), 0, then=START)
    job.train("b", normal(3), 1, then=job.history["W"][1])
    job.answer(Leave(A))
    assert job.answer(Status()).nbytes == (2 + 1) * START.nbytes
    job.check()


def test_weights_beyond_the_memory_limit_are_not_kept():
    size = START.nbytes
    job = Job(memory_limit=3 * size)  # W and E, and W for one worker: a, which came first
    assert job.answer(Status()).nbytes == 3 * size
    job.train("b", normal(1), 0)
    job.train("b", normal(2), 0)
    job.train("a", normal(3), 0, then=START)
    job.check()
    job.answer(Leave(A))
    assert job.answer(Status()).nbytes == 2 * size
    job.answer(Pull(B, ("W",)))
    assert job.answer(Status()).nbytes == 3 * size


def test_rows_of_a_table_are_compensated_by_the_rows_that_were_chosen_and_others_stay():
    job = Job()
    job.answer(Pull(A, (), (Choice("E", np.array([5, 1, 1, 3])),)))
    job.answer(Pull(B, ("E",)))
    for version in range(3):
        job.train("b", normal(version), version, "E", then=job.history["E"][version], pull=("E",))
    then = job.history["E"][-1].copy()
    then[[1, 3, 5]] = job.history["E"][0][[1, 3, 5]]
    job.train("a", some_rows(4, [3, 2, 5, 3, 0]), 0, "E", then=then)
    job.check("E")


@pytest.mark.parametrize("served", ["no rows", "a slot", "rows of another version", "rows, and an array comes"])
def test_rows_and_slots_that_were_not_served_do_not_compensate(served):
    job = Job(optimizer=Momentum(RATE, 0.0))
    choice = Choice("E", np.array([], np.int64)) if served == "no rows" else Choice("E", np.array([0, 1]))
    if served == "a slot":
        choice = Choice("E", slot="momentum")
    job.answer(Pull(A, (), (choice,)))
    job.train("b", normal(1), 0, "E")
    if served == "rows of another version":
        job.answer(Pull(A, (), (choice,)))
    gradient = normal(2) if "array" in served else some_rows(2, [0, 1, 2])
    job.train("a", gradient, 0, "E")
    job.check("E")


def test_observations_of_a_moving_average_are_no_gradients():
    shard = ShardDriver(declared("m", np.zeros(2), MovingAverage(0.5)), staleness=DelayCompensation(STRENGTH))
    for _ in range(2):
        answer = shard.push(pull=("m",), m=np.full(2, 8.0))[0]
    assert answer.values[0].array.tolist() == [6, 6]


def test_a_correction_is_bounded_so_that_the_update_stays_ordinary():
    """A gradient of 1e9 and a way of 1e6 would add 7.5e23; 5e9 is half of what an ordinary gradient may have."""
    job = Job("float32")
    job.answer(Assign(B, 1, (Assignment("W", np.full(SHAPE, 1e6, np.float32)),)))
    job.push(W=np.full(SHAPE, 1e9, np.float32))
    np.testing.assert_allclose(job.value("W"), 1e6 - RATE * (1e9 + 5e9), rtol=1e-6)
