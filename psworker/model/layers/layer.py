"""The base of all layers, initial values of their variables, and the check of their input.

No layer that computes is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from pswire.specs import initializers
from pswire.specs.initializers import Initializer
from pswire.tensors.values import Array
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import Node, TensorLike, as_array
from psworker.familiar_names import LAYER, hint_attributes
from psworker.model.base_variable import BaseVariable
from psworker.model.collection import layer_scope
from psworker.model.variables import Variable, initialized

ZEROS = initializers.zeros()
ONES = initializers.ones()
GLOROT_UNIFORM = initializers.glorot_uniform()


class Layer:
    """The base of all layers, and of a program's own compositions of them.

        class Residual(nn.Layer):
            def __init__(self, width, *, name=None):
                with self.scope(name):                          # residual, residual_1, ...
                    self.inner = nn.Dense(width, width)         # residual/dense/kernel, .../bias

            def __call__(self, x):
                return x + ops.relu(self.inner(x))

    The variables and layers of a layer are its attributes, and the elements of lists, tuples and dicts that are; those
    that only a function (a lambda, `functools.partial`) refers to are not found.

    Attributes:
        name: the full scope of its variables; empty for a layer without a scope.
    """

    name: str = ""
    _frozen: tuple[BaseVariable, ...] = ()

    @contextmanager
    def scope(self, name: str | None = None) -> Iterator[None]:
        """The scope of the variables made in a `with` block: `name`, or the class's name in lower case, and a count.

        Sets the attribute `name`. If the block raises, the variables made in it are removed.
        """
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__)
        with layer_scope(name, words.strip("_").lower()) as self.name:
            yield

    @property
    def variables(self) -> list[BaseVariable]:
        """Its variables and tables and those of its layers, each once, in the order in which attributes were set."""
        return [part for part in _parts(self, set()) if isinstance(part, BaseVariable)]

    @property
    def trainable_variables(self) -> list[BaseVariable]:
        """The `variables` that are trained by default."""
        return [variable for variable in self.variables if variable.trainable]

    @property
    def trainable(self) -> bool:
        """True if any of its variables is trained by default.

        `layer.trainable = False` freezes all of them, in this process, and `True` makes those trainable again that
        were frozen so, here or in a layer of this one. Others, such as moving averages, remain as they were made. A
        frozen variable gets no gradient; `BatchNorm` called with training=True still moves its averages.
        """
        return any(variable.trainable for variable in self.variables)

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        layers = [part for part in _parts(self, set()) if isinstance(part, Layer)]
        if trainable:
            changed = [variable for layer in layers for variable in layer._frozen]
        else:
            changed = self.trainable_variables
        for layer in layers:  # each remembers its own: it may be made trainable without the others
            layer._frozen = () if trainable else (*layer._frozen, *layer.trainable_variables)
        for variable in changed:
            if variable.trainable != trainable:
                variable.trainable = trainable
                variable._node = Node(variable) if trainable else None

    if not TYPE_CHECKING:  # a subclass declares its arguments

        def __call__(self, *args: object, **keywords: object) -> NoReturn:  # noqa: D102 - of no layer
            raise TypeError(
                f"{type(self).__name__} cannot be called: a layer computes in its method __call__ (PyTorch's forward, "
                "Keras's call)"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.name) if self.name else ''})"


hint_attributes(Layer, LAYER)


def _parts(part: object, seen: set[int]) -> Iterator[Layer | BaseVariable]:
    """The layer or variable itself, then all in its attributes or elements, depth first, each once."""
    if isinstance(part, Layer):
        inside = [value for name, value in vars(part).items() if name != "_frozen"]
    elif isinstance(part, list | tuple | dict):
        inside = list(part.values() if isinstance(part, dict) else part)
    else:
        inside = []
    if id(part) in seen:
        return
    if isinstance(part, Layer | BaseVariable):
        seen.add(id(part))
        yield part
    elif inside:
        seen.add(id(part))  # a list may contain itself
    for one in inside:
        yield from _parts(one, seen)


def new_variable(name: str, shape: tuple[int, ...], initializer: Initializer, trainable: bool = True) -> Variable:
    """A variable of the current scope with its initial value."""
    return Variable(initial_value(name, shape, initializer), name=name, trainable=trainable)


def initial_value(name: str, shape: tuple[int, ...], initializer: Initializer) -> Array:
    """Initial value of the variable `name` of the current scope: float32, or float16 if the initializer returns it."""
    value = initialized(name, shape, initializer)
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
        hint = " (number words for nn.Embedding: docs/data.md, CSV files)" if array.dtype.kind in "USOT" else ""
        raise TypeError(f"{layer}: x must be of real numbers, but its dtype is {array.dtype}{hint}")
    if not isinstance(x, Tensor):
        return array.astype(variable.dtype)
    cast: Tensor = ops.cast(x, variable.dtype)  # type: ignore[no-untyped-call]  # a DTypeLike fits two overloads of op
    return cast
