"""The sums and means of several steps that one push carries."""

import numpy as np

import psworker as ps
from pswire import optimizers
from pswire.tensors.values import IndexedSlices
from psworker.sessions.replica import Step
from psworker.sessions.strategies.downpour import StepSum
from psworker.versions import ReadVersion, VersionedArray


def test_3000_steps_of_float16_are_added_in_float32_and_rounded_once():
    """Ones would stall at 2,048, and a mean whose parts are rounded would drift."""
    random = np.random.default_rng(20261122)
    seen = random.uniform(10, 12, (3000, 2)).astype(np.float16)
    accrued = StepSum()
    with ps.collection():
        mean = ps.Variable(np.zeros(2, np.float16), name="mean", trainable=False)
        for value in seen:
            rows = IndexedSlices(np.ones((1, 1), np.float16), np.array([1]), (2, 1))
            gradients = [
                VersionedArray("W", ReadVersion((0,)), np.ones(2, np.float16)),
                VersionedArray("table", ReadVersion((0,)), rows),
            ]
            updates = [ps.UpdateOp(mean, value, 0.9)]
            entries = [*gradients, VersionedArray("mean", ReadVersion((0,)), updates[0].value)]
            accrued.add(Step(optimizers.GradientDescent(0.1), ["W", "table"], entries, updates, None, ("W", "table")))
    arrays = {entry.name: entry.array for entry in accrued.take()[0]}
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}
    np.testing.assert_array_equal(arrays["W"], [3000, 3000])
    np.testing.assert_array_equal(arrays["table"].to_dense(), [[0], [3000]])
    np.testing.assert_allclose(arrays["mean"], seen.mean(axis=0, dtype=np.float64), rtol=1.01 * 2**-11)
