"""Named columns of equal length, arrays or `Ragged`; and `Batch`, the columns of some examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.arrow_stream import ArrowStream, is_table, opened
from psworker.data.ragged import Column, Ragged, null_message
from psworker.familiar_names import DATASET, described, hint_attributes

__all__ = ["Batch"]

#: What becomes a column.
ColumnLike: TypeAlias = npt.ArrayLike | Ragged

#: Attributes of `Batch` and `Dataset`, which no column may be named.
RESERVED = frozenset({"columns", "concatenate", "epoch", "name", "next_batch", "num_examples", "split", "take"})


#: How words become numbers.
WORDS = (
    "words: np.unique(words, return_inverse=True)[1], or of pandas frame['name'].astype('category').cat.codes and "
    "pd.get_dummies(frame): docs/data.md#csv"
)


class Table:
    """Named columns of equal length, at least one, with at least one row."""

    __slots__ = ("_columns",)

    def __init__(self, columns: dict[str, Column]) -> None:
        self._columns = columns

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order in which they were given."""
        return tuple(self._columns)

    @property
    def num_examples(self) -> int:
        """The number of examples, as `len`."""
        return len(self)

    def __getitem__(self, column: str) -> Any:  # noqa: ANN401 - an array or a Ragged: the program knows which
        if column not in self._columns:
            raise DatasetError(
                f"{self!r} has no column {column!r}; columns have names, such as {type(self).__name__.lower()}."
                f"{self.columns[0]}, and are not unpacked"
            )
        return self._columns[column]

    def __getattr__(self, column: str) -> Any:  # noqa: ANN401
        # Copying and unpickling look up names with underscores before `_columns` exists.
        if column.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {column!r}")
        if column not in self._columns:
            ending = described(DATASET[column]) if column in DATASET else f"; its columns are {', '.join(self.columns)}"
            raise AttributeError(f"{type(self).__name__} has no attribute or column {column!r}{ending}", name=column)
        return self._columns[column]

    def __setattr__(self, name: str, value: object) -> None:
        if not hasattr(type(self), name):
            raise AttributeError(
                f"{type(self).__name__} is read-only, {name!r} is not set: columns are those it is made of"
            )
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._columns]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def _described(self, label: str) -> str:
        columns = ", ".join(f"{name} {_described(column)}" for name, column in self._columns.items())
        return f"{type(self).__name__}({label}{len(self)} x {columns})"


hint_attributes(Table, DATASET)


class Batch(Table):
    """Some examples: `batch.image` or `batch["image"]`, `batch.num_examples` or `len(batch)`, `batch.columns`.

    The columns, arrays or `Ragged`, are copies, which may be modified. `epoch` is the 1-based number of the pass over
    the dataset, or None. A batch that a program makes itself has rows of different length as `ps.Ragged(rows)`.
    """

    __slots__ = ("epoch",)

    def __init__(self, columns: Mapping[str, ColumnLike] | ArrowStream, epoch: int | None = None) -> None:
        super().__init__(checked_columns("a batch", columns))
        self.epoch = epoch

    def __repr__(self) -> str:
        return self._described("" if self.epoch is None else f"epoch {self.epoch}, ")


def checked_columns(
    owner: str, columns: Mapping[str, ColumnLike] | ArrowStream, *, lists: bool = False
) -> dict[str, Column]:
    """The columns, also those of a table of another library, as arrays or `Ragged`.

    With `lists`, rows of different shapes become a `Ragged`. Not in a batch: whether a column is ragged must not depend
    on which examples are in it. Raises DatasetError.
    """
    given: Any = opened(columns, owner).columns() if is_table(columns) else columns
    if not isinstance(given, Mapping) and not hasattr(given, "keys"):  # as a DataFrame of pandas has
        raise DatasetError(f'{owner} cannot be made of {type(columns).__name__}; name the columns: {{"x": x, "y": y}}')
    checked: dict[str, Column] = {}
    for name, values in given.items():
        if not isinstance(name, str):
            raise DatasetError(f"{owner} has a column {name!r}; names are text: rename the column")
        if not name:
            raise DatasetError(f'{owner} has a column without a name; name it, as in {{"x": x}}')
        if name in RESERVED or name.startswith("_"):
            raise DatasetError(f"{owner} cannot have a column {name!r}: the name is reserved; rename the column")
        try:
            checked[name] = _column(values, lists=lists)
        except DatasetError as error:
            raise DatasetError(f"{owner}, column {name!r}: {error}") from error
    if not checked:
        raise DatasetError(f'{owner} has no columns; give at least one, as in {{"x": x}}')
    lengths = {name: len(column) for name, column in checked.items()}
    if len(set(lengths.values())) > 1:
        unequal = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DatasetError(f"{owner} has columns of unequal length ({unequal}); each needs one row per example")
    if not min(lengths.values()):
        raise DatasetError(f"{owner} has no rows; give at least one example")
    return checked


def _column(values: Any, *, lists: bool) -> Column:  # noqa: ANN401
    if isinstance(values, Ragged):
        return values
    if is_table(values):
        return _of_arrow(values)
    if hasattr(values, "column_names"):
        raise DatasetError("a table of its own; give that: of several splits one, as in splits['train']")
    _check_no_missing(values)
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different shapes
        if lists:
            return Ragged(values)
        raise DatasetError(f"not an array ({error}); pad the rows, or give ps.Ragged(rows)") from error
    if array.dtype.hasobject and array.dtype.kind != "T":
        return _of_objects(array)
    if array.ndim == 0:
        raise DatasetError(f"{array.dtype} of shape {array.shape}; give numbers, one row per example")
    return as_text(array) if array.dtype.kind == "U" and not isinstance(values, np.ndarray) else array


def as_text(array: Array) -> Array:
    """Texts as numpy's `StringDType`, in which none takes the memory of the longest."""
    return array.astype(np.dtypes.StringDType())


def _of_arrow(values: object) -> Column:
    columns = opened(values, type(values).__name__).columns()
    if list(columns) != [""]:
        raise DatasetError(f"a table of its own, with columns {', '.join(columns)}; give these")
    return columns[""]


def _check_no_missing(values: Any) -> None:  # noqa: ANN401
    """Raises DatasetError for nulls in a column of pandas that distinguishes them from NaN."""
    if hasattr(values, "isna") and not isinstance(values.dtype, np.dtype) and values.isna().any():
        raise DatasetError(null_message(int(values.isna().sum()), len(values)))


def _of_objects(array: Array) -> Column:
    """An array of objects as a column: rows as a `Ragged`, or texts."""
    if array.ndim == 1 and all(isinstance(row, np.ndarray | list | tuple) for row in array):
        return Ragged(array)
    if array.ndim and all(isinstance(value, str) for value in array.flat):
        return as_text(array)
    kinds = ", ".join(sorted({type(value).__name__ for value in array.ravel()[:1000]}))
    raise DatasetError(
        f"objects ({kinds}) of shape {array.shape}; convert them to numbers, to text, or to arrays of one dtype, and "
        "fill missing values or leave out their rows" + (f" ({WORDS})" if "str" in kinds else "")
    )


def _described(column: Column) -> str:
    if isinstance(column, Ragged):
        return f"{column.dtype}[{', '.join(['ragged', *map(str, column.values.shape[1:])])}]"
    return f"{column.dtype}{list(column.shape[1:])}"
