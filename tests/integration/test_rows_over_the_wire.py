"""Gradients by rows from a session to the shards and back, small and large."""

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.transport import INLINE
from pswire.tensors.values import IndexedSlices

SEED = 20170905


@pytest.mark.parametrize(("rows", "columns"), [(10, 3), (10_000, 64)], ids=["inline", "streamed"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_rows_arrive_and_are_applied_exactly(open_session, rows, columns, kind):
    """Integers and a rate that is a power of two: no rounding anywhere. A whole gradient goes before and behind."""
    random = np.random.default_rng(SEED)
    table = ps.Variable(random.integers(-8, 8, (rows, columns)).astype(np.float32), name="table")
    first, last = ps.Variable(np.zeros(3, np.float32), name="first"), ps.Variable(np.zeros(5), name="last")
    indices = random.integers(0, rows, rows).astype(kind)
    values = random.integers(-8, 8, (rows, columns)).astype(np.float32)
    assert (values.nbytes > INLINE) == (rows == 10_000)
    expected = table.value.copy()
    np.subtract.at(expected, indices, 0.5 * values)
    gradient = IndexedSlices(values, indices, (rows, columns))
    with open_session("w0") as session:
        ps.GradientDescent(0.5).apply_gradients(
            [(np.ones(3, np.float32), first), (gradient, table), (np.ones(5), last)]
        )
        np.testing.assert_array_equal(table.value, expected)
        np.testing.assert_array_equal(first.value, np.full(3, -0.5))
        np.testing.assert_array_equal(last.value, np.full(5, -0.5))
        assert (table.version, session.global_step) == (1, 1)
