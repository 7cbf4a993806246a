"""`Dataset`, named columns of equal length in memory, `Batch`, some of its rows, and the order of an epoch."""

from collections.abc import Mapping
from typing import overload

import numpy as np
import numpy.typing as npt

from pswire.errors import ConfigurationError, DatasetError
from pswire.tensors.values import Array

__all__ = ["Batch", "Dataset"]

#: Attributes of the two classes, which no column may be named.
RESERVED = frozenset({"columns", "epoch", "name", "take"})


class _Table:
    """Named arrays of equal length, at least one, with at least one row."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order in which they were given."""
        return tuple(self._arrays)

    def __getitem__(self, column: str) -> Array:
        if column not in self._arrays:
            raise DatasetError(f"{self!r} has no column {column!r}")
        return self._arrays[column]

    def __getattr__(self, column: str) -> Array:
        # Copying and unpickling look up names with underscores before `_arrays` exists.
        if column.startswith("_") or column not in self._arrays:
            raise AttributeError(f"{type(self).__name__} has no attribute or column {column!r}")
        return self._arrays[column]

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def _described(self, label: str) -> str:
        columns = ", ".join(f"{name} {array.dtype}{list(array.shape[1:])}" for name, array in self._arrays.items())
        return f"{type(self).__name__}({label}{len(self)} x {columns})"


class Batch(_Table):
    """Some rows of a dataset: `batch.image` or `batch["image"]`, `len(batch)`, `batch.columns`.

    The arrays are copies, which may be modified. `epoch` is the 1-based number of the pass over the dataset, or None.
    """

    __slots__ = ("epoch",)

    def __init__(self, columns: Mapping[str, npt.ArrayLike], epoch: int | None = None) -> None:
        super().__init__(_checked("a batch", columns))
        self.epoch = epoch

    def __repr__(self) -> str:
        return self._described("" if self.epoch is None else f"epoch {self.epoch}, ")


class Dataset(_Table):
    """An immutable table of examples: `dataset.image` or `dataset["image"]` is a column, one row per example.

        dataset = Dataset({"image": images, "label": labels}, name="mnist/train")
        first = dataset[:1000]              # a Dataset; its columns are views
        batch = dataset.take([5, 0, 4])     # a Batch; its columns are copies

    `columns`: arrays (rows, ...) of equal length; borrowed, with read-only views, and not to be modified elsewhere.
    `name`: for messages; the name of a slice includes its rows.

    Raises DatasetError for no columns, no rows, unequal lengths, an array of objects, or a column name that is reserved
    (`RESERVED`) or begins with an underscore.
    """

    __slots__ = ("_name",)

    def __init__(self, columns: Mapping[str, npt.ArrayLike], name: str = "dataset") -> None:
        arrays = {column: array.view() for column, array in _checked(f"dataset {name!r}", columns).items()}
        for array in arrays.values():
            array.flags.writeable = False
        super().__init__(arrays)
        self._name = name

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name

    @overload
    def __getitem__(self, key: str) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> "Dataset": ...
    def __getitem__(self, key: str | slice) -> "Array | Dataset":
        if isinstance(key, str):
            return super().__getitem__(key)
        if not isinstance(key, slice):
            raise TypeError(f"a dataset takes a column's name or a slice, not {key!r}; for rows use take([...])")
        start, stop, step = key.indices(len(self))
        rows = f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"
        return Dataset({name: array[key] for name, array in self._arrays.items()}, name=f"{self._name}[{rows}]")

    def take(self, indices: npt.ArrayLike, epoch: int | None = None) -> Batch:
        """Copy the rows at `indices`, (n,) integers, n > 0, in that order and with repetitions, into a batch.

        Raises DatasetError when `indices` has another shape or dtype, or is out of range.
        """
        rows = np.asarray(indices)
        if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
            raise DatasetError(
                f"{self!r} takes a non-empty list of integer indices, got {rows.dtype} of shape {rows.shape}"
            )
        low, high = rows.min(), rows.max()
        if low < 0 or high >= len(self):
            raise DatasetError(f"{self!r} has rows 0 to {len(self) - 1}, asked for {low} to {high}")
        return Batch({name: array.take(rows, axis=0) for name, array in self._arrays.items()}, epoch)

    def __repr__(self) -> str:
        return self._described(f"{self._name!r}, ")


def _checked(owner: str, columns: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    arrays = {}
    for name, values in columns.items():
        if name in RESERVED or name.startswith("_"):
            raise DatasetError(f"{owner} cannot have a column {name!r}: the name is reserved; rename the column")
        try:
            array = arrays[name] = np.asarray(values)
        except ValueError as error:
            raise DatasetError(f"{owner}, column {name!r}: not an array ({error}); give rows of one shape") from error
        if array.ndim == 0 or array.dtype.hasobject:
            raise DatasetError(
                f"{owner}, column {name!r}: {array.dtype} of shape {array.shape}; give numbers, one row per example"
            )
    if not arrays:
        raise DatasetError(f'{owner} has no columns; give at least one, as in {{"x": x}}')
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(array)}" for name, array in arrays.items())
        raise DatasetError(f"{owner} has columns of unequal length ({lengths}); each needs one row per example")
    if not len(array):
        raise DatasetError(f"{owner} has no rows; give at least one example")
    return arrays


def permutation(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits the rows of a dataset: a permutation of 0 ... `size` - 1, int64, new.

    Every worker computes it by itself; shards assign ranges of it. Rows are sorted by the raw 64-bit outputs of PCG64
    (M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
    Generation", 2014), which numpy guarantees in every version, unlike `Generator.permutation`.

    Raises ConfigurationError when an argument is negative.
    """
    for name, value in (("size", size), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise ConfigurationError(f"{name} is {value}; give an integer from 0 up")
    keys = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
