"""The base of all layers, initial values of their variables, and the check of their input.

No layer that computes is here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np

from pswire.specs import initializers
from pswire.specs.initializers import Initializer
from pswire.tensors.values import Array
from psworker.autodiff import Tensor, no_grad, ops
from psworker.autodiff.tensor import Node, TensorLike, as_array
from psworker.familiar_names import LAYER, hint_attributes
from psworker.model.base_variable import BaseVariable
from psworker.model.collection import layer_scope
from psworker.model.layers.model_summary import LayerSummary, ModelSummary
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

    def summary(self, *inputs: TensorLike, **constants: Any) -> ModelSummary:  # noqa: ANN401 - of any type
        """Its layers with the shapes of their results, parameters, bytes, and where these are; a table when printed.

            model = nn.Sequential(nn.Dense(784, 128), ops.relu, nn.Dense(128, 10))
            print(model.summary((32, 784)))

        With inputs it is called with them once, without a tape, and layers that differ in training with training=False.
        A layer that is called several times has the last shape.

        Args:
            inputs: what it is called with: examples, or a tuple of sizes for zeros of float32 of this shape. Without
                any, or of a layer that is not called, the shapes of results are unknown.
            constants: further arguments of the call.

        Returns:
            An object with `parameters`, `trainable_parameters`, `nbytes` of all variables, `worker_nbytes` of those
            that each worker has, and `layers`: of each its `name`, `kind`, `depth`, `output` (a shape, or a tuple of
            these), own `variables`, `parameters`, `nbytes` and `where`. Bytes are without the slots of an optimizer.

        Raises what the call raises, as for inputs of another shape or type: ids of rows need an example.
        """
        outputs: dict[int, tuple[Any, ...] | None] = {}
        if inputs:
            layers = [part for part in _parts(self, set()) if isinstance(part, Layer)]
            given = [np.zeros(one, np.float32) if _is_shape(one) else one for one in inputs]
            call: Any = self
            if "training" in inspect.signature(call).parameters:
                constants.setdefault("training", False)
            with _results_noted(layers, outputs), no_grad():
                call(*given, **constants)
        return ModelSummary(tuple(_summaries(self, 0, {id(self)}, outputs)))

    if not TYPE_CHECKING:  # a subclass declares its arguments

        def __call__(self, *args: object, **keywords: object) -> NoReturn:  # noqa: D102 - of no layer
            raise TypeError(
                f"{type(self).__name__} cannot be called: a layer computes in its method __call__ (PyTorch's forward, "
                "Keras's call)"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.name) if self.name else ''})"


hint_attributes(Layer, LAYER)


def _summaries(
    layer: Layer, depth: int, seen: set[int], outputs: Mapping[int, tuple[Any, ...] | None]
) -> Iterator[LayerSummary]:
    """The layer, then those in it, depth first, each once."""
    own, inner = [], []
    for one in _nearest(layer, seen):
        if isinstance(one, Layer):
            inner.append(one)
        else:
            own.append(one)
    yield LayerSummary(layer.name, type(layer).__name__, depth, outputs.get(id(layer)), tuple(own))
    for one in inner:
        yield from _summaries(one, depth + 1, seen, outputs)


def _is_shape(given: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(given, tuple) and all(isinstance(size, int) for size in given)


@contextmanager
def _results_noted(layers: Iterable[Layer], outputs: dict[int, tuple[Any, ...] | None]) -> Iterator[None]:
    """Within the block the result's shape of each call of a layer is noted, by its id; also of others of its class."""
    with ExitStack() as stack:
        for kind in {kind for layer in layers for kind in type(layer).__mro__ if "__call__" in vars(kind)}:
            stack.enter_context(_noted(kind, outputs))
        yield


@contextmanager
def _noted(kind: Any, outputs: dict[int, tuple[Any, ...] | None]) -> Iterator[None]:  # noqa: ANN401 - a class with a call
    call = kind.__call__

    @wraps(call)
    def noting(self: Layer, *args: object, **constants: object) -> object:
        result = call(self, *args, **constants)
        outputs[id(self)] = _shape(result)
        return result

    kind.__call__ = noting
    try:
        yield
    finally:
        kind.__call__ = call


def _shape(result: object) -> tuple[Any, ...] | None:
    """The shape of a tensor or an array, or those of several."""
    if isinstance(result, Tensor | np.ndarray):
        return result.shape
    return tuple([_shape(one) for one in result]) if isinstance(result, list | tuple) else None


def _nearest(part: object, seen: set[int]) -> Iterator[Layer | BaseVariable]:
    """The layers and variables of a layer, not those in its layers, each once."""
    for one in _inside(part):
        if id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, Layer | BaseVariable):
                yield one
            else:
                yield from _nearest(one, seen)


def _inside(part: object) -> list[object]:
    """The attributes of a layer, or the elements of a list, tuple or dict."""
    if isinstance(part, Layer):
        return [value for name, value in vars(part).items() if name != "_frozen"]
    if isinstance(part, list | tuple | dict):
        return list(part.values() if isinstance(part, dict) else part)
    return []


def _parts(part: object, seen: set[int]) -> Iterator[Layer | BaseVariable]:
    """The layer or variable itself, then all in its attributes or elements, depth first, each once."""
    inside = _inside(part)
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
