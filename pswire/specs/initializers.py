"""Initial values: arrays drawn from a generator, and rows of tables as functions of a seed and the row's number.

    kernel = Variable(truncated_normal(0.1)((5, 5, 1, 32), np.random.default_rng(0)))
    words = Table((1_000_000, 64), RowUniform(-0.05, 0.05), name="words")

An initializer is called with a shape and a generator, and returns float32; a program may pass any such function of its
own. `RowConstant`, `RowUniform` and `RowNormal` also make single rows, in any order and on any machine, so a table is
not sent: the servers compute it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from pswire.specs.spec import Checked, Count, CountFromZero, NotNegative, Number, Spec
from pswire.tensors.values import Array

Shape: TypeAlias = tuple[int, ...]
Generator: TypeAlias = np.random.Generator
Initializer: TypeAlias = Callable[[Shape, Generator], Array]
_Bits: TypeAlias = npt.NDArray[np.uint64]
_Floats: TypeAlias = npt.NDArray[np.float64]

__all__ = ["Initializer", "RowConstant", "RowInitializer", "RowNormal", "RowUniform", "constant", "glorot_normal"]
__all__ += [
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
]
__all__ += ["truncated_normal", "zeros"]


#: Elements that are made at a time: their bits and values stay in a core's cache.
BLOCK = 1 << 15
DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: SplitMix64 counts in steps of it
_MASK = (1 << 64) - 1
_ONE = np.uint64(0x3FF0000000000000)  # 1.0 in binary; its lowest 52 bits are the fraction
_EXTREMES = np.array([0, 1 << 23, _MASK], np.uint64)  # least and largest; the cosines 1 and -1 of the largest radius


class RowInitializer(Spec, family="row initializer"):
    """An initializer that servers use to compute the rows of a table.

    Element c of row r of a table whose rows have n elements gets output number r * n + c, from 0, of SplitMix64, whose
    state starts at the seed's first output: 64 bits that no other element of the table has. Two tables with the same
    seed are equal. If the values must be bit-identical on different kinds of machines, do not use `RowNormal`:
    logarithms and cosines may differ in the last bit.

    Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 17 with
    the constants of its variant 13, as in S. Vigna's splitmix64.c.
    """

    #: What an element costs, as bytes that an update rule goes through in the same time: some 0.5 ns each.
    cost: ClassVar[int] = 8

    seed: int = 0

    @property
    @np.errstate(over="ignore", invalid="ignore")
    def max_magnitude(self) -> float:
        """The largest magnitude of all values, which is at one of `_EXTREMES`."""
        return float(np.abs(self.values(_EXTREMES.copy())).max())

    def values(self, bits: _Bits) -> _Floats:
        """The values of elements with these random bits, which may be destroyed."""
        raise NotImplementedError


@dataclass(frozen=True)
class constant(Checked):  # noqa: N801 - called like a function
    """`value` everywhere."""

    value: Number

    def __call__(self, shape: Shape, random: Generator) -> Array:
        """The array."""
        return np.full(shape, self.value, np.float32)


def zeros() -> constant:
    """0 everywhere."""
    return constant(0)


def ones() -> constant:
    """1 everywhere."""
    return constant(1)


@dataclass(frozen=True)
class RowConstant(constant, RowInitializer, kind="row_constant"):
    """`value` everywhere; needs no seed."""

    value: Number = 0.0

    def values(self, bits: _Bits) -> _Floats:
        """The value."""
        return np.full(bits.shape, self.value)


@dataclass(frozen=True)
class random_uniform(Checked):  # noqa: N801
    """Uniform from `low` to `high`. `ValueError` or `TypeError` unless they are finite, and `low` not above `high`."""

    low: Number
    high: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.high - self.low < math.inf:
            raise ValueError(
                f"{type(self).__name__}: high must be at least low, and less than infinitely above it, "
                f"got {self.low:g} and {self.high:g}"
            )

    def __call__(self, shape: Shape, random: Generator) -> Array:
        """Draws an array."""
        return np.asarray(np.float32(self.low) + np.float32(self.high - self.low) * random.random(shape, np.float32))


@dataclass(frozen=True)
class RowUniform(random_uniform, RowInitializer, kind="row_uniform"):
    """Uniform from `low` to `high`: low + (high - low) * u, where u has 52 random bits, rounded to the dtype."""

    seed: CountFromZero = 0

    def values(self, bits: _Bits) -> _Floats:
        """See the formula of the class."""
        bits >>= np.uint64(12)
        bits |= _ONE
        uniform = bits.view(np.float64)  # the number 1 + u
        uniform -= 1
        uniform *= self.high - self.low
        uniform += self.low
        return uniform


@dataclass(frozen=True)
class random_normal(Checked):  # noqa: N801
    """Normal, with this standard deviation and mean. Raises `ValueError` or `TypeError` unless both are finite."""

    stddev: NotNegative
    mean: Number = 0.0

    def __call__(self, shape: Shape, random: Generator) -> Array:
        """Draws an array."""
        return np.asarray(np.float32(self.mean) + np.float32(self.stddev) * random.standard_normal(shape, np.float32))


@dataclass(frozen=True)
class truncated_normal(random_normal):  # noqa: N801
    """Normal, but values further than two standard deviations from the mean are drawn again.

    `stddev` is the standard deviation before truncation, as in TensorFlow 1; that of the values is 0.8796 times as
    large.
    """

    def __call__(self, shape: Shape, random: Generator) -> Array:
        """Draws an array."""
        values = random.standard_normal(math.prod(shape), np.float32)
        outside = np.flatnonzero(np.abs(values) > 2)
        while outside.size:
            again = random.standard_normal(outside.size, np.float32)
            values[outside] = again
            outside = outside[np.abs(again) > 2]
        return (np.float32(self.mean) + np.float32(self.stddev) * values).reshape(shape)


@dataclass(frozen=True)
class RowNormal(random_normal, RowInitializer, kind="row_normal"):
    """Normal, with this standard deviation and mean; no value is further from the mean than 7.54 standard deviations.

        mean + stddev * sqrt(-2 ln((i + 1/2) / 2^40)) * cos(2 pi j / 2^24),     of 40 random bits i and 24 others j

    Source: G. Box, M. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    """

    cost: ClassVar[int] = 96
    seed: CountFromZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.max_magnitude):
            raise ValueError(
                f"RowNormal: stddev and mean must give finite values, got {self.stddev!r} and {self.mean!r}"
            )

    def values(self, bits: _Bits) -> _Floats:
        """See the formula of the class."""
        angle = (bits & np.uint64(0xFFFFFF)) * (math.tau * 2**-24)
        radius = np.sqrt(np.log(((bits >> np.uint64(24)) + 0.5) * 2**-40) * -2)
        values: _Floats = radius * np.cos(angle) * self.stddev + self.mean
        return values


def glorot_uniform() -> Initializer:
    """Uniform within sqrt(6 / (fan_in + fan_out)) of 0, for layers whose activation is linear near 0, such as tanh.

    The fans of a shape (..., inputs, outputs) are inputs and outputs, each times the sizes before them: of a kernel
    (height, width, channels, filters), height * width * channels and height * width * filters.

    Source: X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    AISTATS 2010, equation 16; variance 2 / (fan_in + fan_out), equation 12.
    """
    return _Scaled("glorot_uniform")


def glorot_normal() -> Initializer:
    """Normal, of the variance of `glorot_uniform`: 2 / (fan_in + fan_out); not cut."""
    return _Scaled("glorot_normal")


def he_uniform() -> Initializer:
    """Uniform, of the variance of `he_normal`: within sqrt(6 / fan_in) of 0."""
    return _Scaled("he_uniform")


def he_normal() -> Initializer:
    """Normal of variance 2 / fan_in, for layers followed by a relu; not cut. Fans as in `glorot_uniform`.

    Source: K. He, X. Zhang, S. Ren, J. Sun, "Delving Deep into Rectifiers", ICCV 2015, equation 10.
    """
    return _Scaled("he_normal")


def lecun_uniform() -> Initializer:
    """Uniform, of the variance of `lecun_normal`: within sqrt(3 / fan_in) of 0."""
    return _Scaled("lecun_uniform")


def lecun_normal() -> Initializer:
    """Normal of variance 1 / fan_in, for layers followed by `ops.selu`; not cut. Fans as in `glorot_uniform`.

    Source: Y. LeCun, L. Bottou, G. Orr, K. Mueller, "Efficient BackProp", 1998, section 4.6, equation 16.
    """
    return _Scaled("lecun_normal")


@dataclass(frozen=True)
class _Scaled:
    """Values of a variance that follows from the shape."""

    name: str

    def __call__(self, shape: Shape, random: Generator) -> Array:
        if len(shape) < 2:
            raise ValueError(
                f"{self.name}: needs a shape (..., inputs, outputs), got {shape}: choose another initializer for it"
            )
        area = math.prod(shape[:-2])
        fan_in, fan_out = max(area * shape[-2], 1), max(area * shape[-1], 1)
        kind, _, distribution = self.name.partition("_")
        variance = {"glorot": 2 / (fan_in + fan_out), "he": 2 / fan_in, "lecun": 1 / fan_in}[kind]
        if distribution == "normal":
            return random_normal(math.sqrt(variance))(shape, random)
        limit = math.sqrt(3 * variance)  # a uniform's variance is a third of its limit's square
        return random_uniform(-limit, limit)(shape, random)

    def __repr__(self) -> str:
        return f"{self.name}()"


@dataclass(frozen=True)
class orthogonal(Checked):  # noqa: N801
    """An orthogonal matrix times `gain`; in `blocks` equal parts of the last axis, each drawn by itself.

        nn.GRU(64, 128, recurrent_initializer=initializers.orthogonal(blocks=3))      # a matrix for each gate

    A shape (..., inputs, outputs) is one matrix, with all axes but the last as rows. The rows or the columns of a
    block, whichever are fewer, are orthonormal before the gain.

    Source: A. Saxe, J. McClelland, S. Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear
    neural networks", ICLR 2014, section 4; uniform over orthogonal matrices by the signs of F. Mezzadri, "How to
    generate random matrices from the classical compact groups", Notices of the AMS 54(5), 2007, section 5.
    """

    gain: Number = 1.0
    blocks: Count = 1

    def __call__(self, shape: Shape, random: Generator) -> Array:
        """Draws an array; ValueError for a shape of fewer than two axes, or a last one that blocks do not divide."""
        if len(shape) < 2:
            raise ValueError(
                f"orthogonal: needs a shape (..., inputs, outputs), got {shape}: choose another initializer for it"
            )
        if shape[-1] % self.blocks:
            raise ValueError(f"orthogonal: {self.blocks} blocks do not divide the last axis of the shape {shape}")
        rows, columns = math.prod(shape[:-1]), shape[-1] // self.blocks
        parts = [_orthonormal(rows, columns, random) for _ in range(self.blocks)]
        return (np.concatenate(parts, axis=1) * self.gain).astype(np.float32).reshape(shape)


def _orthonormal(rows: int, columns: int, random: Generator) -> Array:
    """A matrix in float64 whose rows or columns, whichever are fewer, are orthonormal; uniform over all of these."""
    longer, shorter = max(rows, columns), min(rows, columns)
    q, r = np.linalg.qr(random.standard_normal((longer, shorter)))
    q = q * np.where(np.diagonal(r) < 0, -1, 1)
    return q if rows >= columns else q.T


def check_fits(initializer: RowInitializer, dtype: npt.DTypeLike) -> None:
    """Raises `TypeError` for an unknown initializer or a dtype not in `DTYPES`, `ValueError` for values beyond it."""
    if not initializer.is_known():
        known = ", ".join(cls.__name__ for cls in RowInitializer.kinds.values())
        raise TypeError(f"servers compute rows with {known}, not with {initializer!r}")
    dtype = np.dtype(dtype)
    if dtype not in DTYPES:
        raise TypeError(f"rows have the dtypes {', '.join(map(str, DTYPES))}, not {dtype}")
    if initializer.max_magnitude > float(np.finfo(dtype).max):
        raise ValueError(f"{initializer!r} gives values up to {initializer.max_magnitude:g}, which {dtype} cannot hold")


def fill(initializer: RowInitializer, out: Array, first: int = 0) -> None:
    """Fills `out` with the rows from number `first` on; they are the same in any division of a table.

    `out` is (rows, ...) of a dtype of `DTYPES`, contiguous; some 1 MiB of memory is taken beyond it.

    Raises, without a change, as `check_fits`; or `ValueError`: `out` has no axis or is not contiguous, or `first` is
    negative.
    """
    check_fits(initializer, out.dtype)
    if not out.ndim or not out.flags.c_contiguous:
        raise ValueError(f"out must be a contiguous array with at least one axis, got shape {out.shape}")
    if first < 0:
        raise ValueError(f"first must not be negative, got {first}")
    fill_elements(initializer, out.reshape(-1), first * math.prod(out.shape[1:]))


def fill_elements(initializer: RowInitializer, flat: Array, first: int) -> None:
    """As `fill`, which checks, for the elements of a table from number `first` on: `flat` is (elements,)."""
    if isinstance(initializer, RowConstant):  # needs no bits
        flat.fill(initializer.value)
        return
    start = _start(initializer.seed) + first * _GOLDEN
    steps = np.arange(min(BLOCK, flat.size), dtype=np.uint64) * np.uint64(_GOLDEN)
    for begin in range(0, flat.size, BLOCK):
        part = flat[begin : begin + BLOCK]
        state = steps[: len(part)] + np.uint64((start + begin * _GOLDEN) & _MASK)
        part[...] = initializer.values(_mix(state))


def rows_of(initializer: RowInitializer, indices: Array, row_shape: Shape, dtype: npt.DTypeLike = np.float32) -> Array:
    """The rows with these numbers, (n, *row_shape), as `fill` would make them.

    `indices` are (n,), integers from 0 up, in any order, any of them more than once; else `TypeError` or `ValueError`.
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(f"row numbers must be integers, but they are {indices.dtype}")
    if indices.ndim != 1 or (indices.size and indices.min() < 0):
        raise ValueError(f"row numbers must be non-negative and in a one-dimensional array, got {indices!r}")
    check_fits(initializer, dtype)
    out = np.empty((len(indices), *row_shape), dtype)
    width = math.prod(row_shape)
    columns = np.arange(width, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(_start(initializer.seed))
    rows_at_once = max(1, BLOCK // max(1, width))
    for begin in range(0, len(indices), rows_at_once):
        here = indices[begin : begin + rows_at_once].astype(np.uint64)
        state = here[:, np.newaxis] * np.uint64(width * _GOLDEN & _MASK) + columns
        out[begin : begin + rows_at_once].reshape(state.shape)[...] = initializer.values(_mix(state))
    return out


def _start(seed: int) -> int:
    """The state of element 0, derived from the seed. SplitMix64 adds before it mixes."""
    return int(_mix(np.array([seed], np.uint64) + np.uint64(_GOLDEN))[0]) + _GOLDEN & _MASK


def _mix(state: _Bits) -> _Bits:
    """Replaces each state by its output of SplitMix64."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
