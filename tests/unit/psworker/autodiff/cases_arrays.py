"""Shape, joining and selection of elements, embedding, matrix product and einsum."""

from typing import Any

import numpy as np

from .cases import Case, call, normal, rows

MASK = np.array([[True, False, True], [False, False, True]])
INDICES: list[Any] = [
    *(0, -1, np.int64(1), np.int8(1), slice(None, None, -1), slice(0, 0), (1, 2), (slice(None), 1), (..., None, 0)),
    *(MASK, (slice(None), MASK[0]), (np.newaxis, [True, False], 1)),
    *([1, 1, 0], [-1, 1, -2], np.array([[0, 1], [1, 1]]), np.array([], dtype=np.int64)),
    *((np.array([0, 1, 1]), np.array([2, 0, 0])), (slice(None), [0, 0, -3])),
]
TAKEN: list[tuple[tuple[int, ...], Any, int]] = [
    *(((4,), np.int64(2), 0), ((4, 3), np.array([3, 0, 3, -1]), 0), ((4, 3), np.array([[0, 2, 2], [-3, 1, 0]]), 1)),
    *(((2, 3, 2), np.uint8([[2], [2]]), -2), ((4, 3), np.zeros((0, 2), int), 0), ((4, 0), np.array([1]), 0)),
]
GATHERED: list[tuple[tuple[int, ...], Any, int]] = [
    *(((4, 3), np.array([[3, 0], [3, -1]]), 0), ((2, 3), np.array([2, -3]), 1)),
    *(((2, 3), np.array([[2, 2], [0, 1]]), 1), ((2, 3, 4), np.array([1, 1]), 1)),
    *(((2, 3, 4), np.array([[0, 1, -1], [3, 3, 0]]), 2), ((0, 3), np.zeros((0, 2), int), 1)),
]
PRODUCTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((3, 2), (2, 1)), ((0, 3), (3, 2))),
    *(((2, 0), (0, 3)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4))),
    *(((2, 1, 2, 3), (4, 3, 2)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((0, 2, 3), (3, 4)), ((5, 2, 0), (0, 4))),
]
EINSUMS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    *(("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ba,cb", (2, 3), (4, 2))),
    *(("ji,jk->ik", (3, 2), (3, 4)), ("ij,kj->ik", (2, 3), (4, 3)), ("bij,bjk->ikb", (5, 2, 3), (5, 3, 4))),
    *(("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)), ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4))),
    *(("ijk,kjl->il", (2, 3, 4), (4, 3, 2)), ("i,j->ji", (2,), (3,)), ("i,i->i", (3,), (3,)), ("i,i", (3,), (3,))),
    *(("ij,ij->i", (2, 3), (2, 3)), ("ij,ji->", (2, 3), (3, 2)), ("i,->i", (3,), ()), (",", (), ())),
    *(("ij,jk->k", (2, 3), (3, 4)), ("ij,jk->j", (2, 3), (3, 4)), ("ij,kl->", (2, 3), (4, 2))),
    *(("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 2)), ("i...,ij->...j", (3, 2, 4), (3, 2))),
    *(("...i,i...", (4, 2), (2, 4)), ("i...j, j k -> k...", (2, 3, 4), (4, 2)), ("...,...", (2, 3), (3,))),
    *(("ij,jk->ik", (2, 1), (3, 4)), ("ij,ij->j", (1, 1), (1, 1)), ("ij,ij->i", (2, 1), (1, 3))),
    ("ij,jk->jk", (2, 3), (1, 4)),
    *(("ij,jk->ik", (2, 0), (0, 4)), ("ij,jk->i", (2, 1), (0, 4)), ("ij,jk->k", (0, 3), (3, 4))),
]


def taken(x: np.ndarray, ids: np.ndarray, axis: int = 0) -> np.ndarray:
    """The product with one-hot rows."""
    hot = np.equal.outer(ids % x.shape[axis], np.arange(x.shape[axis]))
    product = np.tensordot(hot, x, (-1, axis))
    return np.moveaxis(product, range(ids.ndim), range(axis % x.ndim, axis % x.ndim + ids.ndim))


def gathered(x: np.ndarray, ids: np.ndarray, batch_dims: int) -> np.ndarray:
    result = np.empty((*ids.shape, *x.shape[batch_dims + 1 :]))
    for place in np.ndindex(ids.shape):
        result[place] = x[(*place[:batch_dims], ids[place])]
    return result


def selected(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return condition * a + np.logical_not(condition) * b


RESHAPED: list[tuple[tuple[int, ...], Any]] = [((2, 3), (3, 2)), ((2, 3), -1), ((), (1, 1)), ((0, 3), (3, 0, 2))]
EXPANDED: list[tuple[tuple[int, ...], Any]] = [((), 0), ((2, 3), 1), ((2, 3), -1), ((0, 3), (0, -1))]
BROADCAST: list[tuple[tuple[int, ...], Any]] = [
    *(((), (2, 3)), ((3,), (2, 3)), ((2, 1), (4, 2, 3)), ((1,), 3), ((1, 3), (0, 3)), ((), ()))
]

CASES: list[Case] = [
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
