"""Dtypes of results, and sums: float16 in float32, rounded once; long float32 sums as precise as pairwise addition."""

import math
import warnings

import numpy as np
import pytest

from pswire.tensors.sums import add_rows
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, op, ops
from psworker.autodiff.gradient_check import dense
from psworker.autodiff.ops.sparse import RowSource

FLOATS = (np.float16, np.float32, np.float64)
HALF = np.float16
ROUNDED = 2.0**-11  # relative: half a unit in the last place of float16
SEED = 20261122


def tensor(dtype, values=((0.5, 1.0), (2.0, 3.0))):
    return Tensor(np.array(values, dtype), requires_grad=True)


# Which dtype a result has.

NO_TENSORS = {
    "number": 2.5,
    "bool": True,
    "list": [[1.5, 2.0], [1.0, 3.0]],
    "list of integers": [[1, 2], [3, 4]],
    "uint8": np.array([[1, 2], [3, 4]], np.uint8),
    "booleans": np.array([[True, False], [True, True]]),
    "float64": np.array([[1.5, 2.0], [1.0, 3.0]]),
    "float16": np.array([[1.5, 2.0], [1.0, 3.0]], HALF),
    "float64 of no axes": np.array(0.5),
    "np.float64": np.float64(0.5),
    "np.float32": np.float32(0.5),
    "np.int64": np.int64(2),
}
BINARY = [  # each with the same in numpy
    *((getattr(ops, name), getattr(np, name)) for name in ("add", "subtract", "multiply", "divide", "power")),
    *((getattr(ops, name), getattr(np, name)) for name in ("maximum", "minimum")),
    (lambda a, b: ops.where([[True], [False]], a, b), lambda a, b: np.where([[True], [False]], a, b)),
    (lambda a, b: ops.einsum("...,...->...", a, b), np.multiply),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", NO_TENSORS)
def test_an_operand_that_is_no_tensor_takes_the_dtype_of_the_tensor_beside_it(kind, dtype):
    x, other = tensor(dtype), NO_TENSORS[kind]
    in_float64 = x.value.astype(np.float64), np.array(other, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # x / False
        for function, reference in BINARY:
            for args, exact in (((x, other), in_float64), ((other, x), in_float64[::-1])):
                y = function(*args)
                assert y.dtype == gradients(y, x)[0].dtype == dtype
                np.testing.assert_allclose(y.value, reference(*exact), rtol=4 * np.finfo(dtype).eps)
    if np.ndim(other) == 2:
        pairs = [(x, other), (other, x)]
        results = [f(a, b) for a, b in pairs for f in (ops.matmul, ops.mean_squared_error, ops.huber_loss)]
        results += [join(pair) for pair in pairs for join in (ops.concatenate, ops.stack)]
        results += [ops.layer_norm(x, other[0], other[1]), ops.batch_norm(x, other[0], other[1])]
        results += [ops.batch_norm_inference(x, other[0], [1, 2], other[1]), ops.batch_norm(other, None, x[0])]
        results += [ops.conv2d(np.reshape(other, (1, 2, 2, 1)), ops.reshape(x, (2, 2, 1, 1)), np.array([1.0]))]
        assert [y.dtype for y in results] == [dtype] * len(results)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.array(2.0)], ids=repr)
def test_numbers_that_are_constants_change_no_dtype(number, dtype):
    x = tensor(dtype)
    results = [ops.clip(x, 0, number), ops.clip(x, -number if number is not True else 0, 9), ops.pad(x, 1, number)]
    results += [ops.leaky_relu(x, number / 4), ops.stack([x[0, 0], number]), ops.einsum("ij,->ij", x, number)]
    results += [ops.huber_loss(x, 0 * x.value, number), ops.layer_norm(x, epsilon=number), ops.dropout(x, number / 4)]
    assert {y.dtype for y in results} == {gradients(y, x)[0].dtype for y in results} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (np.float32, np.int64, np.float32),
        (np.float16, np.int64, np.float16),
        (np.float32, np.bool_, np.float32),
        (np.int32, np.int64, np.int64),
    ],
)
def test_among_tensors_the_widest_of_floating_point_decides(a, b, expected):
    x, y = (Tensor(np.array([[1, 2], [3, 4]], dtype)) for dtype in (a, b))
    for function in (ops.add, ops.multiply, ops.matmul, ops.maximum, lambda a, b: ops.concatenate([a, b])):
        assert function(x, y).dtype == function(y, x).dtype == expected
    mixed = ops.concatenate([[[5.0, 6]], x, y, np.array([[3, 4]])])
    assert mixed.dtype == (expected if np.dtype(expected).kind == "f" else np.float64)


def test_without_a_tensor_numpy_decides_and_functions_of_real_numbers_take_integers_as_float32():
    assert ops.add(np.float32([1]), np.float64([1])).dtype == np.float64
    assert ops.matmul([[1.0]], np.float32([[1]])).dtype == np.float64
    assert ops.add(Tensor(np.array([1])), np.float32([1, 2])).dtype == np.float64  # int64 and float32
    real = (ops.erf, ops.exp, ops.gelu, ops.log, ops.log_softmax, ops.logsumexp, ops.sigmoid, ops.softmax)
    for function in (*real, ops.softplus, ops.sqrt, ops.tanh):
        for dtype in (np.uint8, np.int8, np.int64, bool):
            x = np.array([1, 3, 20, 80], dtype)
            assert function(x).dtype == np.float32
            np.testing.assert_array_equal(function(x).value, function(x.astype(np.float32)).value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (ops.huber_loss, ops.mean_squared_error):
            y = loss(np.uint8([0, 3]), np.uint8([200, 1]))
            assert y.dtype == np.float32
            np.testing.assert_allclose(y.value, loss([0.0, 3], [200.0, 1]).value, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", [np.uint8, np.bool_, *FLOATS, list])
def test_losses_have_the_dtype_of_their_logits_and_norms_that_of_x(other, dtype):
    x, eye = tensor(dtype), np.eye(2)
    labels = eye.tolist() if other is list else eye.astype(other)
    losses = [f(x, labels) for f in (ops.softmax_cross_entropy, ops.sigmoid_cross_entropy, ops.hinge_loss)]
    losses += [ops.softmax_cross_entropy(x, [0, 1]), ops.mean_squared_error(x, labels), ops.huber_loss(labels, x)]
    for loss in losses:
        assert (loss.dtype, loss.shape, gradients(loss, x)[0].dtype) == (dtype, (), dtype)
    if other in FLOATS:
        gamma, beta = tensor(other, (1.0, 2.0)), tensor(other, (1.0, 2.0))
        norms = [ops.layer_norm(x, gamma, beta), ops.batch_norm(x, gamma, beta)]
        for y in (*norms, ops.batch_norm_inference(x, np.zeros(2), np.ones(2), gamma, beta)):
            assert y.dtype == dtype
            assert [g.dtype for g in gradients(y, [x, gamma, beta])] == [dtype, other, other]
        assert [m.dtype for m in ops.moments(x)] == [dtype, dtype]
        assert ops.mean_squared_error(x, tensor(other)).dtype == np.promote_types(dtype, other)


# float16: sums are made in float32 and rounded once; they neither stall at 2,048 nor overflow on the way.


def half(value, *shape):
    return Tensor(np.full(shape, value, HALF), requires_grad=True)


MANY, ONCE = np.zeros((5000, 4), HALF), np.ones((5000, 4), HALF)
IDS = np.zeros(5000, np.int64)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda b: ops.subtract(MANY, b), -5000),
        (lambda b: ops.multiply(ONCE, b), 5000),
        (lambda b: ops.power(b, 2 * ONCE), 10000),
        (lambda b: ops.minimum(2 * ONCE, b), 5000),
        (lambda b: ops.where(np.ones((5000, 1), bool), b, MANY), 5000),
        (lambda b: ops.broadcast_to(b, (5000, 4)), 5000),
        (lambda b: ops.einsum("ij,j->i", ONCE, b), 5000),
        (lambda b: ops.concatenate([ops.expand_dims(b, 0)] * 5000), 5000),
        (lambda b: ops.matmul(ONCE, b), 5000),
        (lambda b: ops.reshape(b, (2, 1, 2)) * np.ones((2, 5000, 2), HALF), 5000),
        *(
            (lambda b, f=f: f(ops.reshape(b, (1, 4))), 5000)
            for f in (
                lambda x: ops.take(x, IDS),
                lambda x: ops.take(ops.transpose(x), IDS, axis=1),
                lambda x: ops.gather(x, IDS),
                lambda x: ops.getitem(x, (IDS, slice(None))),
                lambda x: ops.embedding(x, IDS),
                lambda x: ops.concatenate([ops.embedding(x, IDS[2500:]), ops.take(x, IDS[2500:])]),
                lambda x: ops.concatenate([ops.take(x, IDS[2500:]), ops.embedding(x, IDS[2500:])]),
            )
        ),
    ],
)
def test_the_gradient_of_a_broadcast_or_repeated_operand_counts_beyond_2048(f, expected):
    b = half(1, 4)
    [gradient] = gradients(f(b), b)
    assert gradient.dtype == HALF
    np.testing.assert_array_equal(gradient, np.full(4, expected))


class Rows(Tensor, RowSource):
    """A remote table of zeros in float16."""

    def fetch(self, indices):
        return np.zeros((len(indices), *self.shape[1:]), HALF)


def test_rows_with_one_index_are_summed_beyond_2048():
    table = Rows(np.zeros((3, 2), HALF), requires_grad=True)
    [gradient] = gradients(ops.embedding(table, IDS + 1), table)
    assert (gradient.dtype, gradient.indices.tolist(), gradient.values.tolist()) == (HALF, [1], [[5000, 5000]])
    rows = IndexedSlices(np.ones((5000, 2), HALF), IDS + 1, (3, 2))
    expected = [[0, 0], [5000, 5000], [0, 0]]
    assert rows.summed().dtype == rows.to_dense().dtype == HALF
    np.testing.assert_array_equal(rows.summed().values, [[5000, 5000]])
    np.testing.assert_array_equal(rows.to_dense(), expected)
    np.testing.assert_array_equal(rows + np.zeros((3, 2), HALF), expected)
    total = np.full((3, 2), -60000, HALF)
    add_rows(total, np.array([0, -1] * 1500), np.full((3000, 2), 45, HALF))  # 67,500 in each
    np.testing.assert_array_equal(total, np.full((3, 2), [[7500], [-60000], [7500]]))
    with pytest.raises(IndexError):
        add_rows(total, np.array([3]), np.ones((1, 2), HALF))


def test_gradients_of_one_node_are_added_in_float32_and_reach_its_op_in_float16():
    seen = []

    @op
    def watching(x, /):
        return x * 1, (lambda g: seen.append(g.dtype) or g,)

    x = half(0, 2, 3)
    inner = watching(x)
    for ys in ([inner * 1 for _ in range(3000)], [inner] * 3000):
        for gradient in gradients(ys, [x, inner], retain_graph=True):
            assert gradient.dtype == HALF
            np.testing.assert_array_equal(gradient, np.full((2, 3), 3000))
    assert set(seen) == {np.dtype(HALF)}
    np.testing.assert_array_equal(gradients([x * 6e4, x * 6e4, x * -6e4], x)[0], np.full((2, 3), 60000, HALF))
    more, fewer, b = np.zeros((70000, 3), HALF), np.zeros((60000, 3), HALF), half(0, 3)
    np.testing.assert_array_equal(gradients([more + b, fewer - b], b)[0], np.full(3, 10000))


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x, w: ops.conv2d(x, w), [(2, 12, 12, 4), (5, 5, 4, 8)]),
        (lambda x, w: ops.conv2d(x, w, strides=2, padding="VALID"), [(20, 24, 24, 3), (4, 4, 3, 8)]),
        (lambda x: ops.max_pool2d(x, 12, 1), [(2, 24, 24, 1)]),
        (lambda x: ops.avg_pool2d(x, 12, 1, "SAME"), [(2, 24, 24, 1)]),
        (ops.matmul, [(1, 200_000), (200_000, 1)]),
        (lambda a, b: ops.einsum("ij,ik->jk", a, b), [(5000, 2), (5000, 3)]),
    ],
)
def test_values_and_gradients_of_float16_are_those_of_float64_rounded_once(f, shapes):
    random = np.random.default_rng(SEED)
    arrays = [random.uniform(0.2, 0.4, shape).astype(HALF) for shape in shapes]

    def results(dtype):
        xs = [Tensor(array.astype(dtype), requires_grad=True) for array in arrays]
        y = f(*xs)
        weights = np.random.default_rng(1).uniform(0.2, 0.4, y.shape).astype(HALF)
        return y.value, *gradients(y, xs, weights)

    for found, expected in zip(results(HALF), results(np.float64), strict=True):
        assert found.dtype == HALF
        np.testing.assert_allclose(found, expected, rtol=1.01 * ROUNDED)


LONG = np.zeros((70_000, 2), HALF)


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (ops.mean, np.full(70_000, 2, HALF), 2),
        (lambda x: ops.sum(x, axis=0), np.ones((5_000, 3), HALF), 5_000),
        (lambda x: ops.cumsum(x)[-1], np.ones(5_000, HALF), 5_000),
        (ops.logsumexp, LONG[:, 0], math.log(70_000)),
        (lambda x: ops.softmax(x, 0)[:2] * 5_000, LONG[:5_000], 1),
        (lambda x: ops.log_softmax(x, 0)[0, 0], LONG[:5_000], -math.log(5_000)),
        (lambda x: ops.mean_squared_error(x, LONG[:5_000, 0]), np.full(5_000, 4, HALF), 16),
        (lambda x: ops.huber_loss(x, LONG[:, 0]), np.full(70_000, 4, HALF), 3.5),
        (lambda x: ops.hinge_loss(x, 0), np.full(70_000, 4, HALF), 5),
        (lambda x: ops.sigmoid_cross_entropy(x, 0), LONG[:, 0], math.log(2)),
        (lambda x: ops.softmax_cross_entropy(x, IDS[:1].repeat(70_000)), LONG, math.log(2)),
        (lambda x: ops.softmax_cross_entropy(x, np.full(x.shape, 0.5, HALF)), np.zeros((9_000, 100), HALF), 230.2585),
        (lambda x: ops.einsum("ij,j->j", ONCE, x), np.ones(4, HALF), 5000),
        (lambda x: ops.einsum("ij,k->k", ONCE[:1250], x), np.ones(2, HALF), 5000),
        (lambda x: ops.matmul(x, np.ones(5000, HALF)), np.ones((2, 5000), HALF), 5000),
        (lambda x: ops.avg_pool2d(x, 3, 1, "SAME"), np.full((1, 6, 6, 1), 60000, HALF), 60000),
        (
            lambda x: ops.conv2d(x, np.ones((50, 100, 1, 1), HALF), padding="VALID"),
            np.ones((1, 50, 100, 1), HALF),
            5000,
        ),
        (
            lambda x: ops.conv2d(np.ones((30, 40, 40, 1), HALF), x, padding="VALID") * 0.1,
            np.zeros((3, 3, 1, 1), HALF),
            0,
        ),
        (lambda x: ops.moments(x)[0] + 0 * x[0], np.full((70_000, 2), 3, HALF), 3),
    ],
)
def test_float16_sums_in_values_and_gradients_count_beyond_2048_and_do_not_overflow_on_the_way(f, x, expected):
    x = Tensor(x, requires_grad=True)
    y = f(x)
    assert y.dtype == HALF
    np.testing.assert_allclose(y.value, np.full(y.shape, expected), rtol=2e-3)
    [gradient] = gradients(y, x)
    assert gradient.dtype == HALF
    wide = Tensor(x.value.astype(np.float32), requires_grad=True)
    np.testing.assert_allclose(gradient, gradients(f(wide), wide)[0], rtol=2e-3, atol=1e-7)


# Long float32 sums.

NEAR = 2e-6  # relative; pairwise addition in float32 errs by some 24 roundings of 6e-8 at most for a million
ROWS = 100_000


def tall(*shape, value=0.1):
    return np.full(shape, value, np.float32)


def layouts(x):
    """The same array in other layouts."""
    gaps = np.zeros((*x.shape, 2), x.dtype)
    gaps[..., 0] = x
    return {"C": x, "F": np.asfortranarray(x), "with gaps": gaps[..., 0], "backward": x[::-1].copy()[::-1]}


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 4), (2, ROWS // 4, 3), (257, 5), (4, 2**15 + 257)])
def test_a_float32_sum_along_any_axis_is_that_of_float64_to_some_roundings(shape):
    numbers = np.random.default_rng(SEED).uniform(0.05, 0.15, shape).astype(np.float32)
    for x in layouts(numbers).values():
        for axis in range(len(shape)):
            expected = numbers.astype(np.float64).sum(axis)
            np.testing.assert_allclose(ops.sum(x, axis=axis).value, expected, rtol=NEAR)
            np.testing.assert_allclose(ops.mean(x, axis=axis).value, expected / shape[axis], rtol=NEAR)
        np.testing.assert_allclose(ops.sum(x).value, math.fsum(numbers.reshape(-1)), rtol=NEAR)


def gradient_sum(f, *shape):
    """The gradient of an operand of `shape`; its first element."""
    x = Tensor(np.full(shape, 0.1, np.float32), requires_grad=True)
    return dense(gradients(f(x), x)[0]).reshape(-1)[0]


TENTHS = tall(ROWS, 4)


@pytest.mark.parametrize(
    "sums",
    [
        lambda: gradient_sum(lambda b: (TENTHS + b) * TENTHS, 4),
        lambda: gradient_sum(lambda b: TENTHS * b, 1, 4),
        lambda: gradient_sum(lambda b: tall(2, ROWS, 3) * b, 2, 1, 3),
        lambda: gradient_sum(lambda b: tall(ROWS // 4, 4, 2) * b, 2),
        lambda: gradient_sum(lambda b: ops.where(np.ones((ROWS, 1), bool), b, 0.0) * TENTHS, 4),
        lambda: gradient_sum(lambda b: ops.mean(TENTHS + b) * (ROWS * 4 * 0.1), 4),
        lambda: gradient_sum(
            lambda b: ops.conv2d(tall(2, 100, ROWS // 200, 1), tall(1, 1, 1, 4), b) * np.float32(0.1), 4
        ),
        lambda: gradient_sum(lambda b: ops.batch_norm_inference(TENTHS, [0.0] * 4, [1.0] * 4, None, b) * TENTHS, 4),
        lambda: gradient_sum(lambda b: ops.layer_norm(TENTHS, None, b) * TENTHS, 4),
        lambda: ops.einsum("ij,k->k", TENTHS, tall(2, value=0.25)).value[0],
        lambda: ops.exp(ops.logsumexp(np.log(TENTHS), axis=0)).value[0],
        lambda: ops.cumsum(TENTHS, axis=0).value[-1, 0],
        lambda: ops.moments(TENTHS)[0][0] * ROWS,
        lambda: ops.mean_squared_error(TENTHS, 0 * TENTHS).value * (10 * ROWS),
    ],
)
def test_100_000_tenths_are_10_000_wherever_they_are_added(sums):
    assert sums() == pytest.approx(
        ROWS * float(np.float32(0.1)), rel=1.5e-5 if "log" in sums.__code__.co_names else 5e-6
    )
