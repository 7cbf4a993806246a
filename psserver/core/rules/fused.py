"""The update rules' fused loops: one pass over each array, compiled by numba. The only file that imports it.

Each does what the `block` of its rule does, operation by operation in the same order and precision, and may not use
what changes a bit of the result (no `fastmath`): which machine of a cluster has numba must not show in the weights.
May import numba and numpy. Without numba its import fails, and rules go on in numpy (`kernels.fused_loop`).

Every loop takes (index, w, g, slots, numbers): w (rows, width) and slots like it, g (n, width), read only, and
index (n,), rising; row index[r] is updated with row r of g. A whole array is one row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numba

from pswire.tensors.values import Array

Slots: TypeAlias = tuple[Array, ...]
Numbers: TypeAlias = tuple[float, ...]
_types: Any = numba.types


def gradient_descent(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`GradientDescentRule.block`."""
    (rate,) = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            w[i, j] -= g[r, j] * rate


def momentum(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`MomentumRule.block`, plain."""
    (m,) = slots
    momentum, rate = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * momentum + g[r, j]
            w[i, j] -= m[i, j] * rate


def nesterov(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`MomentumRule.block`, Nesterov's."""
    (m,) = slots
    momentum, rate = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * momentum + g[r, j]
            w[i, j] -= (m[i, j] * momentum + g[r, j]) * rate


def adagrad(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`AdagradRule.block`."""
    (a,) = slots
    rate, epsilon = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            a[i, j] += g[r, j] * g[r, j]
            w[i, j] -= g[r, j] / (math.sqrt(a[i, j]) + epsilon) * rate


def rmsprop(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`RMSPropRule.block`, neither centered nor with momentum."""
    (s,) = slots
    decay, rest, rate, epsilon = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            s[i, j] = s[i, j] * decay + g[r, j] * g[r, j] * rest
            w[i, j] -= g[r, j] / (math.sqrt(s[i, j]) + epsilon) * rate


def adam(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`AdamRule.block` without AMSGrad."""
    m, v = slots
    beta1, rest1, beta2, rest2, factor, epsilon, kept = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * beta1 + g[r, j] * rest1
            v[i, j] = v[i, j] * beta2 + g[r, j] * g[r, j] * rest2
            w[i, j] = w[i, j] * kept - m[i, j] / (math.sqrt(v[i, j]) + epsilon) * factor


def amsgrad(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`AdamRule.block` with AMSGrad."""
    m, v, v_max = slots
    beta1, rest1, beta2, rest2, factor, epsilon, kept = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * beta1 + g[r, j] * rest1
            now, before = v[i, j] * beta2 + g[r, j] * g[r, j] * rest2, v_max[i, j]
            largest = before if before >= now or before != before else now  # NaN, if one is: np.maximum
            v[i, j] = now
            v_max[i, j] = largest
            w[i, j] = w[i, j] * kept - m[i, j] / (math.sqrt(largest) + epsilon) * factor


def ftrl(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    """`FtrlRule.block` with a power of 0.5."""
    n, z = slots
    rate, l1, l2 = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            total = z[i, j] + math.sqrt(n[i, j]) * w[i, j]
            n[i, j] += g[r, j] * g[r, j]
            root = math.sqrt(n[i, j])
            total = total - w[i, j] * root + g[r, j] * rate
            z[i, j] = total
            w[i, j] = ((-l1 if total < -l1 else l1 if total > l1 else total) - total) / (root + l2)


#: The loops with the number of their slots and of their numbers.
LOOPS: dict[str, tuple[Callable[[Array, Array, Array, Slots, Numbers], None], int, int]] = {
    "gradient_descent": (gradient_descent, 0, 1),
    "momentum": (momentum, 1, 2),
    "nesterov": (nesterov, 1, 2),
    "adagrad": (adagrad, 1, 2),
    "rmsprop": (rmsprop, 1, 4),
    "adam": (adam, 2, 7),
    "amsgrad": (amsgrad, 3, 7),
    "ftrl": (ftrl, 2, 3),
}


@functools.cache
def compiled(name: str) -> Callable[..., None]:
    """The loop of this name as machine code for float32 and float64, made now, so that no push waits for it.

    Takes some tenths of a second the first time, which are kept in a file beside this one, or in the user's cache;
    where neither can be written, every process compiles for itself. Called, it releases the interpreter's lock.
    """
    loop, slots, numbers = LOOPS[name]
    signatures = [_signature(kind, slots, numbers) for kind in (_types.float32, _types.float64)]
    try:
        return _machine_code(loop, signatures, cache=True)
    except (RuntimeError, OSError):  # numba's words for: no place to keep it
        return _machine_code(loop, signatures, cache=False)


def _signature(kind: Any, slots: int, numbers: int) -> Any:  # noqa: ANN401 - numba's own kinds of types
    matrix = _types.Array(kind, 2, "C")
    lent = _types.Array(kind, 2, "C", readonly=True)
    index = _types.Array(_types.intp, 1, "C", readonly=True)
    return _types.void(index, matrix, lent, _types.Tuple([matrix] * slots), _types.Tuple([kind] * numbers))


def _machine_code(loop: Callable[..., None], signatures: list[Any], *, cache: bool) -> Callable[..., None]:
    code: Callable[..., None] = numba.njit(signatures, cache=cache, nogil=True, error_model="numpy")(loop)
    return code
