"""The dtype that an op computes in where numpy's own choice would lose the numbers; nothing here is an op itself.

Two rules. Functions of real numbers (`exp`, `sigmoid`, `softmax`, ...) take integers and booleans for float32: numpy
makes float16 of the small ones, where exp(200) is infinite, and wraps -x around in unsigned ones. Whatever sums takes
float16 in float32 and gives float16 back: float16 ends at 65504, and counts by ones no further than 2048. Only numpy,
`pswire.tensors.sums` and the tape's types may be imported here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from pswire.tensors.sums import HALF
from psworker.autodiff.tape import Result
from psworker.autodiff.tensor import Array, Gradient, Vjp

P = ParamSpec("P")


def floating(x: Array) -> Array:
    """Integers and booleans as float32 of the same shape; floating point arrays and Python numbers as they are."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind in "iub" else x


def float16_in_float32(function: Callable[P, Result], as_first: bool = False) -> Callable[P, Result]:
    """For the function under `@op`: float16 tensors arrive as float32, and the tape rounds their gradients.

    The value is float16 if all floating point tensors are, or with `as_first` if the first is: x, which is normalised.
    Without float16 nothing changes.
    """
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    tensors = kinds.count(inspect.Parameter.POSITIONAL_ONLY)

    @functools.wraps(function)
    def widened(*args: P.args, **constants: P.kwargs) -> Result:
        if True not in [_is_half(x) for x in args[:tensors]]:
            return function(*args, **constants)
        wide: Any = (x.astype(np.float32) if _is_half(x) else x for x in args)  # type: ignore[attr-defined]
        value, vjps = function(*wide, **constants)
        deciding = args[:1] if as_first else args[:tensors]
        half = all(_is_half(x) for x in deciding if isinstance(x, np.ndarray) and x.dtype.kind == "f")
        return value.astype(HALF) if half else value, [_of_float32(vjp) for vjp in vjps]

    return widened


def _is_half(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.char == "e"


def _of_float32(vjp: Vjp) -> Vjp:
    """The vjp, given its g in float32; the tape casts what comes out to the operand's dtype."""

    def gradient(g: Array) -> Gradient:
        return vjp(g.astype(np.float32))

    return gradient
