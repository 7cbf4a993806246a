"""The lock of a shard's files in a folder of checkpoints."""

import errno
import fcntl
import os
from contextlib import closing

import pytest

from psserver.storage.folders import available, found, lock_shard, lock_shards_before, shard_folder
from pswire.errors import StorageError


def refuse(number):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


def test_each_shard_of_a_folder_is_reserved_until_its_lock_is_closed_and_a_lock_is_no_checkpoint(tmp_path):
    first, second = (lock_shard(tmp_path / "new" / "kept", shard, 2) for shard in range(2))
    with pytest.raises(StorageError, match=r"kept, shard 0, is in use by another process: stop that server or program"):
        lock_shard(tmp_path / "new" / "kept", 0, 1)
    first.close()
    lock_shard(tmp_path / "new" / "kept", 0, 2).close()
    with pytest.raises(StorageError, match=r"kept, shard 1, is in use"):
        lock_shard(tmp_path / "new" / "kept", 1, 2)
    second.close()
    assert found(tmp_path / "new" / "kept") == {}


def test_a_folder_that_cannot_be_written_or_locked_is_refused_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file cannot be used: File exists"):
        lock_shard(tmp_path / "file", 0, 1)
    no_locks = "shard 0, cannot be locked: No locks available; use a folder on a file system that has locks"
    for module, name, number, complaint in (
        (os, "open", errno.EROFS, "cannot be used: Read-only file system"),
        (fcntl, "flock", errno.ENOLCK, no_locks),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, refuse(number))
            with pytest.raises(StorageError, match=complaint):
                lock_shard(tmp_path, 0, 1)
    lock_shard(tmp_path, 0, 1).close()


def test_shards_of_another_number_begin_beside_each_other_and_not_beside_one_of_those_before(tmp_path):
    """And none of those before starts until they have begun. No lock is waited for."""
    with closing(lock_shard(tmp_path, 1, 2)), pytest.raises(StorageError, match="shard 1 of 2, is in use by another"):
        lock_shards_before(tmp_path, 2)
    new = [lock_shard(tmp_path, shard, 3) for shard in range(3)]
    reading = [lock_shards_before(tmp_path, 2) for _ in new]
    for one in new:
        one.close()
    reading.pop().close()
    with pytest.raises(StorageError, match="a server of another number of shards was started"):
        lock_shard(tmp_path, 0, 2)
    while reading:
        reading.pop().close()
    lock_shard(tmp_path, 0, 2).close()


@pytest.mark.parametrize("number", [0, 999_999_999, 1_000_000_000, 2**62])
def test_a_checkpoint_of_any_number_is_found(tmp_path, number):
    shard_folder(tmp_path, number, 1, 2).mkdir(parents=True)
    assert found(tmp_path) == {number: {(1, 2)}}
    assert available(tmp_path, 1, 2) == [number]
