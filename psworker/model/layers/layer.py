"""Initial values of a layer's variables, and the check of its input. No layer is here."""

import numpy as np

from pswire.specs import initializers
from pswire.specs.initializers import Initializer
from pswire.tensors.values import Array
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import TensorLike, as_array
from psworker.model.variables import Variable, random_for

ZEROS = initializers.zeros()
ONES = initializers.ones()
GLOROT_UNIFORM = initializers.glorot_uniform()


def new_variable(name: str, shape: tuple[int, ...], initializer: Initializer, trainable: bool = True) -> Variable:
    """A variable of the current scope with its initial value."""
    return Variable(initial_value(name, shape, initializer), name=name, trainable=trainable)


def initial_value(name: str, shape: tuple[int, ...], initializer: Initializer) -> Array:
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


def as_input(layer: object, x: TensorLike, variable: Variable, *axes: str | int) -> TensorLike:
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
