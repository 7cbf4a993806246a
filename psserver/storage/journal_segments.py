"""The files of a journal: their format, and how they are written and read.

A journal is a folder with segments `segment-<number>.log`. A segment is a header and records:

    segment   magic, format version, number, identity of the shard, number and bytes of the previous segment, CRC32C
    record    magic, bytes of the payload, safe bytes, CRC32C of the payload, CRC32C of the record's header; payload

The CRC32C of a record's header also covers its offset and the segment's header, so that no copy of a record is valid at
another place. *Safe bytes* are those of the segment that were as safe as the journal promises when the record was
written. They distinguish a torn tail from damage: records that were being written when the machine stopped may be
missing or bad in any order, but a bad record at an offset that a later record calls safe was once good.
"""

import errno
import io
import logging
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from psserver.storage.files import FORGET_BYTES, forget_pages, lock_file, sync_data, write_all
from pswire.errors import DamagedFile, StorageError
from pswire.security.private_files import make_private_folder
from pswire.system.files import sync_path, write_file

FORMAT = 1

#: Bytes read at a time when valid records are searched behind a bad one.
SEARCH_PIECE = 4 << 20

_NAME = re.compile(r"segment-(\d+)\.log")
_SEGMENT_MAGIC = b"\xf1psjourn"
_RECORD_MAGIC = b"\xf2psrecrd"
_SEGMENT = struct.Struct("<8sIQQQQ")
_RECORD = struct.Struct("<8sQQI")
_CRC = struct.Struct("<I")
_OFFSET = struct.Struct("<Q")

#: Bytes of the two kinds of headers.
SEGMENT_HEADER = _SEGMENT.size + _CRC.size
RECORD_HEADER = _RECORD.size + _CRC.size

log = logging.getLogger(__name__)


class SegmentHeader(NamedTuple):
    """The beginning of a segment.

    Attributes:
        number: as in the file's name.
        identity: the shard whose journal this is.
        previous: number of the segment before it; 0 with `previous_bytes` 0 if there was none.
        previous_bytes: bytes of that segment when this one was begun.
    """

    number: int
    identity: int
    previous: int = 0
    previous_bytes: int = 0

    def to_bytes(self) -> bytes:
        """The bytes in the file."""
        return self._fields_bytes() + _CRC.pack(self.seed())

    def seed(self) -> int:
        """The header's checksum, with which the checksums of record headers in this segment start."""
        return crc32c(self._fields_bytes())

    def _fields_bytes(self) -> bytes:
        return _SEGMENT.pack(_SEGMENT_MAGIC, FORMAT, *self)


class Record(NamedTuple):
    """One record: its payload, the file it is in, and its offset there, in bytes."""

    path: Path
    offset: int
    payload: bytes


class _RecordHeader(NamedTuple):
    length: int
    safe: int
    payload_crc: int


class InvalidRecord(Exception):
    """No valid record at this offset; the text is the reason."""


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"segment-{number:09d}.log"


def lock_journal(folder: Path) -> int:
    """Reserve a journal's folder for a writer, until the returned descriptor is closed or the process ends.

    Raises `StorageError` if it is reserved already, or the file system has no locks.
    """
    try:
        return lock_file(folder / "lock", f"journal {folder}", "stop that server, or give each its own folder")
    except OSError as error:
        raise StorageError(f"journal {folder} cannot be opened: {error.strerror}") from error


def list_segments(folder: Path) -> dict[int, Path]:
    """The segments in a folder by number, in ascending order. Raises `StorageError` if it cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise StorageError(f"journal {folder}: cannot be read: {error.strerror}") from error
    return dict(sorted((int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))))


def have_records(folder: Path) -> bool:
    """Whether there is a journal with more than the beginnings of segments."""
    return folder.is_dir() and any(path.stat().st_size > SEGMENT_HEADER for path in list_segments(folder).values())


def begin_at(folder: Path, number: int, identity: int) -> None:
    """Begin an empty segment, durably, of a new journal or after the present segments; nothing if it is there already.

    A torn tail is cut off: the checkpoint of this number has everything before. Raises `OSError` or `StorageError`.
    """
    make_private_folder(folder)
    existing = list_segments(folder)
    if number in existing:
        return
    previous = 0, 0
    if existing:
        newest = max(existing)
        for _ in read_segments(folder, identity, newest, truncate=True):
            pass
        previous = newest, existing[newest].stat().st_size
    SegmentFile.create(folder, SegmentHeader(number, identity, *previous)).close()
    sync_path(folder.parent)


def record_header(length: int, safe: int, payload_crc: int, offset: int, seed: int) -> bytes:
    """The header of a record at `offset` of the segment that has this `seed`."""
    fields = _RECORD.pack(_RECORD_MAGIC, length, safe, payload_crc)
    return fields + _CRC.pack(crc32c(fields, crc32c(_OFFSET.pack(offset), seed)))


def read_segment_header(path: Path, identity: int) -> SegmentHeader:
    """The header of a segment. Raises `DamagedFile`, or `StorageError` for a segment of another shard or version."""
    try:
        with path.open("rb") as file:
            data = file.read(SEGMENT_HEADER)
    except OSError as error:
        raise StorageError(f"journal segment {path}: cannot be read: {error.strerror}") from error
    fields = data[: _SEGMENT.size]
    if len(data) < SEGMENT_HEADER or _CRC.pack(crc32c(fields)) != data[_SEGMENT.size :]:
        raise damaged(path, 0, "its header is incomplete or fails its checksum")
    magic, version, *values = _SEGMENT.unpack(fields)
    header = SegmentHeader(*values)
    if magic != _SEGMENT_MAGIC or version != FORMAT:
        raise StorageError(
            f"journal segment {path}: format {version} is not format {FORMAT}: use a version that has it"
        )
    if segment_path(path.parent, header.number).name != path.name:
        raise damaged(path, 0, f"it is segment {header.number} under another name")
    if header.identity != identity:
        raise StorageError(
            f"journal segment {path}: belongs to another shard or job (identity {header.identity}, not {identity}): "
            "use that job's folder for this server, or another folder"
        )
    return header


def read_segments(
    folder: Path, identity: int, first: int | None = None, *, truncate: bool = False, torn: list[Path] | None = None
) -> Iterator[Record]:
    """The records of a journal in the order in which they were written. Reads one record at a time.

    A torn tail of the last segment, which was being written when the machine or process stopped, ends the records; its
    size is logged.

    Args:
        folder: the journal's folder; one that is empty has no records.
        identity: of the shard, as given when the journal was written.
        first: number of the segment to begin with; without it, the oldest.
        truncate: whether to cut a torn tail off, durably. Necessary before the journal is written again. The folder is
            locked until the last record is read, as what another process writes at the moment looks like a torn tail.
        torn: gets the path of a segment with a torn tail.

    Raises:
        DamagedFile: a segment is missing, cut or altered. Missing and cut segments, and bad headers of segments, are
            found before the first record is returned.
        StorageError: a segment belongs to another shard, or the folder cannot be read or is in use.
    """
    with ExitStack() as stack:
        if truncate:
            stack.callback(os.close, lock_journal(folder))
        try:
            yield from _read_segments(folder, identity, first, truncate, [] if torn is None else torn)
        except OSError as error:
            raise StorageError(f"journal {folder}: cannot be read: {error.strerror}") from error


def _read_segments(
    folder: Path, identity: int, first: int | None, truncate: bool, torn: list[Path]
) -> Iterator[Record]:
    """The records, as `read_segments` gives them."""
    paths = [path for number, path in list_segments(folder).items() if first is None or number >= first]
    headers = [read_segment_header(path, identity) for path in paths]
    if paths and first is not None and headers[0].number != first:
        raise damaged(segment_path(folder, first), 0, f"it is missing, but {paths[0].name} is there")
    for (path, header), (later_path, later) in pairwise(zip(paths, headers, strict=True)):
        if (later.previous, later.previous_bytes) != (header.number, path.stat().st_size):
            raise damaged(
                path,
                path.stat().st_size,
                f"the journal goes on in {later_path.name} after segment {later.previous} of "
                f"{later.previous_bytes} bytes: a segment was removed, cut or extended",
            )
    for path, header in zip(paths, headers, strict=True):
        yield from _read_segment(path, header, truncate, torn, is_last=path is paths[-1])


def _read_segment(
    path: Path, header: SegmentHeader, truncate: bool, torn: list[Path], *, is_last: bool
) -> Iterator[Record]:
    """The records of one segment."""
    offset, seed, cached_from = SEGMENT_HEADER, header.seed(), 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            try:
                _, payload = read_record(file, offset, size, seed)
            except InvalidRecord as invalid:
                later = _record_that_relies_on(file, offset, size, seed)
                if later is not None or not is_last:
                    evidence = f"the record at {later} was written later" if later else "a later segment was begun"
                    raise damaged(path, offset, f"{invalid}, and {evidence}") from invalid
                log.warning(
                    "journal segment %s: the last %d bytes, from offset %d, are a torn tail (%s) and were %s",
                    path,
                    size - offset,
                    offset,
                    invalid,
                    "cut off" if truncate else "left out",
                )
                torn.append(path)
                break
            except OSError as error:
                raise damaged(path, offset, f"it cannot be read: {error.strerror}") from error
            yield Record(path, offset, payload)
            offset += RECORD_HEADER + len(payload)
            if offset - cached_from >= FORGET_BYTES:
                forget_pages(file.fileno(), cached_from, offset)
                cached_from = offset
    if truncate and offset < size:
        os.truncate(path, offset)
        sync_path(path)


def read_record(file: io.BufferedReader, offset: int, size: int, seed: int) -> tuple[bytes, bytes]:
    """Header and payload of the record at `offset` of a file of `size` bytes. Raises `OSError`, or `InvalidRecord`."""
    file.seek(offset)
    data = file.read(RECORD_HEADER)
    header = _parse(data, offset, seed)
    if header is None:
        raise InvalidRecord("the header of a record is incomplete or fails its checksum")
    if header.length > size - offset - RECORD_HEADER:
        raise InvalidRecord("a record is incomplete")
    payload = file.read(header.length)
    if len(payload) != header.length or crc32c(payload) != header.payload_crc:
        raise InvalidRecord("the payload of a record fails its checksum")
    return data, payload


def _parse(data: bytes, offset: int, seed: int) -> _RecordHeader | None:
    """The header of a record, if these bytes are one at this offset."""
    if len(data) < RECORD_HEADER:
        return None
    magic, length, safe, payload_crc = _RECORD.unpack_from(data)
    valid = magic == _RECORD_MAGIC and data == record_header(length, safe, payload_crc, offset, seed)
    return _RecordHeader(length, safe, payload_crc) if valid else None


def _record_that_relies_on(file: io.BufferedReader, bad: int, size: int, seed: int) -> int | None:
    """Offset of a valid record header that calls the byte at `bad` safe; None if there is none behind it."""
    start = bad + 1
    while start < size:
        file.seek(start)
        piece = file.read(SEARCH_PIECE + RECORD_HEADER)
        at = piece.find(_RECORD_MAGIC)
        while at >= 0:
            header = _parse(piece[at : at + RECORD_HEADER], start + at, seed)
            if header is not None and header.safe > bad:
                return start + at
            at = piece.find(_RECORD_MAGIC, at + 1)
        start += SEARCH_PIECE
    return None


def damaged(path: Path, offset: int, reason: str) -> DamagedFile:
    """The error for a damaged segment."""
    return DamagedFile(
        f"journal segment {path}, offset {offset}: {reason}: the file is damaged; restore it from a copy, or move the "
        "journal's folder away to start from the newest checkpoint, without what came after it"
    )


class SegmentFile:
    """The segment that a journal appends to. Used by one thread.

    After an error the segment ends where it ended before. What a failed sync may have lost is written again
    (`sync_data` says why another sync is not enough).

    Attributes:
        number: of the segment.
        size: bytes of its header and complete records.
        safe: bytes of it that are as safe as the journal promises; recorded with each record.
    """

    def __init__(self, path: Path, header: SegmentHeader) -> None:
        """Opens a segment that is there."""
        self.number = header.number
        self._path = path
        self._seed = header.seed()
        self._suspect = False
        self._cached_from = 0
        self._descriptor = os.open(path, os.O_RDWR)
        self.size = self.safe = os.fstat(self._descriptor).st_size

    @classmethod
    def create(cls, folder: Path, header: SegmentHeader) -> "SegmentFile":
        """A new segment, durable, without records."""
        path = segment_path(folder, header.number)
        write_file(path, header.to_bytes())
        return cls(path, header)

    @classmethod
    def reopen(cls, path: Path, identity: int) -> "SegmentFile":
        """The segment in a file, to be continued at its end."""
        return cls(path, read_segment_header(path, identity))

    def append(self, records: Sequence[Sequence[memoryview]]) -> None:
        """Write records, each given in parts, at the end. Raises `OSError`, and then none is written."""
        buffers, end = [], self.size
        for parts in records:
            length, crc = 0, 0
            for part in parts:
                length, crc = length + part.nbytes, crc32c(part, crc)
            buffers += [memoryview(record_header(length, self.safe, crc, end, self._seed)), *parts]
            end += RECORD_HEADER + length
        try:
            write_all(self._descriptor, buffers, self.size)
        except OSError:
            self.cut(self.size)
            raise
        self.size = end

    def cut(self, size: int) -> None:
        """Remove what was written from `size` on, which is not safe yet."""
        self.size = size
        self._suspect = self._suspect and self.size > self.safe
        with suppress(OSError):  # whatever stays is written over by the next attempt, and is no valid record until then
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make all records durable. Raises `OSError`."""
        if self._suspect:
            self._write_again()
        try:
            sync_data(self._descriptor)
        except OSError:
            self._suspect = self.size > self.safe
            raise
        self._suspect, self.safe = False, self.size
        if self.safe - self._cached_from >= FORGET_BYTES:
            forget_pages(self._descriptor, self._cached_from, self.safe)
            self._cached_from = self.safe

    def _write_again(self) -> None:
        """Write what is not safe once more, from the kernel's memory if that still has it.

        Raises `OSError` if it does not: then records are lost that the journal's user was told are written.
        """
        with self._path.open("rb") as file:
            offset = self.safe
            while offset < self.size:
                try:
                    header, payload = read_record(file, offset, self.size, self._seed)
                except InvalidRecord as invalid:
                    raise OSError(
                        errno.EIO,
                        f"records from offset {offset} on were lost by a failed sync; the next checkpoint has them",
                    ) from invalid
                write_all(self._descriptor, [memoryview(header), memoryview(payload)], offset)
                offset += RECORD_HEADER + len(payload)

    def close(self) -> None:
        """Close the file, without a sync."""
        os.close(self._descriptor)
