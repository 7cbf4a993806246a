"""Files of a checkpoint: written and read as a stream, with their size and CRC32C.

Arrays are in the safetensors format, which any program can read. Which arrays a file has follows from the state of the
shard, so a header is computed, never trusted: what is read must begin with the very bytes that would be written.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from crc32c import crc32c

from psserver.storage.files import FORGET_BYTES, forget_pages, sync_data, write_all
from pswire.errors import DamagedFile, StorageError
from pswire.tensors.tensor_files import header_of
from pswire.tensors.values import DTYPES, Array, TensorSpec, bytes_of

#: Bytes that are summed and then written, or read and then summed: few enough for the processor's cache.
PIECE = 1 << 20

#: The first elements of a file begin at a multiple of this.
ALIGNMENT = 64


class FileSum(NamedTuple):
    """Size of a file in bytes, and CRC32C of its contents."""

    nbytes: int
    crc32c: int


class NewFile:
    """A file that is being written; its `sum` so far. Every method raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.sum = FileSum(0, 0)
        self._cached_from = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes at the end."""
        view = memoryview(data)
        for start in range(0, view.nbytes, PIECE):
            piece = view[start : start + PIECE]
            write_all(self._descriptor, [piece], self.sum.nbytes)
            self.sum = FileSum(self.sum.nbytes + piece.nbytes, crc32c(piece, self.sum.crc32c))
            if self.sum.nbytes - self._cached_from >= FORGET_BYTES:
                sync_data(self._descriptor)
                forget_pages(self._descriptor, self._cached_from, self.sum.nbytes)
                self._cached_from = self.sum.nbytes

    def write_array(self, array: Array, spec: TensorSpec) -> None:
        """Write the elements of an array, which must be as `spec` says."""
        if not spec.matches(array):
            raise ValueError(f"an array of {spec} was expected, not {array.dtype}{list(array.shape)}")
        self.write(bytes_of(np.ascontiguousarray(array, DTYPES[spec.dtype])))


class StoredFile:
    """A file of a checkpoint that is being read, of a known size and CRC32C.

    Every method raises `DamagedFile`, which names the file, if it is missing or not the one that was written, and
    `StorageError` if it may not be read.
    """

    def __init__(self, path: Path, expected: FileSum) -> None:
        self._path, self._expected = path, expected
        self._sum = FileSum(0, 0)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        size = os.fstat(self._descriptor).st_size
        if size != expected.nbytes:
            os.close(self._descriptor)
            raise damaged(path, f"it has {size:,} bytes instead of {expected.nbytes:,}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def read(self, nbytes: int) -> bytearray:
        """The next bytes."""
        data = bytearray(min(nbytes, self._expected.nbytes))
        self._read_into(memoryview(data))
        return data

    def read_array(self, spec: TensorSpec) -> Array:
        """The next elements as a new array."""
        array: Array = np.empty(spec.shape, DTYPES[spec.dtype])
        self._read_into(bytes_of(array))
        return array

    def check_end(self) -> None:
        """Check, when all was read, that it is what was written."""
        if self._sum != self._expected:
            raise damaged(self._path, "it fails its checksum")

    def _read_into(self, view: memoryview) -> None:
        while view.nbytes:
            try:
                count = os.preadv(self._descriptor, [view[:PIECE]], self._sum.nbytes)
            except OSError as error:
                raise unreadable(self._path, error) from error
            if not count:
                raise damaged(self._path, "it was cut while it was read")
            self._sum = FileSum(self._sum.nbytes + count, crc32c(view[:count], self._sum.crc32c))
            view = view[count:]


def array_header(arrays: Iterable[tuple[str, TensorSpec]]) -> bytes:
    """The beginning of a file of these arrays by name; their elements follow, in this order."""
    return header_of(arrays, alignment=ALIGNMENT)


def read_arrays(path: Path, expected: FileSum, arrays: Sequence[tuple[str, TensorSpec]]) -> dict[str, Array]:
    """The arrays of a file, which the caller owns. Raises `DamagedFile` if it is not a file of exactly these."""
    header = array_header(arrays)
    nbytes = len(header) + sum([spec.nbytes for _, spec in arrays])
    if expected.nbytes != nbytes:
        raise damaged(path, f"its arrays would have {nbytes:,} bytes, and it has {expected.nbytes:,}")
    with StoredFile(path, expected) as file:
        if file.read(len(header)) != header:
            raise damaged(path, "its header is not that of these arrays")
        found = {name: file.read_array(spec) for name, spec in arrays}
        file.check_end()
    return found


def damaged(path: Path, reason: str) -> DamagedFile:
    """The error for a damaged file of a checkpoint."""
    return DamagedFile(
        f"checkpoint file {path}: {reason}: it is damaged; restore it from a copy, or remove the folder that it is in, "
        "to start from an older checkpoint"
    )


def unreadable(path: Path, error: OSError) -> StorageError:
    """The error for a file that is missing or cannot be read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return damaged(path, "it is missing")
    if error.errno == errno.EIO:
        return damaged(path, "its disk cannot read it")
    return StorageError(f"checkpoint file {path} cannot be read: {error.strerror}")
