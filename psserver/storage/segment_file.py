"""One segment of a journal while it is written: appends groups of records at its end, and syncs.

After an error the segment ends where it ended before. What a failed sync may have lost is written again (`sync_data`
says why another sync is not enough).
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from psserver.storage.files import FORGET_BYTES, forget_pages, sync_data, write_all
from psserver.storage.segments import (
    RECORD_HEADER,
    InvalidRecord,
    SegmentHeader,
    read_record,
    read_segment_header,
    record_header,
    segment_path,
)
from pswire.system.files import write_file


class SegmentFile:
    """The segment that a journal appends to. Used by one thread.

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
        """Write records, of which each is given in parts, at the end. Raises `OSError`, and then none is there."""
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
