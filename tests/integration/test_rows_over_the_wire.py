"""Gradients by rows, from a client to a shard and back: small and inline, large and in chunks, wrong and refused."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import InvalidMessage, ShapeMismatch
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


@pytest.mark.parametrize("rows", [4, 1 << 16], ids=["inline", "streamed"])
def test_rows_that_cannot_be_are_refused_and_training_goes_on(open_session, rows):
    table, other = ps.Variable(np.zeros((rows, 8)), name="table"), ps.Variable(np.zeros(2), name="other")
    optimizer, values = ps.GradientDescent(1.0), np.ones((rows, 8))
    outside = IndexedSlices(values, np.full(rows, rows), (rows, 8), check_range=False)
    longer = IndexedSlices(values, np.full(rows, rows), (rows + 1, 8))
    with open_session("w0") as session:
        with pytest.raises(
            InvalidMessage, match=rf"gradient for 'table'.* in 0 \.\.\. {rows - 1}, but they span {rows} "
        ):
            session.push(optimizer, [(np.ones(2), other), (outside, table)])
        with pytest.raises(ShapeMismatch, match=rf"gradient for 'table' is float64\[{rows + 1}, 8\], the variable is"):
            session.push(optimizer, [(np.ones(2), other), (longer, table)])
        session.pull()
        assert not table.value.any()
        assert not other.value.any()
        session.push(optimizer, [(IndexedSlices(values[:1], np.array([rows - 1]), (rows, 8)), table)])
        assert np.flatnonzero(table.value.any(axis=1)).tolist() == [rows - 1]
