"""The fully connected layer, and the base of all layers with a kernel, a bias and an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pswire.specs.initializers import Initializer
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import TensorLike
from psworker.familiar_names import shown
from psworker.model.collection import layer_scope
from psworker.model.layers.layer import GLOROT_UNIFORM, ZEROS, Layer, as_input, initial_value
from psworker.model.variables import Variable

Activation: TypeAlias = Callable[[Tensor], Tensor]


class Linear(Layer):
    """A layer with a kernel, a bias and an activation."""

    def _create(
        self,
        name: str | None,
        kind: str,
        shape: tuple[int, ...],
        initializers: tuple[Initializer, Initializer | None],
        activation: Activation | None,
        transposed: bool = False,
    ) -> None:
        """Creates the variables, both values first: a variable that is registered cannot be withdrawn.

        `shape`: of the kernel, its last two axes inputs and results, which are exchanged if `transposed`.
        """
        if activation is not None and not callable(activation):
            raise TypeError(
                f"{type(self).__name__}: activation must be a function of a tensor, such as ops.relu, or None, but it "
                f"is {shown(activation, 'ops')}"
            )
        self.activation = activation
        with layer_scope(name, kind) as self.name:
            kernel = initial_value("kernel", shape, initializers[0])
            bias = None if initializers[1] is None else initial_value("bias", shape[-1:], initializers[1])
            if transposed:
                kernel = np.ascontiguousarray(kernel.swapaxes(-1, -2))
            self.kernel = Variable(kernel, name="kernel")
            self.bias = None if bias is None else Variable(bias, name="bias")

    def _activated(self, y: Tensor) -> Tensor:
        return y if self.activation is None else self.activation(y)


class Dense(Linear):
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
        return self._activated(y)

    def __repr__(self) -> str:
        return f"Dense({self.name!r}: {self.kernel.shape[0]} -> {self.kernel.shape[1]})"
