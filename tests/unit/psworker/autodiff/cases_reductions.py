"""Reductions and running sums."""

from typing import Any

import numpy as np

from .cases import Case, call, normal, rows, spaced

REDUCTIONS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((), {}),
    ((5,), {}),
    ((2, 3), {}),
    ((2, 3), {"keepdims": True}),
    ((2, 3), {"axis": 0}),
    ((2, 3), {"axis": -1, "keepdims": True}),
    ((2, 3), {"axis": (0, 1)}),
    ((2, 3, 4), {"axis": (0, -1)}),
    ((2, 3, 4), {"axis": (-1, 0), "keepdims": True}),
    ((2, 3), {"axis": ()}),
    ((1, 1), {"axis": 1}),
    ((0, 3), {"axis": 1}),
]
RUNNING: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((), {}),
    ((5,), {}),
    ((5,), {"axis": 0, "reverse": True}),
    ((2, 3), {}),
    ((2, 3), {"reverse": True}),
    ((2, 3), {"axis": 0}),
    ((2, 3, 4), {"axis": -2, "reverse": True}),
    ((1, 1), {"axis": 1}),
    ((0, 3), {"axis": 1}),
    ((0, 3), {"axis": 0, "reverse": True}),
]


def running_sum(x: np.ndarray, axis: int | None = None, reverse: bool = False) -> np.ndarray:
    """The product with a triangle of ones."""
    x = x.reshape(-1) if axis is None else x.swapaxes(axis, -1)
    upto = np.tri(x.shape[-1]) if reverse else np.tri(x.shape[-1]).T
    return (x @ upto).swapaxes(-1 if axis is None else axis, -1)


CASES: list[Case] = [
    *rows("sum", np.sum, *(call(normal(*shape), **axes) for shape, axes in REDUCTIONS), call(normal(0, 3))),
    *rows("mean", np.mean, *(call(normal(*shape), **axes) for shape, axes in REDUCTIONS)),
    *rows("max", np.max, *(call(spaced(*shape), **axes) for shape, axes in REDUCTIONS)),
    *rows("min", np.min, *(call(spaced(*shape), **axes) for shape, axes in REDUCTIONS)),
    *rows(
        "logsumexp",
        lambda x, **axes: np.log(np.sum(np.exp(x), **axes)),
        *(call(normal(*shape), **axes) for shape, axes in REDUCTIONS),
    ),
    *rows("cumsum", running_sum, *(call(normal(*shape), **axes) for shape, axes in RUNNING)),
]
