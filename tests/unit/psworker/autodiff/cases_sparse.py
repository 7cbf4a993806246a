"""The op whose gradient is `IndexedSlices`."""

import numpy as np

from .cases import Case, call, normal, rows

CASES: list[Case] = [
    *rows(
        "embedding",
        lambda table, ids: np.reshape([table[i] for i in np.ravel(ids)], np.shape(ids) + table.shape[1:]),
        call(normal(4, 3), np.array([2, 0])),
        call(normal(4, 3), np.array([[1, 1, 3], [0, 1, 1]])),
        call(normal(4, 3), np.uint8([[[3]]])),
        call(normal(4, 3), 3),
        call(normal(4, 3), ids=[3, 3, 3]),
        call(normal(4, 3), ids=np.zeros((0,), np.int32)),
        call(normal(4, 3), ids=np.zeros((2, 0, 1), np.int64)),
        call(normal(1, 1), np.array([0, 0])),
        call(normal(5), np.array([4, 0, 4])),
        call(normal(3, 2, 2), np.array([[2, 0]])),
        call(normal(3, 0), np.array([1])),
    ),
]
