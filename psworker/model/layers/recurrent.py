"""Recurrent layers: each is one op over all steps with its own backward pass, instead of some ten ops per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pswire.specs.initializers import Initializer
from pswire.tensors.sums import add_over
from psworker.autodiff import Tensor, op, ops
from psworker.autodiff.ops.elementwise.activations import logistic
from psworker.autodiff.tape import Result, float16_in_float32
from psworker.autodiff.tensor import Array, TensorLike, Vjp, as_array
from psworker.model.layers.layer import GLOROT_UNIFORM, ZEROS, Layer, as_input, initial_value
from psworker.model.variables import Variable

# The gradients of x @ kernel, of h @ recurrent_kernel and of the state (without the path over that product).
StepGradients: TypeAlias = tuple[Array, Array, Array]
Step: TypeAlias = Callable[[Array, Array, Array], tuple[Array, Callable[[Array], StepGradients]]]


class _Recurrent(Layer):
    """A recurrent layer: its variables, and the call of the op; `_gates` and `_states` are arrays per unit."""

    _gates: int
    _states: int

    def _create(
        self,
        name: str | None,
        sizes: tuple[int, int],
        initializers: dict[str, Initializer],
        returns: tuple[bool, bool],
        forget_bias: float = 0,
    ) -> None:
        """Creates the variables, all values first: a variable that is registered cannot be withdrawn.

        `initializers`: by name of the variable. `forget_bias` is added to the initial bias of the second gate.
        """
        inputs, units = sizes
        width = self._gates * units
        shapes = {"kernel": (inputs, width), "recurrent_kernel": (units, width)}
        self.return_sequences, self.return_state = returns
        with self.scope(name):
            values = {
                part: initial_value(part, shapes.get(part, (width,)), initializer)
                for part, initializer in initializers.items()
            }
            if forget_bias and "bias" in values:
                second = np.arange(width) // units == 1
                values["bias"] = values["bias"] + second.astype(values["bias"].dtype) * forget_bias
            made = {part: Variable(value, name=part) for part, value in values.items()}
        self.kernel, self.recurrent_kernel = made["kernel"], made["recurrent_kernel"]
        self.bias, self.recurrent_bias = made.get("bias"), made.get("recurrent_bias")

    @property
    def units(self) -> int:
        """The size of the state."""
        return self.recurrent_kernel.shape[0]

    def _run(self, step: Step, x: TensorLike, initial_state: TensorLike | None, lengths: TensorLike | None) -> Tensor:
        """The states (batch, 1 + time, states * units), the first of which is the initial one."""
        x = as_input(self, x, self.kernel, "batch", "time", self.kernel.shape[0])
        batch, time, _ = np.shape(x)
        shape = batch, self._states * self.units
        initial = ops.zeros(shape, self.kernel.dtype) if initial_state is None else initial_state
        if np.shape(initial) != shape:
            raise ValueError(f"{self}: the initial state must have shape {shape}, but its shape is {np.shape(initial)}")
        projected = ops.matmul(x, self.kernel)
        if self.bias is not None:
            projected = projected + self.bias
        steps = None if lengths is None else _checked_lengths(self, lengths, batch, time)
        kernel, bias = self.recurrent_kernel, self.recurrent_bias
        return _recurrence(projected, kernel, bias, initial, step=step, lengths=steps)  # type: ignore[arg-type]

    def _sequence_or_last(self, outputs: Tensor) -> Tensor:
        return outputs[:, 1:] if self.return_sequences else outputs[:, -1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.kernel.shape[0]} -> {self.units})"


class GRU(_Recurrent):
    """A gated recurrent unit over sequences, batch first, in the form of cuDNN and PyTorch.

        last = nn.GRU(64, 128)(words)                              # (batch, time, 64) -> (batch, 128)
        all_of_them = nn.GRU(64, 128, return_sequences=True)(words)     # (batch, time, 64) -> (batch, time, 128)

    With W, U, b and c the parts of `kernel`, `recurrent_kernel`, `bias` and `recurrent_bias` for each gate:

        r = sigmoid(x W_r + b_r + h U_r + c_r)
        z = sigmoid(x W_z + b_z + h U_z + c_z)
        n = tanh(x W_n + b_n + r * (h U_n + c_n))
        h <- (1 - z) * n + z * h

    Source: K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
    Translation", EMNLP 2014, equations 5 to 8, where r multiplies h before U_n; this form is that of
    `torch.nn.GRU` and of Keras with reset_after=True.

    Args:
        inputs, units: size of the last axis of x, and of the state.
        return_sequences: whether to return the outputs of all steps, as in Keras, instead of the last one.
        return_state: whether to return a pair, with the last state.
        bias: whether to add biases.
        kernel_initializer, recurrent_initializer, bias_initializer: by default `glorot_uniform()` for both kernels, and
            `zeros()`.

    Variables, gates in the order r, z, n: `kernel`, (inputs, 3 * units); `recurrent_kernel`, (units, 3 * units);
    `bias` and `recurrent_bias`, (3 * units,).
    """

    _gates, _states = 3, 1

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        return_sequences: bool = False,
        return_state: bool = False,
        bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        recurrent_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        initializers = {"kernel": kernel_initializer, "recurrent_kernel": recurrent_initializer}
        if bias:
            initializers |= {"bias": bias_initializer, "recurrent_bias": bias_initializer}
        self._create(name, (inputs, units), initializers, (return_sequences, return_state))

    def __call__(
        self, x: TensorLike, initial_state: TensorLike | None = None, lengths: TensorLike | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map x (batch, time, inputs) to the last output (batch, units), or to all (batch, time, units).

        Args:
            x: the sequences.
            initial_state: (batch, units), by default zeros.
            lengths: the number of steps of each sequence, integers (batch,) from 0 to time; by default all. The steps
                after them leave the state, and the output, as it is.

        Returns the outputs, or with `return_state` the pair (outputs, state), the state (batch, units). ValueError for
        other shapes or lengths out of range, TypeError for lengths that are not integers.
        """
        states = self._run(_gru_step, x, initial_state, lengths)
        outputs = self._sequence_or_last(states)
        return (outputs, states[:, -1]) if self.return_state else outputs


class LSTM(_Recurrent):
    """A long short-term memory with a forget gate, over sequences, batch first.

        last = nn.LSTM(64, 128)(words)                             # (batch, time, 64) -> (batch, 128)
        outputs, (h, c) = nn.LSTM(64, 128, return_state=True)(words)

    With W, U and b the parts of `kernel`, `recurrent_kernel` and `bias` for each gate:

        i = sigmoid(x W_i + h U_i + b_i)
        f = sigmoid(x W_f + h U_f + b_f)
        g = tanh(x W_g + h U_g + b_g)
        o = sigmoid(x W_o + h U_o + b_o)
        c <- f * c + i * g
        h <- o * tanh(c)

    Sources: S. Hochreiter, J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997; F. Gers, J.
    Schmidhuber, F. Cummins, "Learning to Forget", Neural Computation 12(10), 2000, for the forget gate; R. Jozefowicz,
    W. Zaremba, I. Sutskever, "An Empirical Exploration of Recurrent Network Architectures", ICML 2015, for its bias.

    Args:
        inputs, units, return_sequences, return_state, bias: as in `GRU`.
        unit_forget_bias: whether 1 is added to the initial bias of the forget gate.
        kernel_initializer, recurrent_initializer, bias_initializer: as in `GRU`.

    Variables, gates in the order i, f, g, o: `kernel`, (inputs, 4 * units); `recurrent_kernel`, (units, 4 * units);
    `bias`, (4 * units,), the sum of the two that PyTorch has.
    """

    _gates, _states = 4, 2

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        return_sequences: bool = False,
        return_state: bool = False,
        bias: bool = True,
        unit_forget_bias: bool = True,
        kernel_initializer: Initializer = GLOROT_UNIFORM,
        recurrent_initializer: Initializer = GLOROT_UNIFORM,
        bias_initializer: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        initializers = {"kernel": kernel_initializer, "recurrent_kernel": recurrent_initializer}
        if bias:
            initializers["bias"] = bias_initializer
        self._create(name, (inputs, units), initializers, (return_sequences, return_state), float(unit_forget_bias))

    def __call__(
        self,
        x: TensorLike,
        initial_state: tuple[TensorLike, TensorLike] | None = None,
        lengths: TensorLike | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Map x (batch, time, inputs) to the last output (batch, units), or to all (batch, time, units).

        Arguments, result and errors as of a `GRU`, but a state is a pair (h, c), each (batch, units).
        """
        initial = None if initial_state is None else ops.concatenate(initial_state, axis=-1)
        states = self._run(_lstm_step, x, initial, lengths)
        outputs = self._sequence_or_last(states[..., : self.units])
        if not self.return_state:
            return outputs
        return outputs, (states[:, -1, : self.units], states[:, -1, self.units :])


def _checked_lengths(layer: Layer, lengths: TensorLike, batch: int, time: int) -> Array:
    found = as_array(lengths)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{layer}: lengths must be integers, but they are {found.dtype}")
    if found.shape != (batch,) or np.any(found < 0) or np.any(found > time):
        raise ValueError(f"{layer}: lengths must have shape ({batch},) and be in 0 ... {time}, but they are {found}")
    return found


def _gru_step(x: Array, product: Array, h: Array) -> tuple[Array, Callable[[Array], StepGradients]]:
    """One step: x and the product of h, (batch, 3 * units), and h (batch, units) -> the next h; gradients of all."""
    units = h.shape[1]
    gates = logistic(x[:, : 2 * units] + product[:, : 2 * units])
    r, z = gates[:, :units], gates[:, units:]
    candidate = product[:, 2 * units :]
    n = np.tanh(x[:, 2 * units :] + r * candidate)

    def gradients(g: Array) -> StepGradients:
        of_n = g * (1 - z) * (1 - n * n)
        of_r = of_n * candidate * r * (1 - r)
        of_z = g * (h - n) * z * (1 - z)
        return np.concatenate([of_r, of_z, of_n], 1), np.concatenate([of_r, of_z, of_n * r], 1), g * z

    return n + z * (h - n), gradients


def _lstm_step(x: Array, product: Array, state: Array) -> tuple[Array, Callable[[Array], StepGradients]]:
    """One step: x and the product of h, (batch, 4 * units), and h and c (batch, 2 * units) -> the next; gradients."""
    units = state.shape[1] // 2
    total = x + product
    gates = logistic(total)
    i, f, o = gates[:, :units], gates[:, units : 2 * units], gates[:, 3 * units :]
    c, g = state[:, units:], np.tanh(total[:, 2 * units : 3 * units])
    new_c = f * c + i * g
    squashed = np.tanh(new_c)

    def gradients(of_state: Array) -> StepGradients:
        of_h = of_state[:, :units]
        of_c = of_state[:, units:] + of_h * o * (1 - squashed * squashed)
        parts = of_c * g * i * (1 - i), of_c * c * f * (1 - f), of_c * i * (1 - g * g), of_h * squashed * o * (1 - o)
        of_total = np.concatenate(parts, 1)
        return of_total, of_total, np.concatenate([np.zeros_like(of_h), of_c * f], 1)

    return np.concatenate([o * squashed, new_c], 1), gradients


@op
@float16_in_float32
def _recurrence(
    x: Array, kernel: Array, bias: Array | None, initial: Array, /, step: Step, lengths: Array | None
) -> Result:
    """The states (batch, 1 + time, n), the first `initial` (batch, n), of steps with x (batch, time, m) and h.

    h, (batch, units), is the first part of a state; each step takes h @ kernel + bias, (batch, m). Steps after the
    length of a sequence keep its state. Backpropagation through time: R. Williams, D. Zipser, 1995.
    """
    units = len(kernel)
    states = np.empty((len(x), 1 + x.shape[1], initial.shape[1]), x.dtype)
    states[:, 0] = initial
    backward: list[Callable[[Array], StepGradients]] = []
    for t in range(x.shape[1]):
        product = states[:, t, :units] @ kernel
        if bias is not None:
            product += bias
        new, vjp = step(x[:, t], product, states[:, t])
        backward.append(vjp)
        states[:, t + 1] = new if lengths is None else np.where(_active(lengths, t), new, states[:, t])

    def gradients(g: Array) -> Sequence[Array]:
        of_x, of_products, of_state = np.empty_like(x), np.empty_like(x), g[:, -1]
        for t in reversed(range(x.shape[1])):
            used = of_state if lengths is None else np.where(_active(lengths, t), of_state, 0)
            of_x[:, t], of_products[:, t], before = backward[t](used)
            before[:, :units] += of_products[:, t] @ kernel.T
            if lengths is not None:
                before += of_state - used
            of_state = before + g[:, t]
        products = of_products.reshape(-1, x.shape[2])
        h = states[:, :-1, :units].reshape(-1, units)
        return of_x, h.T @ products, add_over(products, 0), np.array(of_state)

    return states, _one_pass(gradients, 4)


def _active(lengths: Array, t: int) -> Array:
    return (t < lengths)[:, np.newaxis]


def _one_pass(gradients: Callable[[Array], Sequence[Array]], inputs: int) -> list[Vjp]:
    """The vjps of the inputs of an op from a function that gives all their gradients, called once for the same g.

    Each gradient is given away once, as the tape may write into it.
    """
    found: dict[int, Array] = {}
    given: list[Array] = []  # a copy of g

    def vjp(number: int) -> Vjp:
        def gradient(g: Array) -> Array:
            if number not in found or not np.array_equal(given[0], g):
                given[:] = [g.copy()]
                found.clear()
                found.update(enumerate(gradients(g)))
            return found.pop(number)

        return gradient

    return [vjp(number) for number in range(inputs)]
