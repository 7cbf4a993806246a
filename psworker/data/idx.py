"""Reader of IDX files, the format of MNIST, gzipped or plain, into numpy arrays.

Headers are not trusted: memory grows with the actual bytes of the file, up to a bound, and every error is a
`DatasetError`.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Collection
from contextlib import nullcontext
from io import BufferedReader
from typing import Any

import numpy as np

from pswire.errors import DatasetError
from pswire.tensors.values import Array

#: dtypes by the third byte of a file; numbers are big-endian.
DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
MAX_DIMENSIONS = 64  # numpy's own limit
DEFAULT_MAX_BYTES = 1 << 30
_GZIP_MAGIC = b"\x1f\x8b"  # an IDX file begins with 00 00
_CHUNK = 1 << 20

_Stream = BufferedReader | gzip.GzipFile


def read(
    path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES, sha256: Collection[str] | None = None
) -> Array:
    """Read an IDX file: `00 00`, a byte for the dtype, one for the number of dimensions, their sizes, the data.

    Format: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", section "The IDX file format".

    Args:
        path: the file; gzip is detected by its first bytes.
        max_bytes: maximum size of the array in bytes.
        sha256: accepted digests, in hexadecimal, of the file on disk, verified before parsing.

    Returns:
        A new array in native byte order, owned by the caller.

    Raises:
        DatasetError: the file is missing, unreadable, truncated, modified, too large or not an IDX file.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            if sha256 is not None:
                _verify(file, name, sha256)
                file.seek(0)
            gzipped = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if gzipped else nullcontext(file) as stream:
                return _parse(stream, name, max_bytes)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DatasetError(f"{name}: its gzip data is truncated or corrupt ({error}); copy the file again") from error
    except OSError as error:
        raise DatasetError(
            f"{name} cannot be read ({error.strerror or error}); check that the file is there and readable"
        ) from error


def _verify(file: BufferedReader, name: str, sha256: Collection[str]) -> None:
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found not in sha256:
        expected = " or ".join(digest[:12] for digest in sha256)
        raise DatasetError(
            f"{name} was truncated or modified: its SHA-256 begins with {found[:12]}, expected {expected}; "
            "replace it with a fresh copy of the original"
        )


def _parse(stream: _Stream, name: str, max_bytes: int) -> Array:
    dtype, shape = _header(stream, name)
    # The product with a size of 0 is 0, but numpy rejects a shape whose other sizes exceed the address space.
    if dtype.itemsize * math.prod(max(size, 1) for size in shape) > max_bytes:
        raise DatasetError(
            f"{name}: its header declares {' x '.join(map(str, shape))} values of {dtype.itemsize} bytes, over the "
            f"limit of {max_bytes} bytes; it is corrupt, or pass a larger max_bytes"
        )
    declared = dtype.itemsize * math.prod(shape)
    data = _read(stream, declared)
    if len(data) < declared:
        raise DatasetError(
            f"{name}: truncated after {len(data)} of the {declared} bytes of data in its header; copy the file again"
        )
    if stream.read(1):
        raise DatasetError(f"{name}: continues after the {declared} bytes of data in its header; copy the file again")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _header(stream: _Stream, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = bytes(_read(stream, 4))
    if magic[:2] != b"\0\0"[: len(magic)]:
        raise DatasetError(f"{name}: not an IDX file: it begins with {magic.hex(' ')}, not with 00 00")
    if len(magic) < 4:
        raise DatasetError(f"{name}: ends inside its IDX header; copy the file again")
    code, dimensions = magic[2], magic[3]
    if code not in DTYPES:
        known = ", ".join(f"{key:02x}" for key in DTYPES)
        raise DatasetError(f"{name}: unknown IDX dtype {code:02x}, not one of {known}; the file is corrupt")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise DatasetError(f"{name}: {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}; the file is corrupt")
    sizes = _read(stream, 4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DatasetError(f"{name}: ends inside its IDX header; copy the file again")
    return DTYPES[code], struct.unpack(f">{dimensions}I", sizes)


def _read(stream: _Stream, size: int) -> bytearray:
    """Up to `size` bytes, in chunks, as `read(size)` allocates `size` bytes first."""
    data = bytearray()
    while len(data) < size and (chunk := stream.read(min(size - len(data), _CHUNK))):
        data += chunk
    return data
