"""Examples that are not arrays in memory: of functions, tables and datasets of other libraries, sequences, streams.

`open_source` finds out which one a program has given, by its methods: no other library is imported for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.arrow_stream import ArrowStream, is_table, opened
from psworker.data.batch import Batch, ColumnLike, as_text, checked_columns
from psworker.data.dataset import Dataset, checked_indices, slice_name, split_rows
from psworker.data.epoch_order import epoch_order
from psworker.familiar_names import hint_keywords

__all__ = ["FunctionDataset"]


class Numbered(Protocol):
    """Examples by their numbers, from 0."""

    def __len__(self) -> int:
        """The number of examples."""

    def __getitem__(self, number: int, /) -> Any:  # noqa: ANN401
        """An example."""


#: Columns by name; for one example, or for all examples of a batch.
Columns: TypeAlias = Mapping[str, ColumnLike]
#: Makes the columns of a batch: of the examples of a sequence or an iterable, or of an item that has all of them.
Collate: TypeAlias = Callable[[Any], Columns | Batch]
#: What a program may read batches of: columns, examples by number, or examples (or batches) one after the other. Tables
#: and datasets of other libraries are among these.
Source: TypeAlias = (
    "Dataset | FunctionDataset | Stream | Batch | Columns | ArrowStream | Numbered | Iterable[Any] | "
    "Callable[[], Iterable[Any]]"
)


class FunctionDataset:
    """Examples that a function reads by their numbers when a batch is made: from files, an archive or a database.

        def read(indices):                          # int64 (n,): the numbers of the examples of a batch
            return {"image": load_images(indices), "label": labels[indices]}

        train = ps.FunctionDataset(read, size=60_000)
        for batch in session.batches(train, 100, epochs=3): ...

    Every worker calls the function for its own batches, in the thread of the session, while a push is under way.
    `read` returns columns, arrays or `Ragged`, with a row for each number, in their order. `size` is the number of
    examples; `name` is for messages. Slices and `split` read nothing.

    Raises DatasetError for a size below 1.
    """

    __slots__ = ("_name", "_read", "_rows")

    def __init__(self, read: Callable[[Array], Columns | Batch], size: int, name: str = "function") -> None:
        if size < 1:
            raise DatasetError(f"function dataset {name!r} has size {size}; give the number of its examples, 1 or more")
        self._read, self._name = read, name
        self._rows: range | Array = range(size)

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name

    @property
    def num_examples(self) -> int:
        """The number of examples, as `len`."""
        return len(self)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: slice) -> FunctionDataset:
        if not isinstance(key, slice):
            raise TypeError(f"a function dataset takes a slice, not {key!r}; for rows use take([...])")
        return self._part(self._rows[key], slice_name(key, len(self)))

    @hint_keywords
    def split(self, fraction: float, seed: int = 0) -> tuple[FunctionDataset, FunctionDataset]:
        """Two parts, the first with this fraction of the examples, drawn by `seed`: see `Dataset.split`."""
        numbers, name = np.asarray(self._rows), f".split({fraction}, seed={seed})"
        first, second = split_rows(self, fraction, seed)
        return self._part(numbers[first], f"{name}[0]"), self._part(numbers[second], f"{name}[1]")

    def take(self, indices: npt.ArrayLike, epoch: int | None = None) -> Batch:
        """The examples at `indices`, (n,) integers, n > 0, as the function returns them.

        Raises DatasetError for other indices, or when the function does not return columns with a row for each.
        """
        rows = checked_indices(self, indices)
        if isinstance(self._rows, range):
            numbers = self._rows.start + self._rows.step * rows.astype(np.int64)
        else:
            numbers = self._rows[rows]
        batch = as_batch(self._read(numbers), f"what the function of {self!r} returned", epoch)
        if len(batch) != len(rows):
            raise DatasetError(
                f"the function of {self!r} returned {len(batch)} rows for {len(rows)} indices; "
                "it must return one row for each, in their order"
            )
        return batch

    def order(self, seed: int, epoch: int) -> Array:
        """The order of an epoch, the same in every worker: a permutation of the indices, int64."""
        return epoch_order(len(self), seed, epoch)

    def expect(self, indices: Array) -> None:
        """Is told the examples that are taken next; a subclass may begin to read them."""

    def _part(self, rows: range | Array, name: str) -> FunctionDataset:
        part = copy(self)
        part._name, part._rows = f"{self._name}{name}", rows
        if not len(rows):
            raise DatasetError(f"{part._name} has no rows; give at least one example")
        return part

    def __repr__(self) -> str:
        return f"FunctionDataset({self._name!r}, {len(self)} examples)"


class Stream:
    """An iterable of examples or of batches, of unknown length; or a function that returns one for each pass."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]], collate: Collate | None = None) -> None:
        self._source, self._collate = source, collate

    def batches(self, batch_size: int | None, epochs: int | None) -> Iterator[Batch]:
        """The batches of several passes, without end for None. With `batch_size` None each item of the iterable is one.

        The last batch of a pass may be smaller. Raises DatasetError for several passes over an iterator, and, when it
        is read, for a pass without items, or an item that is no example or batch.
        """
        if epochs != 1 and iter_once(self._source):
            raise DatasetError(
                f"{self!r} can be read once, but epochs={epochs}; give the function that makes it, or epochs=1"
            )
        return self._passes(batch_size, epochs)

    def _passes(self, batch_size: int | None, epochs: int | None) -> Iterator[Batch]:
        epoch = 0
        while epochs is None or epoch < epochs:
            epoch += 1
            empty = True
            for batch in self._one_pass(batch_size, epoch):
                empty = False
                yield batch
            if empty:
                raise DatasetError(
                    f"{self!r} gave nothing in pass {epoch}; each worker needs at least one example in each pass"
                )

    def _one_pass(self, batch_size: int | None, epoch: int) -> Iterator[Batch]:
        items = self._source() if callable(self._source) else self._source
        if not isinstance(items, Iterable):
            raise DatasetError(f"{self!r} returned {type(items).__name__}; it must return an iterable of examples")
        if batch_size is None:
            for item in items:
                if self._collate is None:
                    yield as_batch(item, f"{self!r} gave an item that", epoch)
                else:
                    yield self._collated(item, epoch)
            return
        examples = []
        for item in items:
            examples.append(item)
            if len(examples) == batch_size:
                yield self._collated(examples, epoch)
                examples = []
        if examples:
            yield self._collated(examples, epoch)

    def _collated(self, examples: Any, epoch: int) -> Batch:  # noqa: ANN401 - a list, or an item
        giver = f"a batch of {self!r}" if self._collate is None else f"what collate returned for {self!r}"
        return as_batch((self._collate or stacked)(examples), giver, epoch)

    def __repr__(self) -> str:
        return getattr(self._source, "__qualname__", None) or repr(self._source)


def open_source(source: Source, collate: Collate | None) -> Dataset | FunctionDataset | Stream:
    """The dataset or the stream of what a program has given.

    Raises DatasetError for arrays without names, and what is no source; ValueError for a `collate` that is not used.
    """
    if isinstance(source, np.ndarray | tuple | str | bytes):
        raise DatasetError(f'{type(source).__name__} is not a dataset; name the columns, as in {{"x": x, "y": y}}')
    if isinstance(source, Dataset | FunctionDataset | Stream | Batch) or _has_columns(source):
        if collate is not None:
            raise ValueError("collate is for sequences and iterables of examples; a dataset has columns already")
        return _of_columns(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not _is_iterable_of_pytorch(source):
        if collate is None and hasattr(source, "with_format"):
            return _of_hugging_face(source)
        return _of_sequence(source, collate or stacked)  # type: ignore[arg-type]
    if callable(source) or isinstance(source, Iterable):
        return Stream(source, collate)
    raise DatasetError(
        f"{type(source).__name__} is not a dataset; give a ps.Dataset, a ps.FunctionDataset, columns by name, a table "
        "(of a lazy frame what collect() returns), a sequence of examples (with __len__ and __getitem__), or an "
        "iterable of examples"
    )


def _has_columns(value: object) -> bool:
    """Whether a value is a mapping, or a table of another library."""
    return hasattr(value, "keys") or is_table(value)


def _of_columns(source: Any) -> Dataset | FunctionDataset | Stream:  # noqa: ANN401
    if isinstance(source, Dataset | FunctionDataset | Stream):
        return source
    if isinstance(source, Batch):
        return Dataset(source._columns)
    if not is_table(source):
        return Dataset(source)
    name = type(source).__name__
    table = opened(source, name)
    checked_columns(name, table.take(np.zeros(1, np.int64)))  # their names
    return FunctionDataset(table.take, len(table), name)


def _of_hugging_face(source: Any) -> FunctionDataset:  # noqa: ANN401
    """A `datasets.Dataset`, which gives the columns of the rows at a list of indices, and reads these alone.

    As Arrow tables, unless the program has chosen a format or a transform.
    """
    dataset = source if source.format["type"] else source.with_format("arrow")
    return FunctionDataset(lambda rows: dataset[rows.tolist()], len(source), type(source).__name__)


def _is_iterable_of_pytorch(source: object) -> bool:
    """Whether it is a `torch.utils.data.IterableDataset`: it inherits a `__getitem__`, and may have a length."""
    return any(base.__name__ == "IterableDataset" for base in type(source).__mro__)


def _of_sequence(sequence: Numbered, collate: Collate) -> FunctionDataset:
    def read(indices: Array) -> Columns | Batch:
        return collate([sequence[int(number)] for number in indices])

    return FunctionDataset(read, len(sequence), type(sequence).__name__)


def iter_once(source: object) -> bool:
    """True if it is an iterator, such as a generator, which can be read once only."""
    return isinstance(source, Iterator)


def as_batch(columns: object, giver: str, epoch: int | None) -> Batch:
    """The value of a program's function as a batch of this epoch; DatasetError names the `giver`."""
    if isinstance(columns, Batch):
        return Batch(columns._columns, epoch)
    if not _has_columns(columns):
        raise DatasetError(f'{giver} is {type(columns).__name__}; give columns by name, as in {{"x": x, "y": y}}')
    try:
        return Batch(columns, epoch)  # type: ignore[arg-type]
    except DatasetError as error:
        raise DatasetError(f"{giver}: {error}") from error


def stacked(examples: Sequence[Any]) -> Columns:
    """The columns of examples, whose values are numbers, texts or arrays of one shape: arrays (examples, ...).

    An example is a mapping, a named tuple, or a pair, whose columns are `x` and `y`.
    """
    rows = [_named(example) for example in examples]
    first = rows[0]
    for number, row in enumerate(rows):
        if row.keys() != first.keys():
            raise DatasetError(f"examples 0 and {number} of a batch have columns {list(first)} and {list(row)}")
    return {name: _stacked_column(name, [row[name] for row in rows]) for name in first}


def _named(example: Any) -> Mapping[str, Any]:  # noqa: ANN401
    """The values of an example by the names of their columns."""
    if isinstance(example, Mapping):
        return example
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return dict(zip(example._fields, example, strict=True))
    if isinstance(example, tuple) and len(example) == 2:
        return dict(zip(("x", "y"), example, strict=True))
    if is_table(example):
        raise DatasetError(f"an example is {type(example).__name__}, a whole batch; give batch_size=None")
    raise DatasetError(
        f'an example is {type(example).__name__}; give a mapping, as in {{"x": x, "y": y}}, a pair of x and y, a named '
        "tuple, or collate=, a function that makes the columns of a list of examples"
    )


def _stacked_column(name: str, values: list[Any]) -> Array:
    arrays = [np.asarray(value) for value in values]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise DatasetError(
                f"column {name!r} has shapes {arrays[0].shape} and {array.shape} in examples 0 and {number} of a "
                "batch; pad them, or give collate=, a function that makes columns, such as ps.Ragged, of a list of "
                "examples"
            )
    column = np.stack(arrays)
    return as_text(column) if isinstance(values[0], str) else column
