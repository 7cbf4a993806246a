"""Delay compensation against a reference that keeps every version of the weights in float64.

Which weights compensate, and what they take of the memory, is in `tests/scenarios/delay_compensation*.txt`.
"""

import numpy as np
import pytest

from pswire.messages import Assign, Assignment, Choice, Declaration, Pull, Register
from pswire.optimizers import GradientDescent
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

    def __init__(self, dtype="float64"):
        optimizer, value = GradientDescent(RATE), START.astype(dtype)
        table = Declaration(TensorSpec("E", SHAPE, dtype), None, optimizer, TABLE)
        declarations = declared("W", value, optimizer), table
        super().__init__(*declarations, staleness=DelayCompensation(STRENGTH))
        self.answer(Register(B, declarations))
        self.dtype = dtype
        rows = rows_of(TABLE, np.arange(SHAPE[0]), SHAPE[1:], dtype)
        self.history = {"W": [value.astype(float)], "E": [rows.astype(float)]}

    def value(self, name):
        return self.shard._store[name].value

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


def test_a_gradient_that_is_not_late_has_the_bits_of_one_without_compensation():
    compensated, plain = Job(), ShardDriver(declared("W", START, GradientDescent(RATE)))
    compensated.train("a", normal(1), 0)
    plain.push(W=normal(1))
    np.testing.assert_array_equal(compensated.value("W"), plain.answer(Pull(A, ("W",))).values[0].array)


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


def test_a_correction_is_bounded_so_that_the_update_stays_ordinary():
    """A gradient of 1e9 and a way of 1e6 would add 7.5e23; 5e9 is half of what an ordinary gradient may have."""
    job = Job("float32")
    job.answer(Assign(B, 1, (Assignment("W", np.full(SHAPE, 1e6, np.float32)),)))
    job.push(W=np.full(SHAPE, 1e9, np.float32))
    np.testing.assert_allclose(job.value("W"), 1e6 - RATE * (1e9 + 5e9), rtol=1e-6)
