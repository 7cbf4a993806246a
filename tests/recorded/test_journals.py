"""Recorded journals and checkpoints give the states of the shards that wrote them, by a start and by a replay."""

import dataclasses
import shutil

import pytest

from psserver.core.variables.array_tasks import run
from psserver.replay.journal_replay import Entry, JournalReplay
from psserver.storage import checkpoints, records
from psserver.storage.folders import journal_folder
from psserver.storage.journal_segments import list_segments, read_segments
from tests.recorded import formats
from tests.recorded.commands import outputs
from tests.recorded.descriptions import as_json, describe, describe_shard
from tests.recorded.server import Server

JOBS = {
    "every_kind": {"staleness": "delay-compensated", "max_gradient_norm": "8:clip"},
    "synchronous": {"consistency": "sync:2"},
    "two_shards": {"consistency": "bounded:3", "staleness": "drop:5"},
}
SHARDS = [(name, shard) for name in JOBS for shard in range(2 if name == "two_shards" else 1)]


@pytest.fixture
def folder_of(tmp_path):
    """A function that returns a copy of the folder of a recorded job."""

    def copy(name):
        return shutil.copytree(formats.FIXTURES / "jobs" / name, tmp_path / name)

    return copy


def expected(name):
    return formats.read_json("jobs", f"{name}.json")


def segments(name, shard):
    found = expected(name)["shards"]
    folder = journal_folder(formats.FIXTURES / "jobs" / name, shard, len(found))
    return folder, int(found[shard]["state"]["identity"]), list(list_segments(folder))


def test_the_journals_have_all_kinds_of_messages_that_a_server_writes_and_several_segments():
    kinds = set()
    for name, shard in SHARDS:
        folder, identity, numbers = segments(name, shard)
        assert len(numbers) > 1
        for record in read_segments(folder, identity):
            message = records.decode(record.payload)
            kinds.add(formats.name_of(message))
            payload = bytes(record.payload)
            assert formats.canonical_record(formats.to_record(message)) == formats.canonical_record(payload)
    assert kinds == formats.journaled() - {"CutRequest", "RestoreRequest"}, "of which the storage itself takes care"


@pytest.mark.parametrize(("name", "shard"), SHARDS)
def test_a_start_has_the_state_that_the_shard_had_when_its_server_was_killed(folder_of, name, shard):
    found = expected(name)["shards"]
    options = JOBS[name] | {"journal": True, "keep_journal": True}
    server = Server(folder_of(name), shard, len(found), **options)
    assert as_json(describe_shard(server.shard)) == found[shard]
    assert server.log[-1][0] == "INFO"
    assert server.log[-1][1][-1] == "nothing is lost"
    server.close()


@pytest.mark.parametrize(("name", "shard"), SHARDS)
def test_a_replay_from_each_checkpoint_ends_with_the_same_state(name, shard):
    found, folder = expected(name)["shards"], formats.FIXTURES / "jobs" / name
    *_, numbers = segments(name, shard)
    for number in numbers:
        replay = JournalReplay(folder, shard, len(found), number)
        for entry in replay.entries():
            if isinstance(entry, Entry):
                run(replay.step(entry).tasks)
        assert as_json(describe_shard(replay.shard)) == found[shard], f"from {number}"


@pytest.mark.parametrize(("name", "shard"), SHARDS)
def test_a_checkpoint_is_written_again_as_the_same_files(tmp_path, name, shard):
    shards = len(expected(name)["shards"])
    *_, numbers = segments(name, shard)
    for number in numbers:
        read = checkpoints.read(formats.FIXTURES / "jobs" / name, number, shard, shards)
        manifest = read.manifest
        arrays = iter([(one.spec.name, read.arrays[one.spec.name]) for one in read.state.variables])
        options = {"final": manifest.final, "is_cut": manifest.is_cut, "worker": manifest.worker}
        path = checkpoints.write(tmp_path, read.state, arrays, lambda late=read.late: late, **options)
        again = checkpoints.read(tmp_path, number, shard, shards).manifest
        same = {
            "path": manifest.path,
            "written": manifest.written,
            "version": manifest.version,
            "files": manifest.files,
        }
        assert dataclasses.replace(again, **same) == manifest
        for file in ("variables.safetensors", "slots.safetensors", "served.safetensors", "late.log"):
            before, after = manifest.path / file, path / file
            assert before.exists() == after.exists()
            if before.exists() and file != "late.log":
                assert after.read_bytes() == before.read_bytes(), file
        late = checkpoints.read(tmp_path, number, shard, shards).late
        assert as_json(describe(late)) == as_json(describe(read.late))


@pytest.mark.parametrize("name", JOBS)
def test_commands_print_about_a_folder_what_they_printed(folder_of, name):
    assert outputs(folder_of(name), len(expected(name)["shards"])) == formats.read_json("jobs", f"{name}.commands.json")
