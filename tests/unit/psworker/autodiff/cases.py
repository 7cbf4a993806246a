"""The calls with which `test_ops.py` tests every differentiable op, each with a reference in plain numpy.

To add an op, add `rows(...)` to its family: its name, a reference, and calls over the shapes and constants that matter.
Positional arrays are tensors, in lists too; those of floating point are differentiated. Python numbers and keyword
arguments are passed on.
"""

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

_random = np.random.default_rng(20120812)


class Case(NamedTuple):
    op: str
    reference: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def __str__(self):
        return f"{self.op}({', '.join(map(described, [*self.args, *self.constants.items()]))})"


def described(x):
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(map(described, x))}]"
    return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else str(x)


def call(*args, **constants):
    return args, constants


def rows(op, reference, *calls):
    return (Case(op, reference, args, constants) for args, constants in calls)


def normal(*shape):
    return _random.standard_normal(shape, dtype=np.float32).astype(np.float64)


def positive(*shape):
    return np.asarray(np.abs(normal(*shape)) + 0.5)


def spaced(*shape):
    """Distinct numbers in (-1, 1) in random order, none near another, 0 or 0.5: for ops with kinks and ties."""
    n = int(np.prod(shape))
    return ((_random.permutation(n) - n // 2 + 0.3) / max(n, 1)).reshape(shape)


def inside(*shape):
    """Distinct numbers in (-0.9, 0.9), where inverse sines and the like are smooth."""
    return np.asarray(0.9 * spaced(*shape))


def wide(*shape):
    """Distinct numbers in (-3, 3) in random order, none at 0, 1 or -1."""
    return np.asarray(3 * spaced(*shape))


def unary(operand):
    return [call(operand(*shape)) for shape in ((), (2, 3), (0, 3))]


# Elementwise ops and reductions.

PAIRS = [
    *(((), ()), ((), (2, 3)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((3,), (2, 3)), ((1,), (4,)), ((1,), (0,))),
    *(((2, 1, 3), (4, 1)), ((0, 3), (3,))),
]


def binary(operand, pairs=PAIRS[1:5]):
    """Pairs of shapes, Python numbers on either side, and small integers beside floats."""
    numbers = [call(operand(2, 3), 2.5), call(3, operand(4)), call(operand(3), np.int8([1, 2, 3]))]
    return [call(operand(*a), operand(*b)) for a, b in pairs] + numbers


def running_sum(x, axis=None, reverse=False):
    """The product with a triangle of ones."""
    x = x.reshape(-1) if axis is None else x.swapaxes(axis, -1)
    triangle = np.tri(x.shape[-1]) if reverse else np.tri(x.shape[-1]).T
    return (x @ triangle).swapaxes(-1 if axis is None else axis, -1)


def running_product(x, axis=None):
    x = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    parts = [np.prod(np.take(x, range(n + 1), along), along) for n in range(x.shape[along])]
    return np.stack(parts, along) if parts else x


def beside_zeros(*shape):
    """Numbers among which some groups along any axis have one zero, several or none."""
    x = np.round(2 * normal(*shape)) / 2
    x.flat[:2] = 0
    return x


def reduction(operand):
    """Over all axes, one of them, several and none, which are kept or not."""
    options = [{}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"axis": ()}]
    calls = [call(operand(2, 3), **option) for option in options] + [call(operand())]
    calls += [call(operand(2, 3, 4), axis=(0, -1)), call(operand(2, 3, 4), axis=(-1, 0), keepdims=True)]
    return [*calls, call(operand(1, 1), axis=1), call(operand(0, 3), axis=1)]


CASES = [
    *rows("add", np.add, *binary(normal, PAIRS)),
    *rows("subtract", np.subtract, *binary(normal)),
    *rows("multiply", np.multiply, *binary(normal, PAIRS)),
    *rows("divide", np.divide, *binary(positive)),
    *rows("maximum", lambda a, b: np.where(a > b, a, b), *binary(normal)),
    *rows("minimum", lambda a, b: np.where(a < b, a, b), *binary(normal)),
    *rows("negative", np.negative, *unary(normal)),
    *rows("square", np.square, *unary(normal)),
    *rows("exp", np.exp, *unary(normal)),
    *rows("log", np.log, *unary(positive)),
    *rows("tanh", np.tanh, *unary(normal)),
    *rows("sqrt", lambda x: np.exp(0.5 * np.log(x)), *unary(positive)),
    *rows("abs", lambda x: x * np.sign(x), *unary(spaced)),
    *rows("power", np.power, *binary(positive), *(call(positive(4), exponent) for exponent in (-2.5, -0.5))),
    *rows("power", np.power, *(call(np.array([-1.25, 2]), n) for n in (-3, -2.0, -1, 1, 2.0, 3, 4.0, 8, 9))),
    *rows("power", np.power, call(normal(4), np.int8([0, 1, 2, 3])), *(call(np.r_[-1.0, 0, 2], n) for n in (0, 1))),
    *rows("clip", lambda x, low, high: np.minimum(np.maximum(x, low), high), call(spaced(2, 3), -0.5, 0.5)),
    *rows("clip", np.clip, call(spaced(), 0, 1), call(spaced(7), 0, 1), call(spaced(0, 3), 0, 1)),
    *rows("sin", np.sin, *unary(normal)),
    *rows("cos", np.cos, *unary(normal)),
    *rows("tan", lambda x: np.sin(x) / np.cos(x), *unary(spaced)),
    *rows("arcsin", lambda x: np.arctan2(x, np.sqrt(1 - x * x)), *unary(inside)),
    *rows("arccos", lambda x: np.arctan2(np.sqrt(1 - x * x), x), *unary(inside)),
    *rows("arctan", np.arctan, *unary(normal), call(np.array([-300.0, 50]))),
    *rows("arctan2", np.arctan2, *binary(wide), *binary(lambda *shape: -positive(*shape))),
    *rows("sinh", lambda x: (np.exp(x) - np.exp(-x)) / 2, *unary(normal)),
    *rows("cosh", lambda x: (np.exp(x) + np.exp(-x)) / 2, *unary(normal)),
    *rows("log1p", np.log1p, *unary(inside), call(np.array([-1e-8, 3e-7, 20]))),
    *rows("expm1", np.expm1, *unary(normal), call(np.array([-9, -1e-8, 3e-7]))),
    *rows("log2", lambda x: np.log(x) / np.log(2), *unary(positive)),
    *rows("log10", lambda x: np.log(x) / np.log(10), *unary(positive)),
    *rows("reciprocal", lambda x: 1 / x, *unary(positive), call(-positive(3))),
    *rows("rsqrt", lambda x: np.exp(-0.5 * np.log(x)), *unary(positive)),
    *rows("erf", np.vectorize(math.erf, otypes=[float]), *unary(normal), call(np.linspace(-6.5, 6.5, 50))),
    *rows("sum", np.sum, *reduction(normal), call(normal(0, 3))),
    *rows("mean", np.mean, *reduction(normal)),
    *rows("max", np.max, *reduction(spaced)),
    *rows("min", np.min, *reduction(spaced)),
    *rows("logsumexp", lambda x, **axes: np.log(np.sum(np.exp(x), **axes)), *reduction(normal)),
    *rows("prod", lambda x, **axes: np.multiply.reduce(x, **({"axis": None} | axes)), *reduction(normal)),
    *rows("prod", np.prod, *(call(beside_zeros(3, 4, 5), axis=a) for a in (None, 0, 1, (0, 2), ())), call(normal(0))),
    *rows("var", np.var, *reduction(normal), *(call(normal(3, 4), axis=axis, ddof=1) for axis in (None, 0, (0, 1)))),
    *rows("std", np.std, *reduction(normal), *(call(normal(3, 4), axis=axis, ddof=1) for axis in (None, 0, (0, 1)))),
    *rows("norm", lambda x, **axes: np.sqrt(np.sum(x * x, **axes)), *reduction(normal), call(normal(0, 3), axis=0)),
    *rows("cumprod", running_product, *unary(normal), call(beside_zeros(4, 5)), call(normal(0, 3), axis=1)),
    *rows("cumprod", running_product, *(call(beside_zeros(3, 4, 2), axis) for axis in (0, 1, -1))),
    *rows("cumsum", running_sum, *unary(normal), call(normal(2, 3), reverse=True), call(normal(2, 3), axis=0)),
    *rows("cumsum", running_sum, *(call(normal(*shape), -2, reverse=True) for shape in ((2, 3, 4), (0, 3)))),
]


# Activations, losses and normalisation.


def numpy_softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


class SameEachTime:
    """In place of a generator: draws the same numbers at every call, so that every call drops the same elements."""

    def random(self, shape, dtype):
        return np.random.default_rng(20140601).random(shape, dtype)

    def __repr__(self):
        return "same each time"


def numpy_dropout(x, rate, training=True, generator=None):
    kept = 1 if generator is None or not training else (generator.random(x.shape, np.float32) >= rate) / (1 - rate)
    return x * kept


def numpy_cross_entropy(logits, labels):
    probabilities = numpy_softmax(logits).reshape(-1, logits.shape[-1])
    if labels.shape != logits.shape:
        return np.mean([-np.log(p[label]) for p, label in zip(probabilities, labels.flat, strict=True)])
    weights = labels.reshape(probabilities.shape)
    return np.mean([-np.sum(w * np.log(p)) for p, w in zip(probabilities, weights, strict=True)])


def numpy_sigmoid_cross_entropy(logits, labels):
    p, labels = 1 / (1 + np.exp(-logits)), np.float64(labels)
    return np.mean(-labels * np.log(p) - (1 - labels) * np.log(1 - p))


def numpy_hinge(logits, labels):
    return np.mean(np.where(np.equal(labels, 1), np.maximum(0, 1 - logits), np.maximum(0, 1 + logits)))


def numpy_huber(predictions, targets, delta=1.0):
    d = np.abs(predictions - targets)
    return np.mean(np.where(d <= delta, d**2 / 2, delta * (d - delta / 2)))


def normalised(x, mean, variance, gamma=None, beta=None, epsilon=1e-3):
    y = (x - np.asarray(mean)) / (np.asarray(variance) + epsilon) ** 0.5
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def numpy_batch_norm(x, gamma=None, beta=None, epsilon=1e-3):
    axes = tuple(range(x.ndim - 1))
    return normalised(x, x.mean(axes), x.var(axes), gamma, beta, epsilon)


def numpy_layer_norm(x, gamma=None, beta=None, epsilon=1e-5):
    return normalised(x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True), gamma, beta, epsilon)


def graded(*shape):
    """Numbers whose spread along the first and the last axis is well above 0, whatever is drawn."""
    x = normal(*shape) / 4
    for axis in {0, len(shape) - 1}:
        x += np.expand_dims(np.linspace(-1, 1, shape[axis]), [other for other in range(len(shape)) if other != axis])
    return x


NORMS = [
    *(call(graded(5, 3), gamma, beta) for gamma, beta in ((None, None), (None, normal(3)), (normal(3), None))),
    *(call(graded(*shape), positive(shape[-1]), normal(shape[-1])) for shape in ((4, 2, 3, 2), (7, 1), (4,), (1, 3))),
    call(graded(5, 3), normal(3), normal(3), epsilon=0.5),
]
MEAN, VARIANCE = [0.5, -2.0, 0.0], [1.0, 0.25, 9.0]  # lists, which are constants
SOFTMAX = [call(normal(2, 3)), call(normal(2, 3, 4), axis=-2), call(normal(1, 1)), call(normal(0, 3))]
SHAPES = [(), (5,), (2, 1, 3)]
ARRAYS = [normal(*shape) for shape in SHAPES]

CASES += [
    *rows("sigmoid", lambda x: 1 / (1 + np.exp(-x)), *unary(normal)),
    *rows("softplus", lambda x: np.log(1 + np.exp(x)), *unary(normal)),
    *rows("relu", lambda x: np.where(x > 0, x, 0), *unary(spaced)),
    *rows("gelu", np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, otypes=[float]), *unary(normal)),
    *rows("leaky_relu", lambda x, slope=0.2: np.where(x > 0, x, slope * x), *unary(spaced)),
    *rows("leaky_relu", lambda x, slope: np.where(x > 0, x, slope * x), *(call(spaced(4), s) for s in (0, 0.01, 1))),
    *rows("softmax", numpy_softmax, *SOFTMAX),
    *rows("log_softmax", lambda x, axis=-1: np.log(numpy_softmax(x, axis)), *SOFTMAX),
    *rows("dropout", numpy_dropout, *(call(normal(*s), 0.5, generator=SameEachTime()) for s in ((), (4, 5), (0, 3)))),
    *rows("dropout", numpy_dropout, call(normal(4, 5), rate=0.0), call(normal(4, 5), rate=0.5, training=False)),
    *rows("softmax_cross_entropy", numpy_cross_entropy, call(normal(4, 3), np.uint8([0, 2, 2, 1]))),
    *rows("softmax_cross_entropy", numpy_cross_entropy, call(normal(2, 2, 3), np.array([[0, 2], [2, 1]]))),
    *rows("softmax_cross_entropy", numpy_cross_entropy, call(normal(2, 3), labels=np.eye(3, dtype=int)[[2, 0]])),
    *rows("softmax_cross_entropy", numpy_cross_entropy, call(normal(2, 2, 3), labels=positive(2, 2, 3))),
    *rows("sigmoid_cross_entropy", numpy_sigmoid_cross_entropy, call(normal(3), 1), call(normal(2), np.array([0, 1]))),
    *rows("sigmoid_cross_entropy", numpy_sigmoid_cross_entropy, *(call(x, labels=np.abs(x) % 1) for x in ARRAYS)),
    *rows("hinge_loss", numpy_hinge, *(call(wide(*s), np.array(spaced(*s) > 0)) for s in SHAPES), call(wide(5), 1)),
    *rows("hinge_loss", numpy_hinge, call(wide(2, 3), labels=np.array([[0.0, 1, 1], [0, 0, 1]]))),
    *rows("mean_squared_error", lambda a, b: np.mean((a - b) ** 2), *(call(normal(*s), normal(*s)) for s in SHAPES)),
    *rows("mean_squared_error", lambda a, b: np.mean((a - b) ** 2), call(normal(), 1.5)),
    *rows("huber_loss", numpy_huber, *(call(wide(*shape), spaced(*shape)) for shape in SHAPES)),
    *rows("huber_loss", numpy_huber, call(wide(7), np.zeros(7), 0.01), call(normal(), 9)),
    *rows("batch_norm", numpy_batch_norm, *NORMS),
    *rows("layer_norm", numpy_layer_norm, *NORMS, call(normal(0, 3), normal(3), normal(3)), call(normal(2, 0, 3))),
    *rows(
        "batch_norm_inference",
        normalised,
        *(call(normal(*shape), MEAN, VARIANCE, normal(3), normal(3)) for shape in [(5, 3), (3,), (2, 1, 3), (0, 3)]),
        call(normal(5, 3), MEAN, VARIANCE),
        call(normal(5, 3), MEAN, VARIANCE, None, normal(3)),
        call(normal(5, 3), MEAN, VARIANCE, normal(3), None, 0.5),
        call(normal(4, 2, 2, 1), [0.5], [0.0], positive(1), normal(1), epsilon=0.1),
        call(normal(2, 0), [], [], normal(0), normal(0)),
    ),
]


# Shape, joining and selection of elements, embedding, matrix product and einsum.

MASK = np.array([[True, False, True], [False, False, True]])
INDICES = [
    *(0, -1, np.int64(1), np.int8(1), slice(None, None, -1), slice(0, 0), (1, 2), (slice(None), 1), (..., None, 0)),
    *(MASK, (slice(None), MASK[0]), (np.newaxis, [True, False], 1)),
    *([1, 1, 0], [-1, 1, -2], np.array([[0, 1], [1, 1]]), np.array([], dtype=np.int64)),
    *((np.array([0, 1, 1]), np.array([2, 0, 0])), (slice(None), [0, 0, -3])),
]
TAKEN = [
    *(((4,), np.int64(2), 0), ((4, 3), np.array([3, 0, 3, -1]), 0), ((4, 3), np.array([[0, 2, 2], [-3, 1, 0]]), 1)),
    *(((2, 3, 2), np.uint8([[2], [2]]), -2), ((4, 3), np.zeros((0, 2), int), 0), ((4, 0), np.array([1]), 0)),
]
GATHERED = [
    *(((4, 3), np.array([[3, 0], [3, -1]]), 0), ((2, 3), np.array([2, -3]), 1)),
    *(((2, 3), np.array([[2, 2], [0, 1]]), 1), ((2, 3, 4), np.array([1, 1]), 1)),
    *(((2, 3, 4), np.array([[0, 1, -1], [3, 3, 0]]), 2), ((0, 3), np.zeros((0, 2), int), 1)),
]
PRODUCTS = [
    *(((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((3, 2), (2, 1)), ((0, 3), (3, 2))),
    *(((2, 0), (0, 3)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4))),
    *(((2, 1, 2, 3), (4, 3, 2)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((0, 2, 3), (3, 4)), ((5, 2, 0), (0, 4))),
]
LETTERS = (
    "ij,jk->ik ij,jk->ki ba,cb ji,jk->ik ij,kj->ik bij,bjk->ikb bqhd,bkhd->bhqk bhqk,bkhd->bqhd ijk,kjl->il i,j->ji"
)
LETTERS += " i,i->i i,i ij,ij->i ij,ji-> i,->i , ij,jk->k ij,jk->j ij,kl->"
SIZES = {"a": 4, "b": 5, "c": 2, "d": 4, "h": 2, "i": 2, "j": 3, "k": 4, "l": 2, "q": 3}
EINSUMS = [
    *((s, *([SIZES[letter] for letter in term] for term in s.split("->")[0].split(","))) for s in LETTERS.split(" ")),
    *(("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 2)), ("i...,ij->...j", (3, 2, 4), (3, 2))),
    *(("...i,i...", (4, 2), (2, 4)), ("i...j, j k -> k...", (2, 3, 4), (4, 2)), ("...,...", (2, 3), (3,))),
    *(("ij,jk->ik", (2, 1), (3, 4)), ("ij,ij->j", (1, 1), (1, 1)), ("ij,ij->i", (2, 1), (1, 3))),
    *(("ij,jk->jk", (2, 3), (1, 4)), ("ij,jk->ik", (2, 0), (0, 4)), ("ij,jk->k", (0, 3), (3, 4))),
]


def taken(x, ids, axis=0):
    """The product with one-hot rows."""
    hot = np.equal.outer(ids % x.shape[axis], np.arange(x.shape[axis]))
    product = np.tensordot(hot, x, (-1, axis))
    return np.moveaxis(product, range(ids.ndim), range(axis % x.ndim, axis % x.ndim + ids.ndim))


def gathered(x, ids, batch_dims):
    result = np.empty((*ids.shape, *x.shape[batch_dims + 1 :]))
    for place in np.ndindex(ids.shape):
        result[place] = x[(*place[:batch_dims], ids[place])]
    return result


def along_axis(x, indices, axis):
    """Elements one by one."""
    indices = np.asarray(indices)
    result = np.empty(indices.shape)
    for place in np.ndindex(indices.shape):
        source = list(place)
        source[axis] = indices[place]
        result[place] = x[tuple(source)]
    return result


ALONG = [
    *(((2, 3), np.array([[2, 0, 2, -1], [1, 1, 1, 0]]), 1), ((2, 3), np.array([[1, 0, -2]]), 0), ((4,), [3, 3], 0)),
    *(
        ((2, 3, 2), np.uint8([[[2, 0]], [[1, 2]]]), -2),
        ((2, 3), np.zeros((2, 0), int), 1),
        ((0, 3), np.zeros((0, 1), int), 1),
    ),
]


def by_python(x, axis=-1, descending=False):
    rows = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1)
    ordered = np.empty(rows.shape)
    for place in np.ndindex(rows.shape[:-1]):
        ordered[place] = sorted(rows[place].tolist(), reverse=descending)
    return ordered.reshape(-1) if axis is None else np.moveaxis(ordered, -1, axis)


def by_segment(reduce, empty):
    """A loop over segments; `reduce` takes rows and the axis."""

    def reference(x, segment_ids, num_segments=None):
        ids = np.asarray(segment_ids)
        count = num_segments if num_segments is not None else max([-1, *ids.tolist()]) + 1
        rows = [reduce(x[ids == n], axis=0) if (ids == n).any() else np.full(x.shape[1:], empty) for n in range(count)]
        return np.array(rows, float).reshape(count, *x.shape[1:])

    return reference


def softmax_by_segment(x, segment_ids, num_segments=None):
    y = np.empty(x.shape)
    for n in set(np.ravel(segment_ids).tolist()):
        y[np.equal(segment_ids, n)] = numpy_softmax(x[np.equal(segment_ids, n)], axis=0)
    return y


def segmented(operand):
    """Ids sorted or not, of several dtypes, with empty segments between and at the end, and without any row."""
    return [
        *(call(operand(5), ids) for ids in ([0, 0, 1, 1, 1], np.uint8([2, 0, 4, 0, 2]))),
        *(call(operand(5, 3), np.array([3, 1, 1, 0, 3]), num_segments) for num_segments in (None, 4, 6)),
        call(operand(4, 2, 3), segment_ids=np.int32([1, 0, 1, 1]), num_segments=2),
        *(call(operand(1, 2), [0]), call(operand(3, 0), [0, 2, 0]), call(operand(0, 2), [])),
        call(operand(0, 3), np.zeros(0, int), num_segments=2),
    ]


def selected(condition, a, b):
    return condition * a + np.logical_not(condition) * b


RESHAPED = [((2, 3), (3, 2)), ((2, 3), -1), ((), (1, 1)), ((0, 3), (3, 0, 2))]
EXPANDED = [((), 0), ((2, 3), 1), ((2, 3), -1), ((0, 3), (0, -1))]
BROADCAST = [*(((), (2, 3)), ((3,), (2, 3)), ((2, 1), (4, 2, 3)), ((1,), 3), ((1, 3), (0, 3)), ((), ()))]

CASES += [
    *rows("reshape", np.reshape, *(call(normal(*x), shape) for x, shape in RESHAPED)),
    *rows("transpose", np.transpose, call(normal(2, 3, 4)), call(normal(2, 3, 4), (1, 2, 0)), call(normal())),
    *rows("transpose", np.transpose, call(normal(2, 3, 4), axes=(-1, 0, -2)), call(normal(0, 3))),
    *rows("getitem", lambda x, index: x[index], *(call(normal(2, 3), index) for index in INDICES), call(normal(), ())),
    *rows("take", taken, *(call(normal(*shape), ids, axis=axis) for shape, ids, axis in TAKEN)),
    *rows("gather", gathered, *(call(normal(*shape), ids, batch_dims=n) for shape, ids, n in GATHERED)),
    *rows("where", selected, call(MASK, normal(2, 3), normal(2, 3)), call(MASK, normal(3), normal(2, 1))),
    *rows("where", selected, call(MASK[0], normal(2, 3), normal()), call(MASK, normal(4, 1, 1), 2.5)),
    *rows("where", selected, call(MASK, 0, normal(2, 3)), call(np.zeros((0, 3), bool), normal(3), normal(0, 1))),
    *rows("squeeze", np.squeeze, call(normal(1, 3, 1)), call(normal(1, 3, 1), axis=(0,)), call(normal(2, 1), -1)),
    *rows("squeeze", np.squeeze, call(normal(1, 1, 2), axis=(0, 1)), call(normal(0, 1)), call(normal())),
    *rows("expand_dims", np.expand_dims, *(call(normal(*shape), axis) for shape, axis in EXPANDED)),
    *rows("broadcast_to", lambda x, shape: np.ones(shape) * x, *(call(normal(*x), shape) for x, shape in BROADCAST)),
    *rows("cast", lambda x, dtype: x * np.ones((), dtype), call(np.int8([[1, 2]]), np.float32)),
    *rows(
        "pad",
        lambda x, paddings, value=0: np.pad(x, paddings, constant_values=value) if x.ndim else x,
        *(call(normal(2, 3), paddings) for paddings in (1, (1, 2), ((0, 0), (0, 0)), ((1, 0), (0, 2)))),
        call(normal(2, 3), ((0, 1), (3, 0)), value=-2.5),
        call(normal(2, 1, 3), np.array([[1, 1], [0, 2], [0, 0]]), 1),
        call(normal(0, 3), (1, 0)),
        call(normal(), np.zeros((0, 2), int)),
    ),
    *rows("flip", np.flip, *(call(normal(2, 3), axis) for axis in (None, 0, -1, (0, 1), ()))),
    *rows("flip", np.flip, call(normal()), call(normal(0, 3))),
    *rows("roll", np.roll, *(call(normal(2, 3), *to) for to in ((1,), (-7,), (2, 1), ((1, -1), (0, 1)), (1, (0, 1))))),
    *rows("roll", np.roll, call(normal(), 1), call(normal(0, 3), 1, axis=1)),
    *rows("tile", np.tile, *(call(normal(2, 3), reps) for reps in (2, (2, 1), (2, 1, 3), (1, 0), ()))),
    *rows(
        "tile", np.tile, call(normal(), 3), call(normal(), (2, 2)), call(normal(0, 3), 2), call(normal(2), np.int64(2))
    ),
    *rows("repeat", np.repeat, *(call(normal(2, 3), *n) for n in ((2,), (2, 1), ([3, 0], 0), ([0, 2, 1], -1), (0,)))),
    *rows("repeat", np.repeat, call(normal(), 3), call(normal(0, 3), 2, axis=0)),
    *rows("repeat", np.repeat, call(normal(3), repeats=np.int8([1, 2, 0]))),
    *rows("take_along_axis", along_axis, *(call(normal(*shape), ids, axis=axis) for shape, ids, axis in ALONG)),
    *rows("sort", by_python, *(call(spaced(2, 3, 4), axis=axis) for axis in (None, 0, 1, -1))),
    *rows("sort", by_python, call(spaced(0, 3)), call(spaced(5))),
    *rows("sort", by_python, *(call(spaced(4, 3), a, descending=True) for a in (None, 0, -1)), call(normal(), None)),
    *rows("segment_sum", by_segment(np.sum, 0), *segmented(normal)),
    *rows("segment_mean", by_segment(np.mean, 0), *segmented(normal)),
    *rows("segment_max", by_segment(np.max, -np.inf), call(spaced(5), [0, 0, 1, 1, 1]), call(spaced(1, 2), [0])),
    *rows("segment_max", by_segment(np.max, -np.inf), call(spaced(5, 3), [2, 1, 1, 0, 2]), call(spaced(0, 2), [])),
    *rows("segment_max", by_segment(np.max, -np.inf), call(spaced(4, 2, 3), np.uint8([1, 0, 1, 1]), num_segments=2)),
    *rows("segment_softmax", softmax_by_segment, *segmented(normal)),
    *rows("concatenate", np.concatenate, call([normal(2, 3), normal(1, 3), normal(4, 3)]), call([normal(3)], 0)),
    *rows("concatenate", np.concatenate, call([normal(2, 2, 3), normal(2, 1, 3)], axis=-2)),
    *rows("concatenate", np.concatenate, call([normal(0, 3), normal(2, 3)]), call([normal(2), np.int8([1, 2])])),
    *rows("stack", np.stack, call([normal(2, 3)] * 3), call([normal(2, 3), normal(2, 3)], axis=-1), call([normal(1)])),
    *rows("stack", np.stack, call([normal(), normal(), 2.5]), call([normal(0, 3), normal(0, 3)], -2)),
    *rows(
        "embedding",
        lambda table, ids: np.reshape([table[i] for i in np.ravel(ids)], np.shape(ids) + table.shape[1:]),
        *(call(normal(4, 3), ids) for ids in (np.array([[1, 1, 3], [0, 1, 1]]), np.uint8([[[3]]]), 3)),
        *(call(normal(4, 3), ids=ids) for ids in ([3, 3, 3], [], np.zeros((2, 0, 1), np.int64))),
        *(call(normal(*shape), np.array([1, 0, 1])) for shape in ((5,), (3, 2, 2), (3, 0))),
    ),
    *rows("matmul", np.matmul, *(call(normal(*a), normal(*b)) for a, b in PRODUCTS)),
    *rows("einsum", np.einsum, *(call(subscripts, normal(*a), normal(*b)) for subscripts, a, b in EINSUMS)),
    *rows("einsum", np.einsum, call("ij,->ji", normal(2, 3), 2.5), call("i,ij->j", np.int8([1, 2]), normal(2, 3))),
]


# Convolution and pooling, against loops over every window and every element of it.


def both(number):
    return (number, number) if isinstance(number, int) else number


def windows_along(size, kernel, stride, dilation, padding):
    """The indices of each window; one below 0 or from `size` up is padding (rules: TensorFlow's tf.nn.convolution)."""
    reach = dilation * (kernel - 1) + 1
    if padding == "VALID":
        first, count = 0, (size - reach + stride) // stride
    else:
        count = (size + stride - 1) // stride
        beyond = reach - stride if size % stride == 0 else reach - size % stride
        first = -(max(beyond, 0) // 2)
    return [[first + i * stride + k * dilation for k in range(kernel)] for i in range(count)]


def numpy_conv2d(x, filters, bias=None, strides=1, padding="SAME", dilations=1, activation=None):
    geometry = zip(x.shape[1:3], filters.shape[:2], both(strides), both(dilations), strict=True)
    down, along = (windows_along(*axis, padding) for axis in geometry)
    y = np.zeros((len(x), len(down), len(along), filters.shape[3]), np.result_type(x, filters))
    for (i, us), (j, vs) in product(enumerate(down), enumerate(along)):
        for (k, u), (m, v) in product(enumerate(us), enumerate(vs)):
            if 0 <= u < x.shape[1] and 0 <= v < x.shape[2]:
                y[:, i, j] += x[:, u, v] @ filters[k, m]
    if bias is not None:
        y = y + bias
    return y if activation is None else np.where(y > 0, y, 0)


def numpy_grouped(x, filters, bias=None, groups=1, activation=None, **options):
    parts = zip(np.split(x, groups, -1), np.split(filters, groups, -1), strict=True)
    y = np.concatenate([numpy_conv2d(image, part, **options) for image, part in parts], -1)
    y = y if bias is None else y + bias
    return y if activation is None else np.where(y > 0, y, 0)


def numpy_conv1d(x, filters, bias=None, strides=1, padding="SAME", dilations=1, **options):
    geometry = {"strides": (1, strides), "dilations": (1, dilations), "padding": padding}
    return numpy_grouped(x[:, np.newaxis], filters[np.newaxis], bias, **geometry, **options)[:, 0]


def numpy_conv2d_transpose(x, filters, bias=None, strides=1, padding="SAME", dilations=1):
    """Each pixel scattered over its window of the result, whose size is that of Keras' Conv2DTranspose."""
    sizes = []
    for size, kernel, stride, dilation in zip(
        x.shape[1:3], filters.shape, both(strides), both(dilations), strict=False
    ):
        beyond = 0 if padding == "SAME" else max(dilation * (kernel - 1) + 1 - stride, 0)
        sizes.append((size * stride + beyond, kernel, stride, dilation))
    down, along = (windows_along(*axis, padding) for axis in sizes)
    y = np.zeros((len(x), sizes[0][0], sizes[1][0], filters.shape[2]))
    for (i, us), (j, vs) in product(enumerate(down), enumerate(along)):
        for (k, u), (m, v) in product(enumerate(us), enumerate(vs)):
            if 0 <= u < y.shape[1] and 0 <= v < y.shape[2]:
                y[:, u, v] += x[:, i, j] @ filters[k, m].T
    return y if bias is None else y + bias


def pooled(reduce):
    def reference(x, size=2, strides=None, padding="VALID"):
        geometry = zip(x.shape[1:3], both(size), both(size if strides is None else strides), strict=True)
        down, along = (windows_along(n, kernel, stride, 1, padding) for n, kernel, stride in geometry)
        y = np.empty((len(x), len(down), len(along), x.shape[3]), x.dtype)
        for (i, us), (j, vs) in product(enumerate(down), enumerate(along)):
            inside = np.ix_([u for u in us if 0 <= u < x.shape[1]], [v for v in vs if 0 <= v < x.shape[2]])
            y[:, i, j] = reduce(x[:, *inside], axis=(1, 2))
        return y

    return reference


def pooled1d(reduce):
    def reference(x, size=2, strides=None, padding="VALID"):
        windows = windows_along(x.shape[1], size, size if strides is None else strides, 1, padding)
        y = [reduce(x[:, [u for u in us if 0 <= u < x.shape[1]]], axis=1) for us in windows]
        return np.stack(y, axis=1)

    return reference


def option(padding, strides=1, dilations=1, **others):
    return {"padding": padding, "strides": strides, "dilations": dilations, **others}


# (images), (filters), options: pairwise.
WITH_BIAS = [
    ((2, 4, 5, 2), (3, 3, 2, 3), {"activation": "relu"}),
    ((2, 4, 5, 2), (3, 3, 2, 3), option("VALID", activation="relu")),
    ((2, 4, 5, 2), (3, 3, 2, 3), option("SAME", 2, (1, 2))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("VALID", (1, 3))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("SAME", (1, 3), (1, 2))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("VALID", 2, (1, 2), activation="relu")),
    ((2, 3, 7, 2), (1, 2, 2, 1), option("SAME", 2)),
    ((2, 3, 7, 2), (1, 2, 2, 1), option("VALID", 1, (1, 2))),
]
WITHOUT_BIAS = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 2, 3, 2), (5, 6, 2, 2), {"strides": 2}),
    ((1, 2, 2, 1), (3, 3, 1, 2), {"dilations": 4}),
    ((1, 6, 9, 1), (3, 2, 1, 2), {"dilations": (1, 4), "strides": (4, 3)}),
    ((2, 3, 4, 1), (3, 4, 1, 2), {"padding": "VALID"}),
    *(((1, 5, 5, 1), (2, 2, 1, 1), option(padding, 4)) for padding in ("SAME", "VALID")),
    *((shape, (3, 3, 2, 2), {}) for shape in ((0, 4, 4, 2), (1, 0, 4, 2), (1, 4, 0, 2))),
    *(((2, 3, 3, channels), (2, 2, channels, 2 - channels), {}) for channels in (0, 2)),
]
GROUPED = [
    ((2, 4, 5, 4), (3, 3, 2, 6), option("SAME", groups=2)),
    ((2, 5, 4, 6), (2, 3, 2, 3), option("VALID", (1, 2), groups=3, activation="relu")),
    ((1, 6, 5, 4), (2, 2, 2, 2), option("SAME", 2, (1, 2), groups=2)),
    ((2, 4, 5, 3), (3, 3, 1, 3), option("SAME", groups=3)),
    ((2, 5, 6, 2), (3, 2, 1, 6), option("SAME", (2, 3), groups=2, activation="relu")),
    ((1, 6, 7, 3), (2, 3, 1, 6), option("VALID", 1, 2, groups=3)),
    ((1, 5, 5, 2), (2, 2, 1, 2), option("VALID", 4, groups=2)),
    *(((0, 4, 4, channels), (3, 3, channels // 2, 2), option("SAME", groups=2)) for channels in (0, 2, 4)),
]
SEQUENCES = [
    ((2, 6, 2), (3, 2, 3), {}),
    ((2, 6, 2), (3, 2, 3), option("VALID", 2, activation="relu")),
    ((1, 7, 1), (2, 1, 2), option("VALID", 1, 3)),
    ((1, 5, 3), (4, 3, 1), option("SAME", 3)),
    ((2, 5, 4), (3, 2, 6), option("SAME", groups=2)),
    ((2, 5, 2), (3, 1, 4), option("VALID", 2, groups=2, activation="relu")),
    ((0, 5, 2), (3, 2, 2), {}),
]
ENLARGED = [
    ((2, 3, 2, 2), (3, 3, 4, 2), {}),
    ((2, 3, 2, 2), (3, 2, 1, 2), option("SAME", 2)),
    ((1, 2, 3, 3), (3, 4, 2, 3), option("VALID", (1, 2))),
    ((1, 3, 2, 1), (2, 2, 2, 1), option("VALID", 3)),
    ((1, 3, 2, 1), (2, 3, 2, 1), option("SAME", (3, 1), (1, 2))),
    ((1, 2, 3, 2), (2, 3, 1, 2), option("VALID", 2, 2)),
    ((0, 2, 3, 2), (2, 3, 1, 2), option("SAME", 2)),
]
SHORTENED = [
    *(((2, 6, 3), {}), ((2, 5, 2), {"padding": "SAME"}), ((1, 7, 1), {"size": 3, "strides": 2, "padding": "SAME"})),
    *(((1, 7, 2), {"size": 2, "strides": 3}), ((2, 5, 1), {"size": np.int64(4), "strides": 1}), ((0, 4, 2), {})),
]
POOLS = [
    *(((2, 4, 6, 3), {}), ((2, 5, 5, 2), {"padding": "SAME"}), ((1, 2, 3, 2), {"size": 5, "padding": "SAME"})),
    ((1, 7, 6, 2), {"size": 3, "strides": 2, "padding": "SAME"}),
    ((2, 4, 5, 1), {"size": (3, 2), "strides": (1, 2)}),
    ((2, 4, 5, 1), {"size": (1, 4), "strides": 1, "padding": "SAME"}),
    *(((1, 7, 7, 1), {"size": 2, "strides": 3, "padding": padding}) for padding in ("SAME", "VALID")),
    *(((0, 4, 4, 2), {}), ((1, 0, 4, 1), {"padding": "SAME"})),
]

CASES += [
    *rows("conv2d", numpy_conv2d, *(call(normal(*x), normal(*f), normal(f[3]), **o) for x, f, o in WITH_BIAS)),
    *rows("conv2d", numpy_conv2d, *(call(normal(*x), normal(*f), **options) for x, f, options in WITHOUT_BIAS)),
    *rows("conv2d", numpy_grouped, *(call(normal(*x), normal(*f), normal(f[3]), **o) for x, f, o in GROUPED)),
    *rows("conv2d", numpy_grouped, *(call(normal(*x), normal(*f), **o) for x, f, o in GROUPED[:4])),
    *rows("conv1d", numpy_conv1d, *(call(normal(*x), normal(*f), normal(f[2]), **o) for x, f, o in SEQUENCES)),
    *rows("conv1d", numpy_conv1d, *(call(normal(*x), normal(*f), **o) for x, f, o in SEQUENCES[2:4])),
    *rows("conv2d_transpose", numpy_conv2d_transpose, *(call(normal(*x), normal(*f), **o) for x, f, o in ENLARGED)),
    *rows(
        "conv2d_transpose", numpy_conv2d_transpose, call(normal(1, 2, 2, 3), normal(2, 2, 2, 3), normal(2), strides=2)
    ),
    *rows("max_pool2d", pooled(np.max), *(call(spaced(*shape), **options) for shape, options in POOLS)),
    *rows("avg_pool2d", pooled(np.mean), *(call(normal(*shape), **options) for shape, options in POOLS)),
    *rows("max_pool1d", pooled1d(np.max), *(call(spaced(*shape), **options) for shape, options in SHORTENED)),
    *rows("avg_pool1d", pooled1d(np.mean), *(call(normal(*shape), **options) for shape, options in SHORTENED)),
]
