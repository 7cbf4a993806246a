"""A replayed journal gives the very bits of the servers that wrote it, under every policy."""

import pytest

from psserver.core.variables.array_tasks import run
from psserver.replay.journal_replay import Entry, JournalReplay
from psserver.replay.verification import verify
from psserver.storage import checkpoints
from psserver.storage.folders import available, journal_folder
from psserver.storage.journal_segments import list_segments
from pswire.errors import DamagedFile, StorageError
from tests.support.combinations import few_fast
from tests.support.shards import state_of
from tests.unit.psserver.replay.journaled_job import Job
from tests.unit.psserver.storage.stored_shards import arrays_of

POLICIES = few_fast(
    [
        ("sync:3", "none", 1),
        ("async", "none", 1),
        ("bounded:1", "drop:2", 2),
        ("bounded:1", "none", 1),
        ("sync:2,backup=1", "none", 1),
        ("async", "drop:1", 1),
        ("async", "scale", 1),
        ("async", "delay-compensated", 1),
        ("async", "none", 2),
        ("sync:3", "none", 2),
        ("sync:2,backup=1", "none", 3),
    ],
    slow=2,
)


def replayed(folder, shard=0, shards=1, number=None):
    """The shard after all records."""
    replay = JournalReplay(folder, shard, shards, number)
    for entry in replay.entries():
        if isinstance(entry, Entry):
            run(replay.step(entry).tasks)
    return replay.shard


def data(folder):
    """All files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("consistency", "staleness", "shards"), POLICIES)
def test_all_records_from_the_first_checkpoint_on_give_the_bits_of_every_later_one(
    consistency, staleness, shards, tmp_path
):
    Job(tmp_path, consistency, staleness, shards).run(checkpoints=4)
    before = data(tmp_path)
    for shard in range(shards):
        numbers = available(tmp_path, shard, shards)
        assert (numbers[0], len(numbers) > 4) == (0, True)
        last = checkpoints.read(tmp_path, numbers[-1], shard, shards)
        end = replayed(tmp_path, shard, shards)
        assert state_of(arrays_of(end)) == state_of(last.arrays)
        assert [one.version for one in end.state().variables] == [one.version for one in last.state.variables]
        assert end.global_step == last.state.global_step > 0
        compared = list(verify(tmp_path, JournalReplay(tmp_path, shard, shards)))
        assert [(one.number, one.difference) for one in compared] == [(number, "") for number in numbers[1:]]
    assert data(tmp_path) == before, "a replay only reads"


@pytest.mark.slow
def test_a_server_that_is_started_again_continues_the_journal_that_it_keeps(tmp_path):
    job = Job(tmp_path, keep=1).run(6)
    first = list_segments(journal_folder(tmp_path, 0, 1))
    job.run(6)
    numbers = list(list_segments(journal_folder(tmp_path, 0, 1)))
    assert numbers[: len(first)] == list(first)
    assert numbers[0] in available(tmp_path, 0, 1), "the journal begins with it, however old it is"
    assert len(available(tmp_path, 0, 1)) < len(numbers)
    compared = list(verify(tmp_path, JournalReplay(tmp_path, 0, 1)))
    assert (compared[-1].global_step, {one.difference for one in compared}) == (len(job.pushes), {""})


@pytest.mark.slow
def test_a_replay_may_begin_with_any_checkpoint_from_which_the_journal_continues(tmp_path):
    Job(tmp_path).run(checkpoints=4)
    end = state_of(arrays_of(replayed(tmp_path)))
    *usable, final = available(tmp_path, 0, 1)
    for number in usable:
        assert state_of(arrays_of(replayed(tmp_path, number=number))) == end
    with pytest.raises(StorageError, match=rf"no records from checkpoint {final} .*from these it has: 0, "):
        JournalReplay(tmp_path, 0, 1, final)


@pytest.mark.slow
def test_verification_ends_with_the_first_checkpoint_that_differs_and_names_the_array(tmp_path):
    Job(tmp_path).run(checkpoints=4)
    at = available(tmp_path, 0, 1)[2]
    for what, array_of in (
        ("value of variable 'W'", lambda variables: variables["W"].value),
        ("slot 'momentum' of variable 'table'", lambda variables: variables["table"].slots["momentum"]),
    ):
        replay = JournalReplay(tmp_path, 0, 1)
        results = verify(tmp_path, replay)
        assert next(results).difference == ""
        array_of(replay.shard.variables).reshape(-1)[-1] += 1
        wrong = next(results)
        assert (wrong.number, wrong.difference.partition(": CRC32C replayed ")[0]) == (at, what)
        assert list(results) == []


def test_a_damaged_journal_is_refused_with_its_file_and_offset(tmp_path):
    Job(tmp_path).run(8)
    segments = list_segments(journal_folder(tmp_path, 0, 1))
    path = segments[min(segments)]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{path}, offset \d+: "):
        replayed(tmp_path)
    path.unlink()
    with pytest.raises(StorageError, match="no records from checkpoint 0"):
        replayed(tmp_path, number=0)
