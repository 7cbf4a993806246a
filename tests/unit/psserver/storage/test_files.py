"""Folders that are complete or not there, and durable."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from psserver.storage.files import make_folder, new_folder, temporary_path
from tests.support.files import DiskCalls, needs_names_of_descriptors


@needs_names_of_descriptors
def test_the_names_of_folders_that_are_made_are_synced_and_those_that_are_there_stay(tmp_path, monkeypatch):
    disk = DiskCalls(tmp_path, monkeypatch)
    for _ in range(2):
        make_folder(tmp_path / "D" / "inner")
    assert (tmp_path / "D" / "inner").is_dir()
    assert disk.calls == ["sync D", "sync ."]


@needs_names_of_descriptors
def test_a_folder_is_synced_before_it_gets_its_name_and_its_parents_after(tmp_path, monkeypatch):
    disk = DiskCalls(tmp_path, monkeypatch)
    with new_folder(tmp_path / "D" / "step-1" / "shard-0") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "values").write_bytes(b"1")
        (folder / "manifest").write_bytes(b"2")
        assert not (tmp_path / "D" / "step-1" / "shard-0").exists()
    written = tmp_path / "D" / "step-1" / "shard-0"
    assert ((written / "inner" / "values").read_bytes(), (written / "manifest").read_bytes()) == (b"1", b"2")
    temporary = "D/step-1/.shard-0.tmp"
    assert disk.calls == [
        f"sync {temporary}/inner/values",
        f"sync {temporary}/inner",
        f"sync {temporary}/manifest",
        f"sync {temporary}",
        f"rename {temporary} D/step-1/shard-0",
        "sync D/step-1",
        "sync D",
        "sync .",
    ]


def test_nothing_of_a_folder_stays_if_it_cannot_be_completed_and_others_stay_as_they_are(tmp_path):
    def fail():
        with new_folder(tmp_path / "D" / "step-1" / "shard-0") as folder:
            (folder / "half").write_bytes(b"written")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "D" / "step-1" / "shard-0"):
        pass
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "D" / "step-1" / "shard-1"):
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "D" / "step-1").iterdir()] == ["shard-0"]
    with pytest.raises(FileExistsError, match="the folder is there already"), new_folder(tmp_path / "D"):
        pass
    assert [path.name for path in (tmp_path / "D" / "step-1").iterdir()] == ["shard-0"]


def test_nothing_of_a_folder_stays_whichever_of_its_syncs_fails(tmp_path, monkeypatch):
    fsync = os.fsync
    before_failure = itertools.count()

    def failing(descriptor):
        if not next(before_failure):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    def write():
        with new_folder(tmp_path / "step-1" / "shard-0") as folder:
            (folder / "manifest").write_bytes(b"{}")

    monkeypatch.setattr(os, "fsync", failing)
    for successes in range(4):  # the file, the folder, its parent and the parent's parent
        before_failure = itertools.count(-successes)
        with pytest.raises(OSError, match="Input/output error"):
            write()
        assert list(tmp_path.iterdir()) == []
    before_failure = itertools.count(-4)
    write()
    assert next(before_failure) == 0


@pytest.mark.parametrize("moment", ["when it is found", "before the next is made in it"])
def test_a_folder_is_made_also_if_another_shard_removes_what_it_is_in_meanwhile(tmp_path, monkeypatch, moment):
    step, mkdir, races = tmp_path / "D" / "step-1", os.mkdir, []

    def racing(path, mode):
        if not races and Path(path) == step and moment == "when it is found":
            races.append(mkdir(path, mode))
            try:
                mkdir(path, mode)
            finally:
                os.rmdir(path)
        if not races and Path(path).parent == step and moment == "before the next is made in it" and step.exists():
            races.append(os.rmdir(step))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", racing)
    with new_folder(step / "shard-0") as folder:
        (folder / "values").write_bytes(b"1")
    assert len(races) == 1
    assert [path.name for path in step.rglob("*")] == ["shard-0", "values"]


def test_what_a_crash_left_of_a_folder_is_not_in_the_next(tmp_path):
    left = temporary_path(tmp_path / "shard-0")
    left.mkdir()
    (left / "old").write_bytes(b"old")
    with new_folder(tmp_path / "shard-0") as folder:
        (folder / "new").write_bytes(b"new")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["shard-0", "shard-0/new"]


def test_on_a_full_disk_a_folder_leaves_nothing_behind_and_is_written_when_there_is_room(small_disk):
    def write():
        with new_folder(small_disk / "step-1" / "shard-0") as folder:
            for number in range(10):
                (folder / f"{number}").write_bytes(bytes(20_000))

    with pytest.raises(OSError, match="No space left on device") as raised:
        write()
    assert raised.value.errno == errno.ENOSPC
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    (small_disk / "ballast").unlink()
    write()
    assert len(list((small_disk / "step-1" / "shard-0").iterdir())) == 10
