"""Dtype rules of ops where numpy's own choice would lose values.

Functions of real numbers (`exp`, `softmax`, ...) convert integers and booleans to float32: numpy converts small
integers to float16, where exp(200) is infinite, and negation of unsigned integers wraps around. Ops that sum compute
float16 in float32: float16 overflows at 65504, and a running count in it stalls at 2048.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from pswire.tensors.sums import HALF
from psworker.autodiff.tape import Result
from psworker.autodiff.tensor import Array, Vjp

P = ParamSpec("P")


def floating(x: Array) -> Array:
    """Integers and booleans as float32; floating-point arrays and Python numbers unchanged."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind in "iub" else x


def float16_in_float32(function: Callable[P, Result], as_first: bool = False) -> Callable[P, Result]:
    """Decorate a function under `@op` to compute float16 tensors in float32; other dtypes pass through.

    The result is float16 if all floating-point tensors are, or with `as_first` if the first is.
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
    """The vjp called with a float32 `g`; the tape casts its result to the operand's dtype."""
    return lambda g: vjp(g.astype(np.float32))
