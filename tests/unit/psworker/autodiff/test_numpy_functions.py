"""Functions of numpy beyond their cases in `numpy_cases.py`: kinks, infinities, dtypes, methods, wrong calls."""

import math
import operator

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from tests.support.combinations import together

INF, NAN = np.inf, np.nan
FLOATS = [np.float16, np.float32, np.float64]
X = Tensor(np.float32([[1, 5, 2], [7, 0, -3]]), requires_grad=True)
SINGULAR = Tensor(np.float32([[1, 2], [2, 4]]), requires_grad=True)


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


KINKS = [  # an op, its operands, its value, the gradient that comes in (None: ones), and those that come out
    (ops.hypot, [[0, 3e200], [0, -4e200]], [0, 5e200], None, [[0, 0.6], [0, -0.8]]),
    (ops.logaddexp, [[-INF, -INF, 1e300], [-INF, 2, 0]], [-INF, 2, 1e300], None, [[0, 0, 1], [0, 1, 0]]),
    (ops.sinc, [[0, 1e-9, 1]], [1, 1, 0], [6, 1, 1], [[0, -(np.pi**2) / 3 * 1e-9, -1]]),
    (ops.arcsinh, [[0, 1e300]], [0, 691.4686750787736], [1, 1e300], [[1, 1]]),
    (ops.mod, [[5, -5], [-3, 3]], [-1, 1], None, [[1, 1], [2, 2]]),
    (ops.nan_to_num, [[NAN, INF, -INF, 2]], [0, np.finfo(float).max, np.finfo(float).min, 2], None, [[0, 0, 0, 1]]),
    (lambda x: ops.nan_to_num(x, 7.0, 8.0, 9.0), [[NAN, INF, -INF, 2]], [7, 8, 9, 2], None, [[0, 0, 0, 1]]),
    (ops.elu, [[0, -1e3]], [0, -1], None, [[1, 0]]),
    (ops.silu, [[0, -1e3, 1e3]], [0, 0, 1e3], None, [[0.5, 0, 1]]),
    (ops.log_sigmoid, [[-1e4, 1e4]], [-1e4, 0], None, [[1, 0]]),
    (ops.median, [[4, 1, 3, 2]], 2.5, None, [[0, 0, 0.5, 0.5]]),
    (ops.median, [[3, 1, 3, 3, 9]], 3, None, [[0, 0, 1, 0, 0]]),
    (lambda x: ops.median(x, axis=1), [[[INF, -INF, INF], [1, NAN, 2]]], [INF, NAN], [2, 0], [[[2, 0, 0], [0, 0, 0]]]),
    (lambda x: ops.quantile(x, [0.5, 1]), [[INF, 0, 1]], [1, INF], [2, 3], [[3, 0, 2]]),
    (lambda x: ops.quantile(x, 0.25), [[0, 0, INF]], 0, None, [[0.5, 0.5, 0]]),
    (ops.nansum, [[NAN, 2, 3]], 5, 4, [[0, 4, 4]]),
    (lambda x: ops.nansum(x, axis=0), [[[NAN], [NAN]]], [0], None, [[[0], [0]]]),
    (ops.nanmean, [[NAN, 2, 4]], 3, 4, [[0, 2, 2]]),
    (lambda x: ops.nanmean(x, axis=1), [[[NAN, NAN], [1, 3]]], [NAN, 2], [1, 1], [[[0, 0], [0.5, 0.5]]]),
    (ops.slogdet, [[[0, 2], [3, 0]]], np.log(6), None, [[[0, 1 / 2], [1 / 3, 0]]]),
]


@together(("op", "operands", "value", "grad_y", "expected"), KINKS)
def test_values_and_gradients_at_kinks_ties_and_infinities(op, operands, value, grad_y, expected):
    xs = [leaf(*operand) for operand in operands]
    y = op(*xs)
    y = y[1] if isinstance(y, tuple) else y
    np.testing.assert_allclose(y.value, value, rtol=1e-15, atol=1e-16)
    found = gradients(y, xs, None if grad_y is None else np.float64(grad_y))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, 2e-6), (np.float64, 1e-14)])
def test_the_slope_of_sinc_is_precise_on_either_side_of_where_its_series_ends(dtype, precision):
    x = Tensor(np.array([1e-30, 1e-3, 0.15, 0.16, 0.3], dtype), requires_grad=True)
    [slope] = gradients(ops.sinc(x), x)
    terms = [
        (-1) ** n * np.pi ** (2 * n) * 2 * n / math.factorial(2 * n + 1) * np.float64(x.value) ** (2 * n - 1)
        for n in range(1, 30)
    ]
    np.testing.assert_allclose(slope, np.sum(terms, axis=0), rtol=precision)
    assert slope.dtype == dtype


COMPARISONS = {
    ops.equal: operator.eq,
    ops.not_equal: operator.ne,
    ops.greater: operator.gt,
    ops.greater_equal: operator.ge,
    ops.less: operator.lt,
    ops.less_equal: operator.le,
    ops.logical_and: lambda a, b: bool(a) and bool(b),
    ops.logical_or: lambda a, b: bool(a) or bool(b),
    ops.logical_xor: lambda a, b: bool(a) != bool(b),
    ops.floor_divide: lambda a, b: a // b if b else math.copysign(INF, a) if a else NAN,
    ops.isclose: lambda a, b: a == b or abs(a - b) <= 1e-8 + 1e-5 * abs(b),
}


@pytest.mark.parametrize("compare", COMPARISONS, ids=lambda compare: compare.__name__)
@np.errstate(divide="ignore", invalid="ignore")
def test_comparisons_broadcast_tensors_arrays_and_numbers_to_arrays(compare):
    for other in ([[1.0], [0.0]], np.float32([5, 0, 2 + 1e-5]), 2):
        for a, b in ((X, other), (other, X)):
            found = compare(a, b)
            pairs = np.broadcast(*(x.value if isinstance(x, Tensor) else x for x in (a, b)))
            assert type(found) is np.ndarray
            assert found.dtype.kind == ("f" if compare is ops.floor_divide else "b")
            np.testing.assert_array_equal(found.ravel(), [COMPARISONS[compare](*map(float, pair)) for pair in pairs])


def test_tests_of_elements_and_of_whole_arrays():
    np.testing.assert_array_equal(ops.logical_not(X), [[False] * 3, [False, True, False]])
    np.testing.assert_array_equal(ops.trunc([-1.5, 1.5, 2]), [-1, 1, 2])
    np.testing.assert_array_equal(ops.isclose([NAN], [NAN], equal_nan=True), [True])
    assert ops.allclose(X, X.value + 1e-9) is True
    assert ops.allclose(X, X.value + 1e-3) is False
    assert ops.allclose(X, X.value + 1e-3, atol=0.01) is True
    assert ops.count_nonzero(X) == 5
    np.testing.assert_array_equal(ops.count_nonzero(X, axis=0, keepdims=True), [[2, 1, 2]])
    np.testing.assert_array_equal(ops.argmax(X, axis=1, keepdims=True), [[1], [0]])
    np.testing.assert_array_equal(ops.argmin(X, axis=0, keepdims=True), [[0, 1, 1]])
    np.testing.assert_array_equal(ops.searchsorted([0, 2, 2, 5], X), [[1, 3, 1], [4, 0, 0]])
    np.testing.assert_array_equal(ops.searchsorted([0, 2, 2, 5], X, "right"), [[1, 4, 3], [4, 1, 0]])
    np.testing.assert_array_equal(ops.bincount([[1, 3], [1, 0]]), [1, 2, 0, 1])
    np.testing.assert_array_equal(ops.bincount(np.uint8([1, 1]), 4), [0, 2, 0, 0])
    assert ops.bincount([]).shape == (0,)


def test_new_arrays_are_float32_unless_said_or_like_another():
    made = {
        "full": (ops.full((2, 1), 7), [[7], [7]]),
        "eye": (ops.eye(2, 3, k=1), [[0, 1, 0], [0, 0, 1]]),
        "linspace": (ops.linspace(0, 1, 5), [0, 0.25, 0.5, 0.75, 1]),
        "without the end": (ops.linspace(0, 1, 2, endpoint=False), [0, 0.5]),
        "arange": (ops.arange(0, 1, 0.5), [0, 0.5]),
        "zeros_like": (ops.zeros_like(X), [[0] * 3] * 2),
        "ones_like": (ops.ones_like(X), [[1] * 3] * 2),
        "full_like": (ops.full_like(X, 0.5), [[0.5] * 3] * 2),
    }
    for name, (found, expected) in made.items():
        assert (type(found), found.dtype) == (np.ndarray, np.float32), name
        np.testing.assert_array_equal(found, expected, err_msg=name)
    np.testing.assert_array_equal(ops.arange(3), np.int64([0, 1, 2]), strict=True)
    np.testing.assert_array_equal(ops.arange(3, 0, -2, np.float64), np.float64([3, 1]), strict=True)
    likes = (ops.zeros_like(np.int8(1)), ops.ones_like(X, np.int8), ops.full_like(X, 2, float), ops.eye(2, dtype=bool))
    assert [x.dtype for x in likes] == [np.int8, np.int8, np.float64, bool]


@pytest.mark.parametrize("sizes", [(), (3,), (3, 2), (3, 2, 4)], ids=str)
@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_a_grid_has_the_coordinates_of_numpys_and_adds_their_gradients(sizes, indexing):
    xs = [leaf(*np.arange(size) + 10 * n) for n, size in enumerate(sizes)]
    found = ops.meshgrid(*xs, indexing=indexing)
    for one, other in zip(found, np.meshgrid(*(x.value for x in xs), indexing=indexing), strict=True):
        np.testing.assert_array_equal(one.value, other)
    for x, y in zip(xs, found, strict=True):
        np.testing.assert_array_equal(gradients(y, x)[0], np.full(x.shape, math.prod(sizes) / x.size))


def test_determinants_come_as_signs_and_logarithms():
    signs, logarithms = ops.slogdet([[[2.0, 0], [0, -3]], [[1, 0], [0, 4]], [[1, 2], [2, 4]]])
    np.testing.assert_array_equal(signs, [-1, 1, 0])
    np.testing.assert_allclose(logarithms.value, [np.log(6), np.log(4), -INF])


@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_and_numbers_beside_a_tensor_take_its_dtype_in_composed_functions(dtype):
    x, wide = leaf(1, 2, dtype=dtype), np.array([3.0, 4.0])
    made = [ops.vstack([wide, x]), ops.hstack([wide, x, 2.5]), ops.einsum("i,i,i->i", wide, wide, x)]
    made += [ops.einsum("i,jj->i", x, np.eye(2))]
    made += [ops.quantile(x, 0.5), ops.median(x), ops.dot(x, 2.5), ops.kron(2.0, x), ops.tensordot(wide, x, 1), x % 1.5]
    made += [ops.average(x, weights=wide), ops.average(wide, weights=x), ops.nanmean(x)]
    made += [ops.solve(np.eye(2), x), ops.cross([1.0, 2, 3], leaf(1, 2, 3, dtype=dtype))]
    assert {y.dtype for y in made} == {np.dtype(dtype)}


def test_comparison_operators_give_arrays_with_arrays_and_numbers_on_either_side():
    v, array = X.value, np.array([1.0, 2, 3])
    for f in (operator.lt, operator.le, operator.gt, operator.ge):
        for a, b in ((X, 2), (2, X), (X, array), (array, X), (X, X)):
            found = f(a, b)
            assert type(found) is np.ndarray
            np.testing.assert_array_equal(found, f(*(v if x is X else x for x in (a, b))))
    with pytest.raises(TypeError, match=r"a Tensor equals only itself.* ops.equal"):
        X == array  # noqa: B015, SIM300


METHODS = [
    *(("prod", ()), ("prod", (0, True)), ("var", (1,)), ("std", ()), ("cumsum", (0,)), ("ravel", ()), ("flatten", ())),
    *(("clip", (-1, 4)), ("swapaxes", (0, 1)), ("transpose", ()), ("transpose", (1, 0)), ("transpose", ((1, 0),))),
    *(("dot", (np.float32([1, 2, 3]),)), ("astype", (np.float64,)), ("reshape", (3, -1)), ("sum", (0,)), ("max", (1,))),
    *(("__mod__", (2,)), ("__rmod__", (2.5,))),
]
ARRAY_METHODS = [("all", (1,)), ("any", (0,)), ("argmax", (1,)), ("argmin", ()), ("round", (1,)), ("tolist", ())]


@together(("name", "args"), METHODS + ARRAY_METHODS, ids=str)
def test_methods_are_those_of_numpy(name, args):
    x = Tensor(np.float32([[1, 5, 2.25], [7, 4, -3.5]]), requires_grad=True)
    keep = {"keepdims": args[1]} if name == "prod" and len(args) > 1 else {}
    found, expected = getattr(x, name)(*args), getattr(x.value, name)(*args[: 1 if keep else None], **keep)
    assert isinstance(found, Tensor) == ((name, args) in METHODS)
    value = found.value if isinstance(found, Tensor) else found
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert np.asarray(value).dtype == np.asarray(expected).dtype
    assert (x.size, leaf(1).squeeze().shape) == (6, ())


WRONG = [
    (lambda: ops.solve(X, X), r"solve\(a: float32 \(2, 3\), .*: the matrices must have shape \(\.\.\., n, n\)"),
    (lambda: ops.solve(SINGULAR, np.ones(3)), r"b must have shape \(\.\.\., 2, m\) or \(2,\), .* is \(3,\)"),
    (lambda: ops.solve(SINGULAR, np.ones(2)), r"solve\(a: float32 \(2, 2\), .*Singular"),
    (lambda: ops.inv(SINGULAR), r"inv\(x: float32 \(2, 2\)\): Singular"),
    (lambda: ops.cholesky(-SINGULAR), r"cholesky\(x: float32 \(2, 2\)\): .*positive definite"),
    (lambda: ops.det(X), r"det\(x: float32 \(2, 3\)\): the matrices must have shape"),
    (lambda: ops.slogdet(X[0]), r"slogdet\(x: float32 \(3,\)\): the matrices must have shape"),
    (lambda: ops.tril(X[0]), r"tril\(x: float32 \(3,\)\): x must have at least two axes"),
    (lambda: ops.diagonal(X, 0, 0, 0), r"diagonal\(x: .*\): axis1 and axis2 cannot be the same"),
    (lambda: ops.trace(2.0), r"trace\(x=2.0\): x must have at least two axes, but its shape is \(\)"),
    (lambda: ops.diag(np.ones((2, 2, 2))), r"diag\(.*x must be a vector or a matrix, .*see diagonal"),
    (lambda: ops.tensordot(X, X.T), r"tensordot\(a: .*: axes \(0, 1\) of a and \(0, 1\) of b .* same sizes"),
    (lambda: ops.tensordot(X, X, 3), r"axes must be in 0 \.\.\. 2"),
    (lambda: ops.tensordot(X, X, ([1], [0])), r"tensordot\(a: .*: axes \(1,\) of a and \(0,\) of b must be"),
    (lambda: ops.dot(X, X), r"dot\(a: float32 \(2, 3\), b: float32 \(2, 3\)\): axes \(1,\) of a and \(0,\) of b"),
    (lambda: ops.inner(X, X[0, :2]), r"inner\(a: .*: axes \(1,\) of a and \(0,\) of b must be as many"),
    (lambda: ops.vdot(X, X[0]), r"vdot\(a: .*: a and b must have as many elements, but they have 6 and 3"),
    (lambda: ops.cross(X, X[0, :2]), r"cross\(a: .*: a and b must have three elements along the last axis"),
    (lambda: ops.einsum("ij,jk,kl", X, X), r"einsum: .* name the axes of 3 operands, but there are 2"),
    (lambda: ops.diff(X, -1), r"diff\(x: float32 \(2, 3\), n=-1\): order must be non-negative"),
    (lambda: ops.moveaxis(X, 0, 2), r"moveaxis\(x: .*source=0, destination=2\): .*axis 2 is out of bounds"),
    (lambda: ops.quantile(X, 1.5), r"quantile\(x: .*q=1.5\): q must be in 0 \.\.\. 1"),
    (lambda: ops.quantile(X, NAN), r"q must be in 0 \.\.\. 1"),
    (lambda: ops.median(X[:0], axis=0), r"there are no elements to take a quantile of"),
    (lambda: ops.average(X, 0, np.ones(3)), r"average\(x: float32 \(2, 3\), weights: .*broadcast"),
    (lambda: ops.average(X, 2, np.ones(3)), r"average: axis 2 is out of bounds"),
    (lambda: ops.bincount([1, -1]), r"bincount: ids must be in 0 \.\.\. 1, but they span -1 \.\.\. 1"),
    (lambda: ops.bincount([1, 3], 3), r"bincount: ids must be in 0 \.\.\. 2, but they span 1 \.\.\. 3"),
    (lambda: ops.meshgrid([1.0], X), r"meshgrid: arguments must have one axis, .*\[\(1,\), \(2, 3\)\]"),
    (lambda: ops.meshgrid([1.0], indexing="yx"), r"meshgrid: indexing must be \"xy\" or \"ij\", but it is 'yx'"),
    (lambda: gradients(ops.det(SINGULAR), SINGULAR), "^det: its derivative needs the inverse of .* singular"),
    (lambda: gradients(ops.slogdet(SINGULAR)[1], SINGULAR), "^slogdet: its derivative needs the inverse of"),
]


@together(("call", "message"), WRONG)
def test_a_wrong_call_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
