"""Cases, as in `cases.py`, of further functions of numpy: elementary functions, products, matrices, shapes, quantiles.

References are numpy's functions where the op computes in another way, and other formulas where it calls them.
"""

import functools
import math

import numpy as np

from .cases import binary, call, inside, normal, positive, reduction, rows, spaced, unary, wide

NUMPY_CASES = [
    *rows("arcsinh", lambda x: np.sign(x) * np.log(np.abs(x) + np.sqrt(x * x + 1)), *unary(normal)),
    *rows("arccosh", lambda x: np.log(x + np.sqrt(x * x - 1)), *unary(lambda *shape: np.asarray(1 + positive(*shape)))),
    *rows("arctanh", lambda x: 0.5 * np.log((1 + x) / (1 - x)), *unary(inside)),
    *rows("hypot", lambda a, b: np.sqrt(a * a + b * b), *binary(wide)),
    *rows("deg2rad", lambda x: x * math.pi / 180, *unary(normal)),
    *rows("rad2deg", lambda x: x * 180 / math.pi, *unary(normal)),
    *rows("sinc", lambda x: np.sin(math.pi * x) / (math.pi * x), *unary(spaced), call(np.array([-0.159, 0.16, 2.7]))),
    *rows("exp2", lambda x: np.exp(x * math.log(2)), *unary(normal)),
    *rows("logaddexp", lambda a, b: np.log(np.exp(a) + np.exp(np.float64(b))), *binary(normal)),
    *rows("cbrt", lambda x: np.sign(x) * np.abs(x) ** (1 / 3), *unary(wide)),
    *rows("mod", lambda a, b: a - np.floor(a / b) * b, call(wide(2, 3), 0.75), call(2.9, positive(4))),
    *rows("mod", lambda a, b: a - np.floor(a / b) * b, call(wide(2, 3), np.array([0.7, -1.1, 2.3]))),
    *rows("nan_to_num", lambda x, **others: x * 1, *unary(normal), call(normal(3), nan=1.0, posinf=2.0)),
    *rows("clip", np.maximum, call(spaced(2, 3), -0.5)),
    *rows("clip", lambda x, high: np.minimum(x, high), call(spaced(2, 3), high=0.25)),
    *rows("clip", lambda x: x, call(spaced(2, 3))),
    *rows("elu", lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(x) - 1)), *unary(wide), call(wide(5), 0.3)),
    *rows("selu", lambda x: np.where(x > 0, 1.0507009873554805 * x, 1.7580993408473766 * np.expm1(x)), *unary(wide)),
    *rows("silu", lambda x: x / (1 + np.exp(-x)), *unary(normal)),
    *rows("log_sigmoid", lambda x: -np.log(1 + np.exp(-x)), *unary(normal)),
]


# Products and matrices.

TENSORDOTS = [
    *(((2, 3, 4), (3, 4, 5), 2), ((2, 3), (4,), 0), ((2, 3), (3, 4), 1), ((0, 3), (3, 2), 1), ((2, 0), (0, 3), 1)),
    *(((2, 3, 4), (4, 5, 2), ((0, 2), (2, 0))), ((2, 3), (4, 3), (1, 1)), ((2, 3), (3, 2), ((-1, 0), (0, 1)))),
    *(((2, 3, 4), (2, 5), ([0], [0])), ((3, 5), (3, 4, 5), (1, 2))),
]
DOTS = [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((2, 3, 4), (5, 4, 2)), ((4,), (3, 4, 2)), ((), (2, 3))]
INNERS = [((3,), (3,)), ((2, 3), (4, 3)), ((2, 3, 4), (4,)), ((2, 3, 4), (5, 1, 4)), ((2, 3), ())]
KRONS = [((2, 3), (4, 2)), ((2,), (3,)), ((2, 3), (2,)), ((), (2, 3)), ((2, 1, 2), (3, 2)), ((0, 2), (2, 3))]
EINSUMS = [
    *(("ij->ji", (2, 3)), ("ijk->j", (2, 3, 4)), ("ij", (2, 3)), ("...ij->...", (2, 3, 4)), ("ij->", (0, 3))),
    *(("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("i,i,i->i", (3,), (3,), (3,)), ("ij,i,j", (2, 3), (2,), (3,))),
    *(("bi,ij,bj->b", (4, 2), (2, 3), (4, 3)), ("...i,ij,...j->...", (2, 4, 2), (2, 3), (4, 3))),
    *(("a,b,c,d->dbca", (2,), (3,), (2,), (1,)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("ijij,j->i", (2, 3, 2, 3), (3,))),
    *(
        ("iii->i", (3, 3, 3)),
        ("i...i->...i", (3, 2, 4, 3)),
        ("bii,bi->b", (2, 3, 3), (2, 3)),
        ("ii,jj,k->k", (2, 2), (3, 3), (2,)),
    ),
]


def regular(*shape):
    """Stacks of matrices near multiples of the identity."""
    return 2 * np.eye(shape[-1]) + 0.4 * spaced(*shape)


def definite(*shape):
    """Stacks of positive definite matrices, symmetric but for a part that cancels."""
    x = regular(*shape)
    return x @ x.swapaxes(-1, -2) + 0.1 * (x - x.swapaxes(-1, -2))


def by_cramer(a, b):
    """The solution as quotients of determinants, by Leibniz' formula."""
    a, columns = np.float64(a), b[:, np.newaxis] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    a, columns = (np.broadcast_to(m, batch + m.shape[-2:]) for m in (a, columns))
    x = np.empty(columns.shape)
    for i in range(columns.shape[-2]):
        for j in range(columns.shape[-1]):
            replaced = a.copy()
            replaced[..., :, i] = columns[..., :, j]
            x[..., i, j] = by_leibniz(replaced) / by_leibniz(a)
    return x[..., 0] if b.ndim == 1 else x


def by_leibniz(x):
    """The determinant by expansion along the first row."""
    if not x.shape[-1]:
        return np.ones(x.shape[:-2])
    minors = [np.delete(x[..., 1:, :], column, axis=-1) for column in range(x.shape[-1])]
    terms = [(-1) ** n * x[..., 0, n] * by_leibniz(minor) for n, minor in enumerate(minors)]
    return functools.reduce(np.add, terms)


def by_cholesky_banachiewicz(x):
    """The factor element by element."""
    x = (x + x.swapaxes(-1, -2)) / 2
    factor = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(i + 1):
            rest = x[..., i, j] - np.sum(factor[..., i, :j] * factor[..., j, :j], axis=-1)
            factor[..., i, j] = np.sqrt(rest) if i == j else rest / factor[..., j, j]
    return factor


def on_diagonal(x, k=0):
    if x.ndim == 2:
        return np.array([x[i, i + k] for i in range(len(x)) if 0 <= i + k < x.shape[1]])
    y = np.zeros((len(x) + abs(k),) * 2)
    for i, element in enumerate(x):
        y[i + max(-k, 0), i + max(k, 0)] = element
    return y


def crossed(a, b):
    a, b = np.broadcast_arrays(a, b)
    return np.stack([a[..., i - 2] * b[..., i - 1] - a[..., i - 1] * b[..., i - 2] for i in range(3)], axis=-1)


NUMPY_CASES += [
    *rows("tensordot", np.tensordot, *(call(normal(*a), normal(*b), axes) for a, b, axes in TENSORDOTS)),
    *rows("tensordot", np.tensordot, call(normal(4, 2, 3), normal(2, 3))),
    *rows("dot", np.dot, *(call(normal(*a), normal(*b)) for a, b in DOTS), call(normal(2), 2.5)),
    *rows("inner", np.inner, *(call(normal(*a), normal(*b)) for a, b in INNERS)),
    *rows("vdot", lambda a, b: np.sum(a.reshape(-1) * b.reshape(-1)), call(normal(2, 3), normal(3, 2))),
    *rows("vdot", lambda a, b: np.sum(a * b), call(normal(), normal()), call(normal(0), normal(0)), call(normal(), 2)),
    *rows("outer", lambda a, b: np.einsum("i,j->ij", a.ravel(), b.ravel()), call(normal(2), normal(3))),
    *rows("outer", lambda a, b: np.multiply.outer(a.ravel(), b.ravel()), call(normal(2, 2), normal(3, 1))),
    *rows("outer", lambda a, b: np.multiply.outer(a.ravel(), b.ravel()), call(normal(), normal(0))),
    *rows("cross", crossed, *(call(normal(*a), normal(*b)) for a, b in (((3,), (3,)), ((2, 3), (3,)), ((0, 3), (3,))))),
    *rows("cross", crossed, call(normal(2, 1, 3), normal(4, 3)), call(np.int8([1, 0, 2]), normal(2, 3))),
    *rows("kron", np.kron, *(call(normal(*a), normal(*b)) for a, b in KRONS), call(normal(2, 2), 3.0)),
    *rows("einsum", np.einsum, *(call(letters, *(normal(*x) for x in shapes)) for letters, *shapes in EINSUMS)),
    *rows("tril", lambda x, k=0: x * (np.subtract.outer(*map(np.arange, x.shape[-2:])) >= -k), call(normal(3, 3))),
    *rows("tril", np.tril, *(call(normal(2, 3, 4), k) for k in (-1, 0, 2)), call(normal(0, 3))),
    *rows("triu", lambda x, k=0: x * (np.subtract.outer(*map(np.arange, x.shape[-2:])) <= -k), call(normal(3, 3))),
    *rows("triu", np.triu, *(call(normal(2, 3, 4), k) for k in (-1, 0, 2)), call(normal(0, 3))),
    *rows("diag", on_diagonal, *(call(normal(3), k) for k in (0, 2, -1)), call(normal(0))),
    *rows("diag", on_diagonal, *(call(normal(3, 4), k) for k in (0, 2, -1))),
    *rows("diagonal", lambda x, *_: np.einsum("iij->ji", x), call(normal(3, 3, 2)), call(normal(3, 3, 2), 0, 1, 0)),
    *rows("diagonal", np.diagonal, *(call(normal(2, 3, 4), *axes) for axes in ((0, 1, 2), (-1, -2, -1), (2, 1, 2)))),
    *rows("diagonal", np.diagonal, call(normal(2, 3), 5), call(normal(3, 2, 4), 1, 2, 0)),
    *rows("trace", lambda x, *a: np.sum(np.diagonal(x, *a), -1), call(normal(3, 3)), call(normal(2, 3, 4), 1, 1, 2)),
    *rows("trace", lambda x, *a: np.sum(np.diagonal(x, *a), -1), call(normal(2, 3), 9), call(normal(2, 2, 3), -1)),
    *rows("solve", by_cramer, call(regular(3, 3), normal(3)), call(regular(2, 3, 3), normal(3))),
    *rows("solve", by_cramer, call(regular(2, 2, 2), normal(2, 4)), call(regular(2, 2), normal(3, 2, 1))),
    *rows("solve", by_cramer, call(regular(2, 1, 2, 2), normal(3, 2, 2)), call(np.int8([[2, 1], [0, 1]]), normal(2))),
    *rows("solve", by_cramer, call(regular(2, 2), normal(2, 0)), call(regular(0, 2, 2), normal(2))),
    *rows(
        "inv", lambda x: by_cramer(x, np.eye(x.shape[-1])), *(call(regular(*s)) for s in ((3, 3), (2, 2, 2), (0, 2, 2)))
    ),
    *rows("det", by_leibniz, *(call(regular(*s)) for s in ((3, 3), (1, 1), (2, 2, 2), (0, 2, 2), (0, 0)))),
    *rows("slogdet", lambda x: np.log(by_leibniz(x)), *(call(regular(*s)) for s in ((3, 3), (2, 2, 2), (0, 2, 2)))),
    *rows("slogdet", lambda x: np.log(-by_leibniz(x)), call(regular(2, 2)[::-1].copy())),
    *rows("cholesky", by_cholesky_banachiewicz, *(call(definite(*s)) for s in ((3, 3), (1, 1), (2, 2, 2), (0, 2, 2)))),
]


# Shapes, joining and order.


def by_places(x, n=1, axis=-1):
    x = np.moveaxis(x, axis, 0)
    for _ in range(n):
        x = np.array([x[i + 1] - x[i] for i in range(len(x) - 1)]).reshape(max(len(x) - 1, 0), *x.shape[1:])
    return np.moveaxis(x, 0, axis)


def middle(x, axis=None, keepdims=False):
    return np.quantile(x, 0.5, axis=axis, keepdims=keepdims, method="linear")


def grid(n, **options):
    """One of the coordinates, as the op of that name gives it."""
    return lambda *xs: np.meshgrid(*xs, **options)[n]


NUMPY_CASES += [
    *rows("ravel", lambda x: x.reshape(-1), *unary(normal)),
    *rows("atleast_1d", np.atleast_1d, *unary(normal)),
    *rows("atleast_2d", np.atleast_2d, *unary(normal), call(normal(3))),
    *rows("atleast_3d", np.atleast_3d, *unary(normal), call(normal(3)), call(normal(2, 1, 2, 1))),
    *rows("swapaxes", np.swapaxes, call(normal(2, 3, 4), 0, -1), call(normal(2, 3), 1, 1), call(normal(0, 3), 1, 0)),
    *rows("moveaxis", np.moveaxis, call(normal(2, 3, 4), 0, -1), call(normal(2, 3, 4), (0, 1), (1, 2))),
    *rows("moveaxis", np.moveaxis, call(normal(2, 3, 4), [2, 0], [0, 1]), call(normal(0, 3), 0, 1)),
    *rows("diff", by_places, call(normal(4)), call(normal(2, 3)), call(normal(3, 2), axis=0), call(normal(2, 5), 3)),
    *rows("diff", by_places, *(call(normal(2, 4, 3), n, 1) for n in (0, 2, 4, 6)), call(normal(0, 3)), call(normal(1))),
    *rows(
        "vstack", np.vstack, call([normal(3), normal(2, 3)]), call([normal(), 2.5]), call([normal(0, 3), normal(1, 3)])
    ),
    *rows(
        "hstack", np.hstack, call([normal(2, 1), normal(2, 3)]), call([normal(2), normal()]), call([normal(2, 2, 3)])
    ),
    *rows("quantile", np.quantile, *(call(spaced(4, 5), q) for q in (0, 0.3, 0.5, 1))),
    *rows("quantile", np.quantile, *(call(spaced(3, 4, 5), 0.37, axis) for axis in (0, -1, (0, 2), (2, 1), ()))),
    *rows("quantile", np.quantile, call(spaced(3, 7), [0.1, 0.5, 0.5, 1], 1)),
    *rows("quantile", np.quantile, call(spaced(3, 2), q=np.array([[0.4]]), axis=0)),
    *rows("quantile", np.quantile, call(spaced(3, 4), 0.2, axis=0, keepdims=True), call(spaced(), 0.2)),
    *rows("quantile", np.quantile, call(spaced(0, 4), 0.2, axis=1), call(spaced(3, 1), 0.75)),
    *rows("median", middle, *reduction(spaced)[:-1], call(spaced(5)), call(spaced(3, 4), axis=1)),
    *rows("top_k", lambda x, k: np.sort(x)[..., ::-1][..., :k], call(spaced(2, 5), 3), call(spaced(4), 0)),
]


# Means of some elements, or by weights.


def weighted(x, axis=None, weights=None, keepdims=False):
    if weights is None:
        return np.mean(x, axis=axis, keepdims=keepdims)
    if weights.ndim == 1 and isinstance(axis, int):
        weights = np.moveaxis(np.broadcast_to(weights, np.moveaxis(x, axis, -1).shape), -1, axis)
    total = np.sum(np.broadcast_to(weights, x.shape), axis=axis, keepdims=keepdims)
    return np.sum(x * weights, axis=axis, keepdims=keepdims) / total


NUMPY_CASES += [
    *rows("nansum", np.sum, *reduction(normal)),
    *rows("nanmean", np.mean, *reduction(normal)),
    *rows("average", weighted, *reduction(normal)),
    *rows("average", weighted, *(call(normal(2, 3), axis, positive(2, 3)) for axis in (None, 0, -1, (0, 1)))),
    *rows("average", weighted, call(normal(2, 3, 4), 1, positive(3)), call(normal(3), 0, positive(3), True)),
    *rows(
        "average", weighted, call(normal(2, 3, 4), -1, positive(4), keepdims=True), call(normal(0, 3), 1, positive(3))
    ),
    *rows("average", weighted, call(normal(2, 3), None, positive(3)), call(normal(3, 2), 0, np.int8([1, 0, 2]))),
]
