"""Dtypes of results, and sums: float16 in float32, rounded once; long float32 sums as precise as pairwise addition."""

import numpy as np
import pytest

from pswire.tensors.sums import add_rows
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, op, ops
from psworker.autodiff.gradient_check import dense

FLOATS = (np.float16, np.float32, np.float64)
HALF = np.float16
SEED = 20261122


def tensor(dtype, values=((0.5, 1.0), (2.0, 3.0))):
    return Tensor(np.array(values, dtype), requires_grad=True)


# Which dtype a result has. For the result of each op on tensors of one dtype see `test_ops.py`.

MATRIX = [[1.5, 2.0], [1.0, 3.0]]
NO_TENSORS = [2.5, True, np.array(0.5), np.float64(0.5), np.float32(0.5), np.int64(2), MATRIX, [[1, 2], [3, 4]]]
NO_TENSORS += [np.array(MATRIX, dtype) for dtype in (np.uint8, bool, HALF, np.float64)]
BINARY = [  # each with the same in numpy
    *((getattr(ops, name), getattr(np, name)) for name in ("add", "subtract", "multiply", "divide", "power")),
    *((getattr(ops, name), getattr(np, name)) for name in ("maximum", "minimum")),
    (lambda a, b: ops.where([[True], [False]], a, b), lambda a, b: np.where([[True], [False]], a, b)),
    (lambda a, b: ops.einsum("...,...->...", a, b), np.multiply),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", NO_TENSORS, ids=repr)
def test_an_operand_that_is_no_tensor_takes_the_dtype_of_the_tensor_beside_it(other, dtype):
    x = tensor(dtype)
    in_float64 = x.value.astype(np.float64), np.array(other, np.float64)
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
        results += [f(x, other) for f in (ops.softmax_cross_entropy, ops.sigmoid_cross_entropy)]
        assert [y.dtype for y in results] == [dtype] * len(results)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.array(2.0)], ids=repr)
def test_numbers_that_are_constants_change_no_dtype(number, dtype):
    x = tensor(dtype)
    results = [ops.clip(x, 0, number), ops.pad(x, 1, number), ops.leaky_relu(x, number / 4), ops.dropout(x, number / 4)]
    results += [ops.stack([x[0, 0], number]), ops.einsum("ij,->ij", x, number), ops.hinge_loss(x, number == 2)]
    results += [ops.huber_loss(x, 0 * x.value, number), ops.layer_norm(x, epsilon=number)]
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
def test_among_tensors_the_widest_of_floating_point_decides_and_for_norms_that_of_x(a, b, expected):
    x, y = (Tensor(np.array([[1, 2], [3, 4]], dtype), np.dtype(dtype).kind == "f") for dtype in (a, b))
    for function in (ops.add, ops.multiply, ops.matmul, ops.maximum, lambda a, b: ops.concatenate([a, b])):
        assert function(x, y).dtype == function(y, x).dtype == expected
    mixed = ops.concatenate([[[5.0, 6]], x, y, np.array([[3, 4]])])
    assert mixed.dtype == (expected if np.dtype(expected).kind == "f" else np.float64)
    if np.dtype(b).kind == "f":
        assert ops.mean_squared_error(x, y).dtype == expected
        for one, other in ((x, y), (y, x)):
            gamma, beta = tensor(other.dtype, (1, 2)), tensor(other.dtype, (3, 4))
            norms = [f(one, gamma, beta) for f in (ops.layer_norm, ops.batch_norm)]
            for result in (*norms, ops.batch_norm_inference(one, [0, 0], [1, 1], gamma, beta)):
                assert result.dtype == one.dtype
                found = gradients(result, [one, gamma, beta])
                assert [g.dtype for g in found] == [one.dtype, other.dtype, other.dtype]


def test_without_a_tensor_numpy_decides_and_functions_of_real_numbers_take_integers_as_float32():
    assert ops.add(np.float32([1]), np.float64([1])).dtype == np.float64
    assert ops.matmul([[1.0]], np.float32([[1]])).dtype == np.float64
    assert ops.add(Tensor(np.array([1])), np.float32([1, 2])).dtype == np.float64  # int64 and float32
    real = ["erf", "exp", "gelu", "log", "log_softmax", "logsumexp", "sigmoid", "softmax", "softplus", "sqrt", "tanh"]
    for function in (getattr(ops, name) for name in real):
        for dtype in (np.uint8, np.int8, np.int64, bool):
            x = np.array([1, 3, 20, 80], dtype)
            assert function(x).dtype == np.float32
            np.testing.assert_array_equal(function(x).value, function(x.astype(np.float32)).value)
    for loss in (ops.huber_loss, ops.mean_squared_error):
        y = loss(np.uint8([0, 3]), np.uint8([200, 1]))
        assert y.dtype == np.float32
        np.testing.assert_allclose(y.value, loss([0.0, 3], [200.0, 1]).value, rtol=1e-6)


# Long sums: float16 in float32, rounded once, without overflow on the way; float32 as precise as pairwise addition.

TENTH = float(HALF(0.1))
ROWS = 100_000  # tenths, of which a sequential sum stalls at 256 in float16 and errs by 0.4 % in float32
IDS = np.zeros(20_000, int)
TENTHS = np.full((ROWS, 4), TENTH)
FOUR, ROW, TALL = np.full(4, TENTH), np.full((1, 4), TENTH), TENTHS[:, 0]
IMAGES = np.random.default_rng(SEED).uniform(0.2, 0.4, (20, 24, 24, 3))

# A function, and the arrays with respect to which it has long sums, in its value or its gradients.
SUMS = [
    (lambda b: ops.subtract(TENTHS, b), FOUR),
    (lambda b: np.full((2, ROWS, 3), TENTH) * b, np.full((2, 1, 3), TENTH)),
    (lambda b: ops.power(b, 0 * TENTHS + 2), FOUR),
    (lambda b: ops.where(np.ones((ROWS, 1), bool), b, 0.0), FOUR),
    (lambda b: ops.concatenate([ops.expand_dims(b, 0)] * 5000), FOUR),
    (ops.matmul, TENTHS.T.copy(), TENTHS),
    (lambda x: ops.matmul(x, TALL), TENTHS.T.copy()),
    (lambda x: ops.einsum("ij,k->k", TENTHS, x), FOUR[:2]),
    (lambda a, b: ops.einsum("ij,ik->jk", a, b), TENTHS, TENTHS[:, :3]),
    (lambda b: ops.mean(TENTHS + b) * (ROWS * 4 * TENTH), FOUR),
    (ops.mean, 20 * TALL),
    (lambda x: ops.sum(x, axis=0), TENTHS),
    (lambda x: ops.cumsum(x, axis=0)[-1], TENTHS),
    (ops.logsumexp, 0 * TALL),
    (lambda x: ops.softmax(x, 0)[:2], 0 * TALL),
    (lambda x: ops.log_softmax(x, 0)[0], 0 * TENTHS),
    (lambda x: ops.mean_squared_error(x, 0 * TALL), 40 * TALL),
    (lambda x: ops.huber_loss(x, 0 * TALL), 40 * TALL),
    (lambda x: ops.hinge_loss(x, 0), 40 * TALL),
    (lambda x: ops.sigmoid_cross_entropy(x, 0), 0 * TALL),
    (lambda x: ops.softmax_cross_entropy(x, IDS.repeat(5)), 0 * TENTHS),
    (lambda x: ops.softmax_cross_entropy(x, np.full(x.shape, 0.5)), np.zeros((9_000, 100))),
    (lambda x: ops.moments(x)[0] + 0 * x[0], 30 * TENTHS),
    (lambda b: ops.batch_norm_inference(TENTHS, [0.0] * 4, [1.0] * 4, None, b), FOUR),
    (lambda b: ops.layer_norm(TENTHS, None, b), FOUR),
    (lambda x: ops.avg_pool2d(x, 3, 1, "SAME"), np.full((1, 6, 6, 1), 60_000.0)),
    (lambda b: ops.conv2d(np.full((2, 100, 500, 1), TENTH), np.full((1, 1, 1, 4), TENTH), b), FOUR),
]
HALF_SUMS = [  # in float32 added one after the other, or by BLAS
    (lambda x: ops.take(x, IDS), ROW),
    (lambda x: ops.take(ops.transpose(x), IDS, axis=1), ROW),
    (lambda x: ops.gather(x, IDS), ROW),
    (lambda x: ops.getitem(x, (IDS, slice(None))), ROW),
    (lambda x: ops.embedding(x, IDS), ROW),
    (lambda x: ops.concatenate([ops.embedding(x, IDS[:2500]), ops.take(x, IDS[:2500])]), ROW),
    (lambda x: ops.concatenate([ops.take(x, IDS[:2500]), ops.embedding(x, IDS[:2500])]), ROW),
    (lambda b: ops.matmul(TENTHS, b), FOUR),
    (lambda b: ops.einsum("ij,j->i", TENTHS, b), FOUR),
    (lambda x: ops.avg_pool2d(x, 12, 1, "SAME"), IMAGES[:2, :, :, :1]),
    (lambda x: ops.max_pool2d(x, 12, 1), IMAGES[:2, :, :, :1]),
    (lambda x: ops.conv2d(x, np.full((250, 400, 1, 1), TENTH), padding="VALID"), np.full((1, 250, 400, 1), TENTH)),
    (lambda x, w: ops.conv2d(x, w, strides=2, padding="VALID"), IMAGES, IMAGES[:4, :4, :3, :1] + 0),
]


@pytest.mark.parametrize(
    ("dtype", "precision", "f", "arrays"),
    [(HALF, 1.01 * 2.0**-11, f, arrays) for f, *arrays in SUMS + HALF_SUMS]
    + [(np.float32, 5e-6, f, arrays) for f, *arrays in SUMS],
)
def test_values_and_gradients_of_long_sums_are_those_of_float64_rounded_once(dtype, precision, f, arrays):
    def results(dtype):
        xs = [Tensor(array.astype(HALF).astype(dtype), requires_grad=True) for array in arrays]
        y = f(*xs)
        return y.value, *map(dense, gradients(y, xs, np.full(y.shape, TENTH)))

    for found, expected in zip(results(dtype), results(np.float64), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=precision, atol=np.finfo(dtype).smallest_subnormal)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 4), (2, ROWS // 4, 3), (257, 5), (4, 2**15 + 257)])
def test_a_float32_sum_along_any_axis_in_any_layout_is_that_of_float64_to_some_roundings(shape):
    numbers = np.random.default_rng(SEED).uniform(0.05, 0.15, shape).astype(np.float32)
    gaps = np.repeat(numbers[..., np.newaxis], 2, axis=-1)[..., 0]
    for x in (numbers, np.asfortranarray(numbers), gaps, numbers[::-1].copy()[::-1]):
        for axis in (None, *range(len(shape))):
            np.testing.assert_allclose(ops.sum(x, axis=axis).value, numbers.sum(axis, np.float64), rtol=2e-6)


def test_gradients_of_one_node_are_added_in_float32_and_reach_its_op_in_float16():
    seen = []

    @op
    def watching(x, /):
        return x * 1, (lambda g: seen.append(g.dtype) or g,)

    x = Tensor(np.zeros((2, 3), HALF), requires_grad=True)
    inner = watching(x)
    for ys in ([inner * 1 for _ in range(3000)], [inner] * 3000):
        for gradient in gradients(ys, [x, inner], retain_graph=True):
            assert gradient.dtype == HALF
            np.testing.assert_array_equal(gradient, np.full((2, 3), 3000))
    assert set(seen) == {np.dtype(HALF)}
    np.testing.assert_array_equal(gradients([x * 6e4, x * 6e4, x * -6e4], x)[0], np.full((2, 3), 60000, HALF))
    more, fewer = np.zeros((70000, 2, 3), HALF), np.zeros((60000, 2, 3), HALF)
    np.testing.assert_array_equal(gradients([more + x, fewer - x], x)[0], np.full((2, 3), 10000))


def test_rows_of_float16_with_one_index_are_summed_in_float32():
    rows = IndexedSlices(np.ones((5000, 2), HALF), np.ones(5000, int), (3, 2))
    assert (rows.summed().dtype, rows.summed().values.tolist()) == (HALF, [[5000, 5000]])
    for array in (rows.to_dense(), rows + np.zeros((3, 2), HALF)):
        assert (array.dtype, array.tolist()) == (HALF, [[0, 0], [5000, 5000], [0, 0]])
    total = np.full((3, 2), -60000, HALF)
    add_rows(total, np.array([0, -1] * 1500), np.full((3000, 2), 45, HALF))  # 67,500 in each
    np.testing.assert_array_equal(total, np.full((3, 2), [[7500], [-60000], [7500]]))
