"""The journal: appends records to segments from the event loop, and says when they are written.

Its thread (`psserver.storage.journal_writer`) takes all records that wait as one group, writes it from the callers'
buffers, and syncs once. `psserver.storage.segments` has the format and reads it.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from psserver.measurements import JournalMeasurements
from psserver.storage.journal_writer import JournalWriter
from psserver.storage.segments import list_segments, lock_journal, read_segment_header
from pswire.errors import StorageError
from pswire.security.private_files import make_private_folder
from pswire.specs.checkpoints import JournalSync
from pswire.system.files import leftovers

#: Bytes of a record that the event loop writes itself. Waking the thread for it would take longer.
MAX_BYTES_IN_LOOP = 256 << 10

#: Seconds of one write and sync in the event loop after which the thread does all for `SLOW_PAUSE` seconds.
SLOW_SECONDS, SLOW_PAUSE = 0.002, 5.0

#: Seconds that `Journal.close` gives the thread to write what waits.
CLOSING_TIME = 30.0


class Journal:
    """Appends records to the segments of one folder. All methods are called in one event loop.

    Call `begin_segment` before the first record. While the disk refuses a record, it and all later ones wait, nothing
    is completed, and the thread tries again until it succeeds or the journal is closed.

    Attributes:
        newest: number of the newest segment that was begun or found in the folder; None without one.
    """

    def __init__(
        self, folder: Path, identity: int, sync: JournalSync, measurements: JournalMeasurements | None = None
    ) -> None:
        """Opens a folder, which is made if it is not there, for this process alone. Call it in the event loop.

        Args:
            folder: a torn tail in it must have been cut off by `read_segments`.
            identity: of the shard, 0 to 2**64 - 1; another shard's segments are refused when they are read.
            sync: when a record counts as written.
            measurements: where bytes and syncs are counted.

        Raises:
            StorageError: another process uses the folder, or it cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        if not 0 <= identity < 1 << 64:
            raise ValueError(f"identity {identity} of journal {folder}: it has 64 bits")
        try:
            make_private_folder(folder)
        except OSError as error:
            raise StorageError(f"journal {folder} cannot be made: {error.strerror}") from error
        self._lock = lock_journal(folder)
        try:
            sizes = _segment_sizes(folder, identity)
        except StorageError:
            os.close(self._lock)
            raise
        self.newest = max(sizes, default=None)
        self._begun = self._closing = self._ended = False
        self._entries, self._completed = 0, 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._group: list[list[memoryview]] = []  # small records of this round of the event loop
        self._grouped = sync is JournalSync.EVERY  # those of one round share a sync
        self._thread_until = 0.0  # the disk was slow: the thread writes small records too
        self._writer = JournalWriter(
            folder,
            identity,
            sync,
            sizes,
            done=lambda entries: self._call(self._complete, entries),
            ended=lambda: self._call(self._end),
            measurements=measurements or JournalMeasurements(),
        )
        self._writer.start()

    @property
    def problem(self) -> str:
        """Why records cannot be written now, and what to do; empty if they can."""
        return self._writer.problem

    @property
    def nbytes(self) -> int:
        """Bytes of all segments in the folder."""
        return self._writer.nbytes

    def begin_segment(self, number: int) -> None:
        """Let later records go to segment `number`: higher than all before.

        The first call may name the newest segment of the folder, which is then continued.
        """
        lowest = 0 if self.newest is None else self.newest + self._begun
        if number < lowest:
            raise ValueError(f"segment {number} of journal {self._folder}: the next is {lowest} or higher")
        self._enqueue(number)
        self.newest, self._begun = number, True

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Append one record. Returns at once.

        Args:
            parts: the record's bytes: contiguous buffers of any format, borrowed until the record is written.
        """
        if not self._begun:
            raise ValueError(f"journal {self._folder} has no segment yet: call begin_segment first")
        views = [memoryview(part) for part in parts]
        self._enqueue([view.cast("B") for view in views if view.nbytes])

    def written(self) -> asyncio.Future[None] | None:
        """A future that completes when all calls so far are carried out, and their records count as written.

        None if they are already. Fails with `StorageError` if the journal is closed before, or its thread has failed.
        """
        if self._completed == self._entries:
            return None
        future = self._loop.create_future()
        self._waiters.append((self._entries, future))
        if self._ended:
            self._end()
        return future

    def drop_segments_before(self, number: int) -> None:
        """Delete segments older than `number`: a checkpoint has what they have. Their records count as written."""
        self._writer.drop_segments_before(number)

    async def close(self) -> None:
        """Write and sync what waits, once; from now on nothing more can be appended."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        self._writer.stop()
        await asyncio.to_thread(self._writer.join, CLOSING_TIME)
        if self._writer.is_alive():
            self._writer.problem = f"journal {self._folder}: the disk did not answer within {CLOSING_TIME:g} s"
            self._end()
        else:
            os.close(self._lock)

    def _enqueue(self, entry: list[memoryview] | int) -> None:
        if self._closing:
            raise StorageError(f"journal {self._folder} was closed")
        self._entries += 1
        if isinstance(entry, int) or sum([part.nbytes for part in entry]) > MAX_BYTES_IN_LOOP:
            self._flush()
            self._writer.put(entry)
            return
        self._group.append(entry)
        if not self._grouped:
            self._flush()
        elif len(self._group) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write the small records of this round of the event loop: at once, unless the disk was slow lately."""
        group, self._group = self._group, []
        if not group or (self._closing and not self._writer.is_alive()):
            return
        began = self._loop.time()
        if began < self._thread_until:
            for record in group:
                self._writer.put(record)
            return
        written = self._writer.write_now(group)
        ended = self._loop.time()
        if ended - began > SLOW_SECONDS:
            self._thread_until = ended + SLOW_PAUSE
        if written is not None:
            self._complete(written)

    def _call(self, method: Callable[..., None], *arguments: int) -> None:
        """Have a method called in the event loop. Called by the thread."""
        with suppress(RuntimeError):  # the loop was closed without `close`: nobody waits
            self._loop.call_soon_threadsafe(method, *arguments)

    def _complete(self, written: int) -> None:
        """Resolve futures waiting for entries up to `written`."""
        self._completed = max(self._completed, written)
        while self._waiters and self._waiters[0][0] <= written:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    def _end(self) -> None:
        """Fail those who wait, now and later: the thread will write no more."""
        self._ended = True
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(StorageError(self.problem or f"journal {self._folder} was closed"))
        self._waiters.clear()


def _segment_sizes(folder: Path, identity: int) -> dict[int, int]:
    """Bytes of each segment in a folder. Deletes what a crash left of the creation of one. Raises `StorageError`."""
    segments = list_segments(folder)
    if segments:
        read_segment_header(segments[max(segments)], identity)
    try:
        for leftover in leftovers(folder, "segment-*"):
            leftover.unlink()
        return {number: path.stat().st_size for number, path in segments.items()}
    except OSError as error:
        raise StorageError(f"journal {folder} cannot be opened: {error.strerror}") from error
