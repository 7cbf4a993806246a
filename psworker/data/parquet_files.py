"""`parquet`: the rows of Parquet files, of which the row groups that batches need are read. Needs the extra `parquet`.

The only module, with `arrow`, that imports pyarrow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pswire.errors import DatasetError
from pswire.system.extras import missing_package
from pswire.tensors.values import Array
from psworker.data.arrow_stream import opened
from psworker.data.batch import checked_columns
from psworker.data.epoch_order import epoch_order
from psworker.data.ragged import Column, gathered, null_message
from psworker.data.sources import FunctionDataset
from psworker.familiar_names import hint_keywords

if TYPE_CHECKING:
    from psworker.data.arrow import ArrowTable

__all__ = ["parquet"]


def parquet(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    *,
    buffer_bytes: int = 256 << 20,
) -> FunctionDataset:
    """Rows of Parquet files, read a row group at a time when a batch needs them.

        train = ps.data.parquet("train.parquet", columns=["image", "label"])
        for batch in session.batches(train, 100, epochs=3): ...

    An epoch visits the row groups in a new order, in windows: as many row groups as fit into `buffer_bytes`, one at
    least, are held, and rows are shuffled within them. Each worker thus reads each row group once an epoch, of whose
    rows it trains its part. Slices and `split` read nothing. Columns of numbers, text, dates and lists: docs/data.md.
    The arguments are the same in every worker.

    Args:
        paths: a file, several, or a folder, whose files `*.parquet` are read in the order of their names, with those of
            folders in it.
        columns: names of the columns that are read [all].
        buffer_bytes: size of the row groups that are held, decoded, of one window.

    Raises:
        ConfigurationError: pyarrow is not installed.
        DatasetError: there is no file, or one is not Parquet, or has other columns than the first; a column is not
            there, has nulls, or has values of another type. What a file's metadata do not show is raised when rows are
            read.
    """
    if isinstance(columns, str):
        raise TypeError(f"parquet: columns are a list of names, as in columns=[{columns!r}], got {columns!r}")
    return _ParquetDataset(_Files(_found(paths), columns, buffer_bytes))


class _RowGroup(NamedTuple):
    """A row group: its file, the file's metadata, and its number in the file."""

    path: Path
    metadata: Any
    number: int


class _Files:
    """The row groups of all files, and those of them that are held. For several threads."""

    def __init__(self, paths: Sequence[Path], columns: Sequence[str] | None, buffer_bytes: int) -> None:
        self.name = paths[0].name if len(paths) == 1 else f"{paths[0].name} ... {paths[-1].name}"
        self._columns, self._buffer_bytes = columns and list(columns), buffer_bytes
        self._groups: list[_RowGroup] = []
        lengths, sizes = [0], []
        first: Any = None
        for path in paths:
            metadata = _metadata(path)
            schema = _selected(metadata.schema.to_arrow_schema(), columns, path)
            first = first or schema
            if not schema.equals(first):
                raise DatasetError(f"{path} has other columns than {paths[0]}:\n{schema}\n, not\n{first}")
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if group.num_rows:
                    self._groups.append(_RowGroup(path, metadata, number))
                    lengths.append(group.num_rows)
                    sizes.append(_decoded_size(group, set(schema.names), f"{path}, row group {number}"))
        if not self._groups:
            raise DatasetError(f"{self.name} has no rows; give at least one example")
        checked_columns(self.name, dict.fromkeys(first.names, np.zeros(1)))  # their names
        self.starts, self._sizes = np.cumsum(lengths), sizes
        self._held: dict[int, ArrowTable] = {}  # the least recently used one first
        self._lock = threading.Lock()

    def take(self, rows: Array) -> dict[str, Column]:
        """The columns of these rows."""
        with self._lock:
            return gathered(self.starts, lambda number, rows: self._group(number).take(rows), rows)

    def _group(self, number: int) -> ArrowTable:
        table = self._held.pop(number, None)
        if table is None:
            room = self._buffer_bytes - self._sizes[number]
            while self._held and sum(self._sizes[one] for one in self._held) > room:
                del self._held[next(iter(self._held))]
            table = self._read(self._groups[number])
        self._held[number] = table
        return table

    def _read(self, group: _RowGroup) -> ArrowTable:
        what = f"{group.path}, row group {group.number}"
        pyarrow = _pyarrow()
        try:
            texts = _texts(group.metadata)
            with pyarrow.parquet.ParquetFile(group.path, metadata=group.metadata, read_dictionary=texts) as file:
                table = file.read_row_group(group.number, columns=self._columns)
        except (OSError, pyarrow.ArrowException) as error:
            raise DatasetError(f"{what} cannot be read: {error}") from error
        return opened(table, what)

    def windows(self, seed: int, epoch: int) -> Array:
        """The window of each row group in an epoch, (row groups,) int64: those of one are held at the same time."""
        windows = np.empty(len(self._sizes), np.int64)
        window = held = 0
        for number in epoch_order(len(windows), seed, epoch):
            if held and held + self._sizes[number] > self._buffer_bytes:
                window, held = window + 1, 0
            held += self._sizes[number]
            windows[number] = window
        return windows


class _ParquetDataset(FunctionDataset):
    """Rows of Parquet files, shuffled in windows of row groups."""

    __slots__ = ("_files",)

    def __init__(self, files: _Files) -> None:
        super().__init__(files.take, int(files.starts[-1]), files.name)
        self._files = files

    def order(self, seed: int, epoch: int) -> Array:
        """Window by window, each shuffled."""
        order = super().order(seed, epoch)
        groups = np.searchsorted(self._files.starts, np.asarray(self._rows)[order], side="right") - 1
        return order[np.argsort(self._files.windows(seed, epoch)[groups], kind="stable")]

    @hint_keywords
    def split(self, fraction: float, seed: int = 0) -> tuple[FunctionDataset, FunctionDataset]:
        """Two parts, as `FunctionDataset.split` draws them; the rows of each stay in the order of the files."""
        first, second = super().split(fraction, seed)
        first._rows, second._rows = np.sort(first._rows), np.sort(second._rows)
        return first, second


# --- files ------------------------------------------------------------------------------------------------------------


def _pyarrow() -> Any:  # noqa: ANN401
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing_package("Parquet files need", "parquet") from None
    return pyarrow


def _found(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    found: list[Path] = []
    for path in map(Path, several):
        if path.is_dir():
            files = sorted(path.rglob("*.parquet"))
            if not files:
                raise DatasetError(f"{path} has no files *.parquet")
            found += files
        else:
            found.append(path)
    if not found:
        raise DatasetError("there are no Parquet files; give the path of one, or of a folder")
    return found


def _metadata(path: Path) -> Any:  # noqa: ANN401
    pyarrow = _pyarrow()
    try:
        return pyarrow.parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read as a Parquet file: {error}") from error


def _selected(schema: Any, columns: Sequence[str] | None, path: Path) -> Any:  # noqa: ANN401
    if columns is None:
        return schema
    if missing := [name for name in columns if name not in schema.names]:
        raise DatasetError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(schema.names)}")
    return _pyarrow().schema([schema.field(name) for name in columns])


#: Bytes of a value of a physical type; of a text those of its number in a dictionary.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}


def _texts(metadata: Any) -> list[str]:  # noqa: ANN401
    """The columns of text and binary values: they are held as dictionaries, as the file has them if values repeat."""
    columns = (metadata.schema.column(number) for number in range(metadata.num_columns))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and "." not in column.path]


def _decoded_size(group: Any, columns: set[str], what: str) -> int:  # noqa: ANN401
    """The bytes in memory of the columns of a row group, or somewhat more.

    Raises DatasetError for nulls.
    """
    size = 0
    for number in range(group.num_columns):
        column = group.column(number)
        name, _, inner = column.path_in_schema.partition(".")
        if name not in columns:
            continue
        # In the file numbers that repeat take less than in memory, and texts as much as their dictionary and numbers.
        fixed = column.num_values * _WIDTHS.get(column.physical_type, 0)
        text = column.physical_type == "BYTE_ARRAY"
        size += column.total_uncompressed_size + fixed if text else max(column.total_uncompressed_size, fixed)
        statistics = column.statistics
        if not inner and statistics is not None and statistics.has_null_count and statistics.null_count:
            raise DatasetError(f"{what}, column {name!r}: {null_message(statistics.null_count, group.num_rows)}")
    return size
