"""Layers without variables: pooling, flattening and dropout."""

from __future__ import annotations

import math

import numpy as np

from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.convolution.windows import Padding, Pair, checked_padding, pair, single
from psworker.autodiff.tensor import TensorLike
from psworker.model.layers.layer import Layer


class _Pool1D(Layer):
    """A layer with the settings of a pooling op of sequences."""

    def __init__(self, pool_size: int = 2, *, strides: int | None = None, padding: Padding = "VALID") -> None:
        kind = type(self).__name__
        self.pool_size = single(f"{kind}: pool_size", pool_size)
        self.strides = self.pool_size if strides is None else single(f"{kind}: strides", strides)
        self.padding = checked_padding(kind, padding)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool_size})"


class MaxPool1D(_Pool1D):
    """The largest element of each window of sequences, per channel (`ops.max_pool1d`).

        shorter = nn.MaxPool1D(2)(words)           # (batch, 50, 32) -> (batch, 25, 32)

    Args:
        pool_size: length of the windows.
        strides: distance of the windows; by default `pool_size`.
        padding: as in `ops.max_pool1d`.
    """

    def __call__(self, x: TensorLike) -> Tensor:
        """Map sequences (batch, length, channels) to (batch, steps, channels); errors as of the op."""
        return ops.max_pool1d(x, self.pool_size, self.strides, self.padding)


class AvgPool1D(_Pool1D):
    """The mean of each window of sequences, per channel, without the padding (`ops.avg_pool1d`).

        shorter = nn.AvgPool1D(2)(words)           # (batch, 50, 32) -> (batch, 25, 32)

    Args:
        pool_size, strides, padding: as in `MaxPool1D`.
    """

    def __call__(self, x: TensorLike) -> Tensor:
        """Map sequences (batch, length, channels) to (batch, steps, channels); errors as of the op."""
        return ops.avg_pool1d(x, self.pool_size, self.strides, self.padding)


class _Pool2D(Layer):
    """A layer with the settings of a pooling op."""

    def __init__(self, pool_size: Pair = 2, *, strides: Pair | None = None, padding: Padding = "VALID") -> None:
        kind = type(self).__name__
        self.pool_size = pair(f"{kind}: pool_size", pool_size)
        self.strides = self.pool_size if strides is None else pair(f"{kind}: strides", strides)
        self.padding = checked_padding(kind, padding)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool_size[0]} x {self.pool_size[1]})"


class MaxPool2D(_Pool2D):
    """The largest element of each window of images, per channel (`ops.max_pool2d`).

        smaller = nn.MaxPool2D(2)(image)           # (batch, 28, 28, 32) -> (batch, 14, 14, 32)

    Args:
        pool_size: (height, width) of the windows, or one number for both.
        strides: (height, width), or one number for both; by default `pool_size`.
        padding: as in `ops.max_pool2d`.
    """

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, channels); errors as of the op."""
        return ops.max_pool2d(x, self.pool_size, self.strides, self.padding)


class AvgPool2D(_Pool2D):
    """The mean of each window of images, per channel, without the padding (`ops.avg_pool2d`).

        smaller = nn.AvgPool2D(2)(image)           # (batch, 28, 28, 32) -> (batch, 14, 14, 32)

    Args:
        pool_size, strides, padding: as in `MaxPool2D`.
    """

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, channels); errors as of the op."""
        return ops.avg_pool2d(x, self.pool_size, self.strides, self.padding)


class Flatten(Layer):
    """All axes but the first as one.

    rows = nn.Flatten()(image)                 # (batch, 14, 14, 32) -> (batch, 6272)
    """

    def __call__(self, x: TensorLike) -> Tensor:
        """Map x (batch, ...) to (batch, n); ValueError for x without an axis."""
        shape = np.shape(x)
        if not shape:
            raise ValueError("Flatten(): x must have shape (batch, ...), but its shape is ()")
        return ops.reshape(x, (shape[0], math.prod(shape[1:])))


class Dropout(Layer):
    """Dropout in training: zeros at random, and the rest scaled (formula and source: `ops.dropout`).

        hidden = nn.Dropout(0.5)(x, training=True)

    It draws from this thread's generator of `ops.dropout`, which `psworker.set_random_seed` seeds and checkpoints keep:
    a resumed job continues with the same masks.

    Args:
        rate: the probability of a zero, at least 0 and below 1.
    """

    def __init__(self, rate: float) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"Dropout: rate, the probability of a zero, must be at least 0 and below 1, got {rate}")
        self.rate = rate

    def __call__(self, x: TensorLike, training: bool) -> Tensor:
        """Drop elements of x, of any shape, in training; x itself otherwise."""
        return ops.dropout(x, self.rate, training)

    def __repr__(self) -> str:
        return f"Dropout({self.rate})"
