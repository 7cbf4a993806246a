"""Examples that are not columns in memory: `FunctionDataset`, sequences, and iterables, which are read as a `Stream`.

`open_source` finds out which one a program has given. Imports datasets only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.batch import Batch, ColumnLike
from psworker.data.dataset import Dataset, checked_indices, slice_name, split_rows
from psworker.familiar_names import hint_keywords

__all__ = ["FunctionDataset"]

#: Columns by name; for one example, or for all examples of a batch.
Columns: TypeAlias = Mapping[str, ColumnLike]
#: Makes the columns of a batch: of the examples of a sequence or an iterable, or of an item that has all of them.
Collate: TypeAlias = Callable[[Any], Columns | Batch]
#: What a program may read batches of: columns, examples by number, or examples (or batches) one after the other.
Source: TypeAlias = (
    "Dataset | FunctionDataset | Stream | Columns | Sequence[Any] | Iterable[Any] | Callable[[], Iterable[Any]]"
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

    def expect(self, indices: Array) -> None:
        """Is told the examples that are taken next; a subclass may begin to read them."""

    def _part(self, rows: range | Array, name: str) -> FunctionDataset:
        part = FunctionDataset(self._read, max(1, len(rows)), f"{self._name}{name}")
        if not len(rows):
            raise DatasetError(f"{part._name} has no rows; give at least one example")
        part._rows = rows
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
    is_dataset = isinstance(source, Dataset | FunctionDataset | Stream)
    if is_dataset or hasattr(source, "keys"):  # a mapping, or a table of another library
        if collate is not None:
            raise ValueError("collate is for sequences and iterables of examples; a dataset has columns already")
        return source if is_dataset else Dataset(source)  # type: ignore[arg-type, return-value]
    if isinstance(source, Batch):
        return Dataset(source._columns)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _of_sequence(source, collate or stacked)  # type: ignore[arg-type]
    if callable(source) or isinstance(source, Iterable):
        return Stream(source, collate)
    raise DatasetError(
        f"{type(source).__name__} is not a dataset; give a ps.Dataset, a ps.FunctionDataset, columns by name, or an "
        "iterable of examples"
    )


def _of_sequence(sequence: Sequence[Any], collate: Collate) -> FunctionDataset:
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
    if not hasattr(columns, "keys"):
        raise DatasetError(f'{giver} is {type(columns).__name__}; give columns by name, as in {{"x": x, "y": y}}')
    try:
        return Batch(columns, epoch)  # type: ignore[arg-type]
    except DatasetError as error:
        raise DatasetError(f"{giver}: {error}") from error


def stacked(examples: Sequence[Any]) -> Columns:
    """The columns of examples, each a mapping of names to numbers or arrays of one shape: arrays (examples, ...)."""
    first = examples[0]
    for number, example in enumerate(examples):
        if not isinstance(example, Mapping):
            raise DatasetError(
                f'an example is {type(example).__name__}; give a mapping, as in {{"x": x, "y": y}}, or collate=, a '
                "function that makes the columns of a list of examples"
            )
        if example.keys() != first.keys():
            raise DatasetError(f"examples 0 and {number} of a batch have columns {list(first)} and {list(example)}")
    columns = {name: [np.asarray(example[name]) for example in examples] for name in first}
    for name, values in columns.items():
        for number, value in enumerate(values):
            if value.shape != values[0].shape:
                raise DatasetError(
                    f"column {name!r} has shapes {values[0].shape} and {value.shape} in examples 0 and {number} of a "
                    "batch; pad them, or give collate=, a function that makes columns, such as ps.Ragged, of a list of "
                    "examples"
                )
    return {name: np.stack(values) for name, values in columns.items()}
