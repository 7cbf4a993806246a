"""Every differentiable op, found in the `ops` package itself, against plain numpy and finite differences."""

import importlib
import inspect
import operator
import pkgutil

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, ops
from psworker.autodiff.gradient_check import dense

from .cases import CASES


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
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def mapped(f, args):
    """The arguments with `f` of each array in them, those in lists of arrays too."""
    return [f(a) if isinstance(a, np.ndarray) else mapped(f, a) if isinstance(a, list) else a for a in args]


def run(case, cast):
    """The op on the case's arrays, each through `cast`: the result, and the tensors it depends on."""
    tensors = []

    def tensor(a):
        tensors.append(Tensor(cast(a), requires_grad=a.dtype.kind == "f"))
        return tensors[-1]

    return OPS[case.op](*mapped(tensor, case.args), **case.constants), tensors


def floats_as(dtype):
    return lambda x: x.astype(dtype) if x.dtype.kind == "f" else x


def fortran(x):
    return np.asarray(x, order="F")


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
    assert all(getattr(ops, name) is function for name, function in OPS.items())
    assert {case.op for case in CASES} == set(OPS)


@every_case
def test_the_value_is_that_of_numpy_in_every_layout_and_dtype(case):
    for cast, dtype, rtol, atol in (
        (strided, None, 1e-12, 1e-14),
        (fortran, None, 1e-12, 1e-14),
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
        return OPS[case.op](*mapped(lambda _: next(supply), case.args), **case.constants)

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
