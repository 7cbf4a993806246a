"""The op `conv1d`, of sequences, as `conv2d` of images of height 1."""

from __future__ import annotations

import numpy as np

from psworker.autodiff.ops.convolution.conv2d import Activation, convolution, is_relu, with_relu
from psworker.autodiff.ops.convolution.windows import Padding, single
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Gradient, Tensor, TensorLike, Vjp


def conv1d(
    x: TensorLike,
    filters: TensorLike,
    bias: TensorLike | None = None,
    strides: int = 1,
    padding: Padding = "SAME",
    dilations: int = 1,
    activation: Activation = None,
    groups: int = 1,
) -> Tensor:
    """y[n, i, o] = sum over u, c of filters[u, c, o] * x[n, i*s + u*d, c]; stride s, dilation d.

    `x`: (batch, length, channels); `filters`: (width, channels / groups, out); `bias`: (out,). The result is (batch,
    steps, out). `strides` and `dilations` are one integer each; padding, activation and groups are those of `conv2d`.
    "SAME" pads at both ends: for a causal convolution, `pad` the start of x by (width - 1) * dilation and use "VALID".

    Raises ValueError when shapes do not fit or an option is unknown, TypeError for other than floating point.
    """
    relu = is_relu("conv1d", activation)
    y = _conv1d(x, filters, bias, strides, padding, dilations, relu, groups)  # type: ignore[arg-type]
    return with_relu(y) if relu else y


@op
@float16_in_float32
def _conv1d(
    x: Array,
    filters: Array,
    bias: Array | None,
    /,
    strides: int,
    padding: Padding,
    dilations: int,
    relu: bool,
    groups: int,
) -> Result:
    x, filters = np.asarray(x), np.asarray(filters)
    _check(x, filters, strides, dilations)
    image, kernel = x[:, np.newaxis], filters[np.newaxis]
    y, vjps = convolution(image, kernel, bias, (1, strides), padding, (1, dilations), relu, groups)

    def of_row(vjp: Vjp, row: tuple[slice | int, ...]) -> Vjp:
        def gradient(g: Array) -> Gradient:
            of_image = vjp(g[:, np.newaxis])
            return of_image[row] if isinstance(of_image, np.ndarray) else of_image

        return gradient

    return np.asarray(y)[:, 0], (of_row(vjps[0], (slice(None), 0)), of_row(vjps[1], (0,)), of_row(vjps[2], ()))


def _check(x: Array, filters: Array, strides: int, dilations: int) -> None:
    if x.ndim != 3:
        raise ValueError(f"x must have the axes (batch, length, channels), but its shape is {x.shape}")
    if filters.ndim != 3 or not len(filters):
        raise ValueError(f"filters must be (width, channels, out), but their shape is {filters.shape}")
    single("strides", strides)
    single("dilations", dilations)
