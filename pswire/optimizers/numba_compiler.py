"""Compiles the loops of update rules with numba: one pass over each array. The only module that imports numba.

The loop of a rule is in the file of its optimizer (`_adam` in `adam.py`). It performs the same operations as the rule's
numpy code in the same order and precision, so the results are bit-identical (no `fastmath`): a cluster may mix machines
with and without numba.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pswire.tensors.values import Array

Slots: TypeAlias = tuple[Array, ...]
Numbers: TypeAlias = tuple[float, ...]
LoopFunction: TypeAlias = Callable[[Array, Array, Array, Slots, Numbers], None]

#: Whether rules made from now on use their loop. It affects speed only; results are bit-identical.
USE_NUMBA = True


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop in Python, to be compiled: `function(index, w, g, slots, numbers)`.

    w is (rows, width), and so are the slots; g is (n, width), read-only; index is (n,), rising. Row index[r] is updated
    with row r of g. A whole array is one row. `slots` and `numbers` are the lengths of these two arguments.
    """

    function: LoopFunction
    slots: int
    numbers: int


def loop(slots: int, numbers: int) -> Callable[[LoopFunction], Loop]:
    """Decorator that makes a `Loop` of a function."""
    return lambda function: Loop(function, slots, numbers)


@functools.cache
def machine_code(loop: Loop) -> LoopFunction | None:
    """The loop for float32 and float64, compiled now, so that no push waits for it; None without numba.

    The first call imports numba (seconds) and compiles (tenths of a second); the code is kept beside the loop's file,
    in the user's cache, or for this process only. Thread-safe. The code releases the interpreter's lock.
    """
    try:
        import numba
    except ImportError:
        return None
    types: Any = numba.types
    index, signatures = types.Array(types.intp, 1, "C", readonly=True), []
    for kind in (types.float32, types.float64):
        matrix, gradient = types.Array(kind, 2, "C"), types.Array(kind, 2, "C", readonly=True)
        slots, numbers = types.Tuple([matrix] * loop.slots), types.Tuple([kind] * loop.numbers)
        signatures.append(types.void(index, matrix, gradient, slots, numbers))
    compiled = functools.partial(numba.njit, signatures, nogil=True, error_model="numpy")
    code: LoopFunction
    try:
        code = compiled(cache=True)(loop.function)
    except (RuntimeError, OSError):  # numba cannot write its cache file
        code = compiled(cache=False)(loop.function)
    return code
