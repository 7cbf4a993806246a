"""The first values of large tables: each row is a function of a seed and the row's number alone.

So a table need not be sent: whoever holds some of its rows makes them, in any order and on any machine. The
initializers are frozen dataclasses, checked when built, and travel as plain data. Knows neither servers nor variables.
May import numpy, the checks and `plain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from pswire.specs.field_checks import check_count, check_number
from pswire.specs.plain_data import built, plain_fields
from pswire.tensors.values import Array

_Bits = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]

#: Elements that are made at a time: their bits and what becomes of them stay in a core's cache.
BLOCK = 1 << 15
DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: SplitMix64 counts in steps of it
_MASK = (1 << 64) - 1
_ONE = np.uint64(0x3FF0000000000000)  # 1.0 in binary; its lowest 52 bits are the fraction


class RowInitializer:
    """What every initializer has: a `kind` on the wire, a seed, and fields that are plain numbers.

    Element c of row r of a table whose rows have n elements gets output number r * n + c, from 0, of SplitMix64, whose
    state starts at the seed's first output: 64 bits that no other element of the table has. Two tables of one seed are
    alike. Where a table's values must be the same on machines of different kinds, to the last bit, take no normal:
    logarithms and cosines of different processors differ in it.

    Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 17 with
    the constants of its variant 13, as in S. Vigna's splitmix64.c.
    """

    kind: ClassVar[str] = ""
    seed: int = 0

    @property
    def largest(self) -> float:
        """No value is further from 0 than this."""
        raise NotImplementedError

    def values(self, bits: _Bits, out: _Floats) -> None:
        """The values of elements that have these random bits; the bits may be destroyed. Shapes are equal."""
        raise NotImplementedError


#: Every initializer by its kind.
ROW_INITIALIZERS: dict[str, type[RowInitializer]] = {}

_Kind = TypeVar("_Kind", bound=type[RowInitializer])


def _initializer(cls: _Kind) -> _Kind:
    ROW_INITIALIZERS[cls.kind] = cls
    return cls


@_initializer
@dataclass(frozen=True)
class RowConstant(RowInitializer):
    """`value` everywhere; of no seed."""

    kind: ClassVar[str] = "row_constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        """Checks the field; raises `ValueError` or `TypeError`."""
        check_number(self, "value", -math.inf, open_low=True)

    @property
    def largest(self) -> float:
        """The value's magnitude."""
        return abs(float(self.value))

    def values(self, bits: _Bits, out: _Floats) -> None:
        """The value."""
        out.fill(self.value)


@_initializer
@dataclass(frozen=True)
class RowUniform(RowInitializer):
    """Uniform from `low` to `high`: low + (high - low) * u, where u has 52 random bits, rounded to the dtype."""

    kind: ClassVar[str] = "row_uniform"
    low: float
    high: float
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_number(self, "low", -math.inf, open_low=True)
        check_number(self, "high", -math.inf, open_low=True)
        check_count(self, "seed", 0)
        if not 0 <= float(self.high) - float(self.low) < math.inf:
            raise ValueError(
                f"RowUniform: high must be at least low, and less than infinitely above it, got {self.low!r} and "
                f"{self.high!r}"
            )

    @property
    def largest(self) -> float:
        """The magnitude of the bound that is further from 0."""
        return max(abs(float(self.low)), abs(float(self.high)))

    def values(self, bits: _Bits, out: _Floats) -> None:
        """See the formula of the class."""
        np.right_shift(bits, 12, out=bits)
        np.bitwise_or(bits, _ONE, out=bits)  # the number 1 + u
        np.subtract(bits.view(np.float64), 1, out=out)
        np.multiply(out, float(self.high) - float(self.low), out=out)
        np.add(out, float(self.low), out=out)


@_initializer
@dataclass(frozen=True)
class RowNormal(RowInitializer):
    """Normal, with this standard deviation and mean; no value is further from the mean than 7.54 standard deviations.

        mean + stddev * sqrt(-2 ln((i + 1/2) / 2^40)) * cos(2 pi j / 2^24),     of 40 random bits i and 24 others j

    Source: G. Box, M. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    """

    kind: ClassVar[str] = "row_normal"
    stddev: float
    mean: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_number(self, "stddev", 0)
        check_number(self, "mean", -math.inf, open_low=True)
        check_count(self, "seed", 0)
        if not math.isfinite(self.largest):
            raise ValueError(
                f"RowNormal: stddev and mean must give finite values, got {self.stddev!r} and {self.mean!r}"
            )

    @property
    def largest(self) -> float:
        """The mean's magnitude and the furthest from it, at i = 0."""
        return abs(float(self.mean)) + float(self.stddev) * math.sqrt(2 * 41 * math.log(2))

    def values(self, bits: _Bits, out: _Floats) -> None:
        """See the formula of the class."""
        angle = (bits & np.uint64(0xFFFFFF)).astype(np.float64)
        np.multiply(angle, math.tau * 2**-24, out=angle)
        np.cos(angle, out=angle)
        np.right_shift(bits, 24, out=bits)
        np.add(bits, 0.5, out=out)
        np.multiply(out, 2**-40, out=out)
        np.log(out, out=out)
        np.multiply(out, -2, out=out)
        np.sqrt(out, out=out)
        np.multiply(out, angle, out=out)
        np.multiply(out, float(self.stddev), out=out)
        np.add(out, float(self.mean), out=out)


def to_plain(initializer: RowInitializer) -> dict[str, Any]:
    """The initializer as plain data: its kind and its fields, numbers as floats."""
    return plain_fields(ROW_INITIALIZERS[initializer.kind], initializer)


def from_plain(plain: Mapping[str, Any]) -> RowInitializer:
    """The initializer that `to_plain` made this of; the exact inverse.

    Raises:
        ValueError: the kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    return built(ROW_INITIALIZERS, "row initializer", plain)


def check_fits(initializer: RowInitializer, dtype: npt.DTypeLike) -> None:
    """Refuses an initializer that servers do not know, a dtype that is not in `DTYPES`, and one too small for a value.

    Raises:
        TypeError: the class or the dtype is another.
        ValueError: a value could be beyond the dtype's largest number.
    """
    if type(initializer) is not ROW_INITIALIZERS.get(initializer.kind):
        known = ", ".join(cls.__name__ for cls in ROW_INITIALIZERS.values())
        raise TypeError(f"servers make rows by {known}, not by {initializer!r}")
    dtype = np.dtype(dtype)
    if dtype not in DTYPES:
        raise TypeError(f"rows are made in {', '.join(map(str, DTYPES))}, not in {dtype}")
    if initializer.largest > float(np.finfo(dtype).max):
        raise ValueError(f"{initializer!r} gives values up to {initializer.largest:g}, which {dtype} cannot hold")


def fill(initializer: RowInitializer, out: Array, first: int = 0) -> None:
    """Gives `out` the values of the rows from number `first` on.

    Args:
        initializer: the rows are the same in any division of a table.
        out: (rows, ...) of a dtype of `DTYPES`, contiguous; filled in place, with some 1 MiB of memory beyond it.
        first: the number of its first row, from 0 up.

    Raises:
        TypeError: see `check_fits`.
        ValueError: `out` has no axis or is not contiguous, or `first` is negative; or see `check_fits`. Nothing has
            been changed.
    """
    check_fits(initializer, out.dtype)
    if not out.ndim or not out.flags.c_contiguous:
        raise ValueError(f"rows are made in a contiguous array with at least one axis, got one of shape {out.shape}")
    if first < 0:
        raise ValueError(f"rows have numbers from 0 up, got first {first}")
    if isinstance(initializer, RowConstant):  # needs no bits
        out.fill(initializer.value)
        return
    flat = out.reshape(-1)
    start = _start(initializer.seed) + first * math.prod(out.shape[1:]) * _GOLDEN
    size = min(BLOCK, flat.size)
    steps = np.arange(size, dtype=np.uint64) * np.uint64(_GOLDEN)
    state, scratch = np.empty_like(steps), np.empty_like(steps)
    for begin in range(0, flat.size, BLOCK):
        part = flat[begin : begin + BLOCK]
        here = slice(len(part))
        np.add(steps[here], np.uint64((start + begin * _GOLDEN) & _MASK), out=state[here])
        _draw(initializer, state[here], scratch[here], part)


def rows_of(
    initializer: RowInitializer, indices: Array, row_shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
) -> Array:
    """The rows with these numbers, as `fill` would make them.

    Args:
        initializer: that of the table.
        indices: (n,), integers from 0 up, in any order, any of them more than once.
        row_shape: the shape of one row.
        dtype: one of `DTYPES`.

    Returns:
        (n, *row_shape), new.

    Raises:
        TypeError: `indices` are no integers; or see `check_fits`.
        ValueError: `indices` have another number of axes, or one is negative; or see `check_fits`.
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(f"rows have whole numbers, but these are {indices.dtype}")
    if indices.ndim != 1 or (indices.size and indices.min() < 0):
        raise ValueError(f"rows have numbers from 0 up, in an array with one axis, got {indices!r}")
    check_fits(initializer, dtype)
    out = np.empty((len(indices), *row_shape), dtype)
    width = math.prod(row_shape)
    columns = np.arange(width, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(_start(initializer.seed))
    rows_at_once = max(1, BLOCK // max(1, width))
    for begin in range(0, len(indices), rows_at_once):
        here = indices[begin : begin + rows_at_once].astype(np.uint64)
        state = here[:, np.newaxis] * np.uint64(width * _GOLDEN & _MASK) + columns
        _draw(initializer, state, np.empty_like(state), out[begin : begin + rows_at_once].reshape(state.shape))
    return out


def _start(seed: int) -> int:
    """The state of element 0. SplitMix64 adds before it mixes: the seed, and the state that becomes of it."""
    state = np.array([seed], np.uint64) + np.uint64(_GOLDEN)
    _mix(state, np.empty_like(state))
    return int(state[0]) + _GOLDEN & _MASK


def _draw(initializer: RowInitializer, state: _Bits, scratch: _Bits, out: Array) -> None:
    """Values of the elements with these states, of the same shape; destroys `state` and `scratch`."""
    _mix(state, scratch)
    values = scratch.view(np.float64)
    initializer.values(state, values)
    out[...] = values


def _mix(state: _Bits, scratch: _Bits) -> None:
    """In place, the output of SplitMix64 for each state."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(state, shift, out=scratch)
        np.bitwise_xor(state, scratch, out=state)
        if factor is not None:
            np.multiply(state, np.uint64(factor), out=state)
