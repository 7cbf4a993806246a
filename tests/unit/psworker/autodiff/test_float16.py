"""Sums of float16: made in float32 and rounded once, so that they neither stall at 2,048 nor overflow on the way."""

import numpy as np
import pytest

from pswire.tensors.sums import add_rows
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, op, ops
from psworker.autodiff.ops.sparse import RowSource

ROUNDED = 2.0**-11  # relative: half a unit in the last place of float16


def half(value, *shape):
    return Tensor(np.full(shape, value, np.float16), requires_grad=True)


MANY = np.zeros((5000, 4), np.float16)
ONCE = np.ones((5000, 4), np.float16)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda b: ops.add(MANY, b), 5000),
        (lambda b: ops.subtract(MANY, b), -5000),
        (lambda b: ops.multiply(ONCE, b), 5000),
        (lambda b: ops.divide(ONCE, b), -5000),
        (lambda b: ops.power(b, 2 * ONCE), 10000),
        (lambda b: ops.maximum(MANY, b), 5000),
        (lambda b: ops.minimum(2 * ONCE, b), 5000),
        (lambda b: ops.where(np.ones((5000, 1), bool), b, MANY), 5000),
        (lambda b: ops.broadcast_to(b, (5000, 4)), 5000),
        (lambda b: ops.einsum("ij,j->ij", ONCE, b), 5000),
        (lambda b: ops.einsum("ij,j->i", ONCE, b), 5000),
        (lambda b: ops.concatenate([ops.expand_dims(b, 0)] * 5000), 5000),
        (lambda b: ops.matmul(ONCE, b), 5000),
    ],
)
def test_the_gradient_of_a_stretched_operand_counts_beyond_2048(f, expected):
    b = half(1, 4)
    [gradient] = gradients(f(b), b)
    assert gradient.dtype == np.float16
    np.testing.assert_array_equal(gradient, np.full(4, expected))


def test_the_gradient_along_a_stretched_axis_between_others_counts_beyond_2048():
    b = half(1, 2, 1, 3)
    np.testing.assert_array_equal(gradients(b * np.ones((2, 5000, 3), np.float16), b)[0], np.full((2, 1, 3), 5000))


def test_a_bias_under_a_mean_loss_gets_the_gradient_of_float64():
    random = np.random.default_rng(20261122)
    x, w, b = (random.standard_normal(shape).astype(np.float16) for shape in ((12000, 8), (8, 4), (4,)))

    def bias_gradient(dtype):
        bias = Tensor(b.astype(dtype), requires_grad=True)
        return gradients(ops.mean(ops.square(x.astype(dtype) @ Tensor(w.astype(dtype)) + bias)), bias)[0]

    found, expected = bias_gradient(np.float16), bias_gradient(np.float64)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=0.01)  # each of the 48,000 terms has an eighth of float16's digits
    np.testing.assert_array_equal(
        gradients(ops.mean(ops.add(np.zeros((16384, 4), np.float16), bias := half(0, 4))), bias)[0], np.full(4, 0.25)
    )


IDS = np.zeros(5000, np.int64)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ops.take(x, IDS),
        lambda x: ops.take(x, IDS - 2),
        lambda x: ops.take(ops.transpose(x), IDS, axis=1),
        lambda x: ops.gather(x, IDS),
        lambda x: ops.getitem(x, IDS),
        lambda x: ops.getitem(x, (IDS, slice(None))),
        lambda x: ops.embedding(x, IDS),
        lambda x: ops.embedding(x * 1, IDS),
        lambda x: ops.concatenate([ops.embedding(x, IDS[2500:]), ops.take(x, IDS[2500:])]),
        lambda x: ops.concatenate([ops.take(x, IDS[2500:]), ops.embedding(x, IDS[2500:])]),
    ],
)
def test_an_element_that_is_taken_5000_times_gets_the_sum_of_5000_gradients(f):
    x = half(1, 2, 3)
    [gradient] = gradients(f(x), x)
    dense = gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient
    assert dense.dtype == gradient.dtype == np.float16
    np.testing.assert_array_equal(dense, [[5000] * 3, [0] * 3])


def test_rows_with_one_index_are_summed_beyond_2048():
    rows = IndexedSlices(np.ones((5000, 2), np.float16), IDS + 1, (3, 2))
    expected = [[0, 0], [5000, 5000], [0, 0]]
    assert rows.summed().dtype == rows.to_dense().dtype == np.float16
    np.testing.assert_array_equal(rows.summed().values, [[5000, 5000]])
    np.testing.assert_array_equal(rows.to_dense(), expected)
    np.testing.assert_array_equal(rows + np.zeros((3, 2), np.float16), expected)


def test_rows_are_added_to_a_total_in_float16_and_rounded_once():
    total = np.full((3, 2), 4000, np.float16)
    add_rows(total, np.array([-2, 1] * 500), np.ones((1000, 2), np.float16))
    assert total.dtype == np.float16
    np.testing.assert_array_equal(total, [[4000, 4000], [5000, 5000], [4000, 4000]])
    total[...] = -60000
    add_rows(total, np.array([0, 2] * 1500), np.full((3000, 2), 45, np.float16))  # 67,500 in each
    np.testing.assert_array_equal(total, np.full((3, 2), [[7500], [-60000], [7500]]))
    with pytest.raises(IndexError):
        add_rows(total, np.array([3]), np.ones((1, 2), np.float16))


@pytest.mark.parametrize("f", [ops.transpose, ops.exp])
def test_a_node_that_is_used_3000_times_gets_the_sum_of_3000_gradients(f):
    x = half(0, 2, 3)
    inner = f(x)
    for asked in ([x], [x, inner]):
        found = gradients([inner * 1 for _ in range(3000)], asked, retain_graph=True)
        for gradient in (*found, *gradients([inner] * 3000, asked, retain_graph=True)):
            assert gradient.dtype == np.float16
            np.testing.assert_array_equal(gradient, np.full(gradient.shape, 3000))


def test_gradients_of_one_node_that_cancel_do_not_overflow_on_the_way():
    x = half(1, 3)
    np.testing.assert_array_equal(gradients([x * 6e4, x * 6e4, x * -6e4], x)[0], np.full(3, 60000, np.float16))


def test_sums_over_a_stretched_operand_that_cancel_do_not_overflow_on_the_way():
    x = half(0, 3)
    more, fewer = np.zeros((70000, 3), np.float16), np.zeros((60000, 3), np.float16)
    np.testing.assert_array_equal(gradients([more + x, fewer - x], x)[0], np.full(3, 10000))


def test_an_op_gets_the_gradient_of_its_value_in_float16():
    seen = []

    @op
    def watching(x, /):
        return x * 1, (lambda g: seen.append(g.dtype) or g,)

    x = half(1, 3)
    y = watching(x)
    for asked in ([x], [x, y]):
        gradients([y * 2, y * 3, ops.sum(y)], asked, retain_graph=True)
    assert seen == [np.float16] * 2


class Rows(Tensor, RowSource):
    """A table of zeros in float16 that is kept elsewhere."""

    def fetch(self, indices):
        return np.zeros((len(indices), *self.shape[1:]), np.float16)


def test_rows_of_a_table_that_is_kept_elsewhere_get_gradients_in_float16():
    table = Rows(np.zeros((3, 2), np.float16), requires_grad=True)
    [gradient] = gradients(ops.embedding(table, IDS + 1), table)
    assert gradient.dtype == np.float16
    assert gradient.indices.tolist() == [1]
    np.testing.assert_array_equal(gradient.values, [[5000, 5000]])


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x, w: ops.conv2d(x, w), [(2, 12, 12, 4), (5, 5, 4, 8)]),
        (lambda x, w: ops.conv2d(x, w, strides=2, padding="VALID"), [(40, 40, 40, 3), (4, 4, 3, 8)]),
        (lambda x: ops.max_pool2d(x, 12, 1), [(2, 24, 24, 1)]),
        (lambda x: ops.avg_pool2d(x, 12, 1, "SAME"), [(2, 24, 24, 1)]),
        (ops.matmul, [(1, 200_000), (200_000, 1)]),
        (lambda a, b: ops.einsum("ij,ik->jk", a, b), [(5000, 2), (5000, 3)]),
    ],
)
def test_values_and_gradients_are_those_of_float64_rounded_once(f, shapes):
    random = np.random.default_rng(20261122)
    arrays = [random.uniform(0.2, 0.4, shape).astype(np.float16) for shape in shapes]

    def results(dtype):
        xs = [Tensor(array.astype(dtype), requires_grad=True) for array in arrays]
        y = f(*xs)
        weights = np.random.default_rng(1).uniform(0.2, 0.4, y.shape).astype(np.float16)
        return y.value, *gradients(y, xs, weights)

    for found, expected in zip(results(np.float16), results(np.float64), strict=True):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected, rtol=1.01 * ROUNDED)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda: ops.einsum("ij,j->j", np.ones((5000, 3), np.float16), half(1, 3)), [5000] * 3),
        (lambda: ops.einsum("ij,k->k", np.ones((50, 100), np.float16), half(1, 2)), [5000] * 2),
        (lambda: ops.matmul(half(1, 2, 5000), half(1, 5000)), [5000] * 2),
        (lambda: ops.avg_pool2d(half(100, 1, 28, 28, 1), 28), [[[[100]]]]),
        (lambda: ops.avg_pool2d(half(60000, 1, 6, 6, 1), 3, 1, "SAME"), np.full((1, 6, 6, 1), 60000)),
        (lambda: ops.conv2d(half(1, 1, 50, 100, 1), half(1, 50, 100, 1, 1), padding="VALID"), [[[[5000]]]]),
        (lambda: ops.cumsum(half(1, 5000))[-1], 5000),
        (lambda: ops.softmax(half(0, 5000))[:2], np.full(2, 1 / 5000, np.float16)),
    ],
)
def test_values_that_are_sums_count_beyond_2048_and_do_not_overflow_on_the_way(f, expected):
    y = f()
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y.value, expected)


def test_the_gradient_of_convolution_filters_is_added_over_all_blocks_in_float32():
    x, filters = np.ones((30, 40, 40, 4), np.float16), half(0, 3, 3, 4, 1)
    [gradient] = gradients(ops.conv2d(x, filters, padding="VALID") * 0.123, filters)
    expected = 30 * 38 * 38 * float(np.float16(0.123))
    np.testing.assert_allclose(gradient, np.full((3, 3, 4, 1), expected), rtol=ROUNDED)


@pytest.mark.parametrize("extreme", [ops.max, ops.min])
@pytest.mark.parametrize("shape", [(70000,), (70000, 2)])
def test_70000_equal_extremes_share_the_gradient_and_its_sum_stays(extreme, shape):
    x = half(3, *shape)
    [gradient] = gradients(extreme(x, axis=0), x)
    assert gradient.dtype == np.float16
    # Each share is 1 / 70,000, of which float16 has steps of 2^-24.
    np.testing.assert_allclose(gradient.astype(np.float64).sum(axis=0), 1, rtol=70000 * 2.0**-25)
    assert np.all(gradient > 0)


def test_float16_beside_float32_gives_float32_in_products():
    a, b = half(1, 2, 3), Tensor(np.ones((3, 2), np.float32))
    image, filters = half(1, 1, 4, 4, 1), Tensor(np.ones((3, 3, 1, 1), np.float32))
    for y in (ops.matmul(a, b), ops.matmul(b, a), ops.einsum("ij,jk->ik", a, b), ops.conv2d(image, filters)):
        assert y.dtype == np.float32
