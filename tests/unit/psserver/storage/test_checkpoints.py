"""A checkpoint is read as it was written, or refused with the name of the damaged file; or it is not there."""

import dataclasses
import json
import os
import random
import shutil
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

from psserver.storage import checkpoints
from psserver.storage.checkpoints import read
from psserver.storage.folders import available, remove_if_empty, shard_folder, sweep
from pswire.errors import DamagedFile, StorageError
from pswire.messages import Assign, Assignment, Compute, Register
from pswire.optimizers import Adam, GradientDescent
from pswire.specs.consistency import parse_staleness
from pswire.specs.vectors import Dot, Fill, Scale
from tests.support.combinations import few_fast
from tests.support.files import file_size_limit
from tests.support.shards import A, B, ShardDriver, declared, state_of
from tests.unit.psserver.storage.stored_shards import arrays_of, bits, killed_after, push, shard_of, varied_shard, write

SEED = 20261122
W = np.arange(6, dtype=np.float32).reshape(3, 2)


def small_shard(**options):
    driver = ShardDriver(declared("W", W, Adam(0.1)), declared("b", np.float32(1.5), GradientDescent(0.1)), **options)
    driver.push(W=np.ones_like(W), b=np.float32(1))
    return driver


@pytest.mark.parametrize("options", [{}, {"staleness": parse_staleness("delay-compensated")}], ids=["", "served"])
def test_all_dtypes_shapes_slots_tables_and_served_weights_come_back_to_the_same_bits(tmp_path, options):
    shard = varied_shard(**options).shard
    path = write(tmp_path, shard)
    found = read(tmp_path, 0, 0, 1)
    assert path == tmp_path / "step-000000000" / "shard-0-of-1" == found.manifest.path
    assert sorted(os.listdir(path.parent)) == ["shard-0-of-1"]
    assert bits(shard_of(found)) == bits(shard)
    again = [array for one in found.arrays.values() for array in (one.value, *one.slots.values())]
    assert all(array.flags.owndata and array.flags.writeable and array.flags.c_contiguous for array in again)
    assert ("served.safetensors" in os.listdir(path)) == bool(options)


def test_the_plain_safetensors_library_reads_values_and_slots(tmp_path):
    shard = varied_shard().shard
    path = write(tmp_path, shard)
    values, slots = load_file(path / "variables.safetensors"), load_file(path / "slots.safetensors")
    expected = arrays_of(shard)
    assert state_of(values) == state_of({name: expected[name].value for name in values})
    assert values.keys() == expected.keys()
    pairs = {f"{name}/{slot}": array for name, one in expected.items() for slot, array in one.slots.items()}
    assert {name: state_of(array) for name, array in slots.items()} == {n: state_of(one) for n, one in pairs.items()}
    begin = int.from_bytes((path / "variables.safetensors").read_bytes()[:8], "little") + 8
    assert begin % 64 == 0


@pytest.mark.parametrize(("factor", "expected"), [(-1.0, -2.0), (1e200, np.inf), (0.0, np.nan)])
def test_the_answer_to_operations_on_vectors_comes_back_whatever_its_results_are(tmp_path, factor, expected):
    driver = ShardDriver(declared("w", np.ones(2), GradientDescent(0.1)))
    steps = Fill("x", 2.0 if factor < 0 else 1e200), Scale("x", 1e200 if expected != -2.0 else 1.0), Fill("y", factor)
    compute = Compute(
        sender=A,
        sequence=1,
        names=("w",),
        operations=(*steps, Dot("x", "y")),
        minimization="fit",
        term=1,
        note="of the coordinator",
    )
    assert np.isclose(sum(driver.answer(compute).results), 2 * expected, equal_nan=True)
    checkpoints.write(tmp_path, driver.shard.state(), iter(driver.shard.arrays().items()), tuple)
    assert bits(shard_of(read(tmp_path, 0, 0, 1))) == bits(driver.shard)


def test_late_changes_come_back_as_they_were_and_without_any_there_is_no_file(tmp_path):
    shard, large = small_shard().shard, np.arange(400_000, dtype=np.float32).reshape(2, -1)
    late = [
        push("a", 7, W=np.full_like(W, 0.5), b=np.float32(2)),
        Assign(sender=B, sequence=3, assignments=(Assignment("W", large),), cut=3),
        Register(sender=A, declarations=(declared("new", np.zeros(3)),), cut=3),
    ]
    path = write(tmp_path, shard, late=late)
    assert state_of(list(read(tmp_path, 0, 0, 1).late)) == state_of(late)
    shutil.rmtree(path)
    path = write(tmp_path, shard)
    assert read(tmp_path, 0, 0, 1).late == ()
    assert sorted(os.listdir(path)) == ["manifest.json", "slots.safetensors", "variables.safetensors"]


def test_the_manifest_is_json_for_people_and_programs(tmp_path):
    path = write(tmp_path, small_shard().shard, 12, final=True)
    data = json.loads((path / "manifest.json").read_text())["manifest"]
    assert path.parent.name == "step-000000012"
    assert (data["format"], data["final"], data["state"]["cut"]) == (1, True, "12")
    sizes = {name: (path / name).stat().st_size for name in ("variables.safetensors", "slots.safetensors")}
    assert {name: entry["bytes"] for name, entry in data["files"].items()} == sizes
    assert data["written"].endswith("+00:00")


def test_arrays_are_taken_one_after_the_other_and_freed_and_late_changes_are_asked_for_at_the_end(tmp_path):
    """A writer in a thread, whose arrays come when the test lets them."""
    shard, steps = small_shard().shard, []
    ready = [threading.Event() for _ in range(3)]

    def arrays():
        for number, (name, one) in enumerate(arrays_of(shard).items()):
            assert ready[number].wait(60)
            steps.append(name)
            yield name, one

    def late():
        assert ready[2].wait(60)
        steps.append("late")
        return [push("a", 9, W=W)]

    state = shard.state()
    thread = threading.Thread(target=checkpoints.write, args=(tmp_path, state, arrays(), late))
    thread.start()
    for number, event in enumerate(ready):
        assert steps == ["W", "b"][:number]
        assert available(tmp_path, 0, 1) == []
        event.set()
        while thread.is_alive() and len(steps) == number:
            thread.join(0.01)
    thread.join(60)
    assert steps == ["W", "b", "late"]
    assert [one.sequence for one in read(tmp_path, 0, 0, 1).late] == [9]


@pytest.mark.slow
def test_shards_write_into_one_folder_at_the_same_time_while_others_remove_it(tmp_path):
    drivers = [small_shard(shard=shard, shards=4) for shard in range(4)]

    def writer(shard):
        for number in range(15):
            shutil.rmtree(write(tmp_path, drivers[shard].shard, number))
            remove_if_empty(tmp_path / f"step-{number:09d}")
            write(tmp_path, drivers[shard].shard, number)

    threads = [threading.Thread(target=writer, args=(shard,)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for shard in range(4):
        assert available(tmp_path, shard, 4) == list(range(15))
        assert bits(shard_of(read(tmp_path, 14, shard, 4)))[1] == bits(drivers[shard].shard)[1]


def test_a_checkpoint_of_the_same_number_is_replaced(tmp_path):
    driver = small_shard()
    write(tmp_path, driver.shard, 5)
    driver.push(W=W, b=np.float32(1))
    path = write(tmp_path, driver.shard, 5)
    assert state_of(arrays_of(shard_of(read(tmp_path, 5, 0, 1)))) == state_of(arrays_of(driver.shard))
    assert os.listdir(path.parent) == [path.name]


# --- failures ---------------------------------------------------------------------------------------------------------


class Failure(Exception):
    pass


def test_whatever_fails_while_it_is_written_leaves_nothing_and_the_earlier_checkpoint(tmp_path):
    shard = small_shard().shard
    write(tmp_path, shard, 1)

    def failing(number):
        yield from list(arrays_of(shard).items())[:number]
        raise Failure

    def late():
        raise Failure

    state = dataclasses.replace(shard.state(), cut=2)
    for number in range(2):
        with pytest.raises(Failure):
            checkpoints.write(tmp_path, state, failing(number), list)
    with pytest.raises(Failure):
        checkpoints.write(tmp_path, state, iter(arrays_of(shard).items()), late)
    wrong = iter(list(arrays_of(shard).items())[::-1])
    with pytest.raises(ValueError, match="of variable 'W' were expected, not those of 'b'"):
        checkpoints.write(tmp_path, state, wrong, list)
    assert os.listdir(tmp_path) == ["step-000000001"]
    assert available(tmp_path, 0, 1) == [1]


def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk):
    shard = small_shard().shard
    write(small_disk, shard, 1)
    large = ShardDriver(declared("large", np.ones(60_000, np.float32), Adam(0.1))).shard
    with pytest.raises(OSError, match="No space left"):
        write(small_disk, large, 2)
    assert sorted(os.listdir(small_disk)) == ["ballast", "step-000000001"]
    write(small_disk, shard, 2)
    assert checkpoints.latest(small_disk, 0, 1).checkpoint.manifest.number == 2


def test_a_file_that_may_not_grow_is_an_error_and_leaves_nothing(tmp_path):
    shard = ShardDriver(declared("large", np.ones(60_000, np.float32), Adam(0.1))).shard
    with file_size_limit(100_000), pytest.raises(OSError, match="File too large"):
        write(tmp_path, shard)
    assert os.listdir(tmp_path) == []


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A checkpoint with every file."""
    folder = tmp_path_factory.mktemp("pristine")
    shard = small_shard(staleness=parse_staleness("delay-compensated")).shard
    write(folder, shard, 3, late=[push("a", 7, W=W), push("b", 7, b=np.float32(2))])
    return folder


def files_of(folder):
    return sorted(shard_folder(folder, 3, 0, 1).iterdir())


def test_every_kind_of_file_is_damaged_below(pristine):
    names = ["late.log", "manifest.json", "served.safetensors", "slots.safetensors", "variables.safetensors"]
    assert [path.name for path in files_of(pristine)] == names
    assert len(read(pristine, 3, 0, 1).late) == 2


def assert_refused(folder, path):
    with pytest.raises(DamagedFile, match=f"^checkpoint file {path}: .*: it is damaged; restore it") as refusal:
        read(folder, 3, 0, 1)
    latest = checkpoints.latest(folder, 0, 1)
    assert latest.checkpoint is None
    assert [str(error) for error in latest.skipped] == [str(refusal.value)]


@pytest.mark.parametrize("count", few_fast([4, 1 << 30], slow=0, ids=["some bytes", "all bytes"]))
@pytest.mark.parametrize("index", few_fast(range(5), 2, 3))
def test_a_file_that_is_changed_cut_extended_or_missing_is_named(pristine, tmp_path, index, count):
    folder = tmp_path / "copy"
    shutil.copytree(pristine, folder)
    path = files_of(folder)[index]
    data, generator = path.read_bytes(), random.Random(SEED)
    for place in generator.sample(range(len(data)), min(len(data), count)):
        for byte in {data[place] ^ 1, data[place] ^ 32, data[place] ^ 128, 0, 255} - {data[place]}:
            path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            assert_refused(folder, path)
    for length in generator.sample(range(len(data)), min(len(data), count)):
        path.write_bytes(data[:length])
        assert_refused(folder, path)
    for tail in (b"\0", b"\n", b" ", data):
        path.write_bytes(data + tail)
        assert_refused(folder, path)
    for other in files_of(folder):
        if other != path:
            path.write_bytes(other.read_bytes())
            assert_refused(folder, path)
    path.unlink()
    assert_refused(folder, path)
    path.mkdir()
    assert_refused(folder, path)


def test_files_of_another_checkpoint_are_foreign(pristine, tmp_path):
    """The same sizes, and each intact by itself."""
    shard = small_shard(staleness=parse_staleness("delay-compensated"))
    shard.shard._store["W"].value += 1
    shard.shard._store["W"].slots["m"] += 1
    other = write(tmp_path / "other", shard.shard, 3, late=[push("a", 7, W=W + 1), push("b", 7, b=np.float32(2))])
    for name in ("variables.safetensors", "slots.safetensors", "late.log"):
        folder = tmp_path / name
        shutil.copytree(pristine, folder)
        path = shard_folder(folder, 3, 0, 1) / name
        assert (other / name).stat().st_size == path.stat().st_size
        shutil.copy(other / name, path)
        assert_refused(folder, path)


def test_a_folder_under_the_name_of_another_number_or_shard_is_foreign(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    for number, shard, shards in ((4, 0, 1), (3, 0, 2)):
        path = shard_folder(tmp_path, number, shard, shards)
        shutil.copytree(shard_folder(tmp_path, 3, 0, 1), path)
        with pytest.raises(DamagedFile, match=f"{path}/manifest.json: it belongs to checkpoint 3 of shard 0 of 1: "):
            read(tmp_path, number, shard, shards)
    assert checkpoints.latest(tmp_path, 0, 1).checkpoint.manifest.number == 3


def test_a_later_format_is_not_taken_for_damage(pristine, tmp_path, monkeypatch):

    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    write(tmp_path, small_shard().shard)
    monkeypatch.undo()
    for call in (lambda: read(tmp_path, 0, 0, 1), lambda: checkpoints.latest(tmp_path, 0, 1)):
        with pytest.raises(StorageError, match="format 2 is not format 1: use a version") as refusal:
            call()
        assert type(refusal.value) is StorageError


def test_the_previous_checkpoint_is_used_and_the_damaged_one_is_named(tmp_path):
    driver = small_shard()
    for number in (1, 2, 3):
        write(tmp_path, driver.shard, number)
    for number, name in ((3, "slots.safetensors"), (2, "manifest.json")):
        path = shard_folder(tmp_path, number, 0, 1) / name
        path.write_bytes(path.read_bytes()[:-1])
    latest = checkpoints.latest(tmp_path, 0, 1)
    assert latest.checkpoint.manifest.number == 1
    assert ["step-000000003" in str(latest.skipped[0]), "step-000000002" in str(latest.skipped[1])] == [True, True]


# --- killed while writing ---------------------------------------------------------------------------------------------


def assert_whole(folder, written):
    """Either the checkpoint that was being written is there, or the one before, and nothing else stays."""
    latest = checkpoints.latest(folder, 0, 1)
    assert latest.skipped == ()
    number = latest.checkpoint.manifest.number
    assert number == 2 or not written
    driver = small_shard()
    if number == 2:
        driver.push(W=W, b=np.float32(1))
    assert state_of(arrays_of(shard_of(latest.checkpoint))) == state_of(arrays_of(driver.shard))
    sweep(folder, 0, 1)
    assert sorted(os.listdir(folder)) == [f"step-00000000{n}" for n in range(1, number + 1)]
    return number


@pytest.mark.slow
def test_a_writer_killed_at_any_system_call_leaves_the_previous_checkpoint_or_the_new_one(tmp_path, monkeypatch):
    numbers, written = [], False
    while not written:
        calls = len(numbers)
        folder, driver = tmp_path / str(calls), small_shard()
        write(folder, driver.shard, 1)
        driver.push(W=W, b=np.float32(1))
        with killed_after(monkeypatch, calls):
            write(folder, driver.shard, 2, late=[push("a", 7, W=W)])
            written = True
        numbers.append(assert_whole(folder, written))
    assert numbers == sorted(numbers)
    assert {1, 2} == set(numbers)
    assert len(numbers) > 10


def test_only_leftovers_of_the_own_shard_are_swept(tmp_path):
    shard = small_shard().shard
    write(tmp_path, shard, 1)
    own = [tmp_path / f"step-00000000{n}" / f".shard-0-of-1.{kind}" for n, kind in ((1, "tmp"), (1, "old"), (2, "tmp"))]
    other = tmp_path / "step-000000002" / ".shard-1-of-2.tmp"
    for path in (*own, other):
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{")
    sweep(tmp_path, 0, 1)
    assert [path.exists() for path in (*own, other)] == [False, False, False, True]
    assert available(tmp_path, 0, 1) == [1]
    sweep(tmp_path, 1, 2)
    assert os.listdir(tmp_path) == ["step-000000001"]


def test_reading_takes_no_memory_for_a_size_that_the_file_does_not_have(tmp_path, monkeypatch):
    path = write(tmp_path, small_shard().shard, 3)
    monkeypatch.setattr("psserver.storage.arrays.np.empty", lambda *args: pytest.fail("allocated"))
    (path / "variables.safetensors").write_bytes(b"x")
    with pytest.raises(DamagedFile, match="it has 1 bytes instead of"):
        read(tmp_path, 3, 0, 1)
