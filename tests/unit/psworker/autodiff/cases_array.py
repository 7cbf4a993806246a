"""Shape, order, joining and choice of elements."""

from typing import Any

import numpy as np

from .cases import Case, call, normal, rows

MASK = np.array([[True, False, True], [False, False, True]])
INDICES: list[Any] = [
    0,
    -1,
    np.int64(1),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(None), 1),
    (..., np.newaxis, 0),
    (1, 2),
    slice(0, 0),
    MASK,
    (slice(None), MASK[0]),
    [1, 1, 0],
    [-1, 1, -2],
    np.int8(1),
    np.array([[0, 1], [1, 1]]),
    (np.array([0, 1, 1]), np.array([2, 0, 0])),
    (slice(None), [0, 0, -3]),
    (np.newaxis, [True, False], 1),
    np.array([], dtype=np.int64),
]
CHOICES: list[tuple[tuple[int, ...], Any, int]] = [
    ((4,), np.int64(2), 0),
    ((4, 3), np.array([3, 0, 3, -1]), 0),
    ((4, 3), np.array([[0, 2, 2], [-3, 1, 0]]), 1),
    ((2, 3, 2), np.uint8([[2], [2]]), -2),
    ((1, 1), np.array([0, -1]), -1),
    ((4, 3), np.zeros((0, 2), int), 0),
    ((4, 0), np.array([1]), 0),
]
BATCHES: list[tuple[tuple[int, ...], Any, int]] = [
    ((4, 3), np.array([[3, 0], [3, -1]]), 0),
    ((2, 3), np.array([2, -3]), 1),
    ((2, 3), np.array([[2, 2], [0, 1]]), 1),
    ((2, 3, 4), np.array([1, 1]), 1),
    ((2, 3, 4), np.array([[0, 1, -1], [3, 3, 0]]), 2),
    ((0, 3), np.zeros((0, 2), int), 1),
    ((1, 1), np.array([0]), 1),
]


def chosen(x: np.ndarray, ids: np.ndarray, axis: int = 0) -> np.ndarray:
    """The product with one-hot rows."""
    hot = np.equal.outer(ids % x.shape[axis], np.arange(x.shape[axis]))
    product = np.tensordot(hot, x, (-1, axis))
    return np.moveaxis(product, range(ids.ndim), range(axis % x.ndim, axis % x.ndim + ids.ndim))


def chosen_by_batch(x: np.ndarray, ids: np.ndarray, batch_dims: int) -> np.ndarray:
    result = np.empty((*ids.shape, *x.shape[batch_dims + 1 :]))
    for place in np.ndindex(ids.shape):
        result[place] = x[(*place[:batch_dims], ids[place])]
    return result


CASES: list[Case] = [
    *rows(
        "reshape",
        np.reshape,
        call(normal(2, 3), (3, 2)),
        call(normal(2, 3), -1),
        call(normal(2, 3), (1, -1, 2)),
        call(normal(1), ()),
        call(normal(), (1, 1)),
        call(normal(0, 3), (3, 0, 2)),
    ),
    *rows(
        "transpose",
        np.transpose,
        call(normal(2, 3)),
        call(normal(2, 3, 4)),
        call(normal(2, 3, 4), (1, 2, 0)),
        call(normal(2, 3, 4), axes=(-1, 0, -2)),
        call(normal()),
        call(normal(0, 3)),
    ),
    *rows("getitem", lambda x, index: x[index], *(call(normal(2, 3), index) for index in INDICES), call(normal(), ())),
    *rows("take", chosen, *(call(normal(*shape), ids, axis=axis) for shape, ids, axis in CHOICES)),
    *rows("gather", chosen_by_batch, *(call(normal(*shape), ids, batch_dims=n) for shape, ids, n in BATCHES)),
    *rows(
        "where",
        lambda condition, a, b: condition * a + np.logical_not(condition) * b,
        call(MASK, normal(2, 3), normal(2, 3)),
        call(MASK, normal(3), normal(2, 1)),
        call(MASK[0], normal(2, 3), normal()),
        call(np.array(True), normal(2, 3), normal(3)),
        call(MASK, normal(4, 1, 1), 2.5),
        call(MASK, 0, normal(2, 3)),
        call(np.zeros((0, 3), bool), normal(3), normal(0, 1)),
        call(np.array([[True]]), normal(1, 1), normal(1, 1)),
    ),
    *rows(
        "squeeze",
        lambda x, axis=None: x.reshape(
            [n for i, n in enumerate(x.shape) if n > 1 or (axis is not None and i not in axis)]
        ),
        call(normal(1, 3, 1)),
        call(normal(1, 3, 1), axis=(0,)),
        call(normal(1, 1, 2), axis=(0, 1)),
        call(normal(1, 1)),
        call(normal(2)),
    ),
    *rows("squeeze", np.squeeze, call(normal(2, 1), -1), call(normal(0, 1)), call(normal())),
    *rows(
        "expand_dims",
        np.expand_dims,
        *(call(normal(*shape), axis) for shape, axis in (((), 0), ((2, 3), 1), ((2, 3), -1), ((0, 3), (0, -1)))),
    ),
    *rows(
        "broadcast_to",
        lambda x, shape: np.ones(shape) * x,
        *(call(normal(*x), shape) for x, shape in (((), (2, 3)), ((3,), (2, 3)), ((2, 1), (4, 2, 3)), ((2,), (2,)))),
        call(normal(1), 3),
        call(normal(1, 3), (0, 3)),
        call(normal(), ()),
    ),
    *rows("cast", lambda x, dtype: x * np.ones((), dtype), call(np.int8([[1, 2]]), np.float32)),
    *rows(
        "pad",
        lambda x, paddings, value=0: np.pad(x, paddings, constant_values=value),
        *(call(normal(2, 3), paddings) for paddings in (1, (1, 2), ((0, 0), (0, 0)), ((1, 0), (0, 2)))),
        call(normal(2, 3), ((0, 1), (3, 0)), value=-2.5),
        call(normal(2, 1, 3), np.array([[1, 1], [0, 2], [0, 0]]), 1),
        call(normal(0, 3), (1, 0)),
    ),
    *rows("pad", lambda x, paddings: x, call(normal(), np.zeros((0, 2), int))),
    *rows(
        "concatenate",
        np.concatenate,
        call([normal(2, 3), normal(1, 3), normal(4, 3)]),
        call([normal(2, 1), normal(2, 3)], axis=1),
        call([normal(2, 2, 3), normal(2, 1, 3)], axis=-2),
        call([normal(0, 3), normal(2, 3), normal(0, 3)]),
        call([normal(2), np.int8([1, 2]), normal(0)]),
        call([normal(3)], 0),
    ),
    *rows(
        "stack",
        np.stack,
        call([normal(2, 3), normal(2, 3), normal(2, 3)]),
        call([normal(2, 3), normal(2, 3)], axis=1),
        call([normal(2, 3), normal(2, 3)], axis=-1),
        call([normal(), normal(), 2.5]),
        call([normal(0, 3), normal(0, 3)], -2),
        call([normal(1)]),
    ),
]
