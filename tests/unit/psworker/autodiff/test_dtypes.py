"""Which dtype comes out: Tensors of floating point decide, and nothing beside them does."""

import warnings

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

FLOATS = (np.float16, np.float32, np.float64)
VALUES = [[0.5, 1.0], [2.0, 3.0]]


def tensor(dtype, values=VALUES):
    return Tensor(np.array(values, dtype), requires_grad=True)


NO_TENSORS = {
    "number": 2.5,
    "whole number": 3,
    "bool": True,
    "list": [[1.5, 2.0], [1.0, 3.0]],
    "list of whole numbers": [[1, 2], [3, 4]],
    "int64": np.array([[1, 2], [3, 4]]),
    "uint8": np.array([[1, 2], [3, 4]], np.uint8),
    "booleans": np.array([[True, False], [True, True]]),
    "float64": np.array([[1.5, 2.0], [1.0, 3.0]]),
    "float32": np.array([[1.5, 2.0], [1.0, 3.0]], np.float32),
    "float16": np.array([[1.5, 2.0], [1.0, 3.0]], np.float16),
    "float64 of no axes": np.array(0.5),
    "int64 of no axes": np.array(2),
    "np.float64": np.float64(0.5),
    "np.float32": np.float32(0.5),
    "np.int64": np.int64(2),
}
BINARY = [  # each with the same in numpy
    (ops.add, np.add),
    (ops.subtract, np.subtract),
    (ops.multiply, np.multiply),
    (ops.divide, np.divide),
    (ops.power, np.power),
    (ops.maximum, np.maximum),
    (ops.minimum, np.minimum),
    (lambda a, b: a * b - b, lambda a, b: a * b - b),
    (lambda a, b: ops.where([[True], [False]], a, b), lambda a, b: np.where([[True], [False]], a, b)),
    (lambda a, b: ops.einsum("...,...->...", a, b), np.multiply),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("kind", NO_TENSORS)
def test_what_is_no_tensor_takes_the_dtype_of_the_tensor_on_either_side(kind, dtype):
    x, other = tensor(dtype), NO_TENSORS[kind]
    in_float64 = np.array(VALUES), np.array(other, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # x / False
        for op, reference in BINARY:
            for y, expected in ((op(x, other), reference(*in_float64)), (op(other, x), reference(*in_float64[::-1]))):
                assert y.dtype == gradients(y, x)[0].dtype == dtype
                np.testing.assert_allclose(y.value, expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("kind", [kind for kind, value in NO_TENSORS.items() if np.ndim(value) == 2])
def test_what_is_no_tensor_takes_the_dtype_of_the_tensor_in_ops_of_whole_arrays(kind, dtype):
    x, other = tensor(dtype), NO_TENSORS[kind]
    results = [
        op(a, b) for a, b in ((x, other), (other, x)) for op in (ops.matmul, ops.mean_squared_error, ops.huber_loss)
    ]
    results += [join(pair) for pair in ((x, other), (other, x)) for join in (ops.concatenate, ops.stack)]
    results += [ops.layer_norm(x, other[0], other[1]), ops.batch_norm(x, other[0], other[1])]
    results += [ops.batch_norm_inference(x, other[0], [1, 2], other[1])]
    results += [ops.layer_norm(other, x[0]), ops.batch_norm(other, None, x[0])]
    results += [ops.conv2d(np.reshape(other, (1, 2, 2, 1)), ops.reshape(x, (2, 2, 1, 1)), np.array([1.0]))]
    assert [y.dtype for y in results] == [dtype] * len(results)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.array(2.0)], ids=repr)
def test_numbers_that_are_constants_change_no_dtype(number, dtype):
    x = tensor(dtype)
    results = [ops.clip(x, 0, number), ops.clip(x, -number if number is not True else 0, 9), ops.pad(x, 1, number)]
    results += [ops.leaky_relu(x, number / 4), ops.stack([x[0, 0], number]), ops.einsum("ij,->ij", x, number)]
    results += [ops.huber_loss(x, 0 * x.value, number), ops.layer_norm(x, epsilon=number), ops.dropout(x, number / 4)]
    for y in results:
        assert y.dtype == dtype
        assert gradients(y, x)[0].dtype == dtype


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (np.float16, np.float64, np.float64),
        (np.float32, np.int64, np.float32),
        (np.float16, np.int64, np.float16),
        (np.float32, np.bool_, np.float32),
        (np.int32, np.int64, np.int64),
    ],
)
def test_among_tensors_the_widest_of_floating_point_decides(a, b, expected):
    x, y = (Tensor(np.array([[1, 2], [3, 4]], dtype)) for dtype in (a, b))
    for op in (ops.add, ops.multiply, ops.matmul, ops.maximum, lambda a, b: ops.concatenate([a, b])):
        assert op(x, y).dtype == op(y, x).dtype == expected
        assert ops.add(op(x, y), [0.5, 1.5]).dtype == (expected if np.dtype(expected).kind == "f" else np.float64)


def test_a_tensor_of_any_number_of_tensors_decides():
    x = Tensor(np.float32([1]))
    assert ops.concatenate([[1.0], np.array([2.0]), x, [3]]).dtype == np.float32
    assert ops.concatenate([[1.0], np.array([2.0]), x, Tensor(np.float64([3]))]).dtype == np.float64


def test_where_there_is_no_tensor_numpy_decides():
    assert ops.add(np.float32([1]), np.float64([1])).dtype == np.float64
    assert ops.multiply(np.float32([1]), np.float32([1])).dtype == np.float32
    assert ops.matmul([[1.0]], np.float32([[1]])).dtype == np.float64
    assert ops.add(Tensor(np.array([1])), np.float32([1, 2])).dtype == np.float64  # int64 and float32
    assert ops.exp([1, 2]).dtype == np.float32  # functions of real numbers take whole numbers for float32


@pytest.mark.parametrize("array", [np.array([0.1, 0.2]), np.array([1, 2]), np.array(0.5)], ids=str)
def test_no_array_of_another_dtype_slows_float32_down(array, monkeypatch):
    """What an op is given is in the tensor's dtype, and so is what it gives, so that nothing is computed in float64."""
    given = []
    monkeypatch.setattr(np, "multiply", lambda a, b, real=np.multiply: given.extend((a.dtype, b.dtype)) or real(a, b))
    x = Tensor(np.float32([1, 2]), requires_grad=True)
    y = x * array
    [gradient] = gradients(y, x)
    assert {*given, y.dtype, gradient.dtype} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(gradient, np.float32(array) * np.ones(2, np.float32))


def test_a_number_that_float32_cannot_hold_is_infinite_with_a_warning():
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        assert (Tensor(np.float32([1])) * np.array([1e300])).value == np.inf


LABELS = np.array([[1, 0], [0, 1]])
ROW = [1.0, 2.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("labels", [np.int64, np.uint8, np.bool_, np.float16, np.float32, np.float64, list])
def test_a_loss_has_the_dtype_of_its_logits_whatever_the_labels_are(labels, dtype):
    x = tensor(dtype)
    weights = LABELS.tolist() if labels is list else LABELS.astype(labels)
    losses = [f(x, weights) for f in (ops.softmax_cross_entropy, ops.sigmoid_cross_entropy, ops.hinge_loss)]
    losses += [ops.softmax_cross_entropy(x, [0, 1]), ops.mean_squared_error(x, weights), ops.huber_loss(weights, x)]
    for loss in losses:
        assert (loss.dtype, loss.shape) == (dtype, ())
        assert gradients(loss, x)[0].dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("other", FLOATS, ids=lambda dtype: dtype.__name__)
def test_a_norm_has_the_dtype_of_x_and_a_loss_of_two_tensors_the_wider(dtype, other):
    x, gamma, beta = tensor(dtype), tensor(other, ROW), tensor(other, ROW)
    norms = [ops.layer_norm(x, gamma, beta), ops.batch_norm(x, gamma, beta)]
    norms += [ops.batch_norm_inference(x, np.zeros(2), np.ones(2), gamma, beta)]
    for y in norms:
        assert y.dtype == dtype
        assert [g.dtype for g in gradients(y, [x, gamma, beta])] == [dtype, other, other]
    assert [m.dtype for m in ops.moments(x)] == [dtype, dtype]
    for loss in (ops.mean_squared_error(x, tensor(other)), ops.huber_loss(x, tensor(other))):
        assert loss.dtype == np.promote_types(dtype, other)


def test_losses_of_whole_numbers_are_float32():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ops.mean_squared_error(np.array([1, 2]), np.array([3, 4])).dtype == np.float32
        assert ops.huber_loss([1, 2], [3, 4]).dtype == np.float32
