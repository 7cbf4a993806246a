"""The op `conv2d_transpose`, the gradient of a convolution by its images; its own gradients are convolutions."""

from __future__ import annotations

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.convolution.algorithms import im2col
from psworker.autodiff.ops.convolution.windows import (
    Axis,
    Padding,
    Pair,
    axes,
    check_filters_and_bias,
    check_images,
    in_one_dtype,
    pair,
)
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike


def conv2d_transpose(
    x: TensorLike,
    filters: TensorLike,
    bias: TensorLike | None = None,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
) -> Tensor:
    """The transpose of `conv2d`: y[n, i*s + u*d, j*s + v*d, o] += filters[u, v, o, c] * x[n, i, j, c].

    `x`: (batch, height, width, channels); `filters`: (height, width, out, channels), those of the `conv2d` from y to x,
    so out comes first, as in TensorFlow; `bias`: (out,). Stride s and dilation d: one integer or (height, width). The
    result is (batch, rows, columns, out): with "SAME" size * stride rows and columns, with "VALID" size * stride +
    max(reach - stride, 0), where a window reaches over (kernel - 1) * dilation + 1 elements.

    Source: V. Dumoulin, F. Visin, "A guide to convolution arithmetic for deep learning", 2016, chapter 4. Always
    computed directly. Raises ValueError when shapes do not fit or x has no pixels, TypeError for other than floating
    point.
    """
    return _conv2d_transpose(x, filters, bias, strides, padding, dilations)  # type: ignore[arg-type]


@op
@float16_in_float32
def _conv2d_transpose(
    x: Array, filters: Array, bias: Array | None, /, strides: Pair, padding: Padding, dilations: Pair
) -> Result:
    x, filters = np.asarray(x), np.asarray(filters)
    _check(x, filters, bias)
    rows, columns = _axes_of_result(x.shape[1:3], filters.shape[:2], strides, padding, dilations)
    x, filters = in_one_dtype(x, filters, bias)
    y = im2col.images_gradient(x, filters, rows, columns)
    return y if bias is None else y + bias, (
        lambda g: im2col.convolve(g, filters, rows, columns, lambda part: None),
        lambda g: im2col.filters_gradient(g, x, rows, columns),
        lambda g: add_over(g, (0, 1, 2)),
    )


def _axes_of_result(
    sizes: tuple[int, ...], kernel: tuple[int, ...], strides: Pair, padding: Padding, dilations: Pair
) -> tuple[Axis, Axis]:
    """The axes of the result, on which x has one element for each window."""
    steps, gaps = pair("strides", strides), pair("dilations", dilations)
    lengths = []
    for size, length, stride, dilation in zip(sizes, kernel, steps, gaps, strict=True):
        reach = (length - 1) * dilation + 1
        lengths.append(size * stride + (max(reach - stride, 0) if padding == "VALID" else 0))
    return axes(lengths, kernel, steps, padding, gaps)


def _check(x: Array, filters: Array, bias: Array | None) -> None:
    check_images(x)
    if 0 in x.shape[1:3]:
        raise ValueError(f"x has no pixels: its shape is {x.shape}")
    if filters.ndim != 4 or 0 in filters.shape[:2]:
        raise ValueError(f"filters must be (height, width, out, channels), but their shape is {filters.shape}")
    if x.shape[3] != filters.shape[3]:
        raise ValueError(
            f"x has {x.shape[3]} channels, but the filters are for {filters.shape[3]}; their axes are (height, width, "
            f"out, channels)"
        )
    check_filters_and_bias(filters, bias, filters.shape[2])
