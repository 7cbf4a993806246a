"""Descriptions of named arrays, the dtypes that travel, and arrays of which only some rows are not zero. numpy only."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from pswire.tensors.sums import add_rows, equal_groups, sum_groups

Array = npt.NDArray[Any]

#: Every dtype of a variable or gradient by its name in messages, little-endian.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}

#: Their names, of either byte order: numpy takes 2 microseconds for each `dtype.name`.
DTYPE_NAMES = {kind: name for name, dtype in DTYPES.items() for kind in (dtype, dtype.newbyteorder(">"))}

MAX_DIMENSIONS = 16
MAX_NAME_LENGTH = 256


class _Sizes:
    """Sizes that a spec computes once; no fields of it, so they are not in what is written of one."""

    __slots__ = ("nbytes", "size")
    size: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorSpec(_Sizes):
    """Name, shape and dtype of a tensor; `ValueError` for an invalid name, a negative size or an unknown dtype.

    Attributes:
        size, nbytes: the number of elements, and of their bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME_LENGTH or not self.name.isprintable():
            raise ValueError(f"a variable's name has 1 to {MAX_NAME_LENGTH} printable characters, got {self.name!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"variable {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if len(self.shape) > MAX_DIMENSIONS or any(size < 0 for size in self.shape):
            raise ValueError(
                f"variable {self.name!r}: shape {self.shape} needs sizes from 0 up, {MAX_DIMENSIONS} of them at most"
            )
        object.__setattr__(self, "size", math.prod(self.shape))
        object.__setattr__(self, "nbytes", self.size * DTYPES[self.dtype].itemsize)

    def __reduce__(self) -> tuple[type[TensorSpec], tuple[str, tuple[int, ...], str]]:
        return TensorSpec, (self.name, self.shape, self.dtype)  # a copy has its sizes too

    @classmethod
    def of(cls, name: str, array: Array) -> TensorSpec:
        """The spec of an array of any byte order."""
        return cls(name, array.shape, array.dtype.name)

    def matches(self, array: Any) -> bool:  # noqa: ANN401 - an array, some rows of it, or a packed array
        """True if `array` has this shape and dtype, in any byte order."""
        # The common case first: numpy builds a dtype's name anew each time.
        same_dtype = array.dtype == DTYPES[self.dtype] or array.dtype.name == self.dtype
        return bool(array.shape == self.shape and same_dtype)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a variable on one shard: from row `first` on, of `of` rows in all; `ValueError` if there is none."""

    first: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.of:
            raise ValueError(f"a part must begin at a row from 0 to {self.of}, not at {self.first}")


def whole_spec(spec: TensorSpec, part: Part | None) -> TensorSpec:
    """The spec of the variable of which `spec` describes a part; None: all rows."""
    return spec if part is None or not spec.shape else TensorSpec(spec.name, (part.of, *spec.shape[1:]), spec.dtype)


def bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """The nonzero rows of an array, such as the gradient of an embedding table.

    Row `indices[i]` of the array is `values[i]`; rows with equal indices are added up.

    Attributes:
        values: (n, *dense_shape[1:]), of any dtype.
        indices: (n,), integers from 0 to dense_shape[0] - 1, in any order.
        dense_shape: the shape of the array that these are rows of.

    Raises `ValueError` if shapes do not fit or an index is outside, and `TypeError` if the indices are not integers.
    With `check_range=False` their range is not checked: they have not arrived yet (`check_indices`), or were checked.
    """

    values: Array
    indices: Array
    dense_shape: tuple[int, ...]
    check_range: InitVar[bool] = True

    def __post_init__(self, check_range: bool) -> None:
        values, indices, shape = self.values, self.indices, self.dense_shape
        if indices.dtype.kind not in "iu":
            raise TypeError(f"IndexedSlices: indices must be integers, but they are {indices.dtype}")
        if not shape or indices.ndim != 1 or values.shape != (len(indices), *shape[1:]):
            raise ValueError(
                f"IndexedSlices: n rows of an array of shape {shape} need values of shape (n, *shape[1:]) and "
                f"indices of shape (n,), but these are {values.shape} and {indices.shape}"
            )
        if check_range:
            self.check_indices()

    def check_indices(self) -> None:
        """Raises `ValueError` if an index is outside."""
        indices, rows = self.indices, self.dense_shape[0]
        if indices.size and not 0 <= indices.min() <= indices.max() < rows:
            raise ValueError(
                f"IndexedSlices: indices must be in 0 ... {rows - 1}, but they span {indices.min()} ... {indices.max()}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self.dense_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and their indices, not of the whole array."""
        return self.values.nbytes + self.indices.nbytes

    def __add__(self, other: IndexedSlices | Array) -> Any:  # noqa: ANN401 - of the kind of `other`
        """The rows of both, or with an array of the same shape an array. `ValueError` when the shapes differ."""
        shape = other.shape if isinstance(other, IndexedSlices) else np.shape(other)
        if shape != self.dense_shape:
            kind = "rows of an array" if isinstance(other, IndexedSlices) else "an array"
            raise ValueError(f"IndexedSlices: rows of an array of shape {self.shape} plus {kind} of shape {shape}")
        if isinstance(other, IndexedSlices):
            values = np.concatenate([self.values, other.values])
            return IndexedSlices(values, np.concatenate([self.indices, other.indices]), self.dense_shape)
        total = np.array(other, np.result_type(other.dtype, self.dtype), order="C")
        add_rows(total, self.indices, self.values)
        return total

    __radd__ = __add__

    def __mul__(self, factor: float) -> IndexedSlices:
        """Each row times a number; the dtype stays."""
        if not isinstance(factor, Real):
            return NotImplemented
        return self.with_values(self.values * float(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> IndexedSlices:
        """Each row over a number; the dtype stays."""
        if not isinstance(divisor, Real):
            return NotImplemented
        return self.with_values(self.values / float(divisor))

    def __neg__(self) -> IndexedSlices:
        return self.with_values(-self.values)

    __array_ufunc__ = None  # sends `array + slices` to __radd__

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> IndexedSlices:
        """The same rows in another dtype."""
        return self.with_values(self.values.astype(dtype, copy=copy))

    def copy(self) -> IndexedSlices:
        """The same rows in arrays of their own."""
        return IndexedSlices(self.values.copy(), self.indices.copy(), self.dense_shape)

    def with_values(self, values: Array) -> IndexedSlices:
        """Other values for the same rows."""
        return IndexedSlices(values, self.indices, self.dense_shape)

    def summed(self) -> IndexedSlices:
        """The same array with each index once, rising: rows with equal indices are added up."""
        if np.all(self.indices[1:] > self.indices[:-1]):
            return self
        order, begins = equal_groups(self.indices)
        values = sum_groups(self.values, order, begins).astype(self.dtype, copy=False)
        return IndexedSlices(values, self.indices[order[begins]], self.dense_shape, check_range=False)

    def to_dense(self) -> Array:
        """The whole array, zeros included."""
        return np.asarray(self + np.zeros(self.dense_shape, self.dtype))


def magnitude(array: Array) -> float:
    """An upper bound of all magnitudes, the root of the sum of squares in one pass; 0 for integers and bools.

    Infinite or NaN if an element is, or when the sum overflows.
    """
    return math.sqrt(np.vdot(array, array)) if array.dtype.kind == "f" else 0.0


def not_finite(array: Array) -> int:
    """The number of NaN or infinite elements; 0 for integers and bools."""
    if math.isfinite(magnitude(array)):
        return 0
    return int(array.size - np.count_nonzero(np.isfinite(array)))
