"""Convolution and pooling, against loops over every window and every element of it."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from .cases import Case, call, normal, rows, spaced


def both(number: Any) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else number


def windows_along(size: int, kernel: int, stride: int, dilation: int, padding: str) -> list[list[int]]:
    """The indices of each window; one below 0 or from `size` up is padding (rules: TensorFlow's tf.nn.convolution)."""
    reach = dilation * (kernel - 1) + 1
    if padding == "VALID":
        first, count = 0, (size - reach + stride) // stride
    else:
        count = (size + stride - 1) // stride
        beyond = reach - stride if size % stride == 0 else reach - size % stride
        first = -(max(beyond, 0) // 2)
    return [[first + i * stride + k * dilation for k in range(kernel)] for i in range(count)]


def numpy_conv2d(
    x: np.ndarray,
    filters: np.ndarray,
    bias: np.ndarray | None = None,
    strides: Any = 1,
    padding: str = "SAME",
    dilations: Any = 1,
    activation: str | None = None,
) -> np.ndarray:
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


def pooled(reduce: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, size: Any = 2, strides: Any = None, padding: str = "VALID") -> np.ndarray:
        geometry = zip(x.shape[1:3], both(size), both(size if strides is None else strides), strict=True)
        down, along = (windows_along(n, kernel, stride, 1, padding) for n, kernel, stride in geometry)
        y = np.empty((len(x), len(down), len(along), x.shape[3]), x.dtype)
        for (i, us), (j, vs) in product(enumerate(down), enumerate(along)):
            inside = np.ix_([u for u in us if 0 <= u < x.shape[1]], [v for v in vs if 0 <= v < x.shape[2]])
            y[:, i, j] = reduce(x[:, *inside], axis=(1, 2))
        return y

    return reference


def option(padding: str, strides: Any = 1, dilations: Any = 1, **others: Any) -> dict[str, Any]:
    return {"padding": padding, "strides": strides, "dilations": dilations, **others}


# (images), (filters), options: pairwise.
WITH_BIAS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 5, 2), (3, 3, 2, 3), {"activation": "relu"}),
    ((2, 4, 5, 2), (3, 3, 2, 3), option("VALID", activation="relu")),
    ((2, 4, 5, 2), (3, 3, 2, 3), option("SAME", 2, (1, 2))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("VALID", (1, 3))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("SAME", (1, 3), (1, 2))),
    ((1, 5, 6, 1), (2, 3, 1, 2), option("VALID", 2, (1, 2), activation="relu")),
    ((2, 3, 7, 2), (1, 2, 2, 1), option("SAME", 2)),
    ((2, 3, 7, 2), (1, 2, 2, 1), option("VALID", 1, (1, 2))),
]
WITHOUT_BIAS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 2, 3, 2), (5, 6, 2, 2), {"strides": 2}),
    ((1, 2, 2, 1), (3, 3, 1, 2), {"dilations": 4}),
    ((1, 6, 9, 1), (3, 2, 1, 2), {"dilations": (1, 4), "strides": (4, 3)}),
    ((2, 3, 4, 1), (3, 4, 1, 2), {"padding": "VALID"}),
    *(((1, 5, 5, 1), (2, 2, 1, 1), option(padding, 4)) for padding in ("SAME", "VALID")),
    *((shape, (3, 3, 2, 2), {}) for shape in ((0, 4, 4, 2), (1, 0, 4, 2), (1, 4, 0, 2))),
    *(((2, 3, 3, channels), (2, 2, channels, 2 - channels), {}) for channels in (0, 2)),
]
POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    *(((2, 4, 6, 3), {}), ((2, 5, 5, 2), {"padding": "SAME"}), ((1, 2, 3, 2), {"size": 5, "padding": "SAME"})),
    ((1, 7, 6, 2), {"size": 3, "strides": 2, "padding": "SAME"}),
    ((2, 4, 5, 1), {"size": (3, 2), "strides": (1, 2)}),
    ((2, 4, 5, 1), {"size": (1, 4), "strides": 1, "padding": "SAME"}),
    *(((1, 7, 7, 1), {"size": 2, "strides": 3, "padding": padding}) for padding in ("SAME", "VALID")),
    *(((0, 4, 4, 2), {}), ((1, 0, 4, 1), {"padding": "SAME"})),
]

CASES: list[Case] = [
    *rows("conv2d", numpy_conv2d, *(call(normal(*x), normal(*f), normal(f[3]), **o) for x, f, o in WITH_BIAS)),
    *rows("conv2d", numpy_conv2d, *(call(normal(*x), normal(*f), **options) for x, f, options in WITHOUT_BIAS)),
    *rows("max_pool2d", pooled(np.max), *(call(spaced(*shape), **options) for shape, options in POOLS)),
    *rows("avg_pool2d", pooled(np.mean), *(call(normal(*shape), **options) for shape, options in POOLS)),
]
