"""The journal: appends records to segments from the event loop; a thread of its own writes and syncs them.

Group commit: the thread takes all records that wait, writes them with one call from the callers' buffers, syncs once,
and then completes everyone who waits for them. `psserver.storage.segments` has the format and reads it.

No disk space is reserved ahead: that saved some 30 us of a synced write, and would have made the zeros behind the last
record a part of the format.
"""

import asyncio
import enum
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from psserver.storage.files import sync_path, temporary_path
from psserver.storage.segment_file import SegmentFile
from psserver.storage.segments import SegmentHeader, list_segments, lock_journal, read_segment_header, segment_path
from pswire.errors import StorageError

#: Seconds between two syncs with `JournalSync.INTERVAL`.
SYNC_INTERVAL = 0.1

#: Seconds before a failed write is tried again: the first, and the longest after doubling.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

#: Seconds that `Journal.close` gives the thread to write what waits.
CLOSING_TIME = 30.0

_ADVICE = {
    errno.ENOSPC: "free some room on its disk",
    errno.EDQUOT: "free some room, or raise the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}

log = logging.getLogger(__name__)


class JournalSync(enum.StrEnum):
    """When records count as written.

    `EVERY`: they are on the disk, and survive a loss of power. `INTERVAL`: the kernel has them, so they survive the end
    of the process, and syncs them each 100 ms. `OFF`: the kernel has them, and chooses when to write them.
    """

    EVERY = "every"
    INTERVAL = "100ms"
    OFF = "off"


class Journal:
    """Appends records to the segments of one folder. All methods are called in one event loop.

    Call `begin_segment` before the first record. While the disk refuses a record, it and all later ones wait, nothing
    is completed, and the thread tries again until it succeeds or the journal is closed.

    Attributes:
        problem: why records cannot be written now, and what to do; empty if they can.
        nbytes: of all segments in the folder.
    """

    def __init__(self, folder: Path, identity: int, sync: JournalSync) -> None:
        """Opens a folder, which is made if it is not there, for this process alone. Call it in the event loop.

        Args:
            folder: a torn tail in it must have been cut off by `read_segments`.
            identity: of the shard, 0 to 2**64 - 1; another shard's segments are refused when they are read.
            sync: when a record counts as written.

        Raises:
            StorageError: another process uses the folder, or it cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._folder, self._identity, self._mode = folder, identity, sync
        if not 0 <= identity < 1 << 64:
            raise ValueError(f"identity {identity} of journal {folder}: it has 64 bits")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"journal {folder} cannot be made: {error.strerror}") from error
        self._lock = lock_journal(folder)
        try:
            self._sizes = _segment_sizes(folder, identity)
        except StorageError:
            os.close(self._lock)
            raise
        self.problem = ""
        self.nbytes = sum(self._sizes.values())
        # Of the event loop.
        self._lowest = max(self._sizes, default=0)  # the newest segment in the folder may be continued
        self._begun = False
        self._entries, self._completed = 0, 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        # Of both, guarded by `_changed`. An entry is a record, or the number of the segment that begins there.
        self._changed = Condition()
        self._queue: deque[list[memoryview] | int] = deque()
        self._keep_from: int | None = None
        self._closing = False
        # Of the thread.
        self._pending: deque[list[memoryview] | int] = deque()
        self._written = 0
        self._segment: SegmentFile | None = None
        self._sync_due = 0.0
        self._thread = Thread(target=self._run, name="psserver-journal", daemon=True)
        self._thread.start()

    def begin_segment(self, number: int) -> None:
        """Let later records go to segment `number`: higher than all before.

        The first call may name the newest segment of the folder, which is then continued.
        """
        if number < self._lowest:
            raise ValueError(f"segment {number} of journal {self._folder}: the next is {self._lowest} or higher")
        self._lowest, self._begun = number + 1, True
        self._enqueue(number)

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

        None if they are already. Fails with `StorageError` if the journal is closed before.
        """
        if self._completed == self._entries:
            return None
        future = self._loop.create_future()
        self._waiters.append((self._entries, future))
        return future

    def drop_segments_before(self, number: int) -> None:
        """Delete segments older than `number`: a checkpoint has what they have. Their records count as written."""
        with self._changed:
            self._keep_from = number
            self._changed.notify()

    async def close(self) -> None:
        """Write and sync what waits, once; from now on nothing more can be appended."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, CLOSING_TIME)
        if self._thread.is_alive():
            self.problem = f"journal {self._folder}: the disk did not answer within {CLOSING_TIME:g} s"
        else:
            os.close(self._lock)
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(StorageError(self.problem or f"journal {self._folder} was closed"))
        self._waiters.clear()

    def _enqueue(self, entry: list[memoryview] | int) -> None:
        with self._changed:
            if self._closing:
                raise StorageError(f"journal {self._folder} was closed")
            self._queue.append(entry)
            self._changed.notify()
        self._entries += 1

    def _complete(self, written: int) -> None:
        """Complete those who wait for the first `written` entries. Runs in the event loop."""
        self._completed = written
        while self._waiters and self._waiters[0][0] <= written:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    # What follows runs in the thread.

    def _run(self) -> None:
        """Carry out entries until the journal is closed; after an error, again and again with growing pauses."""
        pause, closing = 0.0, False
        try:
            while not closing:
                closing = self._wait(pause)
                try:
                    self._drop()
                    if pause:  # what could not be synced comes before what is new
                        self._sync()
                    self._carry_out()
                    if closing or time.monotonic() >= self._sync_due:
                        self._sync()
                except OSError as error:
                    pause = min(2 * pause or FIRST_PAUSE, LONGEST_PAUSE)
                    self._report(error)
                else:
                    pause = 0.0
                    self._report(None)
        except BaseException as error:
            self.problem = (
                f"journal {self._folder}: its thread ended: {error!r}; restart the server, and please report it"
            )
            raise
        finally:
            if self._segment is not None:
                self._segment.close()

    def _wait(self, pause: float) -> bool:
        """Wait for something to do, or for `pause` seconds after an error. Returns whether the journal closes."""
        timeout = pause or None
        if not pause and self._unsynced():
            timeout = max(self._sync_due - time.monotonic(), 0.0)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._keep_from is not None or (self._queue and not pause), timeout
            )
            self._pending.extend(self._queue)
            self._queue.clear()
            return self._closing

    def _carry_out(self) -> None:
        """Carry out the pending entries: records up to the next beginning of a segment at a time."""
        while self._pending:
            if isinstance(self._pending[0], int):  # without a name for it, which would keep its buffers
                self._open(self._pending[0])
                self._done(1)
            else:
                self._done(self._write())

    def _write(self) -> int:
        """Write the records that are next, and return how many; no buffer of theirs is referred to any more."""
        assert self._segment is not None, "append refuses records before the first segment"
        records: list[list[memoryview]] = []
        for entry in self._pending:
            if isinstance(entry, int):
                break
            records.append(entry)
        start = self._segment.size
        self._segment.append(records)
        if self._mode is JournalSync.EVERY:
            try:
                self._segment.sync()
            except OSError:
                self._segment.cut(start)  # the buffers are still here: all is written again
                raise
        elif self._mode is JournalSync.OFF:
            self._segment.safe = self._segment.size
        self._count(self._segment)
        return len(records)

    def _done(self, entries: int) -> None:
        """Forget entries that are carried out, and tell the event loop."""
        for _ in range(entries):
            self._pending.popleft()
        self._written += entries
        with suppress(RuntimeError):  # the loop was closed without `close`: nobody waits
            self._loop.call_soon_threadsafe(self._complete, self._written)

    def _open(self, number: int) -> None:
        """Begin a segment, or continue the newest. All before it is made durable first, as later records rely on it."""
        newest = max(self._sizes, default=None)
        if self._mode is not JournalSync.OFF:
            if self._segment is not None:
                self._segment.sync()
            elif newest is not None:
                sync_path(segment_path(self._folder, newest))
        self._close_segment()
        if number == newest:
            self._segment = SegmentFile.reopen(segment_path(self._folder, number), self._identity)
        else:
            previous = (newest, self._sizes[newest]) if newest is not None else (0, 0)
            self._segment = SegmentFile.create(self._folder, SegmentHeader(number, self._identity, *previous))
        self._count(self._segment)

    def _drop(self) -> None:
        """Delete old segments, and forget entries that would have gone there."""
        with self._changed:
            keep_from, self._keep_from = self._keep_from, None
        if keep_from is None:
            return
        if keep_from in self._pending:
            self._close_segment()
            self._done(self._pending.index(keep_from))
        elif self._segment is not None:
            keep_from = min(keep_from, self._segment.number)
        for number in [number for number in self._sizes if number < keep_from]:
            path = segment_path(self._folder, number)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # records can be written all the same; the next call tries again
                log.warning("journal segment %s cannot be deleted: %s", path, error.strerror)
            else:
                del self._sizes[number]
        self.nbytes = sum(self._sizes.values())

    def _sync(self) -> None:
        """Sync what the interval's mode has written since the last sync."""
        if self._segment is not None and self._unsynced():
            self._sync_due = time.monotonic() + SYNC_INTERVAL
            self._segment.sync()

    def _unsynced(self) -> bool:
        return self._segment is not None and self._segment.safe < self._segment.size

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _count(self, segment: SegmentFile) -> None:
        self._sizes[segment.number] = segment.size
        self.nbytes = sum(self._sizes.values())

    def _report(self, error: OSError | None) -> None:
        """Set `problem`, and log when it changes."""
        problem = ""
        if error is not None:
            advice = _ADVICE.get(error.errno or 0, "check its disk")
            problem = (
                f"journal {self._folder} cannot be written: {error.strerror or error}; "
                f"nothing is acknowledged until it can: {advice}"
            )
        if problem != self.problem:
            self.problem = problem
            if problem:
                log.error(problem)
            else:
                log.info("journal %s is written again", self._folder)


def _segment_sizes(folder: Path, identity: int) -> dict[int, int]:
    """Bytes of each segment in a folder. Deletes what a crash left of the creation of one. Raises `StorageError`."""
    segments = list_segments(folder)
    if segments:
        read_segment_header(segments[max(segments)], identity)
    try:
        for leftover in folder.glob(temporary_path(Path("segment-*")).name):
            leftover.unlink()
        return {number: path.stat().st_size for number, path in segments.items()}
    except OSError as error:
        raise StorageError(f"journal {folder} cannot be opened: {error.strerror}") from error
