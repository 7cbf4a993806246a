"""Shape, order and choice of elements."""

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
    np.array([[0, 1], [1, 1]]),
    (np.array([0, 1, 1]), np.array([2, 0, 0])),
    (slice(None), [0, 0, -3]),
    (np.newaxis, [True, False], 1),
    np.array([], dtype=np.int64),
]

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
]
