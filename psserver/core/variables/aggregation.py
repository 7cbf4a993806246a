"""Robust aggregates of the gradients of a synchronous update: elementwise median and trimmed mean.

    median(g_1, ..., g_N)           of an even N the mean of the middle two
    trimmed mean(g_1, ..., g_N)     the mean without the k largest and the k smallest of each element

Source: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, definitions 1 and 2. N is the number of pushes of the update. A push counts as zero where
it has nothing: for a variable without a gradient of it, and in rows that it did not touch; otherwise a single worker
could set what no other one touches. Elements are sorted first, so every order of arrival gives the same bits.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pswire.optimizers import COMPUTE_DTYPES
from pswire.specs.consistency import Aggregate
from pswire.tensors.values import Array, IndexedSlices

#: Elements of all gradients together that are sorted at a time, which bounds the memory beyond the result.
SORTED_ELEMENTS = 1 << 18

#: Time of an element relative to a rule that adds it up.
COST = 8


def robust(gradients: Sequence[Array | IndexedSlices], aggregate: Aggregate, pushes: int) -> Array | IndexedSlices:
    """The aggregate of the gradients that some of `pushes` pushes have for a variable; rows if all of them are rows."""
    count = max(pushes, len(gradients))
    rows = [one.summed() for one in gradients if isinstance(one, IndexedSlices)]
    with np.errstate(all="ignore"):
        if len(rows) == len(gradients):
            return _of_rows(rows, aggregate, count)
        return _of_arrays(gradients, aggregate, count)


def _of_arrays(gradients: Sequence[Array | IndexedSlices], aggregate: Aggregate, count: int) -> Array:
    first = gradients[0]
    arrays = [one.to_dense() if isinstance(one, IndexedSlices) else one for one in gradients]
    flat = [one.reshape(-1) for one in arrays]
    total = np.empty(first.shape, COMPUTE_DTYPES[first.dtype])
    for start, stop in _stretches(total.size, count):
        stack = np.zeros((count, stop - start), total.dtype)
        for line, one in zip(stack, flat, strict=False):
            line[:] = one[start:stop]
        total.reshape(-1)[start:stop] = _aggregated(stack, aggregate)
    return total


def _of_rows(gradients: Sequence[IndexedSlices], aggregate: Aggregate, count: int) -> IndexedSlices:
    first = gradients[0]
    indices = np.unique(np.concatenate([one.indices for one in gradients]))
    values = np.empty((len(indices), *first.shape[1:]), first.dtype)
    width = math.prod(first.shape[1:])
    for start, stop in _stretches(len(indices), count * max(1, width)):
        some = indices[start:stop]
        stack = np.zeros((count, *values[start:stop].shape), COMPUTE_DTYPES[first.dtype])
        for lines, one in zip(stack, gradients, strict=False):
            begin, end = np.searchsorted(one.indices, [some[0], some[-1] + 1])
            lines[np.searchsorted(some, one.indices[begin:end])] = one.values[begin:end]
        values[start:stop] = _aggregated(stack, aggregate)
    return IndexedSlices(values, indices, first.shape, check_range=False)


def _stretches(size: int, cost: int) -> Iterator[tuple[int, int]]:
    step = max(1, SORTED_ELEMENTS // cost)
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _aggregated(stack: Array, aggregate: Aggregate) -> Array:
    """The aggregate over the first axis of an array that may be overwritten."""
    count = len(stack)
    left_out = aggregate.left_out(count)
    stack.sort(axis=0)
    middle = np.add.reduce(stack[left_out : count - left_out], axis=0)
    middle /= count - 2 * left_out
    middle += 0.0  # -0.0 and 0.0 are equal, so either may be the middle one
    return np.asarray(middle)
