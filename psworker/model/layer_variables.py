"""What layers share: the variables that they make in their scope, and the dtype that they compute in.

A layer is a class in `nn` or beside it. May import the engine, variables and initializers.
"""

from __future__ import annotations

import numpy as np

from pswire.tensors.values import Array
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import TensorLike, as_array
from psworker.model.initializers import Initializer
from psworker.model.variables import Variable, random_for


def new_variable(name: str, shape: tuple[int, ...], initializer: Initializer, trainable: bool = True) -> Variable:
    """A variable in the current scope, drawn by its initializer; raises what `drawn` and `Variable` raise."""
    return Variable(drawn(name, shape, initializer), name=name, trainable=trainable)


def drawn(name: str, shape: tuple[int, ...], initializer: Initializer) -> Array:
    """The first value of the variable `name` of the current scope, float32 unless the initializer makes float16.

    Raises:
        TypeError: a size is no integer, or what the initializer makes is not of floating point.
        ValueError: it makes another shape.
    """
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise TypeError(f"{name}: the sizes of its shape must be integers, but they are {shape}")
    try:
        value = np.asarray(initializer(shape, random_for(name)))
    except TypeError as error:
        raise TypeError(
            f"{name}: an initializer is called as initializer(shape, generator), such as what he_normal() returns "
            f"(with its brackets), but {initializer!r} fails: {error}"
        ) from error
    if value.shape != shape:
        raise ValueError(f"{name}: its initializer made an array of shape {value.shape} instead of {shape}")
    if value.dtype.kind != "f":
        raise TypeError(f"{name}: its initializer made an array of {value.dtype} instead of float32")
    return value.astype(np.float32) if value.dtype == np.float64 else value


def scope_of(variable: Variable) -> str:
    """The full scope that a variable is in."""
    return variable.name.rpartition("/")[0]


def as_input(layer: object, x: TensorLike, variable: Variable, *axes: str | int) -> TensorLike:
    """What the layer computes with: x, cast to the dtype of its variable if it has another.

    "..." as the first of the axes stands for any number. Raises ValueError unless x has these axes, TypeError unless
    it is of real numbers.
    """
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
