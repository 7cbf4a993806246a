"""The journal: group commit, what each mode of syncing waits for, segments, and what happens when a sync fails."""

import asyncio
import errno
import os
import threading

import numpy as np
import pytest

from psserver.storage import journal as module
from psserver.storage import journal_segments
from psserver.storage.files import sync_data
from psserver.storage.journal import MAX_BYTES_IN_LOOP, Journal
from psserver.storage.journal_segments import SEGMENT_HEADER, SegmentFile, SegmentHeader, read_segments, segment_path
from pswire.errors import StorageError
from pswire.specs.checkpoints import JournalSync
from tests.support.files import all_written, file_size_limit

IDENTITY = 5

#: Seconds that a test waits for the journal's thread at most.
PATIENCE = 30


def read(folder, **options):
    return [record.payload for record in read_segments(folder, IDENTITY, **options)]


_opened = []


def open_journal(folder, sync):
    """A journal that `run` closes."""
    _opened.append(Journal(folder, IDENTITY, sync))
    return _opened[-1]


def run(program):
    """Run a coroutine in an event loop of its own, for a bounded time, and close its journals."""

    async def closing():
        try:
            return await asyncio.wait_for(program, PATIENCE)
        finally:
            while _opened:
                await _opened.pop().close()

    return asyncio.run(closing())


async def until(condition):
    """Return when a condition holds that the journal's thread brings about. `run` bounds it."""
    while not condition():
        await asyncio.sleep(0.001)


class Gate:
    """In place of `sync_data`: a sync that waits until it is let through, and may fail."""

    def __init__(self, monkeypatch):
        self.syncs, self.errors = 0, []
        self.entered, self.open = threading.Event(), threading.Event()
        monkeypatch.setattr(journal_segments, "sync_data", self)

    def __call__(self, descriptor):
        self.entered.set()
        assert self.open.wait(PATIENCE)
        self.syncs += 1
        if self.errors:
            self.errors.pop(0)(descriptor)
        sync_data(descriptor)


def seen_results(monkeypatch, kind, name):
    """The results of all later calls of a method, in a list that grows; an error is None."""
    real, results = getattr(kind, name), []

    def call(self, *arguments):
        place = len(results)
        results.append(None)
        results[place] = real(self, *arguments)
        return results[place]

    monkeypatch.setattr(kind, name, call)
    return results


@pytest.mark.parametrize("sync", JournalSync)
def test_records_of_many_parts_and_formats_are_read_as_they_were_appended(tmp_path, sync):
    array = np.arange(50_000, dtype=np.float32).reshape(100, 500)
    records = [[b"head", memoryview(array), memoryview(array[:0])], [], [bytes([part % 256]) for part in range(3000)]]

    async def program():
        journal = open_journal(tmp_path / "new" / "folder", sync)
        assert journal.written() is None
        journal.begin_segment(0)
        for parts in records:
            journal.append(parts)
        await all_written(journal)
        assert journal.written() is None
        assert journal.nbytes == segment_path(tmp_path / "new" / "folder", 0).stat().st_size

    run(program())
    expected = [b"head" + array.tobytes(), b"", b"".join(records[2])]
    assert read(tmp_path / "new" / "folder") == expected


def test_all_bytes_are_written_also_where_the_kernel_takes_a_few_at_a_time(tmp_path, monkeypatch):
    real = os.pwritev

    def pwritev(descriptor, buffers, offset):
        return real(descriptor, [b"".join(buffers)[:7]], offset)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(3)
        journal.append([b"some", b"", b"thing of two parts"])
        journal.append([b"more"])
        await all_written(journal)
        await journal.close()

    monkeypatch.setattr(os, "pwritev", pwritev)
    run(program())
    assert read(tmp_path) == [b"something of two parts", b"more"]


def test_with_every_a_record_counts_as_written_once_it_is_synced_and_those_that_wait_share_a_sync(
    tmp_path, monkeypatch
):
    gate = Gate(monkeypatch)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        journal.append([b"0"])
        first = journal.written()
        await until(gate.entered.is_set)
        others = []
        for number in range(1, 11):
            journal.append([b"%d" % number])
            others.append(journal.written())
        assert read(tmp_path) == [b"0"], "written, but not synced"
        assert not first.done()
        gate.open.set()
        await asyncio.gather(first, *others)
        assert gate.syncs == 2

    run(program())
    assert read(tmp_path) == [b"%d" % number for number in range(11)]


@pytest.mark.parametrize(("sync", "syncs"), [(JournalSync.INTERVAL, 1), (JournalSync.OFF, 0)])
def test_without_every_a_record_counts_as_written_once_the_kernel_has_it(tmp_path, monkeypatch, sync, syncs):
    gate = Gate(monkeypatch)

    async def program():
        journal = open_journal(tmp_path, sync)
        journal.begin_segment(1)
        journal.append([b"0"])
        await all_written(journal)
        assert read(tmp_path) == [b"0"]
        assert gate.syncs == 0
        gate.open.set()
        await until(lambda: gate.syncs == syncs)

    run(program())
    assert gate.syncs == syncs


def test_with_an_interval_what_is_written_last_is_synced_without_another_record(tmp_path, monkeypatch):
    """Also one that the event loop has written itself, of which the thread has to be told."""
    gate = Gate(monkeypatch)
    gate.open.set()
    in_loop = seen_results(monkeypatch, module.JournalWriter, "write_now")

    async def program():
        journal = open_journal(tmp_path, JournalSync.INTERVAL)
        journal.begin_segment(1)
        while not any(in_loop):  # the thread writes those that come before it waits
            before = gate.syncs
            journal.append([b"record"])
            await until(lambda before=before: gate.syncs > before)

    run(program())
    assert len(in_loop) == gate.syncs


@pytest.mark.parametrize("sync", JournalSync)
def test_parts_are_not_copied_and_are_given_back_before_the_record_counts_as_written(tmp_path, monkeypatch, sync):
    part = bytearray(MAX_BYTES_IN_LOOP + 1)  # the thread writes it
    written_from, borrowed = [], []
    real = os.pwritev

    def pwritev(descriptor, buffers, offset):
        written_from.extend(id(view.obj) for view in buffers if isinstance(view, memoryview))
        return real(descriptor, buffers, offset)

    def is_borrowed():
        try:
            part.append(0)
        except BufferError:
            return True
        return False

    async def program():
        loop = asyncio.get_running_loop()
        tell = loop.call_soon_threadsafe
        journal = open_journal(tmp_path, sync)
        journal.begin_segment(1)
        await all_written(journal)
        monkeypatch.setattr(os, "pwritev", pwritev)
        loop.call_soon_threadsafe = lambda *call: (borrowed.append(is_borrowed()), tell(*call))
        journal.append([memoryview(part)])
        await all_written(journal)
        loop.call_soon_threadsafe = tell

    run(program())
    assert id(part) in written_from
    assert borrowed[:1] == [False]


def test_each_caller_has_a_future_of_its_own_which_it_may_cancel(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        journal.append([b"0"])
        gone, here = journal.written(), journal.written()
        gone.cancel()
        gate.open.set()
        await here

    run(program())


def test_closing_writes_what_was_appended_before(tmp_path):
    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        await all_written(journal)
        journal.append([b"the last one"])
        await journal.close()

    run(program())
    assert read(tmp_path) == [b"the last one"]


def test_segments_begin_where_they_were_begun_and_old_ones_are_deleted(tmp_path):
    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        for number in (1, 5, 9):
            journal.begin_segment(number)
            journal.append([b"of %d" % number])
        await all_written(journal)
        assert read(tmp_path) == [b"of 1", b"of 5", b"of 9"]
        journal.drop_segments_before(5)
        left = sum(segment_path(tmp_path, number).stat().st_size for number in (5, 9))
        await until(lambda: journal.nbytes == left)
        assert not segment_path(tmp_path, 1).exists()
        assert read(tmp_path) == [b"of 5", b"of 9"]
        journal.drop_segments_before(1000)
        await until(lambda: not segment_path(tmp_path, 5).exists())
        journal.append([b"more"])
        await all_written(journal)
        assert read(tmp_path) == [b"of 9", b"more"], "the current segment stays"
        assert journal.nbytes == segment_path(tmp_path, 9).stat().st_size

    run(program())


async def write_one(folder, number, record):
    journal = open_journal(folder, JournalSync.EVERY)
    journal.begin_segment(number)
    journal.append([record])
    await all_written(journal)


def test_a_journal_is_continued_in_its_newest_segment_or_in_a_new_one(tmp_path):
    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        with pytest.raises(ValueError, match="begin_segment first"):
            journal.append([b"nowhere"])
        with pytest.raises(ValueError, match=r"segment 1 of journal .*: the next is 2 or higher"):
            journal.begin_segment(1)
        assert journal.newest == 2
        journal.begin_segment(2)
        with pytest.raises(ValueError, match=r"segment 2 of journal .*: the next is 3 or higher"):
            journal.begin_segment(2)
        journal.append([b"third"])
        await all_written(journal)

    run(write_one(tmp_path, 0, b"first"))
    run(write_one(tmp_path, 2, b"second"))
    run(program())
    assert read(tmp_path) == [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    ("number", "sync"), [(1, JournalSync.EVERY), (2, JournalSync.EVERY), (2, JournalSync.INTERVAL)]
)
def test_records_that_a_killed_process_left_unsynced_are_synced_before_others_count_as_written(
    tmp_path, monkeypatch, number, sync
):
    run(write_one(tmp_path, 1, b"first"))
    synced = []
    monkeypatch.setattr(module, "sync_path", synced.append)

    async def program():
        journal = open_journal(tmp_path, sync)
        journal.begin_segment(number)
        await all_written(journal)
        assert synced == [segment_path(tmp_path, 1)]

    run(program())


def test_a_folder_in_use_foreign_or_not_a_folder_is_refused_and_leftovers_are_removed(tmp_path):
    run(write_one(tmp_path / "a", 1, b"first"))
    leftover = tmp_path / "a" / ".segment-000000002.log.tmp"
    leftover.write_bytes(b"half")
    (tmp_path / "file").write_bytes(b"")

    async def program():
        with pytest.raises(ValueError, match=r"identity 18446744073709551616 of journal .*: it has 64 bits"):
            Journal(tmp_path / "a", 1 << 64, JournalSync.OFF)
        with pytest.raises(StorageError, match=r"segment-000000001.log: belongs to another shard or job"):
            Journal(tmp_path / "a", IDENTITY + 1, JournalSync.OFF)
        with pytest.raises(StorageError, match="file cannot be made: File exists"):
            Journal(tmp_path / "file", IDENTITY, JournalSync.OFF)
        journal = open_journal(tmp_path / "a", JournalSync.OFF)
        assert not leftover.exists()
        with pytest.raises(StorageError, match="a is in use by another process: stop that server"):
            Journal(tmp_path / "a", IDENTITY, JournalSync.OFF)
        with pytest.raises(StorageError, match="a is in use by another process"):
            read(tmp_path / "a", truncate=True)
        assert read(tmp_path / "a") == [b"first"]
        await journal.close()
        await journal.close()
        assert read(tmp_path / "a", truncate=True) == [b"first"]
        with pytest.raises(StorageError, match="was closed"):
            journal.begin_segment(2)
        await Journal(tmp_path / "a", IDENTITY, JournalSync.OFF).close()

    run(program())
    assert [thread.name for thread in threading.enumerate() if thread.name == "psserver-journal"] == []


def test_a_segment_is_synced_before_the_next_is_begun(tmp_path, monkeypatch):
    """So that a loss of power never leaves a later segment without the end of an earlier one."""
    gate = Gate(monkeypatch)
    gate.open.set()

    async def program():
        journal = open_journal(tmp_path, JournalSync.INTERVAL)
        journal.begin_segment(1)
        journal.append([b"first"])
        await until(lambda: gate.syncs == 1)
        gate.open.clear()
        journal.append([b"second"])
        journal.begin_segment(2)
        gate.entered.clear()
        await until(gate.entered.is_set)
        assert not segment_path(tmp_path, 2).exists()
        gate.open.set()
        await all_written(journal)
        assert segment_path(tmp_path, 2).exists()

    run(program())


class LossySync:
    """In place of `sync_data`: fails once with EIO; the kernel may forget what was not synced (as zeros here)."""

    def __init__(self, monkeypatch, *, forgets):
        self.forgets, self.fail, self.synced = forgets, False, 0
        monkeypatch.setattr(journal_segments, "sync_data", self)
        monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)

    def __call__(self, descriptor):
        size = os.fstat(descriptor).st_size
        if self.fail:
            self.fail = False
            if self.forgets:
                os.pwrite(descriptor, bytes(size - self.synced), self.synced)
            raise OSError(errno.EIO, "Input/output error")
        sync_data(descriptor)
        self.synced = size


def test_after_a_failed_sync_the_records_are_written_again_from_their_buffers(tmp_path, monkeypatch, caplog):
    disk = LossySync(monkeypatch, forgets=True)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        journal.append([b"first"])
        await all_written(journal)
        disk.fail = True
        journal.append([b"second"])
        await all_written(journal)
        await until(lambda: not journal.problem)

    run(program())
    assert read(tmp_path) == [b"first", b"second"]
    assert f"journal {tmp_path} cannot be written: Input/output error; nothing is acknowledged" in caplog.text


def test_after_a_failed_sync_of_an_interval_the_records_are_written_again_from_the_kernels_memory(
    tmp_path, monkeypatch
):
    disk = LossySync(monkeypatch, forgets=False)
    written = []
    real = os.pwritev

    def pwritev(descriptor, buffers, offset):
        written.append((offset, b"".join(buffers)))
        return real(descriptor, buffers, offset)

    async def program():
        journal = open_journal(tmp_path, JournalSync.INTERVAL)
        journal.begin_segment(1)
        disk.fail = True
        monkeypatch.setattr(os, "pwritev", pwritev)
        journal.append([b"first"])
        await all_written(journal)
        await until(lambda: disk.synced)

    run(program())
    assert [offset for offset, _ in written] == [SEGMENT_HEADER, SEGMENT_HEADER]
    assert written[0] == written[1]
    assert read(tmp_path) == [b"first"]


def test_while_what_is_written_cannot_be_synced_nothing_more_is_acknowledged(tmp_path, monkeypatch):
    disk = LossySync(monkeypatch, forgets=False)
    tries = 0

    def failing(descriptor):
        nonlocal tries
        tries += 1
        disk.fail = disk.fail or broken
        disk(descriptor)

    monkeypatch.setattr(journal_segments, "sync_data", failing)

    async def program():
        nonlocal broken
        journal = open_journal(tmp_path, JournalSync.INTERVAL)
        journal.begin_segment(1)
        journal.append([b"first"])
        await until(lambda: journal.problem)
        journal.append([b"second"])
        second, before = journal.written(), tries
        await until(lambda: tries >= before + 3)
        assert not second.done()
        assert read(tmp_path) == [b"first"]
        broken = False
        await second

    broken = True
    run(program())
    assert read(tmp_path) == [b"first", b"second"]


def test_what_a_failed_sync_has_lost_stops_the_journal_until_a_checkpoint_has_it(tmp_path, monkeypatch):
    disk = LossySync(monkeypatch, forgets=True)
    syncs = seen_results(monkeypatch, journal_segments.SegmentFile, "sync")

    async def program():
        journal = open_journal(tmp_path, JournalSync.INTERVAL)
        journal.begin_segment(1)
        disk.fail = True
        journal.append([b"acknowledged, then lost"])
        await all_written(journal)
        await until(lambda: "were lost by a failed sync" in journal.problem)
        journal.append([b"never written"])
        before = journal.written()
        journal.begin_segment(2)
        journal.append([b"after the snapshot"])
        after = journal.written()
        failed = len(syncs)
        await until(lambda: len(syncs) >= failed + 3)
        assert not before.done()
        journal.drop_segments_before(2)
        await asyncio.gather(before, after)
        await until(lambda: not journal.problem)

    run(program())
    assert read(tmp_path) == [b"after the snapshot"]
    assert not segment_path(tmp_path, 1).exists()


def test_a_failed_write_does_not_forget_that_a_failed_sync_may_have_lost_what_was_written_before(tmp_path, monkeypatch):
    disk = LossySync(monkeypatch, forgets=True)
    segment = SegmentFile.create(tmp_path, SegmentHeader(1, IDENTITY, 0, 0))
    segment.append([[memoryview(b"acknowledged, then lost")]])
    disk.fail = True
    with pytest.raises(OSError, match="Input/output error"):
        segment.sync()
    with file_size_limit(segment.size), pytest.raises(OSError, match="File too large"):
        segment.append([[memoryview(b"more")]])
    with pytest.raises(OSError, match="were lost by a failed sync"):
        segment.sync()
    segment.close()


def test_a_fault_of_the_thread_is_a_problem_and_those_who_wait_get_an_error(tmp_path, monkeypatch):
    def sync_data(descriptor):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(journal_segments, "sync_data", sync_data)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        journal.append([b"first"])
        waiting = journal.written()
        with pytest.raises(StorageError, match="its thread ended: ZeroDivisionError"):
            await waiting
        journal.append([b"second"])
        with pytest.raises(StorageError, match="its thread ended: ZeroDivisionError"):
            await all_written(journal)

    run(program())


@pytest.fixture
def writing_threads(monkeypatch):
    """The names of the threads that have written something, in order."""
    threads, real = [], os.pwritev

    def pwritev(descriptor, buffers, offset):
        threads.append(threading.current_thread().name)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    return threads


@pytest.mark.parametrize("sync", [JournalSync.INTERVAL, JournalSync.OFF])
def test_small_records_without_a_sync_are_written_in_the_event_loop_until_the_disk_is_slow(
    tmp_path, monkeypatch, writing_threads, sync
):
    async def program():
        journal = open_journal(tmp_path, sync)
        journal.begin_segment(1)
        await all_written(journal)
        await until(lambda: journal._writer._idle)
        monkeypatch.setattr(module, "SLOW_SECONDS", PATIENCE)
        journal.append([b"in the loop"])
        assert journal.written() is None
        monkeypatch.setattr(module, "SLOW_SECONDS", -1.0)
        await until(lambda: journal._writer._idle)
        journal.append([b"in the loop, and slow"])
        journal.append([b"in the thread"])
        await all_written(journal)

    run(program())
    assert writing_threads == ["MainThread", "MainThread", "psserver-journal"]
    assert read(tmp_path) == [b"in the loop", b"in the loop, and slow", b"in the thread"]


def test_records_that_are_synced_are_written_in_the_thread_alone(tmp_path, writing_threads):
    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        for number in range(3):
            await all_written(journal)
            await until(lambda: journal._writer._idle)
            journal.append([b"%d" % number])
        await all_written(journal)

    run(program())
    assert writing_threads == ["psserver-journal"] * 3
