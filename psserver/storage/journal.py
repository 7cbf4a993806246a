"""The journal: appends records to segments from the event loop, and says when they are written.

A thread takes all records that wait as one group, writes it from the callers' buffers, and syncs once.
`psserver.storage.journal_segments` has the format and reads it.

No disk space is reserved ahead: that saved some 30 us of a synced write, and would have made the zeros behind the last
record a part of the format.
"""

import asyncio
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import TypeAlias

from psserver.measurements import JournalMeasurements
from psserver.storage.journal_segments import (
    SegmentFile,
    SegmentHeader,
    list_segments,
    lock_journal,
    read_segment_header,
    segment_path,
)
from pswire.errors import StorageError
from pswire.security.private_files import make_private_folder
from pswire.specs.checkpoints import JournalSync
from pswire.system.files import leftovers, sync_path

#: Bytes of a record that the event loop writes itself, where it need not be synced: 0.08 ms for 32 KB, and 0.18 ms by
#: way of the thread. Syncs are left to the thread: in the event loop they cost two workers a third of their steps.
MAX_BYTES_IN_LOOP = 256 << 10

#: Seconds of one write in the event loop after which the thread does all for `SLOW_PAUSE` seconds.
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
        self._syncs_each = sync is JournalSync.EVERY
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
        if isinstance(entry, int) or not self._written_here(entry):
            self._writer.put(entry)

    def _written_here(self, record: list[memoryview]) -> bool:
        """Write a small record in the event loop, unless it must be synced, or the disk was slow lately."""
        began = self._loop.time()
        if self._syncs_each or began < self._thread_until or sum([part.nbytes for part in record]) > MAX_BYTES_IN_LOOP:
            return False
        written = self._writer.write_now(record)
        ended = self._loop.time()
        if ended - began > SLOW_SECONDS:
            self._thread_until = ended + SLOW_PAUSE
        if written:
            self._complete(self._entries)
        return written

    def _call(self, method: Callable[..., None], *arguments: int) -> None:
        """Have a method called in the event loop. Called by the thread."""
        with suppress(RuntimeError):  # the loop was closed without `close`: there are no waiters
            self._loop.call_soon_threadsafe(method, *arguments)

    def _complete(self, written: int) -> None:
        """Resolve futures waiting for entries up to `written`."""
        self._completed = max(self._completed, written)
        while self._waiters and self._waiters[0][0] <= written:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    def _end(self) -> None:
        """Fail present and later waiters: the thread will write no more."""
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


#: Seconds between two syncs with `JournalSync.INTERVAL`.
SYNC_INTERVAL = 0.1

#: Seconds before a failed write is tried again: the first, and the longest after doubling.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0

_ADVICE = {
    errno.ENOSPC: "free some room on its disk",
    errno.EDQUOT: "free some room, or raise the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}

log = logging.getLogger(__name__)

#: A record in parts, or the number of the segment that begins there.
Entry: TypeAlias = list[memoryview] | int


class JournalWriter(Thread):
    """Carries out the entries of one journal, in order.

    `put`, `drop_segments_before` and `stop` are called by another thread; `_changed` guards what they share with this
    one. All else belongs to this thread; `problem` and `nbytes` may be read by all.

    Attributes:
        problem: why entries cannot be carried out now, and what to do; empty if they can.
        nbytes: of all segments in the folder.
    """

    def __init__(
        self,
        folder: Path,
        identity: int,
        sync: JournalSync,
        sizes: dict[int, int],
        done: Callable[[int], None],
        ended: Callable[[], None],
        measurements: JournalMeasurements,
    ) -> None:
        """Prepares the thread.

        Args:
            folder: of the segments.
            identity: of the shard.
            sync: when a record counts as written.
            sizes: bytes of each segment in the folder.
            done: called in this thread with the number of entries that have been carried out since the start.
            ended: called in this thread when it ends.
            measurements: written by the thread that has the file: this one, or the caller of `write_now`.
        """
        super().__init__(name="psserver-journal", daemon=True)
        self.problem = ""
        self.nbytes = sum(sizes.values())
        self._folder, self._identity, self._mode = folder, identity, sync
        self._tell_done, self._tell_ended, self._measurements = done, ended, measurements
        self._changed = Condition()
        self._queue: deque[Entry] = deque()
        self._keep_from: int | None = None
        self._closing = False
        self._idle = False  # this thread waits, and `write_now` may do its work
        # Used by this thread, and by the caller of `write_now` while this one is idle.
        self._pending: deque[Entry] = deque()
        self._carried_out = 0
        self._sizes = sizes
        self._segment: SegmentFile | None = None
        self._sync_due = 0.0

    def put(self, entry: Entry) -> None:
        """Add an entry, whose buffers are borrowed until it is carried out."""
        with self._changed:
            self._queue.append(entry)
            self._changed.notify()

    def drop_segments_before(self, number: int) -> None:
        """Delete older segments, and carry out nothing that would go there."""
        with self._changed:
            self._keep_from = number
            self._changed.notify()

    def write_now(self, record: list[memoryview]) -> bool:
        """Write a record in the calling thread, without a sync, if this thread has nothing to do; False: `put` it."""
        with self._changed:
            busy = not self._idle or self._queue or self._pending or self._closing or self.problem
            if busy or self._keep_from is not None or self._segment is None:
                return False
            synced = not self._unsynced()
            self._pending.append(record)
            try:
                self._write()
            except OSError as error:  # the thread tries again
                self._report(error)
                return False
            finally:
                self._pending.clear()
            self._carried_out += 1
            if synced and self._unsynced():
                self._changed.notify()  # the thread has something to sync in a while
            return True

    def stop(self) -> None:
        """Carry out what waits, once, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
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
            self._close_segment()
            self._tell_ended()

    def _wait(self, pause: float) -> bool:
        """Wait for something to do, or for `pause` seconds after an error. Returns whether the journal closes."""
        with self._changed:
            self._idle = True
            timeout = pause or None
            if not pause and self._unsynced():
                timeout = max(self._sync_due - time.monotonic(), 0.0)

            def awaited() -> bool:
                to_do = self._queue or (timeout is None and self._unsynced())
                return self._closing or self._keep_from is not None or bool(to_do and not pause)

            self._changed.wait_for(awaited, timeout)
            self._idle = False
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
        """Write the next records; returns their number. Their buffers are no longer referred to."""
        assert self._segment is not None, "append refuses records before the first segment"
        records: list[list[memoryview]] = []
        for entry in self._pending:
            if isinstance(entry, int):
                break
            records.append(entry)
        start = self._segment.size
        self._segment.append(records)
        self._measurements.appended += self._segment.size - start
        if self._mode is JournalSync.EVERY:
            try:
                self._sync_segment(self._segment)
            except OSError:
                self._segment.cut(start)  # the buffers are still here: all is written again
                raise
        elif self._mode is JournalSync.OFF:
            self._segment.safe = self._segment.size
        self._count(self._segment)
        return len(records)

    def _done(self, entries: int) -> None:
        """Forget entries that are carried out, and say so."""
        for _ in range(entries):
            self._pending.popleft()
        self._carried_out += entries
        self._tell_done(self._carried_out)

    def _open(self, number: int) -> None:
        """Begin a segment, or continue the newest. All before it is made durable first, as later records rely on it."""
        newest = max(self._sizes, default=None)
        if self._mode is not JournalSync.OFF:
            if self._segment is not None:
                self._sync_segment(self._segment)
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
            self._sync_segment(self._segment)

    def _sync_segment(self, segment: SegmentFile) -> None:
        began = time.monotonic()
        segment.sync()
        self._measurements.sync_seconds.add(time.monotonic() - began)

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
