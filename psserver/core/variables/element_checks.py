"""Checks of arrays in messages: shape and dtype, and, in one pass over the elements, that each is finite."""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from psserver.core.variables.variable import Variable
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch
from pswire.messages import Assign, Message, Pull, Push, Register
from pswire.optimizers import OptimizerSpec
from pswire.specs.gradient_norm import GradientNormLimit
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices, TensorSpec, magnitude, not_finite

#: Elements whose squares are added up at a time.
_STRETCH = 1 << 16

#: What elements are multiplied by when the sum of their squares overflows.
_SMALL = 2.0**-600

#: What to do about a gradient that is not finite; clipping does not remove NaN.
_HINT = (
    "; look for NaN in the examples, and in the loss for log(0) and divisions by 0; if the loss had grown before, "
    "lower the learning rate"
)

#: Upper bounds of the magnitudes of the elements in an inspected message, by variable name.
Magnitudes: TypeAlias = Mapping[str, float]


def check_tensor(spec: TensorSpec, array: Array | IndexedSlices | Packed, what: str) -> None:
    """Raise `ShapeMismatch` unless `array`, or the array of which it has rows, has the spec's shape and dtype."""
    if not spec.matches(array):
        raise ShapeMismatch(
            f"{what} for {spec.name!r} is {array.dtype.name}{list(array.shape)}, "
            f"the variable is {spec.dtype}{list(spec.shape)}"
        )


class Inspection(NamedTuple):
    """Magnitudes and bytes of the arrays in a message that was inspected, each gradient multiplied by the `factor`.

    If there is a limit: `norm` is that of all gradients together, before that, and `clipped` says why they are scaled.
    """

    magnitudes: Magnitudes
    nbytes: int
    norm: float = 0.0
    factor: float = 1.0
    clipped: str = ""


def inspect(variables: Mapping[str, Variable], message: Message, limit: GradientNormLimit | None = None) -> Inspection:
    """Look at every element of a message that has been checked otherwise; with a `limit`, at the norm of a push, too.

    Raises `NotFinite`, or `InvalidMessage` for a row that is not within its variable or a malformed packed array.
    """
    magnitudes, nbytes = {}, 0
    match message:
        case Push():
            for gradient in message.gradients:
                name, array = gradient.name, gradient.array
                found = magnitude(array) if isinstance(array, np.ndarray) else math.nan
                if not math.isfinite(found):
                    found = _inspect_gradient(variables[name], array)
                magnitudes[name] = found
                nbytes += array.nbytes
        case Pull():
            for choice in message.choices:
                if choice.rows is not None:
                    rows, most = choice.rows, variables[choice.name].spec.shape[0]
                    if rows.size and not 0 <= rows.min() <= rows.max() < most:
                        allowed, span = f"0 ... {most - 1}", f"{rows.min()} ... {rows.max()}"
                        raise InvalidMessage(f"rows of {choice.name!r} must be in {allowed}, but they span {span}")
                    nbytes += rows.nbytes
        case Assign():
            for one in message.assignments:
                if message.portions is None:  # the gradient at a point may be infinite, or no number, as its loss
                    magnitudes[one.name] = check_finite(one.name, one.array, "assigned value")
                nbytes += one.array.nbytes
        case Register():
            for declared in message.declarations:
                if declared.value is not None:
                    name = declared.spec.name
                    magnitudes[name] = check_finite(name, declared.value, "initial value")
                    nbytes += declared.value.nbytes
    if limit is None or not isinstance(message, Push):
        return Inspection(magnitudes, nbytes)
    norm = norm_of_gradients(variables, message)
    if (factor := limit.factor(norm)) == 1.0:
        return Inspection(magnitudes, nbytes, norm)
    for name in magnitudes:
        if is_gradient(variables[name]):
            magnitudes[name] *= factor
    clipped = f"--max-gradient-norm {limit}: the norm of its gradients was {norm:.6g}"
    return Inspection(magnitudes, nbytes, norm, factor, clipped)


def norm_of_gradients(variables: Mapping[str, Variable], push: Push) -> float:
    """The L2 norm of all gradients of a push together, in float64; infinite beyond it. Observed values are none.

    Rows with equal indices are added up first, and packed elements are those that they stand for.
    """
    gradients = [one.array for one in push.gradients if is_gradient(variables[one.name])]
    total = math.sqrt(sum([_squares(one, 1.0) for one in gradients]))
    if math.isfinite(total):
        return total
    return math.sqrt(sum([_squares(one, _SMALL) for one in gradients])) / _SMALL


def is_gradient(variable: Variable) -> bool:
    """Whether what is pushed to a variable is a gradient, and not an observed value."""
    return isinstance(variable.optimizer, OptimizerSpec)


@np.errstate(all="ignore")
def _squares(array: Array | IndexedSlices | Packed, factor: float) -> float:
    """The sum of the squares of all elements times `factor`."""
    if isinstance(array, IndexedSlices):
        rows = unpacked(array)
        assert isinstance(rows, IndexedSlices), "rows stay rows"
        array = rows.astype(np.float64).summed().values
    flat = array if isinstance(array, Packed) else array.reshape(-1)
    total = 0.0
    for start in range(0, array.size, _STRETCH):
        stop = min(start + _STRETCH, array.size)
        stretch = flat.elements(start, stop) if isinstance(flat, Packed) else flat[start:stop]
        stretch = stretch.astype(np.float64) * factor
        total += float(np.vdot(stretch, stretch))
    return total


def _inspect_gradient(variable: Variable, array: Array | IndexedSlices | Packed) -> float:
    """The magnitude of a gradient; for rows, a bound for the sum of any of them."""
    name, factor = variable.spec.name, 1.0
    assert variable.optimizer is not None, "the message was not checked"
    what = variable.optimizer.pushed_noun
    if isinstance(array, IndexedSlices):
        try:
            array.check_indices()
        except ValueError as error:
            raise InvalidMessage(f"{what} for {name!r}: {error}") from None
        factor = math.sqrt(len(array.indices))  # the Cauchy-Schwarz inequality
        array = array.values
    return factor * check_finite(name, array, what)


def check_finite(name: str, array: Array | Packed, what: str) -> float:
    """The magnitude of an array. Raises `NotFinite`, or `InvalidMessage` if it is packed and malformed."""
    if isinstance(array, Packed):
        try:
            return array.check()
        except FloatingPointError as error:
            raise _not_finite(name, what, str(error)) from None
        except ValueError as error:
            raise InvalidMessage(f"{what} for {name!r} has {error}") from None
    found = magnitude(array)
    if not math.isfinite(found):
        bad = not_finite(array)
        if bad:
            raise _not_finite(name, what, f"{bad:,} of {array.size:,} elements that are NaN or infinite")
    return found


def _not_finite(name: str, what: str, fault: str) -> NotFinite:
    return NotFinite(f"{what} for {name!r} has {fault}: nothing was changed{_HINT if what == 'gradient' else ''}")
