"""The op `conv2d`, its derivatives, and the choice of algorithm for each image.

`winograd.py` is faster where it applies and the dynamic range of an image is narrow; `im2col.py` takes the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, TypeAlias

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.convolution.algorithms import grouped, im2col, winograd
from psworker.autodiff.ops.convolution.windows import (
    Padding,
    Pair,
    axes,
    check_filters_and_bias,
    check_images,
    in_one_dtype,
)
from psworker.autodiff.ops.elementwise.activations import relu_vjp
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike

Activation: TypeAlias = Literal["relu"] | None


class _Precise(threading.local):
    on = False


_precise = _Precise()


@contextmanager
def precise() -> Iterator[None]:
    """Use direct convolution only, in this thread, in a `with` block or, as `@precise()`, in a function.

    Otherwise float32 convolutions use Winograd's algorithm where it is faster, with about ten times the rounding error
    (bound in docs/reference/convolution.md). Gradients use the algorithm of their forward pass, also after the block.
    """
    before, _precise.on = _precise.on, True
    try:
        yield
    finally:
        _precise.on = before


def conv2d(
    x: TensorLike,
    filters: TensorLike,
    bias: TensorLike | None = None,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
    activation: Activation = None,
    groups: int = 1,
) -> Tensor:
    """y[n, i, j, o] = sum over u, v, c of filters[u, v, c, o] * x[n, i*s + u*d, j*s + v*d, c]; stride s, dilation d.

    `x`: (batch, height, width, channels); `filters`: (height, width, channels, out), any size; `bias`: (out,).
    `strides` and `dilations`: one integer or (height, width). The result is (batch, rows, columns, out): "SAME" pads x
    with zeros (the odd one at the end, as TensorFlow) for ceil(size / stride) rows and columns; "VALID" does not pad,
    for ceil((size - (kernel - 1) * dilation) / stride). Cross-correlation, as usual (Goodfellow, Bengio and Courville,
    Deep Learning, 2016, equation 9.6). `activation="relu"` is faster and smaller than a relu after it.

    `groups` divides channels and results into as many equal groups: the results of a group are of its channels only,
    and `filters` are (height, width, channels / groups, out). With as many groups as channels it is a depthwise
    convolution, in which the results of a channel are adjacent. Groups are convolved directly.

    In float32, batches of eight images and more use Winograd convolution where it is faster, with about ten times the
    rounding error of direct convolution, about 1e-5 of the largest element of a result or gradient unless terms cancel
    (bound: docs/reference/convolution.md). Images with a wide dynamic range or non-finite elements, float64, and all
    images within `precise()` are convolved directly.

    Raises ValueError when shapes do not fit or an option is unknown, TypeError for other than floating point.
    """
    relu = is_relu("conv2d", activation)
    y = _conv2d(x, filters, bias, strides, padding, dilations, relu, groups)  # type: ignore[arg-type]
    return with_relu(y) if relu else y


def is_relu(name: str, activation: Activation) -> bool:
    """True if the activation is relu; ValueError with the op's name unless it is that or None."""
    if activation not in (None, "relu"):
        raise ValueError(f'{name}: activation must be None or "relu", but it is {activation!r}')
    return activation is not None


@op
@float16_in_float32
def _conv2d(
    x: Array,
    filters: Array,
    bias: Array | None,
    /,
    strides: Pair,
    padding: Padding,
    dilations: Pair,
    relu: bool,
    groups: int,
) -> Result:
    return convolution(x, filters, bias, strides, padding, dilations, relu, groups)


def convolution(
    x: Array,
    filters: Array,
    bias: Array | None,
    strides: Pair,
    padding: Padding,
    dilations: Pair,
    relu: bool,
    groups: int,
) -> Result:
    """The activated value of `conv2d`, and the derivatives before activation."""
    x, filters = np.asarray(x), np.asarray(filters)
    _check(x, filters, bias, groups)
    rows, columns = axes(x.shape[1:3], filters.shape[:2], strides, padding, dilations)
    x, filters = in_one_dtype(x, filters, bias)
    channels, out = filters.shape[2:]

    def bias_gradient(g: Array) -> Array:
        return np.asarray(add_over(g, (0, 1, 2)))

    def finish(part: Array) -> None:
        if bias is not None:
            np.add(part, bias, out=part)
        if relu:
            np.clip(part, 0, np.inf, out=part)

    if groups > 1:
        y = grouped.convolve(x, filters, rows, columns, groups)
        finish(y)
        return y, (
            lambda g: grouped.images_gradient(g, filters, rows, columns, groups),
            lambda g: grouped.filters_gradient(x, g, rows, columns, groups),
            bias_gradient,
        )
    is_faster = winograd.is_faster(len(x), channels, out, rows, columns, x.dtype)
    faster = is_faster and not _precise.on and winograd.filters_have_narrow_range(filters)
    narrow_x = winograd.has_narrow_range(x, rows, columns) if faster else np.zeros(len(x), bool)

    def narrow(g: Array) -> Array:
        return winograd.has_narrow_range(g, rows.transposed, columns.transposed) if faster else narrow_x

    def x_gradient(g: Array) -> Array:
        split = _by_algorithm(narrow(g))
        return _joined([(some, module.images_gradient(g[some], filters, rows, columns)) for module, some in split])

    def filters_gradient(g: Array) -> Array:
        split = _by_algorithm(narrow_x & narrow(g))
        first, *others = (module.filters_gradient(x[some], g[some], rows, columns) for module, some in split)
        total: Array = sum(others, first)
        return total

    split = _by_algorithm(narrow_x)
    y = _joined([(some, module.convolve(x[some], filters, rows, columns, finish)) for module, some in split])
    return y, (x_gradient, filters_gradient, bias_gradient)


Images: TypeAlias = slice | Array  # of a batch: all, or those where an array of booleans is true


def _by_algorithm(narrow: Array) -> list[tuple[ModuleType, Images]]:
    """The modules of the algorithms, each with the images that it computes."""
    if narrow.any() and not narrow.all():
        return [(winograd, narrow), (im2col, ~narrow)]
    return [(winograd if narrow.any() else im2col, slice(None))]


def _joined(parts: list[tuple[Images, Array]]) -> Array:
    """The results of parts of a batch, as one batch."""
    if len(parts) == 1:
        return parts[0][1]
    first = parts[0][1]
    joined = np.empty((sum(len(part) for _, part in parts), *first.shape[1:]), first.dtype)
    for some, part in parts:
        joined[some] = part
    return joined


def with_relu(y: Tensor) -> Tensor:
    """`y`, on which relu was computed already, with the derivative of relu."""
    return _activated(y)


@op
def _activated(y: Array, /) -> Result:
    return y, (relu_vjp(y),)


def _check(x: Array, filters: Array, bias: Array | None, groups: int) -> None:
    check_images(x)
    if filters.ndim != 4 or 0 in filters.shape[:2]:
        raise ValueError(f"filters must be (height, width, channels, out), but their shape is {filters.shape}")
    if not isinstance(groups, (int, np.integer)):
        raise TypeError(f"groups must be an integer, but it is {groups!r}")
    if groups < 1 or x.shape[3] % groups or filters.shape[3] % groups:
        raise ValueError(
            f"groups must divide the channels of x ({x.shape[3]}) and of the result ({filters.shape[3]}), but it is "
            f"{groups}"
        )
    if x.shape[3] != filters.shape[2] * groups:
        given = f"{filters.shape[2]}" if groups == 1 else f"{groups} groups of {filters.shape[2]}"
        raise ValueError(f"x has {x.shape[3]} channels, but the filters are for {given}")
    check_filters_and_bias(filters, bias, filters.shape[3])
