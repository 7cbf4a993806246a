"""A file is replaced whole and durably, or not at all."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pswire.system.files import FolderNotSynced, leftovers, new_file, replacement, write_file
from tests.support.files import DiskCalls, file_size_limit, needs_names_of_descriptors

posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no permissions")


@needs_names_of_descriptors
def test_a_file_is_synced_before_it_gets_its_name_and_its_folder_after(tmp_path, monkeypatch):
    disk = DiskCalls(tmp_path, monkeypatch)
    for data in (b"first", b"second"):
        write_file(tmp_path / "timeline.json", data)
        assert (tmp_path / "timeline.json").read_bytes() == data
    assert disk.calls == ["sync .timeline.json.tmp", "rename .timeline.json.tmp timeline.json", "sync ."] * 2


@needs_names_of_descriptors
def test_what_need_not_be_durable_gets_its_name_without_a_sync(tmp_path, monkeypatch):
    disk = DiskCalls(tmp_path, monkeypatch)
    with replacement(tmp_path / "socket", durable=False) as temporary:
        temporary.write_bytes(b"")
    assert disk.calls == ["rename .socket.tmp socket"]


def fails_in_the_block(path):
    with new_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def finds_the_disk_full(path):
    with file_size_limit(1000):
        write_file(path, bytes(2000))


@pytest.mark.parametrize(("write", "error"), [(fails_in_the_block, KeyboardInterrupt), (finds_the_disk_full, OSError)])
def test_if_a_file_cannot_be_completed_the_earlier_one_stays_alone(tmp_path, write, error):
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(error):
        write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


@posix
def test_a_file_has_its_mode_whatever_the_umask_and_is_private_before_and_others_are_as_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        with new_file(tmp_path / "given", mode=0o644) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        write_file(tmp_path / "any", b"")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"given": 0o644, "any": 0o640}


def test_a_file_that_must_be_new_leaves_one_that_is_there_as_it_is(tmp_path):
    write_file(tmp_path / "key", b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "key", b"second", exclusive=True)
    assert (tmp_path / "key").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["key"]


def test_of_several_writers_at_once_one_is_the_last_and_the_file_is_always_whole(tmp_path):
    def write_often(number):
        for _ in range(10):
            write_file(tmp_path / "file", bytes([number]) * 5000 * number)
            found = (tmp_path / "file").read_bytes()
            assert found == found[:1] * 5000 * found[0]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_often, range(1, 5)))
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_synced_is_an_error_of_its_own_since_the_file_is_there(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("pswire.system.files.sync_path", refuse)
    with pytest.raises(FolderNotSynced, match="its folder could not be synced: Input/output error"):
        write_file(tmp_path / "file", b"there")
    assert (tmp_path / "file").read_bytes() == b"there"


def test_what_a_killed_process_has_left_is_found_by_the_name_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: None)
    for name in ("run-1.json", "run-2.json", "other"):
        write_file(tmp_path / name, b"")
    assert sorted(path.name.split(".")[1] for path in leftovers(tmp_path, "run-*")) == ["run-1", "run-2"]
