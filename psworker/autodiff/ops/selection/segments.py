"""Reductions over segments, groups of rows with the same id, each beside its derivative.

`x` is (n, ...) and `segment_ids` are (n,) integers in any order, in 0 ... num_segments - 1; a result has one row per
segment, (num_segments, ...). Without `num_segments` there are as many as the largest id needs: give it where the last
segments may be empty. An op raises TypeError when the ids are not integers, ValueError when there is not one for each
row, IndexError when one is out of range (JAX drops its row).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pswire.tensors.sums import equal_groups, sum_groups
from psworker.autodiff.ops.selection.indexing import checked_ids, integer_ids
from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, TensorLike

__all__ = ["segment_max", "segment_mean", "segment_softmax", "segment_sum"]


class _Segments:
    """The rows of each segment: `ids` (n,) int64, and the order that puts rows with one id together."""

    def __init__(self, x: Array, ids: TensorLike, count: int | None) -> None:
        ids = integer_ids("segment_ids", ids)
        if x.ndim == 0:
            raise ValueError("x must have at least one axis, that of the rows")
        if ids.shape != x.shape[:1]:
            raise ValueError(
                f"segment_ids must have one id for each row of x, shape {x.shape[:1]}, but their shape is {ids.shape}"
            )
        if count is None:
            count = int(ids.max()) + 1 if ids.size else 0
        elif not isinstance(count, (int, np.integer)):
            raise TypeError(f"num_segments must be an integer, but it is {count!r}")
        elif count < 0:
            raise ValueError(f"num_segments must not be negative, but it is {count}")
        self.count = count
        self.ids = checked_ids("segment_ids", ids, count)
        self.order, self.begins = equal_groups(self.ids)
        self.present = self.ids[self.order[self.begins]]  # segments that are not empty, ascending

    def sums(self, rows: Array) -> Array:
        """The sum of the rows of each segment, 0 for an empty one: (count, ...)."""
        total = np.zeros((self.count, *rows.shape[1:]), rows.dtype)
        total[self.present] = sum_groups(rows, self.order, self.begins)
        return total

    def largest(self, rows: Array, empty: Any) -> Array:  # noqa: ANN401 - a number
        """The largest elements of the rows of each segment, `empty` for an empty one: (count, ...)."""
        total = np.full((self.count, *rows.shape[1:]), empty, rows.dtype)
        if len(rows):
            total[self.present] = np.maximum.reduceat(rows[self.order], np.flatnonzero(self.begins), axis=0)
        return total

    def sizes(self, rows: Array) -> Array:
        """The number of rows of each segment, as integers that broadcast over rows: (count, 1, ...)."""
        return np.bincount(self.ids, minlength=self.count).reshape(-1, *[1] * (rows.ndim - 1))


@op
@float16_in_float32
def segment_sum(x: Array, /, segment_ids: TensorLike, num_segments: int | None = None) -> Result:
    """The sum of the rows of each segment: (n, ...) -> (num_segments, ...); of an empty segment 0.

    x = [1, 2, 3] and segment_ids = [0, 2, 0] -> [4, 0, 2].
    """
    x = np.asarray(x)
    segments = _Segments(x, segment_ids, num_segments)
    return segments.sums(x), (lambda g: g[segments.ids],)


@op
@float16_in_float32
def segment_mean(x: Array, /, segment_ids: TensorLike, num_segments: int | None = None) -> Result:
    """The mean of the rows of each segment: (n, ...) -> (num_segments, ...); of an empty segment 0."""
    x = floating(np.asarray(x))
    segments = _Segments(x, segment_ids, num_segments)
    sizes = np.maximum(segments.sizes(x), 1).astype(x.dtype)
    return segments.sums(x) / sizes, (lambda g: (g / sizes)[segments.ids],)


@op
@float16_in_float32
def segment_max(x: Array, /, segment_ids: TensorLike, num_segments: int | None = None) -> Result:
    """The largest elements of the rows of each segment: (n, ...) -> (num_segments, ...).

    Equal ones share the gradient equally. Of an empty segment -inf, for integers the smallest of their dtype, as JAX;
    NaN is the largest, and gets no gradient.
    """
    x = np.asarray(x)
    segments = _Segments(x, segment_ids, num_segments)
    y = segments.largest(x, -np.inf if x.dtype.kind == "f" else _smallest(x.dtype))

    def gradient(g: Array) -> Array:
        equal = (x == y[segments.ids]).astype(g.dtype)
        ties = np.maximum(segments.sums(equal), 1)
        return np.asarray(equal * (g / ties)[segments.ids])

    return y, (gradient,)


def _smallest(dtype: np.dtype[Any]) -> int:
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


@op
@float16_in_float32
def segment_softmax(x: Array, /, segment_ids: TensorLike, num_segments: int | None = None) -> Result:
    """The softmax over the rows of each segment, elementwise on the other axes: (n, ...) -> (n, ...).

    Attention over the neighbours of each node of a graph (P. Velickovic et al., "Graph Attention Networks", ICLR 2018,
    equation 2). The elements of a segment add up to 1, after a shift by their maximum; those of a segment of -inf alone
    are 0, with zero gradient. An empty segment has no rows.
    """
    x = floating(np.asarray(x))
    segments = _Segments(x, segment_ids, num_segments)
    largest = segments.largest(x, 0)
    powers = np.exp(x - np.where(largest == -np.inf, 0, largest)[segments.ids])
    totals = segments.sums(powers)
    y = powers / np.where(totals == 0, 1, totals)[segments.ids]

    def gradient(g: Array) -> Array:
        return np.asarray(y * (g - segments.sums(g * y)[segments.ids]))

    return y, (gradient,)
