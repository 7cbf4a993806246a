"""Updates that vanish in rounding are counted in samples of elements, one sample a second."""

import numpy as np
import pytest

from pswire.messages import Status
from pswire.optimizers import GradientDescent
from pswire.tensors.values import IndexedSlices
from tests.support.shards import ShardDriver, declared


def counts(shard):
    """Of the status a second later, after which the next sample is taken."""
    shard.now += 1.0
    (row,) = shard.answer(Status()).variables
    return row.sampled, row.unchanged


def job(value, rate):
    return ShardDriver(declared("W", value, GradientDescent(rate)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_steps_below_half_a_unit_in_the_last_place_count_as_unchanged(dtype):
    """At 1 to 2 the unit in the last place is eps: by numpy's own arithmetic a quarter of it changes nothing, one does.

    Elements that are zero, and those without a gradient, do not count.
    """
    eps = float(np.finfo(dtype).eps)
    value = np.array([1.5, 1.5, 1.5, 1.5, 0.0, 1.5], dtype)
    gradient = np.array([0.25, 1, -0.25, -2, 0.25, 0], dtype)
    changed = (value - np.asarray(gradient * np.asarray(eps, dtype), dtype)) != value
    assert changed.tolist() == [False, True, False, True, True, False]
    shard = job(value, eps)
    assert counts(shard) == (0, 0)
    shard.push(W=gradient)
    assert counts(shard) == (4, 2)


def test_one_update_a_second_is_sampled_and_none_if_nobody_asks():
    shard = job(np.ones(3, np.float32), 1e-9)
    for version in range(3):
        shard.push(version=version, W=np.ones(3, np.float32))
    assert counts(shard) == (0, 0)
    for version in (3, 4):
        shard.push(version=version, W=np.ones(3, np.float32))
        shard.answer(Status())
    assert counts(shard) == (3, 3)


def test_a_learning_rate_of_zero_and_gradients_by_rows_are_not_sampled():
    shard = job(np.ones((3, 2), np.float32), 0.0)
    counts(shard)
    shard.push(W=np.ones((3, 2), np.float32))
    assert counts(shard) == (0, 0)
    shard = job(np.ones((3, 2), np.float32), 1e-9)
    counts(shard)
    shard.push(W=IndexedSlices(np.ones((1, 2), np.float32), np.array([1]), (3, 2)))
    assert counts(shard) == (0, 0)


def test_a_sample_of_a_large_variable_is_of_all_its_columns_and_bounded():
    """The gradient is zero but for one column of ten; 2,048 elements are looked at, of which a tenth have one."""
    shard = job(np.ones((30_000, 10), np.float32), 1e-9)
    counts(shard)
    gradient = np.zeros((30_000, 10), np.float32)
    gradient[:, 7] = 1
    shard.push(W=gradient)
    sampled, unchanged = counts(shard)
    assert 150 < sampled <= 256
    assert unchanged == sampled
