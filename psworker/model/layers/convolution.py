"""Layers of convolutions: of sequences and images, in groups, by channel, and transposed."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pswire.specs.initializers import Initializer
from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.convolution.windows import Padding, Pair, checked_padding, pair, single
from psworker.autodiff.tensor import TensorLike
from psworker.model.layers.layer import GLOROT_UNIFORM, ZEROS, as_input
from psworker.model.layers.linear import Activation, Linear


class _Convolution(Linear):
    """A convolution with checked settings."""

    groups = 1
    padding: Padding

    def _configure(self, strides: Pair, padding: Padding, dilations: Pair) -> None:
        """Sets strides and dilations, as pairs, and padding."""
        kind = type(self).__name__
        self.strides, self.dilations = pair(f"{kind}: strides", strides), pair(f"{kind}: dilations", dilations)
        self.padding = checked_padding(kind, padding)

    def _size(self, kernel_size: Pair) -> tuple[int, int]:
        return pair(f"{type(self).__name__}: kernel_size", kernel_size)

    def _group(self, channels: int, filters: int, groups: int) -> int:
        """Sets the number of groups; returns the channels of each."""
        kind = type(self).__name__
        for setting, given in (("channels", channels), ("filters", filters), ("groups", groups)):
            if not isinstance(given, int | np.integer):
                raise TypeError(f"{kind}: {setting} must be an integer, but it is {given!r}")
        if groups < 1 or channels % groups or filters % groups:
            raise ValueError(
                f"{kind}: groups must divide the channels ({channels}) and the filters ({filters}), but it is {groups}"
            )
        self.groups = int(groups)
        return channels // self.groups

    def __repr__(self) -> str:
        *size, channels, filters = self.kernel.shape
        described = f"{channels * self.groups} -> {filters}, {' x '.join(map(str, size))}"
        grouped = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{type(self).__name__}({self.name!r}: {described}{grouped})"


class Conv1D(_Convolution):
    """A convolution of sequences: activation(conv1d(x, kernel) + bias).

        features = nn.Conv1D(64, 128, 5, padding="CAUSAL")(words)     # (batch, time, 64) -> (batch, time, 128)

    Args:
        channels, filters: size of the last axis of x, and of the result.
        kernel_size: number of elements in a window.
        strides, dilations: one integer each, as in `ops.conv1d`.
        padding: "SAME" and "VALID" as in `ops.conv1d`; "CAUSAL" pads the start alone, so that a step of the result
            depends on no later step of x.
        groups: as in `Conv2D`.
        activation, bias, kernel_initializer, bias_initializer: as in `Dense`.

    Variables: `kernel`, (width, channels / groups, filters), and `bias`, (filters,).
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        padding: Literal["SAME", "VALID", "CAUSAL"] = "SAME",
        dilations: int = 1,
        groups: int = 1,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        for setting, given in (("kernel_size", kernel_size), ("strides", strides), ("dilations", dilations)):
            single(f"Conv1D: {setting}", given)
        if padding not in ("SAME", "VALID", "CAUSAL"):
            raise ValueError(f'Conv1D: padding must be "SAME", "VALID" or "CAUSAL", got {padding!r}')
        self.causal = padding == "CAUSAL"
        self._configure(strides, "VALID" if padding == "CAUSAL" else padding, dilations)
        shape = self._size(kernel_size)[0], self._group(channels, filters, groups), filters
        self._create(name, "conv1d", shape, (kernel_initializer, bias_initializer if bias else None), activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map sequences (batch, length, channels) to (batch, steps, filters)."""
        width, channels, _ = self.kernel.shape
        x = as_input(self, x, self.kernel, "batch", "length", channels * self.groups)
        (stride, _), (dilation, _) = self.strides, self.dilations
        if self.causal:
            x = ops.pad(x, ((0, 0), ((width - 1) * dilation, 0), (0, 0)))
        y = ops.conv1d(x, self.kernel, self.bias, stride, self.padding, dilation, groups=self.groups)
        return self._activated(y)


class Conv2D(_Convolution):
    """A convolution of images: activation(conv2d(x, kernel) + bias).

        features = nn.Conv2D(1, 32, 5, activation=ops.relu)(image)     # (batch, 28, 28, 1) -> (batch, 28, 28, 32)

    Args:
        channels, filters: size of the last axis of x, and of the result.
        kernel_size: (height, width), or one number for both.
        strides, padding, dilations: as in `ops.conv2d`.
        groups: channels and filters are divided into as many equal groups; the filters of a group see its channels
            only. A divisor of both.
        activation, bias, kernel_initializer, bias_initializer: as in `Dense`.

    Variables: `kernel`, (height, width, channels / groups, filters), and `bias`, (filters,).
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel_size: Pair,
        *,
        strides: Pair = 1,
        padding: Padding = "SAME",
        dilations: Pair = 1,
        groups: int = 1,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        self._configure(strides, padding, dilations)
        shape = *self._size(kernel_size), self._group(channels, filters, groups), filters
        self._create(name, "conv2d", shape, (kernel_initializer, bias_initializer if bias else None), activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, filters)."""
        x = as_input(self, x, self.kernel, "batch", "height", "width", self.kernel.shape[2] * self.groups)
        fused = self.activation is ops.relu  # one op instead of two: faster, and less memory
        relu: Literal["relu"] | None = "relu" if fused else None
        y = ops.conv2d(x, self.kernel, self.bias, self.strides, self.padding, self.dilations, relu, self.groups)
        return y if fused else self._activated(y)


class DepthwiseConv2D(Conv2D):
    """A convolution of each channel by itself, with `depth_multiplier` results for each channel.

        smoothed = nn.DepthwiseConv2D(32, 3)(image)                    # (batch, 28, 28, 32) -> the same shape
        features = nn.Sequential(nn.DepthwiseConv2D(32, 3), nn.Conv2D(32, 64, 1))    # a separable convolution

    The results of a channel are adjacent. Source: F. Chollet, "Xception: Deep Learning with Depthwise Separable
    Convolutions", CVPR 2017, section 2.

    Args:
        channels: size of the last axis of x.
        kernel_size, strides, padding, dilations: as in `Conv2D`.
        depth_multiplier: number of results for each channel.
        activation, bias, kernel_initializer, bias_initializer: as in `Dense`.

    Variables: `kernel`, (height, width, 1, channels * depth_multiplier), and `bias`, (channels * depth_multiplier,).
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Pair,
        *,
        strides: Pair = 1,
        padding: Padding = "SAME",
        dilations: Pair = 1,
        depth_multiplier: int = 1,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        self._configure(strides, padding, dilations)
        for size, given in (("channels", channels), ("depth_multiplier", depth_multiplier)):
            single(f"DepthwiseConv2D: {size}", given)
        filters = channels * depth_multiplier
        shape = *self._size(kernel_size), self._group(channels, filters, channels), filters
        values = kernel_initializer, bias_initializer if bias else None
        self._create(name, "depthwise_conv2d", shape, values, activation)


class Conv2DTranspose(_Convolution):
    """A transposed convolution, which makes images larger: activation(conv2d_transpose(x, kernel) + bias).

        images = nn.Conv2DTranspose(64, 1, 5, strides=2)(features)     # (batch, 14, 14, 64) -> (batch, 28, 28, 1)

    Args:
        channels, filters: size of the last axis of x, and of the result.
        kernel_size: (height, width), or one number for both.
        strides, padding, dilations: as in `ops.conv2d_transpose`.
        activation, bias, kernel_initializer, bias_initializer: as in `Dense`.

    Variables: `kernel`, (height, width, filters, channels), as of a `Conv2D` from the result to x, and `bias`,
    (filters,). The initializer gets the shape (height, width, channels, filters).
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel_size: Pair,
        *,
        strides: Pair = 1,
        padding: Padding = "SAME",
        dilations: Pair = 1,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        self._configure(strides, padding, dilations)
        shape = *self._size(kernel_size), channels, filters
        values = kernel_initializer, bias_initializer if bias else None
        self._create(name, "conv2d_transpose", shape, values, activation, transposed=True)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, filters)."""
        x = as_input(self, x, self.kernel, "batch", "height", "width", self.kernel.shape[3])
        return self._activated(
            ops.conv2d_transpose(x, self.kernel, self.bias, self.strides, self.padding, self.dilations)
        )

    def __repr__(self) -> str:
        height, width, filters, channels = self.kernel.shape
        return f"Conv2DTranspose({self.name!r}: {channels} -> {filters}, {height} x {width})"
