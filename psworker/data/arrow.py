"""Tables of other libraries, read by the Arrow C stream interface where they are, without an import of the library.

The layouts are those of Apache Arrow, "The Arrow C data interface", "The Arrow C stream interface" and "Arrow Columnar
Format". Rows become columns when they are taken: nothing is copied before, so memory-mapped tables stay on disk.
Knows no datasets.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.ragged import Column, Ragged, concatenated, positions_of, taken

#: The values of a column at these rows, (n,) int64: copies.
Take: TypeAlias = Callable[[Array], Column]

_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Schema(ctypes.Structure):
    """`struct ArrowSchema`: the type of a column, or of a table whose columns are the children."""


class _Array(ctypes.Structure):
    """`struct ArrowArray`: the buffers of a column, or of some rows of a table."""


class _Stream(ctypes.Structure):
    """`struct ArrowArrayStream`."""

    _fields_ = (
        ("get_schema", _FILL),
        ("get_next", _FILL),
        ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_Schema._fields_ = (
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", _RELEASE),
    ("private_data", ctypes.c_void_p),
)
_Array._fields_ = (
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", _RELEASE),
    ("private_data", ctypes.c_void_p),
)

#: Formats of numbers.
_NUMBERS = {
    **{"c": "i1", "s": "i2", "i": "i4", "l": "i8", "C": "u1", "S": "u2", "I": "u4", "L": "u8"},
    **{"e": "f2", "f": "f4", "g": "f8"},
}
#: Units of dates, times and durations.
_UNITS = {"s": "s", "m": "ms", "u": "us", "n": "ns"}
#: What to do with a column of another type.
_UNSUPPORTED = {
    "d": "decimals; cast them to float64",
    "+s": "structs; make their fields columns of their own (flatten, unnest), or of images in a Hugging Face dataset "
    'give dataset.with_format("numpy")',
    "+m": "maps; make columns of their values",
}


class ArrowStream(Protocol):
    """A table or a column of another library, by the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule `arrow_array_stream`."""


def is_table(value: object) -> bool:
    """Whether a value is a table, or a column, that gives its memory by the Arrow C stream interface.

    Not one of pandas, which has its columns as arrays.
    """
    return hasattr(value, "__arrow_c_stream__") and hasattr(value, "__len__") and not hasattr(value, "isna")


class ArrowTable:
    """The rows of a table of another library; or of one column, then named "".

    | type | column of a batch |
    | --- | --- |
    | numbers, booleans | an array of their dtype |
    | dates, times with a date, durations, times of a day | datetime64 or timedelta64 of their unit, in UTC |
    | text | an array of numpy's `StringDType` |
    | binary | `Ragged` of uint8 |
    | lists | `Ragged` |
    | lists of a fixed size | an array (rows, size, ...) |
    | dictionaries, categories | their values |

    `table` has `__arrow_c_stream__`; `owner` names it in messages. Raises DatasetError for a null, for columns of
    other types, or without rows.
    """

    __slots__ = ("__weakref__", "_chunks", "_starts")

    def __init__(self, table: Any, owner: str) -> None:  # noqa: ANN401
        self._chunks: list[dict[str, Take]] = []
        starts = [0]
        capsule = table.__arrow_c_stream__()  # releases the stream when it is collected
        stream = _Stream.from_address(_capsule_pointer(capsule, b"arrow_array_stream"))
        schema = _Schema()
        _fill(stream, stream.get_schema, schema, owner)
        try:
            while (array := self._next(stream, owner)) is not None:
                if array.length:
                    self._chunks.append(_chunk(schema, array, owner))
                    starts.append(starts[-1] + array.length)
        finally:
            schema.release(ctypes.byref(schema))
        if not self._chunks:
            raise DatasetError(f"{owner} has no rows; give at least one example")
        self._starts = np.array(starts)

    def _next(self, stream: _Stream, owner: str) -> Any:  # noqa: ANN401 - mypy does not know the fields
        """The next rows, which are kept as long as this table; None after the last ones."""
        array: Any = _Array()
        _fill(stream, stream.get_next, array, owner)
        if not array.release:
            return None
        # At the end of the process the memory is freed anyway, and the library may be gone.
        weakref.finalize(self, lambda: array.release(ctypes.byref(array))).atexit = False
        return array

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Array) -> dict[str, Column]:
        """The columns of these rows, (n,) int64, in this order: copies."""
        return gathered(self._starts, self._take_of_chunk, rows)

    def _take_of_chunk(self, number: int, rows: Array) -> dict[str, Column]:
        return {name: take(rows) for name, take in self._chunks[number].items()}

    def columns(self) -> dict[str, Column]:
        """The columns of all rows: copies."""
        return self.take(np.arange(len(self)))


def gathered(starts: Array, take: Callable[[int, Array], dict[str, Column]], rows: Array) -> dict[str, Column]:
    """The columns of rows of a table in parts, in the order of `rows`.

    `starts` (parts + 1,) says where each part begins, and the last one ends. `take` is called once for each part that
    has any of the rows, with its number and these rows, counted from its start; in the order in which `rows` needs
    them.
    """
    if len(starts) == 2:
        return take(0, rows)
    parts = np.searchsorted(starts, rows, side="right") - 1
    numbers, first = np.unique(parts, return_index=True)
    numbers = numbers[np.argsort(first)]
    places = [np.flatnonzero(parts == number) for number in numbers]
    pieces = [take(int(number), rows[place] - starts[number]) for number, place in zip(numbers, places, strict=True)]
    if len(pieces) == 1:
        return pieces[0]
    back = np.argsort(np.concatenate(places))
    return {name: taken(concatenated([piece[name] for piece in pieces]), back) for name in pieces[0]}


# --- the C interface --------------------------------------------------------------------------------------------------


def _capsule_pointer(capsule: object, name: bytes) -> int:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer: int = function(capsule, name)
    return pointer


def _fill(stream: Any, function: Any, target: ctypes.Structure, owner: str) -> None:  # noqa: ANN401
    if function(ctypes.byref(stream), ctypes.byref(target)):
        text = stream.get_last_error(ctypes.byref(stream)) or b"no reason given"
        raise DatasetError(f"{owner} cannot be read: {text.decode(errors='replace')}")


def _buffer(array: Any, number: int, dtype: npt.DTypeLike, count: int) -> Array:  # noqa: ANN401
    """The first elements of a buffer, in the library's memory: valid as long as the table that owns `array`."""
    address = array.buffers[number]
    if not count or not address:  # of no elements there may be no memory
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype)


# --- columns ----------------------------------------------------------------------------------------------------------


def _chunk(schema: Any, array: Any, owner: str) -> dict[str, Take]:  # noqa: ANN401
    """A function for each column of some rows, which are counted from 0."""
    if schema.format != b"+s":
        return {"": _column(schema, array, 0, array.length, owner)}
    chunk: dict[str, Take] = {}
    for number in range(schema.n_children):
        child, values = schema.children[number].contents, array.children[number].contents
        name = (child.name or b"").decode()
        what = f"{owner}, column {name!r}"
        if name in chunk:
            raise DatasetError(f"{what}: there are two of this name; rename one")
        take = _column(child, values, array.offset, array.offset + array.length, what)
        chunk[name] = _from(array.offset, take) if array.offset else take
    return chunk


def _from(offset: int, take: Take) -> Take:
    return lambda rows: take(rows + offset)


def _column(schema: Any, array: Any, start: int, stop: int, what: str) -> Take:  # noqa: ANN401
    """A function for the values of a column, of which the rows from `start` to `stop` are read.

    Raises DatasetError if one of these is null, or for a type that makes no column.
    """
    form = schema.format.decode()
    _check_not_null(form, array, start, stop, what)
    if schema.dictionary:
        of_codes = array.dictionary.contents
        values = _column(schema.dictionary.contents, of_codes, 0, of_codes.length, what)
        codes = _buffer(array, 1, _NUMBERS[form], array.offset + stop)[array.offset :]
        return lambda rows: values(codes[rows].astype(np.int64))
    if form in ("u", "U", "vu"):
        pieces = _pieces(form, array, stop)
        return lambda rows: np.array([str(piece, "utf-8") for piece in pieces(rows)], np.dtypes.StringDType())
    if form in ("z", "Z", "vz"):
        return _bytes(_pieces(form, array, stop))
    if form in ("+l", "+L"):
        return _lists(schema, array, start, stop, what)
    if form.startswith("+w:"):
        return _fixed_lists(schema, array, start, stop, what)
    if form == "b":
        bits, first = _buffer(array, 1, np.uint8, -(-(array.offset + stop) // 8)), array.offset
        return lambda rows: (bits[(rows + first) >> 3] >> ((rows + first) & 7).astype(np.uint8) & 1).astype(np.bool_)
    stored, dtype, shape = _fixed(form, what)
    width = int(np.prod(shape))
    data = _buffer(array, 1, stored, (array.offset + stop) * width).reshape(-1, *shape)[array.offset :]
    return lambda rows: data[rows].astype(dtype, copy=False)


def _check_not_null(form: str, array: Any, start: int, stop: int, what: str) -> None:  # noqa: ANN401
    if form == "n":
        nulls = stop - start
    elif array.null_count == 0 or not array.n_buffers or not array.buffers[0]:
        return
    else:
        begin, end = array.offset + start, array.offset + stop
        bits = _buffer(array, 0, np.uint8, -(-end // 8))[begin // 8 :]
        valid = np.unpackbits(bits, bitorder="little")[begin % 8 : begin % 8 + stop - start]
        nulls = stop - start - int(np.count_nonzero(valid))
    if nulls:
        raise DatasetError(f"{what}: {null_message(nulls, stop - start)}")


def null_message(nulls: int, count: int) -> str:
    """The message of the error for nulls, and what to do."""
    return (
        f"{nulls} of {count} values are null; fill them (fill_null, fillna), leave out their rows (drop_nulls, "
        "drop_null, dropna), or do not give the column"
    )


def _fixed(form: str, what: str) -> tuple[npt.DTypeLike, npt.DTypeLike, tuple[int, ...]]:
    """The stored dtype of a type whose values are of one size, its dtype in a batch, and the shape of a value."""
    if form in _NUMBERS:
        return _NUMBERS[form], _NUMBERS[form], ()
    if form.startswith("w:"):
        return "u1", "u1", (int(form[2:]),)
    if form == "tdD":
        return "i4", "M8[D]", ()
    if form[:2] in ("td", "ts"):
        return "i8", f"M8[{_UNITS[form[2]]}]", ()
    if form[:2] in ("tt", "tD"):
        return "i4" if form in ("tts", "ttm") else "i8", f"m8[{_UNITS[form[2]]}]", ()
    kind = _UNSUPPORTED.get(form[: 2 if form.startswith("+") else 1])
    kind = kind or f"values of the Arrow format {form!r}; cast them to numbers, text or lists"
    raise DatasetError(f"{what}: {kind}")


def _pieces(form: str, array: Any, stop: int) -> Callable[[Array], list[memoryview]]:  # noqa: ANN401
    """A function for the bytes of texts or binary values."""
    first, end = array.offset, array.offset + stop
    if form.startswith("v"):
        views = _buffer(array, 1, np.int32, 4 * end).reshape(-1, 4)[first:]
        inline = _buffer(array, 1, np.uint8, 16 * end)[16 * first :].data
        sizes = _buffer(array, array.n_buffers - 1, np.int64, array.n_buffers - 3)
        parts = [_buffer(array, 2 + number, np.uint8, int(size)).data for number, size in enumerate(sizes)]

        def of_views(rows: Array) -> list[memoryview]:
            return [
                inline[16 * row + 4 : 16 * row + 4 + length] if length <= 12 else parts[part][at : at + length]
                for row, (length, _, part, at) in zip(rows.tolist(), views[rows].tolist(), strict=True)
            ]

        return of_views
    offsets = _offsets(form in "UZ", array, stop)
    data = _buffer(array, 2, np.uint8, int(offsets[-1])).data
    return lambda rows: [data[a:b] for a, b in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)]


def _offsets(large: bool, array: Any, stop: int) -> Array:  # noqa: ANN401
    offsets = _buffer(array, 1, np.int64 if large else np.int32, array.offset + stop + 1)[array.offset :]
    return offsets if len(offsets) else np.zeros(1, np.int64)


def _bytes(pieces: Callable[[Array], list[memoryview]]) -> Take:
    def take(rows: Array) -> Ragged:
        several = pieces(rows)
        return Ragged.from_splits(
            np.frombuffer(bytearray(b"".join(several)), np.uint8), np.cumsum([0, *map(len, several)])
        )

    return take


def _lists(schema: Any, array: Any, start: int, stop: int, what: str) -> Take:  # noqa: ANN401
    offsets = _offsets(schema.format == b"+L", array, stop)
    values = _values(schema, array, int(offsets[start]), int(offsets[stop]), what)

    def take(rows: Array) -> Ragged:
        starts = offsets[rows].astype(np.int64)
        positions, splits = positions_of(starts, offsets[rows + 1] - starts)
        return Ragged.from_splits(values(positions), splits)

    return take


def _fixed_lists(schema: Any, array: Any, start: int, stop: int, what: str) -> Take:  # noqa: ANN401
    size, first = int(schema.format[3:]), array.offset
    values = _values(schema, array, (first + start) * size, (first + stop) * size, what)

    def take(rows: Array) -> Array:
        flat = values((((rows + first) * size)[:, np.newaxis] + np.arange(size)).ravel())
        return flat.reshape(len(rows), size, *flat.shape[1:])

    return take


def _values(schema: Any, array: Any, start: int, stop: int, what: str) -> Callable[[Array], Array]:  # noqa: ANN401
    """The function for the values of lists, which are arrays."""
    child = schema.children[0].contents
    if child.format in (b"+l", b"+L", b"z", b"Z", b"vz"):
        raise DatasetError(f"{what}: lists of lists or of binary values; flatten them, or make the inner size fixed")
    return _column(child, array.children[0].contents, start, stop, f"{what}, in its lists")  # type: ignore[return-value]
