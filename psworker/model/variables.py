"""Variables, and their initial values. May import the engine; a session registers them with servers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pswire.errors import ShapeMismatch
from pswire.specs.initializers import Initializer
from pswire.tensors.values import Array
from psworker.autodiff import Tensor
from psworker.autodiff.tensor import TensorLike
from psworker.familiar_names import hint_arguments
from psworker.model.base_variable import BaseVariable, as_assigned, set_value
from psworker.model.collection import context, random_for
from psworker.versions import ReadVersion

__all__ = ["Variable"]


class Variable(BaseVariable):
    """A named array that is trained, and kept by servers while a session is open.

        W = Variable(ops.zeros((784, 10)), name="W")
        V = Variable(initializers.he_normal(), shape=(784, 10), name="V")

    Args:
        value: the initial value, of any shape; copied. Python numbers and lists of them become float32; bools and
            arrays keep their dtype. Or an initializer, a function of a shape and a generator, which is seeded by
            `set_random_seed` and the full name as for layers. A server that already has the variable replaces this by
            its own value.
        name: unique in its collection, and the same in every worker; prefixed by the current scope. By default
            `variable`, `variable_1`, ... In an interactive interpreter a variable replaces an earlier one of its name,
            unless a session is open; results computed with the earlier one have no gradient then.
        trainable: whether `compute_gradients` includes it by default; only floating point can be trainable, and
            nothing in a scope that is not. A variable of another dtype is logged unless this is False.
        shape: of the value that an initializer makes; None for any other value.

    Attributes:
        value: the last value from the servers, read-only; `assign` changes it. AttributeError if it is set.

    Raises:
        ConfigurationError: the name is taken, or the dtype cannot be sent.
        TypeError: an initializer without a shape or the reverse, or one that fails or does not make floating point.
        ValueError: an initializer makes another shape.
    """

    __slots__ = ()

    def __init__(
        self,
        value: TensorLike | Initializer,
        name: str | None = None,
        trainable: bool = True,
        *,
        shape: Sequence[int] | None = None,
    ) -> None:
        if callable(value):
            if name is None:
                name = context.collection.free_name().removeprefix(context.collection.scope)
            value = initialized(name, shape, value)
        elif shape is not None:
            raise TypeError(
                f"Variable: shape={shape!r} is for an initializer such as psworker.initializers.zeros(), and the value "
                f"is {type(value).__name__}: leave shape out"
            )
        array = np.array(value.value if isinstance(value, Tensor) else value)
        if array.dtype.kind in "iuf" and not isinstance(value, Tensor | np.ndarray | np.generic):
            array = array.astype(np.float32)
        array.flags.writeable = False
        set_value(self, array)
        context.collection.enter(self, name, trainable)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "value":
            raise AttributeError(
                f"the value of {self.name!r} cannot be set, since the next pull would replace it: use "
                "variable.assign(value), which sets it on the servers too"
            )
        if name == "requires_grad":
            raise AttributeError(
                f"whether {self.name!r} has a gradient cannot be set: make it with trainable=False, or freeze the "
                "layer by layer.trainable = False"
            )
        super().__setattr__(name, value)

    def assign(self, value: TensorLike) -> None:
        """Sets the value, on the servers and here; without a session only here, as the initial value of the next one.

            W.assign(np.zeros(W.shape))

        Raises:
            ShapeMismatch: `value`, an array, a number or a tensor, does not have the variable's shape.
            TypeError: it would lose its fraction, or its sign.
            NotFinite: it has NaN or infinity, in a session.
            ConfigurationError: the variable belongs to another thread or collection.
        """
        self._assign(value, add=False)

    def assign_add(self, value: TensorLike) -> None:
        """Adds to the present value on the servers, which may be newer than the one here; otherwise as `assign`."""
        self._assign(value, add=True)

    def _assign(self, value: TensorLike, *, add: bool) -> None:
        here = context.collection
        here.check_member(self)
        if here.session is not None:
            here.session.assign_all({self: value}, add=add)
            return
        array = as_assigned(self, value)
        if array.shape != self.shape:
            raise ShapeMismatch(
                f"assigned value for {self.name!r} is {array.dtype}{list(array.shape)}, the variable is "
                f"{self.dtype}{list(self.shape)}"
            )
        array = np.array(self.value + array if add else array, self.dtype)
        array.flags.writeable = False
        set_value(self, array)
        self.read = ReadVersion()


hint_arguments([Variable])


def initialized(name: str, shape: Sequence[int] | None, initializer: Initializer) -> Array:
    """The initial value of the variable `name` of the current scope. Raises as `Variable` does."""
    what = f"variable {context.collection.scope + name!r}"
    if shape is None:
        raise TypeError(f"{what}: an initializer needs a shape: Variable(initializer, shape=(784, 10))")
    if isinstance(shape, int) or not all(isinstance(size, int | np.integer) for size in shape):
        raise TypeError(f"{what}: shape must be a tuple of integers, got {shape!r}")
    sizes = tuple(shape)
    try:
        value = np.asarray(initializer(sizes, random_for(name)))
    except TypeError as error:
        raise TypeError(
            f"{what}: an initializer is called as initializer(shape, generator), such as the result of he_normal() "
            f"(with parentheses), but {initializer!r} fails: {error}"
        ) from error
    if value.shape != sizes:
        raise ValueError(f"{what}: its initializer returned an array of shape {value.shape} instead of {sizes}")
    if value.dtype.kind != "f":
        raise TypeError(f"{what}: its initializer returned {value.dtype} instead of floating point")
    return value
