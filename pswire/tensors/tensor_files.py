"""Files of named arrays in the safetensors format: replaced whole or not at all, and read in pieces.

The library checks the header of a file that is read: names, dtypes and shapes, which must account for every byte.
Elements are read and written here: the library takes whole arrays only, while a table comes in pieces, and numpy has no
bfloat16. The format has no checksum, so an altered element is not noticed.

Source: the section "Format" of https://github.com/huggingface/safetensors.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from safetensors import SafetensorError, safe_open

from pswire.errors import ModelFileError
from pswire.system.files import FolderNotSynced, new_file
from pswire.tensors.values import DTYPES, Array, TensorSpec, bytes_of

#: Dtypes of variables as the format names them.
_NAMES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {name: DTYPES[dtype] for dtype, name in _NAMES.items()}
_RAW_BFLOAT16 = np.dtype("<u2")

#: The library's limit.
MAX_HEADER_BYTES = 100_000_000

#: A name that the format uses itself.
RESERVED = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The description of a tensor in a file: its dtype as the format names it, its shape, and its first byte."""

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def read_as(self) -> np.dtype[np.generic] | None:
        """The dtype of the array that is read, which has every value exactly; None: it cannot be read."""
        return DTYPES["float32"] if self.dtype == "BF16" else _DTYPES.get(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class TensorFile:
    """A safetensors file that is open for reading, with its `tensors` by name and its `metadata`.

        with TensorFile(path) as file:
            rows = file.read("words", 0, 1000)

    Every method raises `ModelFileError`, which names the file, if it is missing, cut, altered or no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if not os.path.isfile(self.path):  # opening a pipe would wait for its writer
            kind = "is not a file" if os.path.exists(self.path) else "does not exist"
            raise ModelFileError(f"{self.path} {kind}")
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed by `__exit__`
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read: {error.strerror or error}") from None
        try:
            self.metadata, self.tensors = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, name: str, first: int = 0, rows: int | None = None) -> Array:
        """The tensor of this name, whole or its `rows` rows from `first` on, as an array of dtype `read_as`."""
        tensor, dtype = self.tensors[name], self._stored_dtype(name)
        shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
        try:
            array = np.empty(shape, dtype)
        except (ValueError, OverflowError) as error:
            raise ModelFileError(f"{self.path}: {name!r}, {tensor}, cannot be read: {error}") from None
        self._read_into(array, tensor.begin + first * prod(tensor.shape[1:]) * dtype.itemsize)
        if dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise ModelFileError(f"{self.path} is damaged: {name!r} has a bool that is neither 0 nor 1")
        return _widened(array) if tensor.dtype == "BF16" else array

    def mapped_rows(self, name: str) -> Callable[[Array], Array]:
        """A function of row numbers, (n,), that gives these rows of a tensor, of floating point, as dtype `read_as`.

        They are read when it is called, also when this is closed: the system keeps the file, mapped into memory. So it
        must not be written in place; one that is replaced by another of its name stays as it was.
        """
        tensor, dtype = self.tensors[name], self._stored_dtype(name)
        if not prod(tensor.shape):
            return lambda indices: np.empty((len(indices), *tensor.shape[1:]), tensor.read_as)
        try:
            mapped = np.memmap(self._file, dtype, "r", tensor.begin, tensor.shape)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{self.path}: {name!r}, {tensor}, cannot be mapped into memory: {error}") from None
        rows: Callable[[Array], Array] = lambda indices: np.asarray(mapped[indices])
        return (lambda indices: _widened(rows(indices))) if tensor.dtype == "BF16" else rows

    def _stored_dtype(self, name: str) -> np.dtype[Any]:
        tensor = self.tensors[name]
        assert tensor.read_as is not None, "the caller has compared dtypes"
        return _RAW_BFLOAT16 if tensor.dtype == "BF16" else tensor.read_as

    def _header(self) -> tuple[dict[str, str], dict[str, StoredTensor]]:
        try:
            with safe_open(self.path, framework="np"):
                pass  # it has checked the header
            size = np.zeros((), "<u8")
            self._read_into(size, 0)
            text = np.empty(min(int(size), MAX_HEADER_BYTES), np.uint8)
            self._read_into(text, 8)
            header = json.loads(text.tobytes())
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelFileError(f"{self.path} is not a safetensors file, or is damaged: {error}") from None
        metadata: dict[str, str] = header.pop(RESERVED, None) or {}
        tensors = {}
        for name, entry in header.items():
            begin = 8 + len(text) + entry["data_offsets"][0]
            tensors[name] = StoredTensor(entry["dtype"], tuple(entry["shape"]), begin)
        return metadata, tensors

    def _read_into(self, array: Array, offset: int) -> None:
        left = bytes_of(array)
        while left.nbytes:
            try:
                self._file.seek(offset)
                count = self._file.readinto(left)
            except OSError as error:
                raise ModelFileError(f"{self.path} cannot be read: {error.strerror or error}") from None
            if not count:
                raise ModelFileError(f"{self.path} is damaged: it was cut while it was read")
            left, offset = left[count:], offset + count


def _widened(array: Array) -> Array:
    """The float32 of the bits of bfloat16."""
    bits = array.astype("<u4")
    bits <<= 16
    return bits.view(DTYPES["float32"])


def header_of(
    tensors: Iterable[tuple[str, TensorSpec]], metadata: Mapping[str, str] | None = None, alignment: int = 8
) -> bytes:
    """The beginning of a file of these tensors by name, whose elements follow end to end in this order.

    Its length is a multiple of `alignment`, which must be one of 8.
    """
    header: dict[str, object] = {} if metadata is None else {RESERVED: dict(metadata)}
    end = 0
    for name, spec in tensors:
        begin, end = end, end + spec.nbytes
        header[name] = {"dtype": _NAMES[spec.dtype], "shape": spec.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % alignment)
    return len(text).to_bytes(8, "little") + text


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Iterable[tuple[TensorSpec, Iterable[Array]]],
    metadata: Mapping[str, str],
) -> None:
    """Replaces a file by one with these tensors; until it is complete and on the disk, an earlier file stays as it is.

    Each tensor is a spec and its elements in pieces, which are taken one after the other while the file is written.

    Raises `ModelFileError` if it cannot be written, and whatever the pieces raise; nothing of it is left then.
    """
    ordered = sorted(tensors, key=lambda one: (-DTYPES[one[0].dtype].itemsize, one[0].name))  # so all are aligned
    header = header_of([(spec.name, spec) for spec, _ in ordered], metadata)
    with _replacing(path) as file:
        file.write(header)
        for spec, pieces in ordered:
            left = spec.nbytes
            for piece in pieces:
                data = bytes_of(np.ascontiguousarray(piece, DTYPES[spec.dtype]))
                file.write(data)
                left -= data.nbytes
            assert not left, f"the pieces of {spec} lack {left:,} bytes"


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Replaces a file by one with these bytes, in the same way. Raises `ModelFileError`."""
    with _replacing(path) as file:
        file.write(data)


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """As `new_file`; a link stays one to the file that is replaced. Raises `ModelFileError`."""
    path = os.path.realpath(path)
    try:
        with new_file(Path(path)) as file:
            yield file
    except FolderNotSynced as error:
        raise ModelFileError(f"{path} was written, but {error.strerror}") from error
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(f"{path} could not be written, and nothing was changed: {reason}") from error
