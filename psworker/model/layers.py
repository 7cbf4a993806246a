"""Layers: objects that create their variables in the current `variable_scope`, and compute when called.

    with ps.variable_scope("classifier"):
        hidden = nn.Dense(784, 128, activation=ops.relu)   # classifier/dense/kernel, .../bias
        logits = nn.Dense(128, 10, name="logits")          # classifier/logits/kernel, .../bias
    y = logits(hidden(image))

A layer computes in the dtype of its variables; x of another dtype is cast first, without scaling (bytes remain 0 ...
255). Common to all layers:

- `name`: scope of the variables, by default the kind and a count (`dense`, `dense_1`, ...); as an attribute, the full
  scope. Variables are attributes, or None where the arguments leave them out.
- Errors: ConfigurationError for a name that is taken; TypeError or ValueError for an invalid argument, before any
  variable is created; when called, ValueError for x of another shape, TypeError for x that is not of real numbers.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from pswire.specs import initializers
from pswire.specs.initializers import Initializer, RowInitializer
from pswire.tensors.values import Array
from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.convolution.windows import Pair, pair
from psworker.autodiff.ops.normalization import batch_norm_with_moments
from psworker.autodiff.tensor import TensorLike, as_array
from psworker.model.tables import Table
from psworker.model.variables import UpdateOp, Variable, layer_scope, note_update, random_for

__all__ = ["BatchNorm", "Conv2D", "Dense", "Embedding", "LayerNorm"]

Activation: TypeAlias = Callable[[Tensor], Tensor]

_ZEROS = initializers.zeros()
_ONES = initializers.ones()
_GLOROT_UNIFORM = initializers.glorot_uniform()
_UNIFORM = initializers.random_uniform(-0.05, 0.05)


class _Linear:
    """A layer with a kernel, a bias and an activation."""

    def _create(
        self,
        name: str | None,
        kind: str,
        shape: tuple[int, ...],
        initializers: tuple[Initializer, Initializer | None],
        activation: Activation | None,
    ) -> None:
        """Creates the variables, both values first: a variable that is registered cannot be withdrawn."""
        if activation is not None and not callable(activation):
            raise TypeError(
                f"{type(self).__name__}: activation must be a function of a tensor, such as ops.relu, or None, but it "
                f"is {activation!r}"
            )
        self.activation = activation
        with layer_scope(name, kind) as self.name:
            kernel = _initial_value("kernel", shape, initializers[0])
            bias = None if initializers[1] is None else _initial_value("bias", shape[-1:], initializers[1])
            self.kernel = Variable(kernel, name="kernel")
            self.bias = None if bias is None else Variable(bias, name="bias")


class Dense(_Linear):
    """A fully connected layer: activation(x @ kernel + bias).

        logits = nn.Dense(784, 10)(image)          # (batch, 784) -> (batch, 10)

    Args:
        inputs, units: size of the last axis of x, and of the result.
        activation: a function of a tensor, such as `ops.relu`, or None.
        bias: whether to add a bias.
        kernel_initializer, bias_initializer: by default `glorot_uniform()` and `zeros()`.

    Variables: `kernel`, (inputs, units), and `bias`, (units,).
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
        values = kernel_initializer, bias_initializer if bias else None
        self._create(name, "dense", (inputs, units), values, activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map x (..., inputs) to (..., units)."""
        x = _as_input(self, x, self.kernel, "...", self.kernel.shape[0])
        y = ops.matmul(x, self.kernel)
        if self.bias is not None:
            y = y + self.bias
        return y if self.activation is None else self.activation(y)

    def __repr__(self) -> str:
        return f"Dense({self.name!r}: {self.kernel.shape[0]} -> {self.kernel.shape[1]})"


class Conv2D(_Linear):
    """A convolution of images: activation(conv2d(x, kernel) + bias).

        features = nn.Conv2D(1, 32, 5, activation=ops.relu)(image)     # (batch, 28, 28, 1) -> (batch, 28, 28, 32)

    Args:
        channels, filters: size of the last axis of x, and of the result.
        kernel_size: (height, width), or one number for both.
        strides, padding, dilations: as in `ops.conv2d`.
        activation, bias, kernel_initializer, bias_initializer: as in `Dense`.

    Variables: `kernel`, (height, width, channels, filters), and `bias`, (filters,).
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
        shape = *pair("Conv2D: kernel_size", kernel_size), channels, filters
        self._create(name, "conv2d", shape, (kernel_initializer, bias_initializer if bias else None), activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, filters)."""
        x = _as_input(self, x, self.kernel, "batch", "height", "width", self.kernel.shape[2])
        fused = self.activation is ops.relu  # one op in place of two: faster, and less memory
        y = ops.conv2d(
            x, self.kernel, self.bias, self.strides, self.padding, self.dilations, activation="relu" if fused else None
        )
        return y if fused or self.activation is None else self.activation(y)

    def __repr__(self) -> str:
        height, width, channels, filters = self.kernel.shape
        return f"Conv2D({self.name!r}: {channels} -> {filters}, {height} x {width})"


class BatchNorm:
    """Batch normalisation per feature: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

        hidden = ops.relu(nn.BatchNorm(128)(x, training=True))

    In training, mean and variance are those of the batch, over all axes but the last, and become update ops: the next
    push sends them, and the server averages those of all workers, `moving <- decay * moving + (1 - decay) * batch`,
    independently of the optimizer. Otherwise they are the moving averages of the last pull. The averaged variance is
    the unbiased one, n / (n - 1) times the batch's.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithms 1 and 2.

    Args:
        features: size of the last axis of x.
        decay: of the moving averages, at least 0 and below 1.
        epsilon: added to the variance.
        center, scale: whether to add beta, and to multiply by gamma.

    Variables, (features,): `gamma`, initially ones, and `beta`, zeros; `moving_mean`, initially zeros, and
    `moving_variance`, ones, which are not trainable.
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
            raise ValueError(f"BatchNorm: decay must be at least 0 and below 1, got {decay}")
        self.decay, self.epsilon = decay, epsilon
        with layer_scope(name, "batch_norm") as self.name:
            self.gamma = _new_variable("gamma", (features,), _ONES) if scale else None
            self.beta = _new_variable("beta", (features,), _ZEROS) if center else None
            self.moving_mean = _new_variable("moving_mean", (features,), _ZEROS, trainable=False)
            self.moving_variance = _new_variable("moving_variance", (features,), _ONES, trainable=False)

    def __call__(self, x: TensorLike, training: bool) -> Tensor:
        """Normalise x (..., features) by its moments in training (ValueError if it is empty), else by the averages."""
        x = _as_input(self, x, self.moving_mean, "...", self.moving_mean.shape[0])
        if not training:
            return ops.batch_norm_inference(
                x, self.moving_mean, self.moving_variance, self.gamma, self.beta, self.epsilon
            )
        y, mean, variance = batch_norm_with_moments(x, self.gamma, self.beta, self.epsilon)
        count = math.prod(np.shape(x)[:-1])
        note_update(UpdateOp(self.moving_mean, mean, self.decay))
        note_update(UpdateOp(self.moving_variance, variance * (count / max(count - 1, 1)), self.decay))
        return y

    def __repr__(self) -> str:
        return f"BatchNorm({self.name!r}: {self.moving_mean.shape[0]})"


class LayerNorm:
    """Layer normalisation by each example's own moments (formula and source: `ops.layer_norm`).

        hidden = nn.LayerNorm(128)(x)              # (batch, 128) -> (batch, 128)

    Args:
        features: size of the last axis of x, over which mean and variance are taken.
        epsilon: added to the variance.

    Variables, (features,): `gamma`, initially ones, and `beta`, zeros.
    """

    def __init__(self, features: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        self.epsilon = epsilon
        with layer_scope(name, "layer_norm") as self.name:
            self.gamma = _new_variable("gamma", (features,), _ONES)
            self.beta = _new_variable("beta", (features,), _ZEROS)

    def __call__(self, x: TensorLike) -> Tensor:
        """Normalise x (..., features)."""
        x = _as_input(self, x, self.gamma, "...", self.gamma.shape[0])
        return ops.layer_norm(x, self.gamma, self.beta, self.epsilon)

    def __repr__(self) -> str:
        return f"LayerNorm({self.name!r}: {self.gamma.shape[0]})"


class Embedding:
    """Embedding vectors, of words, users or products, looked up by row number.

        vectors = nn.Embedding(50_000, 64)(ids)    # (batch, words) -> (batch, words, 64)
        vectors = nn.Embedding(50_000_000, 64, initializer=ps.RowUniform(-0.05, 0.05))(ids)

    With a row initializer it is a `Table` on the servers, and a worker pulls the rows it looks up; otherwise it is a
    variable, of which each worker has a copy. Either way the gradient is `IndexedSlices`, and a push sends only rows
    that were looked up.

    Args:
        rows, width: number and size of the rows.
        initializer: of a variable, or a `RowInitializer`; by default `random_uniform(-0.05, 0.05)`.

    Variable: `table`, a Variable or Table (rows, width), float32.
    """

    def __init__(
        self, rows: int, width: int, *, initializer: Initializer | RowInitializer = _UNIFORM, name: str | None = None
    ) -> None:
        shape = rows, width
        self.table: Variable | Table
        with layer_scope(name, "embedding") as self.name:
            if isinstance(initializer, RowInitializer):
                self.table = Table(shape, initializer, name="table")
            else:
                self.table = _new_variable("table", shape, initializer)

    def __call__(self, ids: TensorLike) -> Tensor:
        """Look up integer ids of any shape: (*ids.shape, width).

        Raises IndexError when an id is not in 0 ... rows - 1, TypeError when ids are not integers.
        """
        return ops.embedding(self.table, ids)

    def __repr__(self) -> str:
        return f"Embedding({self.name!r}: {self.table.shape[0]} rows of {self.table.shape[1]})"


def _new_variable(name: str, shape: tuple[int, ...], initializer: Initializer, trainable: bool = True) -> Variable:
    return Variable(_initial_value(name, shape, initializer), name=name, trainable=trainable)


def _initial_value(name: str, shape: tuple[int, ...], initializer: Initializer) -> Array:
    """Initial value of the variable `name` of the current scope: float32, or float16 if the initializer returns it."""
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise TypeError(f"{name}: the sizes of its shape must be integers, but they are {shape}")
    try:
        value = np.asarray(initializer(shape, random_for(name)))
    except TypeError as error:
        raise TypeError(
            f"{name}: an initializer is called as initializer(shape, generator), such as the result of he_normal() "
            f"(with parentheses), but {initializer!r} fails: {error}"
        ) from error
    if value.shape != shape:
        raise ValueError(f"{name}: its initializer returned an array of shape {value.shape} instead of {shape}")
    if value.dtype.kind != "f":
        raise TypeError(f"{name}: its initializer returned an array of {value.dtype} instead of float32")
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _as_input(layer: object, x: TensorLike, variable: Variable, *axes: str | int) -> TensorLike:
    """`x` cast to the dtype of a variable, after a check of its axes, of which the first may be "..."."""
    shape = np.shape(x)
    fits = len(shape) == len(axes) or (shape and axes[0] == "...")
    if not fits or shape[-1] != axes[-1]:
        raise ValueError(f"{layer}: x must have shape ({', '.join(map(str, axes))}), but its shape is {shape}")
    array = as_array(x)
    if array.dtype == variable.dtype:
        return x
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{layer}: x must be of real numbers, but its dtype is {array.dtype}")
    if not isinstance(x, Tensor):
        return array.astype(variable.dtype)
    cast: Tensor = ops.cast(x, variable.dtype)  # type: ignore[no-untyped-call]  # a DTypeLike fits two overloads of op
    return cast
