"""Layers: objects that make their variables in the current `variable_scope`, and compute when called.

    class Classifier:
        def __init__(self):
            with ps.variable_scope("classifier"):
                self.hidden = nn.Dense(784, 128, activation=ops.relu)   # classifier/dense/kernel, .../bias
                self.logits = nn.Dense(128, 10, name="logits")          # classifier/logits/kernel, .../bias

        def __call__(self, image):
            return self.logits(self.hidden(image))

The arithmetic is the ops', in the dtype of the layer's variables: x of another dtype, float64 and integers among them,
is cast to it first, as it is (bytes stay 0 ... 255). Nothing here knows of optimizers or sessions. May import the
engine and variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from pswire.tensors.values import Array
from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.norm import batch_norm_with_moments
from psworker.autodiff.ops.windows import Pair, pair
from psworker.autodiff.tensor import TensorLike
from psworker.model import initializers
from psworker.model.embedding import Embedding
from psworker.model.initializers import Initializer
from psworker.model.layer_variables import as_input, drawn, new_variable, scope_of
from psworker.model.variables import UpdateOp, Variable, layer_scope, note_update

__all__ = ["BatchNorm", "Conv2D", "Dense", "Embedding", "LayerNorm"]

Activation: TypeAlias = Callable[[Tensor], Tensor]

_ZEROS = initializers.zeros()
_ONES = initializers.ones()
_GLOROT_UNIFORM = initializers.glorot_uniform()


class Dense:
    """A fully connected layer: activation(x @ kernel + bias).

        logits = nn.Dense(784, 10)(image)          # (batch, 784) -> (batch, 10)

    Args:
        inputs: size of the last axis of x.
        units: size of the last axis of the result.
        activation: a function of a tensor, such as `ops.relu`; None for none.
        bias: whether there is one.
        kernel_initializer: `glorot_uniform()`, unless told otherwise.
        bias_initializer: `zeros()`, unless told otherwise.
        name: the scope of its variables; without one it is `dense`, `dense_1`, ...

    Attributes:
        name: the full scope of its variables.
        kernel: Variable `<name>/kernel`, (inputs, units).
        bias: Variable `<name>/bias`, (units,), or None.

    Raises:
        ConfigurationError: the name is taken.
        TypeError, ValueError: a size, the activation or an initializer that cannot be; then no variable is made.
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = _GLOROT_UNIFORM,
        bias_initializer: Initializer = _ZEROS,
        name: str | None = None,
    ) -> None:
        self.activation = _checked_activation("Dense", activation)
        shape = inputs, units
        with layer_scope(name, "dense"):
            self.kernel, self.bias = _kernel_and_bias(shape, kernel_initializer, bias_initializer if bias else None)
        self.name = scope_of(self.kernel)

    def __call__(self, x: TensorLike) -> Tensor:
        """Takes x (..., inputs) to (..., units).

        Raises:
            ValueError: x has another shape.
            TypeError: x is not of real numbers.
        """
        x = as_input(self, x, self.kernel, "...", self.kernel.shape[0])
        y = ops.matmul(x, self.kernel)
        if self.bias is not None:
            y = y + self.bias
        return y if self.activation is None else self.activation(y)

    def __repr__(self) -> str:
        return f"Dense({self.name!r}: {self.kernel.shape[0]} -> {self.kernel.shape[1]})"


class Conv2D:
    """A convolution of images: activation(conv2d(x, kernel) + bias).

        features = nn.Conv2D(1, 32, 5, activation=ops.relu)(image)     # (batch, 28, 28, 1) -> (batch, 28, 28, 32)

    Args:
        channels: size of the last axis of x.
        filters: size of the last axis of the result.
        kernel_size: height and width of the kernel, or one number for both.
        strides, padding, dilations: as in `ops.conv2d`.
        activation: a function of a tensor, such as `ops.relu`; None for none.
        bias: whether there is one.
        kernel_initializer: `glorot_uniform()`, unless told otherwise.
        bias_initializer: `zeros()`, unless told otherwise.
        name: the scope of its variables; without one it is `conv2d`, `conv2d_1`, ...

    Attributes:
        name: the full scope of its variables.
        kernel: Variable `<name>/kernel`, (height, width, channels, filters).
        bias: Variable `<name>/bias`, (filters,), or None.

    Raises:
        ConfigurationError: the name is taken.
        TypeError, ValueError: an argument that cannot be; then no variable is made.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel_size: Pair,
        *,
        strides: Pair = 1,
        padding: Literal["SAME", "VALID"] = "SAME",
        dilations: Pair = 1,
        activation: Activation | None = None,
        bias: bool = True,
        kernel_initializer: Initializer = _GLOROT_UNIFORM,
        bias_initializer: Initializer = _ZEROS,
        name: str | None = None,
    ) -> None:
        self.strides = pair("Conv2D: strides", strides)
        self.padding: Literal["SAME", "VALID"] = padding
        self.dilations = pair("Conv2D: dilations", dilations)
        self.activation = _checked_activation("Conv2D", activation)
        shape = *pair("Conv2D: kernel_size", kernel_size), channels, filters
        with layer_scope(name, "conv2d"):
            self.kernel, self.bias = _kernel_and_bias(shape, kernel_initializer, bias_initializer if bias else None)
        self.name = scope_of(self.kernel)

    def __call__(self, x: TensorLike) -> Tensor:
        """Images (batch, height, width, channels) -> (batch, rows, columns, filters).

        Raises:
            ValueError: x has another shape.
            TypeError: x is not of real numbers.
        """
        x = as_input(self, x, self.kernel, "batch", "height", "width", self.kernel.shape[2])
        fused = self.activation is ops.relu  # one op instead of two, which takes less time and memory
        y = ops.conv2d(
            x, self.kernel, self.bias, self.strides, self.padding, self.dilations, activation="relu" if fused else None
        )
        return y if fused or self.activation is None else self.activation(y)

    def __repr__(self) -> str:
        height, width, channels, filters = self.kernel.shape
        return f"Conv2D({self.name!r}: {channels} -> {filters}, {height} x {width})"


class BatchNorm:
    """Batch normalisation: gamma * (x - mean) / sqrt(variance + epsilon) + beta, feature by feature.

        hidden = ops.relu(nn.BatchNorm(128)(x, training=True))

    In training, mean and variance are those of the batch, over all axes of x but the last, and become update ops: with
    the next push they reach the server, which takes each worker's into one moving average,
    `moving <- decay * moving + (1 - decay) * seen`, whatever the optimizer is. They are no gradients. Otherwise mean
    and variance are the moving averages, as of the last pull; a batch of one is then as good as any. The variance that
    is averaged is the unbiased one, n / (n - 1) times the batch's.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithms 1 and 2.

    Args:
        features: size of the last axis of x.
        decay: of the moving averages, from 0 up and below 1. With several workers they see as many batches more.
        epsilon: added to the variance.
        center: whether there is a beta.
        scale: whether there is a gamma.
        name: the scope of its variables; without one it is `batch_norm`, `batch_norm_1`, ...

    Attributes:
        name: the full scope of its variables.
        gamma: Variable `<name>/gamma`, (features,), ones at first, or None.
        beta: Variable `<name>/beta`, (features,), zeros at first, or None.
        moving_mean: Variable `<name>/moving_mean`, (features,), zeros at first, not trainable.
        moving_variance: Variable `<name>/moving_variance`, (features,), ones at first, not trainable.

    Raises:
        ConfigurationError: the name is taken.
        ValueError: the decay is not from 0 up and below 1.
    """

    def __init__(
        self,
        features: int,
        *,
        decay: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        name: str | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"BatchNorm: decay must be from 0 up and below 1, got {decay}")
        self.decay = decay
        self.epsilon = epsilon
        with layer_scope(name, "batch_norm"):
            self.gamma = new_variable("gamma", (features,), _ONES) if scale else None
            self.beta = new_variable("beta", (features,), _ZEROS) if center else None
            self.moving_mean = new_variable("moving_mean", (features,), _ZEROS, trainable=False)
            self.moving_variance = new_variable("moving_variance", (features,), _ONES, trainable=False)
        self.name = scope_of(self.moving_mean)

    def __call__(self, x: TensorLike, training: bool) -> Tensor:
        """Normalises x (..., features), by its own moments when `training` and by the moving averages otherwise.

        Raises:
            ValueError: x has another shape, or in training no elements.
            TypeError: x is not of real numbers.
        """
        x = as_input(self, x, self.moving_mean, "...", self.moving_mean.shape[0])
        if not training:
            return ops.batch_norm_inference(
                x, self.moving_mean, self.moving_variance, self.gamma, self.beta, self.epsilon
            )
        y, mean, variance = batch_norm_with_moments(x, self.gamma, self.beta, self.epsilon)
        count = math.prod(np.shape(x)[:-1])
        self._note(self.moving_mean, mean)
        self._note(self.moving_variance, variance * (count / max(count - 1, 1)))
        return y

    def _note(self, moving: Variable, seen: Array) -> None:
        note_update(UpdateOp(moving, seen, self.decay))

    def __repr__(self) -> str:
        return f"BatchNorm({self.name!r}: {self.moving_mean.shape[0]})"


class LayerNorm:
    """Layer normalisation: gamma * (x - mean) / sqrt(variance + epsilon) + beta, by each example's own moments.

        hidden = nn.LayerNorm(128)(x)              # (batch, 128) -> (batch, 128)

    Formula and source: `ops.layer_norm`. It does the same in training and out of it, and keeps no averages.

    Args:
        features: size of the last axis of x, over which mean and variance are taken.
        epsilon: added to the variance.
        name: the scope of its variables; without one it is `layer_norm`, `layer_norm_1`, ...

    Attributes:
        name: the full scope of its variables.
        gamma: Variable `<name>/gamma`, (features,), ones at first.
        beta: Variable `<name>/beta`, (features,), zeros at first.

    Raises:
        ConfigurationError: the name is taken.
    """

    def __init__(self, features: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        self.epsilon = epsilon
        with layer_scope(name, "layer_norm"):
            self.gamma = new_variable("gamma", (features,), _ONES)
            self.beta = new_variable("beta", (features,), _ZEROS)
        self.name = scope_of(self.gamma)

    def __call__(self, x: TensorLike) -> Tensor:
        """Normalises x (..., features).

        Raises:
            ValueError: x has another shape.
            TypeError: x is not of real numbers.
        """
        x = as_input(self, x, self.gamma, "...", self.gamma.shape[0])
        return ops.layer_norm(x, self.gamma, self.beta, self.epsilon)

    def __repr__(self) -> str:
        return f"LayerNorm({self.name!r}: {self.gamma.shape[0]})"


def _kernel_and_bias(
    shape: tuple[int, ...], kernel_initializer: Initializer, bias_initializer: Initializer | None
) -> tuple[Variable, Variable | None]:
    """Both are drawn before either is made: a variable that a server knows cannot be taken back."""
    kernel = drawn("kernel", shape, kernel_initializer)
    bias = None if bias_initializer is None else drawn("bias", shape[-1:], bias_initializer)
    return Variable(kernel, name="kernel"), None if bias is None else Variable(bias, name="bias")


def _checked_activation(layer: str, activation: Activation | None) -> Activation | None:
    if activation is not None and not callable(activation):
        raise TypeError(
            f"{layer}: activation must be a function of a tensor, such as ops.relu, or None, but it is {activation!r}"
        )
    return activation
