"""Gradients of functions, over the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psworker.autodiff.tape import differentiating, gradients
from psworker.autodiff.tensor import Gradient, Tensor


def value_and_grad(
    function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0
) -> Callable[..., tuple[float, Any]]:
    """A function that returns the value of `function` and its gradient, with the arguments of `function`.

        def loss(w, x):
            return ops.mean(ops.square(x @ w))

        value, gradient = value_and_grad(loss)(w, x)                       # for the first argument
        value, (of_w, of_x) = value_and_grad(loss, argnums=(0, 1))(w, x)

    Args:
        function: returns a tensor with one element.
        argnums: the positional argument, or several, that the gradient is for: arrays, numbers or tensors of floating
            point, such as variables.

    Returns:
        The value as a Python number, and the gradient as `gradients` returns it, of the argument's shape and dtype, or
        None if the value does not depend on it; a tuple of these for several.

    Raises:
        TypeError: `function` returns no Tensor, or an argument of `argnums` is not of floating point.
        ValueError: it returns several elements.
        IndexError: there is no such positional argument.
        RuntimeError: `function` computes gradients itself, with `value_and_grad` or `gradients`, of what depends on its
            arguments or on variables: there are no second derivatives.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def computed(*args: Any, **constants: Any) -> tuple[float, Gradient | tuple[Gradient | None, ...] | None]:  # noqa: ANN401
        given = list(args)
        for number in numbers:
            if not 0 <= number < len(given):
                raise IndexError(
                    f"value_and_grad: argnums has {number}, but there are {len(given)} positional arguments"
                )
            argument = given[number]
            if not (isinstance(argument, Tensor) and argument.requires_grad):
                given[number] = Tensor(argument.value if isinstance(argument, Tensor) else argument, requires_grad=True)
        with differentiating():
            y = function(*given, **constants)
        if not isinstance(y, Tensor):
            raise TypeError(f"value_and_grad: the function must return a Tensor made by ops, not {type(y).__name__}")
        if y.value.size != 1:
            raise ValueError(f"value_and_grad: the function returned shape {y.shape}: take its mean or its sum")
        found = gradients(y, [given[number] for number in numbers])
        return y.item(), found[0] if isinstance(argnums, int) else tuple(found)

    return computed
