"""Arrays in forms that take fewer bytes: what a gradient, or a variable's value, may be while it travels or is held.

    bfloat16, float16   every element in 16 bits: the forms of `--wire`, for gradients and for weights

Each form is a row of `FORMS`: what its parts are, how an array becomes them, and how a stretch of its elements comes
back. What a form loses is lost here; adding it to the next gradient is the worker's affair. May import values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pswire.values import DTYPES, Array, IndexedSlices, TensorSpec

#: The forms in which values of float32 can be asked for.
WIRES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """An array, float32, in another form.

    Attributes:
        form: a key of `FORMS`.
        shape: that of the array.
        parts: what the form makes of it.
    """

    form: str
    shape: tuple[int, ...]
    parts: tuple[Array, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the array."""
        return DTYPES["float32"]

    @property
    def size(self) -> int:
        """The number of the array's elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the parts: what travels."""
        return sum([part.nbytes for part in self.parts])

    def check(self) -> None:
        """Looks at the parts. Raises `ValueError` for a NaN, an infinity, or a place that is none."""
        FORMS[self.form].check(self.parts, self.size)

    def elements(self, start: int, stop: int) -> Array:
        """Those from `start` to `stop` of all in their order, flat; a new array. Call `check` first."""
        return FORMS[self.form].elements(self.parts, start, stop)

    def unpacked(self) -> Array:
        """The array, new."""
        return self.elements(0, self.size).reshape(self.shape)


def unpacked(array: Array | IndexedSlices | Packed) -> Array | IndexedSlices:
    """The array, or the rows with values, as they were before they were packed; what was not is given back."""
    if isinstance(array, IndexedSlices):
        values: Array | Packed = array.values
        return array.with_values(values.unpacked()) if isinstance(values, Packed) else array
    return array.unpacked() if isinstance(array, Packed) else array


def packed(array: Array, form: str) -> Packed:
    """A float32 array in a form of `WIRES`."""
    parts = empty_parts(array.shape, form)
    narrow(np.ascontiguousarray(array).reshape(-1), parts[0].reshape(-1), form)
    return Packed(form, array.shape, parts)


def empty_parts(shape: tuple[int, ...], form: str) -> tuple[Array, ...]:
    """Room for the parts of an array in a form of `WIRES`."""
    return (np.empty(shape, BITS),)


#: Elements that are converted at a time: what is needed meanwhile stays in the processor's cache.
BLOCK = 1 << 15

#: Of a part that has 16 bits of each element.
BITS = DTYPES["int16"]


def narrow(source: Array, out: Array, form: str) -> None:
    """Converts float32, (n,), to the bits of 16-bit numbers, (n,) int16: to the nearest, ties as the form has it.

    bfloat16 is the upper half of a float32: adding half of the lower half's range rounds to the nearest, and ties away
    from zero. NaN and infinity stay what they are, but for a NaN whose upper 16 bits are all ones but one sign:
    who cares about NaN checks before.
    """
    for start in range(0, len(source), BLOCK):
        block, into = source[start : start + BLOCK], out[start : start + BLOCK]
        if form == "float16":
            with np.errstate(over="ignore"):
                into.view(np.float16)[...] = block
        else:
            np.copyto(into, (block.view(np.uint32) + np.uint32(0x8000)).view(np.int16)[1::2])


def _bfloat16(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    bits = parts[0].reshape(-1)[start:stop].view(np.uint16)
    out = np.empty(len(bits), np.uint32)
    np.left_shift(bits, 16, out=out, dtype=np.uint32, casting="unsafe")
    return out.view(np.float32)


def _float16(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    return parts[0].reshape(-1)[start:stop].view(np.float16).astype(np.float32)


def _check_16(parts: tuple[Array, ...], exponent: int) -> None:
    bad = int(np.count_nonzero((parts[0] & exponent) == exponent))
    if bad:
        raise ValueError(f"{bad:,} elements that are NaN or infinite")


@dataclass(frozen=True, slots=True)
class Form:
    """A form, as three functions.

    Attributes:
        fits: whether parts that look so can be those of an array of a shape.
        check: as `Packed.check`.
        elements: as `Packed.elements`.
    """

    fits: Callable[[tuple[int, ...], tuple[TensorSpec, ...]], bool]
    check: Callable[[tuple[Array, ...], int], None]
    elements: Callable[[tuple[Array, ...], int, int], Array]


def _sixteen(shape: tuple[int, ...], parts: tuple[TensorSpec, ...]) -> bool:
    return [(part.shape, part.dtype) for part in parts] == [(shape, BITS.name)]


FORMS: dict[str, Form] = {
    "bfloat16": Form(_sixteen, lambda parts, size: _check_16(parts, 0x7F80), _bfloat16),
    "float16": Form(_sixteen, lambda parts, size: _check_16(parts, 0x7C00), _float16),
}
