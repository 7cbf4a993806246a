"""Layers with a kernel, a bias and an activation: fully connected, and convolution."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from pswire.specs.initializers import Initializer
from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.convolution.windows import Pair, pair
from psworker.autodiff.tensor import TensorLike
from psworker.model.layers.layer import GLOROT_UNIFORM, ZEROS, Layer, as_input, initial_value
from psworker.model.variables import Variable, layer_scope

Activation: TypeAlias = Callable[[Tensor], Tensor]


class _Linear(Layer):
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
            kernel = initial_value("kernel", shape, initializers[0])
            bias = None if initializers[1] is None else initial_value("bias", shape[-1:], initializers[1])
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
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        values = kernel_initializer, bias_initializer if bias else None
        self._create(name, "dense", (inputs, units), values, activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map x (..., inputs) to (..., units)."""
        x = as_input(self, x, self.kernel, "...", self.kernel.shape[0])
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
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        self.strides = pair("Conv2D: strides", strides)
        self.padding: Literal["SAME", "VALID"] = padding
        self.dilations = pair("Conv2D: dilations", dilations)
        shape = *pair("Conv2D: kernel_size", kernel_size), channels, filters
        self._create(name, "conv2d", shape, (kernel_initializer, bias_initializer if bias else None), activation)

    def __call__(self, x: TensorLike) -> Tensor:
        """Map images (batch, height, width, channels) to (batch, rows, columns, filters)."""
        x = as_input(self, x, self.kernel, "batch", "height", "width", self.kernel.shape[2])
        fused = self.activation is ops.relu  # one op in place of two: faster, and less memory
        y = ops.conv2d(
            x, self.kernel, self.bias, self.strides, self.padding, self.dilations, activation="relu" if fused else None
        )
        return y if fused or self.activation is None else self.activation(y)

    def __repr__(self) -> str:
        height, width, channels, filters = self.kernel.shape
        return f"Conv2D({self.name!r}: {channels} -> {filters}, {height} x {width})"
