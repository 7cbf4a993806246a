"""Every differentiable op, found in the `ops` package itself, against plain numpy and finite differences."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, ops
from psworker.autodiff.gradient_check import dense

FAMILIES = [
    importlib.import_module(f".{path.stem}", __package__) for path in sorted(Path(__file__).parent.glob("cases_*.py"))
]
CASES = [case for family in FAMILIES for case in family.CASES]


def differentiable_ops():
    """The names of all functions made by @op in the modules of `ops`, each with what a program calls.

    That is the function itself, or for one with a leading underscore the function of its name without.
    """
    found = {}
    for info in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        module = importlib.import_module(info.name)
        functions = [item for item in vars(module).items() if inspect.isfunction(item[1])]  # nothing that is cached
        names = [name.lstrip("_") for name, member in functions if member.__code__ is ops.exp.__code__]
        found |= {name: getattr(module, name) for name in names}
    return found


OPS = differentiable_ops()
ALL_CASES = [
    pytest.param(case, id=f"{name} has no row in cases.py" if case is None else str(case))
    for name in OPS
    for case in [case for case in CASES if case.op == name] or [None]
]


def mapped(f, args):
    """The arguments with `f` of each array in them, those in lists of arrays too."""
    return [f(a) if isinstance(a, np.ndarray) else mapped(f, a) if isinstance(a, list) else a for a in args]


def run(case, cast=np.asarray):
    """The op on the case's arrays, each through `cast`: the result, and the tensors it depends on."""
    tensors = []

    def tensor(a):
        tensors.append(Tensor(cast(a), requires_grad=a.dtype.kind == "f"))
        return tensors[-1]

    return OPS[case.op](*mapped(tensor, case.args), **case.constants), tensors


def arrays_of(gradients):
    """The gradients as arrays, an embedding's too."""
    return [None if gradient is None else dense(gradient) for gradient in gradients]


def float32(x):
    return x.astype(np.float32) if x.dtype.kind == "f" else x


def strided(x):
    """The same values with gaps between them and the first axis running backward."""
    buffer = np.full((*x.shape, 2), 99, x.dtype)
    view = buffer[::-1, ..., 0] if x.ndim else buffer[..., 0]
    view[...] = x
    return view


def fortran(x):
    return np.asarray(x, order="F")


def read_only(x):
    x = np.copy(x)
    x.flags.writeable = False
    return x


def test_the_ops_are_found_and_exported():
    assert len(OPS) > 20
    assert set(OPS) <= set(ops.__all__)
    assert all(getattr(ops, name) is function for name, function in OPS.items())


def test_every_row_is_about_an_op():
    assert {case.op for case in CASES} <= set(OPS)


@pytest.mark.parametrize("case", ALL_CASES)
def test_every_derivative_equals_finite_differences(case):
    arrays = []
    mapped(arrays.append, case.args)

    def f(*tensors):
        supply = iter(tensors)
        return OPS[case.op](*mapped(lambda _: next(supply), case.args), **case.constants)

    check_gradients(f, *arrays)


@pytest.mark.parametrize("case", ALL_CASES)
def test_every_value_equals_plain_numpy(case):
    y, _ = run(case)
    expected = case.reference(*case.args, **case.constants)
    assert type(y.value) is np.ndarray
    assert y.shape == np.shape(expected)
    np.testing.assert_allclose(y.value, expected, rtol=1e-12, atol=1e-14, strict=False)


@pytest.mark.parametrize("case", ALL_CASES)
def test_float32_in_gives_float32_out(case):
    y, xs = run(case, float32)
    assert type(y.value) is np.ndarray
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.value, run(case)[0].value, rtol=1e-5, atol=1e-6)
    for x, gradient in zip(xs, arrays_of(gradients(y, xs)), strict=True):
        assert (gradient is None) == (x.dtype.kind != "f")
        assert gradient is None or (type(gradient), gradient.dtype) == (np.ndarray, np.float32)


@pytest.mark.parametrize("case", ALL_CASES)
def test_the_layout_in_memory_changes_nothing(case):
    y, xs = run(case)
    found = arrays_of(gradients(y, xs))
    for cast in (strided, fortran, read_only):
        other_y, other_xs = run(case, cast)
        np.testing.assert_allclose(other_y.value, y.value, rtol=1e-13, atol=1e-15, err_msg=cast.__name__)
        for gradient, other in zip(found, arrays_of(gradients(other_y, other_xs)), strict=True):
            if gradient is not None:
                np.testing.assert_allclose(other, gradient, rtol=1e-13, atol=1e-15, err_msg=cast.__name__)
                assert other.flags.c_contiguous, cast
                assert other.flags.writeable, cast


@pytest.mark.parametrize("case", ALL_CASES)
def test_the_gradient_that_comes_in_may_be_one_number_repeated_over_the_same_memory(case):
    y, xs = run(case)
    repeated, whole = np.broadcast_to(3.0, y.shape), np.full(y.shape, 3.0)
    found = [arrays_of(gradients(y, xs, g, retain_graph=True)) for g in (repeated, whole)]
    for gradient, other in zip(*found, strict=True):
        if gradient is not None:
            np.testing.assert_allclose(gradient, other, rtol=1e-13, atol=1e-14)
            assert gradient.flags.writeable


@pytest.mark.parametrize("case", ALL_CASES)
def test_an_op_never_writes_into_its_arguments(case):
    y, xs = run(case, np.copy)
    before = [x.value.copy() for x in xs]
    grad_y = np.ones(y.shape)
    gradients(y, xs, grad_y)
    assert np.all(grad_y == 1)
    assert all(np.array_equal(x.value, value) for x, value in zip(xs, before, strict=True))


@pytest.mark.parametrize("case", ALL_CASES)
def test_without_recording_the_value_is_the_same(case):
    with no_grad():
        y, _ = run(case)
    assert not y.requires_grad
    np.testing.assert_array_equal(y.value, run(case)[0].value)


X = Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
ARRAY = np.arange(12.0).reshape(2, 2, 3)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: 2 - X, 2 - X.value),
        (lambda: 1 / (X + 1), 1 / (X.value + 1)),
        (lambda: ARRAY + X, ARRAY + X.value),
        (lambda: ARRAY - X, ARRAY - X.value),
        (lambda: ARRAY * X, ARRAY * X.value),
        (lambda: ARRAY / (X + 1), ARRAY / (X.value + 1)),
        (lambda: ARRAY @ X.T, ARRAY @ X.value.T),
        (lambda: np.float64(3) * X, 3 * X.value),
        (lambda: [[1.0, 2.0]] @ X, [[1.0, 2.0]] @ X.value),
        (lambda: -(X**2), -(X.value**2)),
        (lambda: (X + 1) ** X + 2**X + ARRAY**X, (X.value + 1) ** X.value + 2**X.value + ARRAY**X.value),
        (lambda: abs(X - 2), abs(X.value - 2)),
        (
            lambda: X.max(axis=0) - X.min(axis=1, keepdims=True),
            X.value.max(axis=0) - X.value.min(axis=1, keepdims=True),
        ),
        (lambda: X[1, :2], X.value[1, :2]),
        (lambda: X.sum(axis=0) + X.mean(), X.value.sum(axis=0) + X.value.mean()),
        (lambda: X.reshape(3, 2) + X.reshape((3, 2)) + X.reshape(-1)[0], 2 * X.value.reshape(3, 2)),
    ],
)
def test_operators_are_ops_with_arrays_and_numbers_on_either_side(ours, theirs):
    y = ours()
    assert isinstance(y, Tensor)
    assert y.requires_grad
    np.testing.assert_allclose(y.value, theirs, rtol=1e-15)


def test_a_repeated_index_gets_the_sum_of_its_gradients():
    x = Tensor(np.zeros((3, 2)), requires_grad=True)
    [gradient] = gradients(x[[2, 0, 2]], x, np.array([[1.0, 2], [10, 20], [100, 200]]))
    np.testing.assert_array_equal(gradient, [[10, 20], [0, 0], [101, 202]])


def test_equal_largest_elements_share_the_gradient_of_max():
    x = Tensor(np.array([[1.0, 3, 3], [2, 2, 2]]), requires_grad=True)
    [gradient] = gradients(ops.max(x, axis=1), x, np.array([1.0, 6]))
    np.testing.assert_array_equal(gradient, [[0, 0.5, 0.5], [2, 2, 2]])


def test_at_its_kink_relu_has_derivative_0_and_clip_1():
    x = Tensor(np.array([0.0, 1.0]), requires_grad=True)
    np.testing.assert_array_equal(gradients(ops.relu(x), x)[0], [0, 1])
    np.testing.assert_array_equal(gradients(ops.clip(x, 0, 1), x)[0], [1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_and_softmax_stay_finite_and_precise_far_out(dtype):
    x = np.array([-1e4, -50, 0, 50, 1e4], dtype)
    np.testing.assert_allclose(ops.sigmoid(x).value, [0, np.exp(dtype(-50)), 0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(ops.softmax(x).value, [0, 0, 0, 0, 1])
    np.testing.assert_allclose(ops.log_softmax(x).value, x - dtype(1e4))


def test_plain_functions_return_numpy_arrays():
    x = Tensor(np.float32([[1, 5, 2], [7, 0, 3]]), requires_grad=True)
    assert ops.zeros((2, 3)).dtype == ops.ones(4).dtype == np.float32
    np.testing.assert_array_equal(ops.zeros((1, 2), np.float64), [[0, 0]])
    np.testing.assert_array_equal(ops.ones(2), [1, 1])
    np.testing.assert_array_equal(ops.argmax(x, axis=1), [1, 0])
    np.testing.assert_array_equal(ops.argmax(x), 3)
    np.testing.assert_array_equal(ops.argmin(x, axis=1), [0, 1])
    np.testing.assert_array_equal(ops.equal(x, [1, 0, 2]), [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(ops.one_hot([[2], [0]], 3), [[[0, 0, 1]], [[1, 0, 0]]])
    assert ops.one_hot(np.uint8([1]), 2).dtype == np.float32


ZEROS = Tensor(np.zeros((2, 3), np.float32), requires_grad=True)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: ZEROS @ np.zeros((2, 4)),
            ValueError,
            r"matmul\(a: float32 \(2, 3\), b: float64 \(2, 4\)\): the last axis",
        ),
        (lambda: ops.matmul(ZEROS, 2.0), ValueError, r"matmul\(a: float32 \(2, 3\), b=2.0\): both operands"),
        (lambda: ZEROS + np.zeros(2), ValueError, r"add\(a: float32 \(2, 3\), b: float64 \(2,\)\): .*broadcast"),
        (lambda: ZEROS + None, TypeError, r"add\(a: float32 \(2, 3\), b=None\)"),
        (lambda: ZEROS.sum(axis=2), ValueError, r"sum\(x: float32 \(2, 3\), axis=2\): axis 2 is out of bounds"),
        (lambda: ZEROS.reshape(4), ValueError, r"reshape\(x: float32 \(2, 3\), shape=4\): cannot reshape"),
        (lambda: ZEROS[2], IndexError, r"getitem\(x: float32 \(2, 3\), index=2\): .*out of bounds"),
        (lambda: ops.transpose(ZEROS, (0, 0)), ValueError, r"transpose\(.*axes=\(0, 0\)\): repeated axis"),
        (lambda: ops.clip(ZEROS, 1, 0), ValueError, r"clip\(.*low=1, high=0\): low must not be above high"),
        (lambda: ops.mean(np.zeros((0, 3))), ValueError, r"mean\(x: float64 \(0, 3\)\): there are no elements"),
        (lambda: ops.exp(np.array(["a"])), TypeError, r"exp\(x: <U1 \(1,\)\)"),
        (lambda: ops.exp(), TypeError, "exp.* missing 1 required positional argument"),
        (lambda: ops.clip(ZEROS, ZEROS, 1), TypeError, r"clip\(.*\): a constant of this op is a Tensor that requires"),
        (lambda: ZEROS ** np.ones(2), ValueError, r"power\(.*exponent: float64 \(2,\)\): .*broadcast"),
        (lambda: ops.one_hot([0, 3], 3), ValueError, r"one_hot: ids must be in 0 \.\.\. 2, but they span 0 \.\.\. 3"),
        (lambda: ops.one_hot([0.5], 3), TypeError, "one_hot: ids must be integer class ids"),
        (lambda: ops.maximum(ZEROS, np.zeros(2)), ValueError, r"maximum\(a: .*, b: float64 \(2,\)\): .*broadcast"),
        (lambda: ops.where([True, False], ZEROS, 0), ValueError, r"where\(.*condition=\[True, False\]\): .*broadcast"),
        (lambda: ops.where(ZEROS, 1, 0), TypeError, r"where\(.*\): a constant of this op is a Tensor that requires"),
        (lambda: ops.max(np.zeros((0, 3))), ValueError, r"max\(x: float64 \(0, 3\)\): .*no identity"),
        (lambda: ops.logsumexp(ZEROS, axis=2), ValueError, r"logsumexp\(.*axis=2\): axis 2 is out of bounds"),
        (lambda: ops.cumsum(ZEROS, axis=-3), ValueError, r"cumsum\(.*axis=-3\): axis -3 is out of bounds"),
        (lambda: ops.squeeze(ZEROS, 1), ValueError, r"squeeze\(x: float32 \(2, 3\), axis=1\): .*not equal to one"),
        (lambda: ops.expand_dims(ZEROS, 3), ValueError, r"expand_dims\(.*axis=3\): axis 3 is out of bounds"),
        (
            lambda: ops.broadcast_to(ZEROS, (2, 4)),
            ValueError,
            r"broadcast_to\(.*shape=\(2, 4\)\): from the last axis on",
        ),
        (
            lambda: ops.cast(ZEROS, "float31"),
            TypeError,
            r"cast\(x: float32 \(2, 3\), dtype='float31'\): .*not understood",
        ),
        (lambda: ops.pad(ZEROS, 0.5), TypeError, r"pad\(.*paddings=0.5\): paddings must be integers"),
        (lambda: ops.pad(ZEROS, (1, 2, 3)), ValueError, r"pad\(.*\): paddings must have shape \(2, 2\).*is \(3,\)"),
        (lambda: ops.pad(ZEROS, (0, -1)), ValueError, r"pad\(.*paddings=\(0, -1\)\): paddings must not be negative"),
        (lambda: ops.concatenate([]), ValueError, r"concatenate\(axis=0\): need at least one array"),
        (lambda: ops.concatenate([ZEROS, ZEROS[:, 1:]]), ValueError, r"(?s)concatenate\(.*\): .* has size 3 .* size 2"),
        (lambda: ops.stack([], axis=1), ValueError, r"stack\(axis=1\): there must be at least one tensor"),
        (lambda: ops.stack([ZEROS, ZEROS[0]]), ValueError, r"(?s)stack\(.*\): all .* one shape, .* \(2, 3\), \(3,\)"),
        (lambda: ops.split(ZEROS, 2, axis=1), ValueError, "split: axis 1 of x, of size 3, has no 2 equal sections"),
        (
            lambda: ops.split(ZEROS, [1, 2]),
            ValueError,
            r"split: axis 0 of x, of size 2, has no sections of sizes \[1, 2\]",
        ),
        (lambda: ops.split(ZEROS, 1, axis=2), ValueError, "split: axis 2 is out of bounds"),
        (
            lambda: ops.take(ZEROS, [0, 3], axis=1),
            IndexError,
            r"take\(.*ids=\[0, 3\], axis=1\): index 3 is out of bounds",
        ),
        (lambda: ops.take(ZEROS, 1.0), TypeError, r"take\(.*ids=1.0\): ids must be integers, but they are float64"),
        (lambda: ops.take(1.0, 0), ValueError, r"take\(x=1.0, ids=0\): axis 0 is out of bounds"),
        (lambda: ops.gather(ZEROS, [3, 0], 1), IndexError, r"gather\(.*batch_dims=1\): index 3 is out of bounds"),
        (lambda: ops.gather(ZEROS, [0] * 3, 1), ValueError, r"gather\(.*\): ids must begin with .* \(2,\), .* \(3,\)"),
        (lambda: ops.gather(ZEROS, [0, 0], -1), ValueError, r"gather\(.*batch_dims=-1\): batch_dims must be in 0"),
        (
            lambda: ops.gather(ZEROS, [0, 0], 2),
            ValueError,
            r"gather\(.*batch_dims=2\): batch_dims must be in 0 \.\.\. 1",
        ),
        (
            lambda: ops.einsum("ij,jk->ik", ZEROS, ZEROS),
            ValueError,
            r"einsum\(.*\): axis 'j' has size 3 in a, and 2 in b",
        ),
        (lambda: ops.einsum("ij->i", ZEROS, 1), ValueError, r"einsum\(.*subscripts='ij->i'\): .* of two operands"),
        (lambda: ops.einsum("i,ij->j", ZEROS, ZEROS), ValueError, r"einsum\(.*\): 'i' names 1 axes, but a has 2"),
        (lambda: ops.einsum("ij,kk->i", ZEROS, ZEROS), ValueError, r"einsum\(.*\): 'kk' has a letter twice"),
        (lambda: ops.einsum("ij,i2->i", ZEROS, ZEROS), ValueError, r"einsum\(.*\): 'i2' must consist of letters"),
        (
            lambda: ops.einsum("ij,ij->k", ZEROS, ZEROS),
            ValueError,
            r"einsum\(.*\): the result 'k' must have letters of",
        ),
        (
            lambda: ops.einsum("...j,j->j", ZEROS, ZEROS[0]),
            ValueError,
            r"einsum\(.*\): the result 'j' must have the '\.\.",
        ),
        (lambda: np.exp(ZEROS), TypeError, "does not support ufuncs"),
        (lambda: np.concatenate([ZEROS, ZEROS]), TypeError, r"use its \.value"),
    ],
)
def test_a_wrong_call_names_the_op_its_arguments_and_what_is_wrong(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
