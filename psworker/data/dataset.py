"""`Dataset`, named columns of equal length in memory or in a memory map; and the order of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.arrow_stream import ArrowStream
from psworker.data.batch import Batch, ColumnLike, Table, checked_columns
from psworker.data.epoch_order import epoch_order
from psworker.data.ragged import Column, Ragged, concatenated, taken
from psworker.familiar_names import hint_arguments, hint_keywords

__all__ = ["Dataset"]


class Dataset(Table):
    """An immutable table of examples: `dataset.image` or `dataset["image"]` is a column, one row per example.

        dataset = Dataset({"image": images, "label": labels}, name="mnist/train")
        first = dataset[:1000]              # a Dataset; its columns are views
        batch = dataset.take([5, 0, 4])     # a Batch; its columns are copies

    `columns`: arrays (rows, ...) of equal length; borrowed, with read-only views, and not to be modified elsewhere.
    A list of arrays or lists of different length, or an array of such objects, becomes a `Ragged` column. Memory maps
    stay on disk: a batch reads its rows. Or a table of another library, such as a DataFrame (docs/data.md).
    `name`: for messages; the name of a slice includes its rows.

    Raises DatasetError for no columns, no rows, unequal lengths, other objects, rows of different dtypes, or a column
    name that is reserved (`RESERVED` in `psworker.data.batch`) or begins with an underscore.
    """

    __slots__ = ("_name", "_passes")

    def __init__(self, columns: Mapping[str, ColumnLike] | ArrowStream, name: str = "dataset") -> None:
        if not isinstance(name, str):
            raise TypeError(f'Dataset: name the columns, ps.Dataset({{"x": x, "y": y}}); its name is {name!r:.80}')
        checked = checked_columns(f"dataset {name!r}", columns, lists=True)
        super().__init__({column: _read_only(values) for column, values in checked.items()})
        self._name = name
        self._passes: _Passes | None = None

    @classmethod
    def concatenate(cls, parts: Iterable[Dataset], name: str = "dataset") -> Dataset:
        """The examples of several datasets, in order; the columns are copies.

        Raises DatasetError unless they have the same columns, of the same dtypes and shapes.
        """
        several = list(parts)
        if not several:
            raise DatasetError("there is nothing to concatenate; give at least one dataset")
        forms = [{column: _form(values) for column, values in part._columns.items()} for part in several]
        for part, form in zip(several, forms, strict=True):
            if form != forms[0]:
                raise DatasetError(f"{part!r} and {several[0]!r} cannot be concatenated: they differ in their columns")
        return cls({column: concatenated([part[column] for part in several]) for column in several[0].columns}, name)

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name

    @overload
    def __getitem__(self, key: str) -> Any: ...  # noqa: ANN401 - an array or a Ragged: the program knows which
    @overload
    def __getitem__(self, key: slice) -> Dataset: ...
    def __getitem__(self, key: str | slice) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        if not isinstance(key, slice):
            raise TypeError(f"a dataset takes a column's name or a slice, not {key!r}; for rows use take([...])")
        return Dataset(
            {name: column[key] for name, column in self._columns.items()}, f"{self._name}{slice_name(key, len(self))}"
        )

    def take(self, indices: npt.ArrayLike, epoch: int | None = None) -> Batch:
        """Copy the rows at `indices`, (n,) integers, n > 0, in that order and with repetitions, into a batch.

        Raises DatasetError when `indices` has another shape or dtype, or is out of range.
        """
        rows = checked_indices(self, indices)
        return Batch({name: taken(column, rows) for name, column in self._columns.items()}, epoch)

    @hint_keywords
    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two datasets, the first with this fraction of the rows, drawn by `seed`; the same in every worker.

            train, validation = dataset.split(0.9)

        The columns are copies. For parts as they are in the file, use slices: `dataset[:9000]`, `dataset[9000:]`.
        Raises DatasetError if the fraction is not between 0 and 1, or a part would be empty.
        """
        first, second = split_rows(self, fraction, seed)
        name = f"{self._name}.split({fraction}, seed={seed})"
        return Dataset(self.take(first)._columns, f"{name}[0]"), Dataset(self.take(second)._columns, f"{name}[1]")

    def next_batch(self, count: int, *, shuffle: bool = True, seed: int | None = None) -> tuple[Any, ...]:
        """The columns of the next `count` rows of shuffled passes over all rows; for programs written for TensorFlow.

            images, labels = mnist.train.next_batch(100)

        The position is kept in this object, in this process: with several workers each makes passes of its own, and a
        job that is resumed begins anew. `session.batches` reads each example once an epoch over all workers. `seed` is
        that of the first call; by default passes differ in each process. Without `shuffle` a pass that begins has the
        order of the rows. Raises ValueError if `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"next_batch takes at least one row, got {count}")
        if self._passes is None:
            self._passes = _Passes(len(self), np.random.default_rng(seed))
        batch = self.take(self._passes.next(count, shuffle))
        return tuple(batch[column] for column in batch.columns)

    def __repr__(self) -> str:
        return self._described(f"{self._name!r}, ")


hint_arguments([Dataset])


@dataclass(slots=True)
class _Passes:
    """The state of `Dataset.next_batch`: passes over `size` rows."""

    size: int
    random: np.random.Generator
    rest: Array = field(default_factory=lambda: np.empty(0, np.int64))  # of the present pass

    def next(self, count: int, shuffle: bool) -> Array:
        while len(self.rest) < count:
            order = self.random.permutation(self.size) if shuffle else np.arange(self.size)
            self.rest = np.concatenate([self.rest, order])
        rows, self.rest = self.rest[:count], self.rest[count:]
        return rows


# --- columns and rows -------------------------------------------------------------------------------------------------


def _read_only(column: Column) -> Column:
    if isinstance(column, Ragged):
        return Ragged.from_splits(_read_only(column.values), _read_only(column.row_splits))  # type: ignore[arg-type]
    view = column.view()
    view.flags.writeable = False
    return view


def _form(column: Column) -> tuple[type, np.dtype[Any], tuple[int, ...]]:
    values = column.values if isinstance(column, Ragged) else column
    return type(column), column.dtype, values.shape[1:]


def slice_name(key: slice, size: int) -> str:
    """A slice as it is added to the name of what it is of: "[0:100]"."""
    start, stop, step = key.indices(size)
    return f"[{start}:{stop}]" if step == 1 else f"[{start}:{stop}:{step}]"


def checked_indices(dataset: Any, indices: npt.ArrayLike) -> Array:  # noqa: ANN401 - what has rows
    """Row numbers (n,), n > 0, as an array. Raises DatasetError for another shape or dtype, or one out of range."""
    rows = np.asarray(indices)
    if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
        raise DatasetError(
            f"{dataset!r} takes a non-empty list of integer indices, got {rows.dtype} of shape {rows.shape}"
        )
    low, high = rows.min(), rows.max()
    if low < 0 or high >= len(dataset):
        raise DatasetError(f"{dataset!r} has rows 0 to {len(dataset) - 1}, asked for {low} to {high}")
    return rows


def split_rows(dataset: Any, fraction: float, seed: int) -> tuple[Array, Array]:  # noqa: ANN401 - what has rows
    """The rows of two parts, the first with this fraction; DatasetError if one is empty."""
    if not isinstance(fraction, Real):
        raise TypeError(f"split takes the fraction of the first part, such as 0.8, got {fraction!r}")
    size = len(dataset)
    count = round(fraction * size) if 0 < fraction < 1 else 0
    if not 0 < count < size:
        raise DatasetError(f"{dataset!r} cannot be split at {fraction}: each part needs at least one of the rows")
    order = epoch_order(size, seed, 0)
    return order[:count], order[count:]
