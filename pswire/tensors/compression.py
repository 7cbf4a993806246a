"""Packed arrays: float32 arrays in fewer bytes for transfer, by an encoding or a compression.

    bfloat16, float16   encodings (`--encoding`), for gradients and weights: every element in 16 bits
    int8                compression (`--compress`), for gradients: every element in 8 bits, as a multiple of a step
    topk                compression, for gradients: the elements largest in magnitude, with their indices

Each form is a row of `FORMS`. A compression stores its error in `residual`; the worker adds it to the next gradient
(error feedback).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pswire.tensors.values import DTYPES, Array, IndexedSlices, TensorSpec, magnitude, not_finite

#: Elements processed at a time: few enough for the processor's cache, enough to release the GIL for a while.
BLOCK = 1 << 18

#: Elements that share one step of int8, by the protocol. In Deep MNIST's largest layer the error is 3.4 % of the
#: gradient; 5.7 % with one step for all, and 2.3 % with 8,192 elements, at eight times the numpy calls.
ELEMENTS_PER_SCALE = 1 << 16

#: Dtypes of parts with indices of elements.
INDEX_DTYPES = ("int32", "int64")

#: Dtypes of parts.
INT16, INT8, _FLOAT32 = DTYPES["int16"], DTYPES["int8"], DTYPES["float32"]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A float32 array of this `shape` in a form, a key of `FORMS`, as the arrays `parts`."""

    form: str
    shape: tuple[int, ...]
    parts: tuple[Array, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array: float32."""
        return _FLOAT32

    @property
    def size(self) -> int:
        """The number of the array's elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum([part.nbytes for part in self.parts])

    def check(self) -> float:
        """Checks parts from the network; call it before elements are used. Returns an upper bound of the magnitudes.

        Raises `FloatingPointError` for NaN or infinite elements, and `ValueError` for indices that are out of range or
        not ascending, or a negative step; the messages continue "gradient for 'W' has".
        """
        return FORMS[self.form].check(self.parts, self.size)

    def elements(self, start: int, stop: int) -> Array:
        """Elements `start` to `stop` in C order, (n,); a new array. Call `check` first."""
        return FORMS[self.form].elements(self.parts, start, stop)

    def unpacked(self) -> Array:
        """A new array with all elements."""
        return self.elements(0, self.size).reshape(self.shape)


class Form(NamedTuple):
    """`check(parts, size)` and `elements(parts, start, stop)` do the work of the methods of `Packed`."""

    check: Callable[[tuple[Array, ...], int], float]
    elements: Callable[[tuple[Array, ...], int, int], Array]


def parts_fit(form: str, shape: tuple[int, ...], parts: Sequence[TensorSpec]) -> bool:
    """True if parts of these specs make an array of this shape in this form."""
    size = math.prod(shape)
    length = min(size, parts[0].size) if parts else 0
    layouts = {
        "bfloat16": [(shape, "int16")],
        "float16": [(shape, "int16")],
        "int8": [(shape, "int8"), ((-(-size // ELEMENTS_PER_SCALE),), "float32")],
        "topk": [((length,), _index_dtype(size)), ((length,), "float32")],
    }
    return layouts.get(form) == [(part.shape, part.dtype) for part in parts]


def unpacked(array: Array | IndexedSlices | Packed) -> Array | IndexedSlices:
    """The array, or rows, with unpacked elements; plain arrays are returned as they are."""
    if isinstance(array, IndexedSlices):
        values: Array | Packed = array.values
        return array.with_values(values.unpacked()) if isinstance(values, Packed) else array
    return array.unpacked() if isinstance(array, Packed) else array


def _refuse(bad: int, of: int, what: str = "NaN or infinite") -> None:
    if bad:
        raise FloatingPointError(f"{bad:,} of {of:,} elements that are {what}")


# --- 16 bits --------------------------------------------------------------------------------------------------------


def to_16_bits(array: Array, form: str) -> Packed:
    """A float32 array in a form of `ENCODINGS`."""
    bits = np.empty(array.shape, INT16)
    narrow_to_16_bits(np.ascontiguousarray(array).reshape(-1), bits.reshape(-1), form)
    return Packed(form, array.shape, (bits,))


def narrow_to_16_bits(source: Array, out: Array, form: str) -> None:
    """Converts float32, (n,), to the bits of 16-bit numbers, (n,) int16, rounding to nearest, ties to even.

    Beyond the largest number of the form (65,504 for float16, 3.39e38 for bfloat16) it is infinite; NaN stays NaN.
    """
    convert = _to_float16 if form == "float16" else _to_bfloat16
    for start in range(0, len(source), BLOCK):
        convert(source[start : start + BLOCK], out[start : start + BLOCK].view(np.uint16))


def _to_bfloat16(block: Array, out: Array) -> None:
    """Keeps the upper half of a float32 after adding half of its last bit (a little less, for ties to even)."""
    if not math.isfinite(np.vdot(block, block)):  # a NaN with all bits set would overflow to 0
        block = np.where(np.isnan(block), np.float32(np.nan), block)
    bits = block.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1  # the last bit that stays
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    np.copyto(out, rounded, casting="unsafe")


def _to_float16(block: Array, out: Array) -> None:
    """The same conversion as numpy's, in less than half the time.

    With p the power of two in |x|, but at least 2^-14, below which float16 has no finer steps, the processor rounds
    |x| + 2^13 p to the precision of the result: the low bits of the sum are |x| in units of 2^-10 p. The exponent of p
    in float16 is put before them, less the 1 that the units carry unless |x| is below 2^-14.
    """
    if not np.vdot(block, block) < 65504.0**2:  # an element may be infinite, or become so
        with np.errstate(over="ignore"):
            out.view(np.float16)[...] = block
        return
    bits = block.view(np.uint32)
    power, other = bits & np.uint32(0x7F800000), np.full(len(bits), 113 << 23, np.uint32)
    np.maximum(power, other, out=power)  # with a scalar it would take three times as long
    power += 13 << 23
    total = np.abs(block, out=other.view(np.float32))
    total += power.view(np.float32)
    power >>= 13
    power -= 126 << 10
    power += other
    power &= 0x7FFF
    np.right_shift(bits, 16, out=other)
    other &= 0x8000
    power |= other
    np.copyto(out, power, casting="unsafe")


def _bfloat16(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    out = parts[0].reshape(-1)[start:stop].view(np.uint16).astype(np.uint32)
    out <<= 16
    return out.view(np.float32)


#: All numbers of float16: looking them up is twice as fast as numpy's conversion.
_FLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _float16(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    bits, out = parts[0].reshape(-1)[start:stop].view(np.uint16), np.empty(stop - start, np.float32)
    for at in range(0, len(bits), BLOCK):
        np.take(_FLOAT16, bits[at : at + BLOCK], out=out[at : at + BLOCK], mode="clip")  # "raise" would copy
    return out


def _check_16_bits(parts: tuple[Array, ...], size: int, fraction: int, bias: int, what: str) -> float:
    """The power of two above all numbers with the highest exponent found.

    `fraction` is the number of its bits, `bias` that of exponents, of which the largest means NaN and infinity.
    """
    bits, exponent, bad, highest = parts[0].reshape(-1), (2 * bias + 1) << fraction, 0, 0
    for start in range(0, size, BLOCK):
        block = bits[start : start + BLOCK] & exponent
        highest = max(highest, int(block.max()))
        if highest == exponent:
            bad += int(np.count_nonzero(block == exponent))
    _refuse(bad, size, what)
    return math.ldexp(1.0, (highest >> fraction) - bias + 1)


# --- 8 bits ---------------------------------------------------------------------------------------------------------


#: The largest step of int8: no multiple of it is infinite.
_LARGEST_STEP = np.finfo(np.float32).max / np.float32(128)


def quantize_int8(array: Array, residual: Array) -> Packed:
    """`array` + `residual` in 8 bits; `residual` becomes the error, half a step at most.

    For each block of `ELEMENTS_PER_SCALE` elements c the step is s = max|c| / 127, or `_LARGEST_STEP` if that is less,
    and q = round(c / s) is sent, 127 at most: block-wise linear quantization (Dettmers et al. 2022, "8-bit Optimizers
    via Block-wise Quantization", section 2.1).
    `array` is float32 and finite; `residual`, float32 of shape (array.size,), is written into.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    numbers, steps = np.empty(array.shape, INT8), np.empty(-(-len(flat) // ELEMENTS_PER_SCALE), _FLOAT32)
    out, buffer = numbers.reshape(-1), np.empty(min(len(flat), ELEMENTS_PER_SCALE), np.float32)
    for index, start in enumerate(range(0, len(flat), ELEMENTS_PER_SCALE)):
        part = slice(start, start + ELEMENTS_PER_SCALE)
        c = np.add(residual[part], flat[part], out=residual[part])
        step = max(c.max(), -c.min()) / np.float32(127)
        if step < np.finfo(np.float32).tiny:  # it has no finite inverse
            steps[index], out[part] = 0, 0
            continue
        if _LARGEST_STEP < step < np.inf:  # elements close to the largest float32
            step = _LARGEST_STEP
        steps[index] = step
        q = np.multiply(c, 1 / step, out=buffer[: len(c)])
        np.rint(q, out=q)
        if step == _LARGEST_STEP:
            np.clip(q, -127, 127, out=q)
        np.copyto(out[part], q, casting="unsafe")
        np.multiply(q, step, out=q)
        np.subtract(c, q, out=c)
    return Packed("int8", array.shape, (numbers, steps))


def _check_8(parts: tuple[Array, ...], size: int) -> float:
    steps = parts[1]
    if (steps < 0).any():
        raise ValueError("a step below 0")
    bad = np.flatnonzero(~(steps <= _LARGEST_STEP))
    of_bad = [min(ELEMENTS_PER_SCALE, size - int(index) * ELEMENTS_PER_SCALE) for index in bad]
    _refuse(sum(of_bad), size, "NaN, infinite or too large for int8")
    return 128 * float(steps.max(initial=0))


def _int8(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    out = parts[0].reshape(-1)[start:stop].astype(np.float32)
    for index in range(start // ELEMENTS_PER_SCALE, -(-stop // ELEMENTS_PER_SCALE)):
        part = out[max(0, index * ELEMENTS_PER_SCALE - start) : (index + 1) * ELEMENTS_PER_SCALE - start]
        part *= parts[1][index]
    return out


# --- the largest ----------------------------------------------------------------------------------------------------


def top_k(array: Array, residual: Array, count: int) -> Packed:
    """The `count` (from 1) elements of `array` + `residual` largest in magnitude; `residual` becomes the others.

    Among equal elements the first are chosen. Zeros are not sent. To save time, only elements above a magnitude
    estimated from a sample are sorted (Lin et al. 2018, "Deep Gradient Compression", section 3.1, where the sample
    decides). The arrays are as in `quantize_int8`.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    low = _threshold(flat, residual, count)
    buffer, large = np.empty(min(len(flat), BLOCK), np.float32), np.empty(min(len(flat), BLOCK), np.bool_)
    found = [np.empty(0, np.intp)]
    for start in range(0, len(flat), BLOCK):
        part = slice(start, start + BLOCK)
        c = np.add(residual[part], flat[part], out=residual[part])
        magnitudes = np.abs(c, out=buffer[: len(c)])
        found.append(np.flatnonzero(np.greater_equal(magnitudes, low, out=large[: len(c)])) + start)
    indices = np.concatenate(found)
    if len(indices) < count:  # the estimate was wrong, or nearly all are zero
        indices = np.flatnonzero(residual)
    indices = indices[_largest(np.abs(residual[indices]), count)]
    values = residual[indices]
    residual[indices] = 0
    return Packed("topk", array.shape, (indices.astype(DTYPES[_index_dtype(len(flat))]), values))


def _threshold(flat: Array, residual: Array, count: int) -> np.float32:
    """A positive magnitude that slightly more than `count` elements of the sum are likely to reach, by a sample."""
    stride = max(1, len(flat) >> 14) | 1  # odd, so that the sample meets all columns of a matrix
    sample = np.abs(flat[::stride] + residual[::stride])
    expected = len(sample) * count / max(1, len(flat))
    chosen = int(expected + 4 * math.sqrt(expected)) + 1  # four standard deviations
    least = np.finfo(np.float32).smallest_subnormal
    if chosen >= len(sample):
        return least
    return max(np.partition(sample, len(sample) - chosen)[len(sample) - chosen], least)


def _largest(magnitudes: Array, count: int) -> Array:
    """Indices of the `count` largest, ascending."""
    if len(magnitudes) <= count:
        return np.arange(len(magnitudes))
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    chosen = magnitudes > least
    chosen[np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _index_dtype(size: int) -> str:
    """The dtype of indices into an array of `size` elements."""
    return "int32" if size < 1 << 31 else "int64"


def _check_topk(parts: tuple[Array, ...], size: int) -> float:
    indices, values = parts
    _refuse(not_finite(values), len(values))
    if not len(indices):
        return 0.0
    if not (indices[1:] > indices[:-1]).all():
        raise ValueError("indices that are not ascending")
    if indices[0] < 0 or indices[-1] >= size:
        raise ValueError(f"indices from {indices[0]:,} to {indices[-1]:,}, of {size:,} elements")
    return magnitude(values)


def _topk(parts: tuple[Array, ...], start: int, stop: int) -> Array:
    indices, values = parts
    out = np.zeros(stop - start, np.float32)
    first, last = np.searchsorted(indices, np.array([start, stop], indices.dtype))
    out[indices[first:last] - start] = values[first:last]
    return out


_BEYOND_FLOAT16 = "NaN, infinite or beyond 65,504, the largest of float16"
FORMS: dict[str, Form] = {
    "bfloat16": Form(partial(_check_16_bits, fraction=7, bias=127, what="NaN or infinite"), _bfloat16),
    "float16": Form(partial(_check_16_bits, fraction=10, bias=15, what=_BEYOND_FLOAT16), _float16),
    "int8": Form(_check_8, _int8),
    "topk": Form(_check_topk, _topk),
}
