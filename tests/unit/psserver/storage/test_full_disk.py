"""The journal on a disk that becomes full and has room again: a small tmpfs, and a limit of the size of files."""

import asyncio
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from psserver.storage import journal as module
from psserver.storage.journal_segments import SEGMENT_HEADER, read_segments, segment_path
from pswire.errors import StorageError
from pswire.specs.checkpoints import JournalSync
from tests.support.files import all_written, file_size_limit
from tests.unit.psserver.storage.test_journal import IDENTITY, open_journal, run, until

RECORDS = [bytes([number]) * 10_000 for number in range(30)]


def read(folder):
    return [record.payload for record in read_segments(folder, IDENTITY)]


async def fill_and_free(folder, sync, fill, free):
    """Append records until the disk takes no more, give it room, and see all of them written once."""
    journal = open_journal(folder, sync)
    journal.begin_segment(1)
    await all_written(journal)
    fill()
    waiting, at_once = [], 0
    for record in RECORDS:
        journal.append([record[:1], record[1:]])
        if (future := journal.written()) is None:
            at_once += 1
            continue
        waiting.append(future)
        if not journal.problem:
            await asyncio.wait([future], timeout=0.05)
    await until(lambda: journal.problem)
    acknowledged = at_once + sum(future.done() for future in waiting)
    assert 0 < acknowledged < len(RECORDS)
    assert read(folder) == RECORDS[:acknowledged], "nothing that was not completely written stays"
    problem = journal.problem
    free()
    await asyncio.gather(*waiting)
    await until(lambda: not journal.problem)
    assert read(folder) == RECORDS
    assert journal.nbytes == segment_path(folder, 1).stat().st_size
    return problem


@pytest.mark.parametrize("sync", JournalSync)
def test_a_full_disk_acknowledges_nothing_says_so_and_goes_on_by_itself_when_there_is_room(
    small_disk, sync, monkeypatch
):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.02)
    problem = run(fill_and_free(small_disk / "journal", sync, lambda: None, (small_disk / "ballast").unlink))
    assert problem == (
        f"journal {small_disk / 'journal'} cannot be written: No space left on device; "
        "nothing is acknowledged until it can: free some room on its disk"
    )


def test_files_that_may_not_grow_acknowledge_nothing_and_go_on_when_they_may(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.02)
    with ExitStack() as full:
        fill = partial(full.enter_context, file_size_limit(105_000))
        problem = run(fill_and_free(tmp_path, JournalSync.EVERY, fill, full.close))
    assert "cannot be written: File too large" in problem
    assert "raise the limit of a file's size (ulimit -f)" in problem


def test_deleting_old_segments_gives_room_and_forgets_the_records_that_a_checkpoint_has(tmp_path):
    """The pause after the first error is not waited for."""

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        await all_written(journal)
        with file_size_limit(15_000):
            for record in RECORDS[:3]:
                journal.append([record])
            await until(lambda: journal.problem)
            before = journal.written()
            journal.begin_segment(2)
            journal.append([b"after the snapshot"])
            after = journal.written()
            journal.drop_segments_before(2)
            await asyncio.gather(before, after)

    run(program())
    assert read(tmp_path) == [b"after the snapshot"]
    assert not segment_path(tmp_path, 1).exists()


def test_a_segment_that_cannot_be_begun_is_begun_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.02)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        journal.append([b"of 1"])
        await all_written(journal)
        with file_size_limit(SEGMENT_HEADER - 1):
            journal.begin_segment(2)
            journal.append([b"of 2"])
            waiting = journal.written()
            await until(lambda: journal.problem)
            assert not waiting.done()
            assert not segment_path(tmp_path, 2).exists()
        await waiting

    run(program())
    assert read(tmp_path) == [b"of 1", b"of 2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock",
        "segment-000000001.log",
        "segment-000000002.log",
    ]


def test_pauses_double_up_to_the_longest_while_the_disk_stays_full_and_begin_anew_after_that(tmp_path, monkeypatch):
    pauses = []

    class Unhurried(threading.Condition):
        """Does not wait where a time is given."""

        def wait_for(self, predicate, timeout=None):
            if timeout is None:
                return super().wait_for(predicate)
            pauses.append(timeout)
            return predicate()

    monkeypatch.setattr(module, "Condition", Unhurried)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        await all_written(journal)
        for record in RECORDS[:2]:
            pauses.clear()
            with file_size_limit(1000):
                journal.append([record])
                await until(lambda: len(pauses) >= 8)
            await all_written(journal)
            assert pauses[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])

    run(program())
    assert read(tmp_path) == RECORDS[:2]


def test_closing_ends_the_pause_and_those_who_wait_get_the_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 10_000.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 10_000.0)

    async def program():
        journal = open_journal(tmp_path, JournalSync.EVERY)
        journal.begin_segment(1)
        await all_written(journal)
        with file_size_limit(1000):
            journal.append([RECORDS[0]])
            waiting = journal.written()
            await until(lambda: journal.problem)
            assert segment_path(tmp_path, 1).stat().st_size == SEGMENT_HEADER, "nothing of the record stays"
            await journal.close()
        with pytest.raises(StorageError, match="File too large"):
            await waiting

    run(program())
    assert read(tmp_path) == []
    assert [thread.name for thread in threading.enumerate() if thread.name == "psserver-journal"] == []
