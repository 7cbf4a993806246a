"""Every differentiable op, found in the package itself, against plain numpy and finite differences; wrong calls."""

import importlib
import inspect
import operator
import pkgutil

import numpy as np
import pytest

from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, op, ops
from psworker.autodiff.gradient_check import dense
from tests.support.combinations import together

from . import cases
from .numpy_cases import NUMPY_CASES


def differentiable_ops():
    """All functions made by @op in the modules of `ops`, by name; for `_name` the public function `name`."""
    found = {}
    for info in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        module = importlib.import_module(info.name)
        functions = [item for item in vars(module).items() if inspect.isfunction(item[1])]
        names = [name.lstrip("_") for name, member in functions if member.__code__ is ops.exp.__code__]
        found |= {name: getattr(module, name) for name in names if hasattr(module, name)}
    return found


OPS = differentiable_ops()
CASES = cases.CASES + NUMPY_CASES
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]

FIRST = [case for place, case in enumerate(CASES) if all(earlier.op != case.op for earlier in CASES[:place])]
OTHERS = [case for case in CASES if all(case is not one for one in FIRST)]


def every_case(test):
    """A test of the first case of each op, which is fast, and one of the others."""

    @pytest.mark.parametrize("cases", [FIRST, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["first", "others"])
    def of_cases(cases):
        together("case", cases)(test)()

    return of_cases


def mapped(f, args):
    """The arguments with `f` of each array in them, those in lists of arrays too."""
    return [f(a) if isinstance(a, np.ndarray) else mapped(f, a) if isinstance(a, list) else a for a in args]


def run(case, cast):
    """The op on the case's arrays, each through `cast`: the result, and the tensors it depends on."""
    tensors = []

    def tensor(a):
        tensors.append(Tensor(cast(a), requires_grad=a.dtype.kind == "f"))
        return tensors[-1]

    return result(case, mapped(tensor, case.args)), tensors


def result(case, args):
    """The tensor that the op returns, alone or beside arrays."""
    given = getattr(ops, case.op)(*args, **case.constants)
    return given if isinstance(given, Tensor) else next(part for part in given if isinstance(part, Tensor))


def floats_as(dtype):
    return lambda x: x.astype(dtype) if x.dtype.kind == "f" else x


def strided(x):
    """The same values, read-only, with gaps between them and the first axis reversed."""
    buffer = np.full((*x.shape, 2), 99, x.dtype)
    view = buffer[::-1, ..., 0] if x.ndim else buffer[..., 0]
    view[...] = x
    view.flags.writeable = False
    return view


def test_every_op_is_exported_and_has_cases():
    assert len(OPS) > 50
    assert set(OPS) <= set(ops.__all__)
    assert all(inspect.unwrap(getattr(ops, name)) is inspect.unwrap(function) for name, function in OPS.items())
    assert set(OPS) <= {case.op for case in CASES} <= set(ops.__all__)


@every_case
def test_the_value_is_that_of_numpy_in_every_layout_and_dtype(case):
    for cast, dtype, rtol, atol in (
        (strided, None, 1e-12, 1e-14),
        (lambda x: np.asarray(x, order="F"), None, 1e-12, 1e-14),
        (floats_as(np.float16), np.float16, 4e-3, 4e-3),
        (floats_as(np.float32), np.float32, 1e-5, 1e-6),
    ):
        args = mapped(floats_as(np.float64), mapped(cast, case.args))
        expected = np.asarray(case.reference(*args, **case.constants))
        y, xs = run(case, cast)
        assert type(y.value) is np.ndarray
        assert (y.shape, y.dtype) == (np.shape(expected), dtype if dtype and y.requires_grad else expected.dtype)
        np.testing.assert_allclose(y.value, expected, rtol=rtol, atol=atol)
        assert y.requires_grad == any(x.requires_grad for x in xs)
    with no_grad():
        unrecorded, _ = run(case, cast)
    assert not unrecorded.requires_grad
    np.testing.assert_array_equal(unrecorded.value, y.value)


@every_case
def test_the_gradient_is_that_of_finite_differences_and_no_array_is_written_into(case):
    arrays = []
    mapped(arrays.append, case.args)

    def f(*tensors):
        supply = iter(tensors)
        return result(case, mapped(lambda _: next(supply), case.args))

    check_gradients(f, *arrays)
    y, xs = run(case, np.array)
    expected = gradients(y, xs, np.full(y.shape, 3.0))
    for cast, precision in ((strided, 1e-12), (floats_as(np.float16), 2e-2)):
        y, xs = run(case, cast)
        found = gradients(y, xs, np.broadcast_to(3.0, y.shape))
        for x, one, other in zip(xs, found, expected, strict=True):
            if one is not None:
                np.testing.assert_allclose(dense(one), dense(other), rtol=precision, atol=precision)
                assert dense(one).dtype == x.dtype
                assert dense(one).flags.c_contiguous
                assert dense(one).flags.writeable


def test_operators_and_methods_are_ops_with_arrays_and_numbers_on_either_side():
    x = Tensor(np.arange(1.0, 7).reshape(2, 3), requires_grad=True)
    v, array = x.value, np.arange(1.0, 13).reshape(2, 2, 3)
    pairs = [(x, x), (x, 2), (2, x), (np.float64(3), x), (x, array), (array, x), (x, [1.0, 2, 3]), ([1.0, 2, 3], x)]
    found = [(f(a, b), f(*(o.value if o is x else np.array(o) for o in (a, b)))) for f in OPERATORS for a, b in pairs]
    found += [(array @ x.T, array @ v.T), ([[1.0, 2]] @ x, [[1.0, 2]] @ v), (-x, -v), (abs(x - 2), abs(v - 2))]
    found += [(x.max(axis=0), v.max(axis=0)), (x.min(axis=1, keepdims=True), v.min(axis=1, keepdims=True))]
    found += [(x.sum(axis=0) + x.mean(), v.sum(axis=0) + v.mean()), (x[1, :2], v[1, :2])]
    found += [(x.reshape(3, 2) + x.reshape((3, 2)) + x.reshape(-1)[0], 2 * v.reshape(3, 2) + 1)]
    for y, expected in found:
        assert isinstance(y, Tensor)
        assert y.requires_grad
        np.testing.assert_allclose(y.value, expected, rtol=1e-15)


def test_functions_without_a_derivative_return_numpy_arrays():
    x = Tensor(np.float32([[1, 5, 2], [7, 0, 3]]), requires_grad=True)
    assert ops.zeros((2, 3)).dtype == ops.ones(4).dtype == ops.one_hot(np.uint8([1]), 2).dtype == np.float32
    np.testing.assert_array_equal(ops.zeros((1, 2), np.float64), [[0, 0]])
    np.testing.assert_array_equal(ops.ones(2), [1, 1])
    np.testing.assert_array_equal(ops.argmax(x, axis=1), [1, 0])
    np.testing.assert_array_equal(ops.argmax(x), 3)
    np.testing.assert_array_equal(ops.argmin(x, axis=1), [0, 1])
    np.testing.assert_array_equal(ops.equal(x, [1, 0, 2]), [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(ops.one_hot([[2], [0]], 3), [[[0, 0, 1]], [[1, 0, 0]]])
    y = Tensor(np.float32([-1.5, -0.5, 0, 0.5, 2.25]), requires_grad=True)
    np.testing.assert_array_equal(ops.sign(y), [-1, -1, 0, 1, 1])
    np.testing.assert_array_equal(ops.floor(y), [-2, -1, 0, 0, 2])
    np.testing.assert_array_equal(ops.ceil(y), [-1, 0, 0, 1, 3])
    np.testing.assert_array_equal(ops.round(y), [-2, 0, 0, 0, 2])
    np.testing.assert_array_equal(ops.round(y, 1), np.float32([-1.5, -0.5, 0, 0.5, 2.2]))
    assert {f(y).dtype for f in (ops.sign, ops.floor, ops.ceil, ops.round)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(ops.all(x, axis=1), [True, False])
    np.testing.assert_array_equal(ops.any(x.value > 5, axis=0, keepdims=True), [[True, False, False]])
    assert ops.all([]).item() is True
    assert ops.any([]).item() is False
    z = [np.nan, np.inf, -np.inf, 1]
    np.testing.assert_array_equal(ops.isnan(z), [True, False, False, False])
    np.testing.assert_array_equal(ops.isinf(z), [False, True, True, False])
    np.testing.assert_array_equal(ops.isfinite(z), [False, False, False, True])
    assert gradients(ops.sum(ops.floor(y)), y) == [None]


def test_dir_lists_the_public_ops_only():
    assert dir(ops) == sorted(ops.__all__)
    assert all(callable(getattr(ops, name)) for name in dir(ops))


X = Tensor(np.zeros((2, 3), np.float32), requires_grad=True)
N = np.zeros((5, 10))
IMAGES, FILTERS = np.zeros((2, 4, 5, 3), np.float32), np.zeros((3, 3, 3, 6), np.float32)
Z2, Z3, Z23, ONES3 = np.zeros(2), np.zeros(3), np.zeros((2, 3)), np.ones(3)
INFERENCE = r"(?s)batch_norm_inference\(x: .*"

ROWS = IndexedSlices(np.ones((1, 2)), np.array([0]), (4, 2))
broken = op(lambda x, /: (x.sum(), (lambda g: g,)))
WRONG = [
    (lambda: gradients(X, [ONES3]), TypeError, "gradients: xs must be Tensors, but one of them is ndarray"),
    (lambda: gradients([1.0], X), TypeError, "gradients: ys must be Tensors, but one of them is float"),
    (lambda: gradients(X, X, ONES3), ValueError, r"grad_ys has shape \(3,\), and its y has shape \(2, 3\)"),
    (lambda: gradients([X], X, [None, None]), ValueError, "2 grad_ys for 1 ys"),
    (lambda: gradients(broken(X), X), ValueError, r"lambda.* of shape \(\) for an input of shape \(2, 3\)"),
    (lambda: ops.clip(ROWS, -1, 1), TypeError, r"clip\(x=IndexedSlices.* use psworker.clip_by_value"),
    (lambda: Tensor([1, 2], requires_grad=True), TypeError, "Tensor: only floating point .* is int64"),
    (lambda: X @ np.zeros((2, 4)), ValueError, r"matmul\(a: float32 \(2, 3\), b: float64 \(2, 4\)\): the last axis"),
    (lambda: ops.matmul(X, 2.0), ValueError, r"matmul\(a: float32 \(2, 3\), b=2.0\): both operands"),
    (lambda: X + Z2, ValueError, r"add\(a: float32 \(2, 3\), b: float64 \(2,\)\): .*broadcast"),
    (lambda: X.sum(axis=2), ValueError, r"sum\(x: float32 \(2, 3\), axis=2\): axis 2 is out of bounds"),
    (lambda: X[2], IndexError, r"getitem\(x: float32 \(2, 3\), index=2\): .*out of bounds"),
    (lambda: ops.clip(X, 1, 0), ValueError, r"clip\(.*low=1, high=0\): low must not be above high"),
    (lambda: ops.mean(np.zeros((0, 3))), ValueError, r"mean\(x: float64 \(0, 3\)\): there are no elements"),
    (lambda: ops.var(Z3, ddof=3), ValueError, r"var\(x: float64 \(3,\), ddof=3\): there are 3 .* ddof is 3: .* below"),
    (lambda: ops.std(np.zeros((0, 3)), axis=0), ValueError, "there are 0 elements to take the variance of"),
    (lambda: ops.norm(X, axis=2), ValueError, r"norm\(x: float32 \(2, 3\), axis=2\): axis 2 is out of bounds"),
    (lambda: ops.clip(X, X, 1), TypeError, r"clip\(.*\): a constant of this op is a Tensor that requires"),
    (lambda: ops.one_hot([0, 3], 3), ValueError, r"one_hot: ids must be in 0 \.\.\. 2, but they span 0 \.\.\. 3"),
    (lambda: ops.one_hot([0.5], 3), TypeError, "one_hot: ids must be integers"),
    (lambda: ops.where([True, False], X, 0), ValueError, r"where\(.*condition=\[True, False\]\): .*broadcast"),
    (lambda: ops.broadcast_to(X, (2, 4)), ValueError, r"broadcast_to\(.*shape=\(2, 4\)\): .*could not be broadcast"),
    (lambda: ops.pad(X, 0.5), TypeError, r"pad\(.*paddings=0.5\): paddings must be integers"),
    (lambda: ops.pad(X, (1, 2, 3)), ValueError, r"pad\(.*\): paddings must have shape \(2, 2\).*is \(3,\)"),
    (lambda: ops.pad(X, (0, -1)), ValueError, r"pad\(.*paddings=\(0, -1\)\): paddings must not be negative"),
    (lambda: ops.concatenate([X, X[:, 1:]]), ValueError, r"(?s)concatenate\(.*\): .* has size 3 .* size 2"),
    (lambda: ops.stack([], axis=1), ValueError, r"stack\(axis=1\): need at least one array to stack"),
    (lambda: ops.stack([X, X[0]]), ValueError, r"stack\(tensors: .*: all input arrays must have the same shape"),
    (lambda: ops.split(X, 2, axis=1), ValueError, "split: axis 1 of x, of size 3, has no 2 equal sections"),
    (lambda: ops.split(X, [1, 2]), ValueError, r"split: axis 0 of x, of size 2, has no sections of sizes \[1, 2\]"),
    (lambda: ops.take(X, [0, 3], axis=1), IndexError, r"take\(.*axis=1\): index 3 is out of bounds"),
    (lambda: ops.take(X, 1.0), TypeError, r"take\(.*ids=1.0\): ids must be integers, but they are float64"),
    (lambda: ops.gather(X, [0] * 3, 1), ValueError, r"gather\(.*\): ids must begin with .* \(2,\), .* \(3,\)"),
    (lambda: ops.gather(X, [0, 0], 2), ValueError, r"gather\(.*batch_dims=2\): batch_dims must be in 0 \.\.\. 1"),
    (lambda: ops.einsum("ij,jk->ik", X, X), ValueError, r"einsum\(.*\): axis 'j' has size 3 in a, and 2 in b"),
    (lambda: ops.einsum("ij->i", X, 1), ValueError, "einsum: .* 'ij->i' name .* of 1 operands, .* are 2"),
    (lambda: ops.einsum("i,ij->j", X, X), ValueError, r"einsum\(.*\): 'i' names 1 axes, but a has 2"),
    (lambda: ops.einsum("ij,kk->i", X, X), ValueError, "einsum: 'kk' has axis 'k' twice, with sizes 2 and 3"),
    (lambda: ops.einsum("iii,j->j", X, X[0]), ValueError, r"einsum\(.*\): 'iii' names 3 axes, but a has 2"),
    (lambda: ops.einsum("ii->i", X[np.newaxis]), ValueError, "'ii' names 2 axes, but the operand has 3"),
    (lambda: ops.einsum("ij,i2->i", X, X), ValueError, r"einsum\(.*\): 'i2' must consist of letters"),
    (lambda: ops.einsum("ij,ij->k", X, X), ValueError, r"einsum\(.*\): the result 'k' must have letters of"),
    (lambda: ops.einsum("...j,j->j", X, X[0]), ValueError, r"einsum\(.*\): the result 'j' must have the '\.\."),
    (lambda: np.exp(X), TypeError, "does not support ufuncs"),
    (lambda: np.concatenate([X, X]), TypeError, r"use its \.value"),
    (lambda: ops.leaky_relu(X, 1.5), ValueError, r"leaky_relu\(.*slope=1.5\): slope must be from 0 to 1"),
    *((lambda r=r: ops.dropout(Z2, r), ValueError, r"dropout\(.*at least 0 and below 1") for r in (-0.1, 1, np.nan)),
    # Order and repetition.
    (lambda: ops.sort(X, 2), ValueError, r"sort\(x: float32 \(2, 3\), axis=2\): axis 2 is out of bounds"),
    (lambda: ops.top_k(X, 4), ValueError, r"top_k: k must be in 0 \.\.\. 3, the size of axis 1 of x, but it is 4"),
    (lambda: ops.top_k(X, 1.0), TypeError, "top_k: k must be an integer, but it is 1.0"),
    (lambda: ops.take_along_axis(X, [[0]]), ValueError, r"shape of x but for axis 1, but their shape is \(1, 1\)"),
    (lambda: ops.take_along_axis(X, [[3], [0]]), IndexError, r"take_along_axis\(x: float32 \(2, 3\), .*out of bounds"),
    (lambda: ops.take_along_axis(X, [[1.0], [0]]), TypeError, "indices must be integers, but they are float64"),
    (lambda: ops.repeat(X, 1.5), TypeError, "repeats must be integers, but they are float64"),
    (lambda: ops.repeat(X, [1, 2], axis=1), ValueError, r"repeat\(x: float32 \(2, 3\), repeats=\[1, 2\], axis=1\): "),
    (lambda: ops.tile(X, -1), ValueError, r"tile\(x: float32 \(2, 3\), reps=-1\): .*negative"),
    (lambda: ops.tile(X, 1.5), TypeError, "reps must be integers, but they are float64"),
    (lambda: ops.roll(X, 1.5), TypeError, "shift must be integers, but they are float64"),
    # Segments.
    (lambda: ops.segment_sum(X, [0, 2], 2), IndexError, r"segment_sum\(x: .*ids must be in 0 .* span 0 \.\.\. 2"),
    (lambda: ops.segment_max(X, [0, -1]), IndexError, r"segment_max\(x: .*but they span -1 \.\.\. 0"),
    (lambda: ops.segment_mean(X, [0.0, 1]), TypeError, "segment_ids must be integers, but they are float64"),
    (lambda: ops.segment_softmax(X, [0]), ValueError, r"one id for each row of x, shape \(2,\), but .* is \(1,\)"),
    (lambda: ops.segment_sum(2.0, 0), ValueError, "x must have at least one axis"),
    (lambda: ops.segment_sum(X, [0, 0], -1), ValueError, "num_segments must not be negative, but it is -1"),
    (lambda: ops.segment_sum(X, [0, 0], 2.5), TypeError, "num_segments must be an integer, but it is 2.5"),
    # Losses.
    (lambda: ops.softmax_cross_entropy(N, [0, -1, 2, 3, 9]), ValueError, r"must be in 0 .* span -1 \.\.\. 9"),
    (lambda: ops.softmax_cross_entropy(N, [0.0] * 5), TypeError, r"softmax_.*labels must be integers.* are float64"),
    (lambda: ops.softmax_cross_entropy(N, [0] * 4), ValueError, r"of shape \(5,\) or weights of .*10\), .* is \(4,\)"),
    (lambda: ops.softmax_cross_entropy(N, Tensor(N, requires_grad=True)), TypeError, "stop_gradient"),
    (lambda: ops.softmax_cross_entropy(N[:0], np.zeros(0, int)), ValueError, "the batch is empty"),
    (lambda: ops.softmax_cross_entropy(np.zeros((2, 9), int), [0, 1]), TypeError, "logits must be floating point"),
    (lambda: ops.softmax_cross_entropy(N[:, :1], N[:, :1]), ValueError, "one class.*sigmoid_cross_ent.*mean_squared_e"),
    (lambda: ops.softmax_cross_entropy(N[:, :1], [0] * 5), ValueError, r"logits of shape \(5, 1\) have one class"),
    (lambda: ops.accuracy(N[:, :1], N[:, :1]), ValueError, "accuracy: logits of shape .* one class"),
    (lambda: ops.accuracy(N, [1, 0, 1, 3, 10]), ValueError, r"accuracy: labels must be in 0 \.\.\. 9"),
    (lambda: ops.mean_squared_error(N[:, :1], N[:, 0]), ValueError, "must have the same shape"),
    (lambda: ops.sigmoid_cross_entropy(N, N[:, :1]), ValueError, r"\(5, 10\), .* is \(5, 1\)"),
    (lambda: ops.sigmoid_cross_entropy(N[:0], N[:0]), ValueError, "there are no logits"),
    (lambda: ops.sigmoid_cross_entropy(N, Tensor(N, requires_grad=True)), TypeError, "stop_gradient"),
    (lambda: ops.hinge_loss(N, -np.ones((5, 10))), ValueError, "labels must be 0 or 1 .*labels > 0"),
    (lambda: ops.hinge_loss(np.zeros(2, int), 1), TypeError, r"hinge_loss\(.*logits must be floating"),
    (lambda: ops.mean_squared_error(N[:0], N[:0]), ValueError, "no elements"),
    (lambda: ops.huber_loss(N, N, delta=0), ValueError, "huber_loss.*delta must be above 0"),
    # Normalisation.
    (lambda: ops.layer_norm(Z23, Z2), ValueError, r"layer_norm\(x: .*gamma must have shape \(3,\), .* \(2,\)"),
    (lambda: ops.batch_norm(Z23, None, Z23[:1]), ValueError, r"batch_norm\(x: .*beta must .* is \(1, 3\)"),
    *((lambda f=f: f(np.zeros((0, 0))), ValueError, "x: .*no elements") for f in (ops.batch_norm, ops.layer_norm)),
    (lambda: ops.layer_norm(np.zeros((2, 3), int)), TypeError, r"layer_norm\(x: .*x must be floating point"),
    (lambda: ops.moments(np.zeros((0, 3))), ValueError, "moments: there are no elements"),
    (lambda: ops.batch_norm_inference(Z23, Z2, ONES3), ValueError, INFERENCE + r"mean must have shape \(3,\)"),
    (lambda: ops.batch_norm_inference(Z3, X[0], ONES3), TypeError, INFERENCE + "requires a gradient"),
    # Embedding.
    (lambda: ops.embedding(Z23, [0, 2]), IndexError, r"embedding\(table: .*ids must be in 0 \.\.\. 1, .* 0 \.\.\. 2"),
    (lambda: ops.embedding(Z23, [-1]), IndexError, r"but they span -1 \.\.\. -1"),
    (lambda: ops.embedding(Z23, [True]), TypeError, "ids must be integers, but they are bool"),
    (lambda: ops.embedding(Z23, ["a"]), TypeError, "ids must be integers, but they are <U1: np.unique.* numbers words"),
    (lambda: ops.embedding(np.zeros(()), [0]), ValueError, "a table must have at least one axis"),
    # Convolution and pooling.
    (lambda: ops.conv2d(IMAGES[0], FILTERS), ValueError, r"^conv2d\(x: .*\): x must have the axes .* is \(4, 5, 3\)"),
    (lambda: ops.conv2d(IMAGES, FILTERS[0]), ValueError, r"filters must be \(height, .* their shape is \(3, 3, 6\)"),
    (lambda: ops.conv2d(IMAGES, FILTERS[:0]), ValueError, r"filters must be .* their shape is \(0, 3, 3, 6\)"),
    (lambda: ops.conv2d(IMAGES[..., :2], FILTERS), ValueError, "x has 2 channels, but the filters are for 3"),
    (lambda: ops.conv2d(IMAGES, FILTERS, ONES3), ValueError, r"bias must have the shape \(6,\), but it is \(3,\)"),
    (lambda: ops.conv2d(IMAGES.astype(int), FILTERS), TypeError, "x must be floating point, but its dtype is int64"),
    (lambda: ops.conv2d(IMAGES, FILTERS.astype(int)), TypeError, "filters must be floating point, but their .* int64"),
    (lambda: ops.conv2d(IMAGES, FILTERS, padding="same"), ValueError, "padding must be \"SAME\" or .* it is 'same'"),
    (lambda: ops.conv2d(IMAGES, FILTERS, strides=0), ValueError, "strides must be at least 1, .* but it is 0"),
    (lambda: ops.conv2d(IMAGES, FILTERS, strides=1.5), TypeError, "strides must be an integer .* but it is 1.5"),
    (lambda: ops.conv2d(IMAGES, FILTERS, dilations=(1, 2, 1)), ValueError, r"dilations must be .* is \(1, 2, 1\)"),
    (lambda: ops.conv2d(IMAGES, FILTERS, activation="tanh"), ValueError, 'must be None or "relu", but it is .*tanh'),
    (lambda: ops.conv2d(IMAGES, FILTERS, padding="VALID", dilations=2), ValueError, "4 x 5, .* spans 5 .*SAME"),
    (lambda: ops.conv2d(IMAGES, FILTERS, groups=2), ValueError, r"divide the channels of x \(3\) .* \(6\), .* is 2"),
    (lambda: ops.conv2d(IMAGES, FILTERS, groups=0), ValueError, "groups must divide .* but it is 0"),
    (lambda: ops.conv2d(IMAGES, FILTERS, groups=1.0), TypeError, "groups must be an integer, but it is 1.0"),
    (lambda: ops.conv2d(IMAGES, FILTERS, groups=3), ValueError, "x has 3 channels, .* are for 3 groups of 3"),
    (lambda: ops.conv1d(IMAGES, FILTERS[0]), ValueError, r"^conv1d\(x: .*\(batch, length, .*\(2, 4, 5, 3\)"),
    (lambda: ops.conv1d(IMAGES[0], FILTERS), ValueError, r"filters must be \(width, .* their shape is \(3, 3, 3, 6\)"),
    (lambda: ops.conv1d(IMAGES[0], FILTERS[0], strides=0), ValueError, "strides must be at least 1, but it is 0"),
    (lambda: ops.conv1d(IMAGES[0], FILTERS[0], dilations=(1, 2)), TypeError, r"dilations must be one int.*\(1, 2\)"),
    (lambda: ops.conv1d(IMAGES[0], FILTERS[0], activation="tanh"), ValueError, "conv1d: activation must be None or"),
    (lambda: ops.conv1d(IMAGES[0], FILTERS[0], padding="VALID", dilations=3), ValueError, "no window fits: x is 1 x 5"),
    (lambda: ops.conv2d_transpose(IMAGES[0], FILTERS), ValueError, r"^conv2d_transpose\(x: .*x must have the axes"),
    (lambda: ops.conv2d_transpose(IMAGES, FILTERS), ValueError, "x has 3 channels, .* for 6; .*, out, channels"),
    (lambda: ops.conv2d_transpose(IMAGES, FILTERS[0]), ValueError, r"filters must be \(height, width, out, channels\)"),
    (lambda: ops.conv2d_transpose(IMAGES[:, :0], FILTERS), ValueError, r"no pixels: its shape is \(2, 0, 5, 3\)"),
    (lambda: ops.conv2d_transpose(IMAGES, FILTERS[..., :3], Z2), ValueError, r"bias must have .* \(3,\), .*\(2,\)"),
    (lambda: ops.conv2d_transpose(IMAGES, FILTERS[..., :3].astype(int)), TypeError, "filters must be floating point"),
    (lambda: ops.conv2d_transpose(IMAGES, FILTERS[..., :3], strides=0), ValueError, "strides must be at least 1"),
    (lambda: ops.max_pool2d(IMAGES[0]), ValueError, r"max_pool2d\(x: .*x must have the axes .* is \(4, 5, 3\)"),
    (lambda: ops.max_pool2d(IMAGES, 5), ValueError, "no window fits: x is 4 x 5, .* spans 5 elements"),
    (lambda: ops.max_pool1d(IMAGES), ValueError, r"^max_pool1d: x must have the axes .*channels\), .*\(2, 4, 5, 3\)"),
    (lambda: ops.avg_pool1d(IMAGES[0], (2, 1)), TypeError, r"^avg_pool1d: size must be one integer, .* is \(2, 1\)"),
    (lambda: ops.avg_pool2d(IMAGES, (2, 0)), ValueError, r"avg_pool2d\(x: .*size must be at least 1, .* is \(2, 0\)"),
    (lambda: ops.avg_pool2d(IMAGES.astype(int)), TypeError, "x must be floating point, but its dtype is int64"),
]


@together(("call", "kind", "message"), WRONG)
def test_a_wrong_call_names_the_op_its_arguments_and_what_is_wrong(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
