"""Files and folders of a test: shared memory, journals, the order of system calls, and full disks."""

import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pswire.tensors import shared_segments
from tests.support.commands import BOUND


@contextmanager
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Sockets for segments are made in it; at the end nothing may be left. Skips a test where no memory is shared."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("this machine has no /dev/shm")
    folder = tempfile.mkdtemp(prefix="test-paramserver-", dir="/dev/shm")
    monkeypatch.setattr(shared_segments, "FOLDER", folder)
    try:
        yield folder
        monkeypatch.undo()
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)


def in_shared_memory(array: np.ndarray) -> bool:
    """Whether an array lies in a segment that this process has mapped, as the system sees it."""
    address = array.__array_interface__["data"][0]
    return any(begin <= address < end for begin, end in mapped_segments())


def mapped_segments(process: int | str = "self") -> list[tuple[int, int]]:
    """The addresses, from and to, at which a process has mapped segments."""
    with open(f"/proc/{process}/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if "/memfd:paramserver" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


async def all_written(journal):
    """Returns when all that was appended counts as written, which may be now."""
    if (future := journal.written()) is not None:
        await future


def copy_of_one_moment(folder, copy):
    """A copy of a folder that others write into, as its disk was at one moment: nothing changed while it was copied.

    Copied over a longer time it could have neither a segment of the journal nor the checkpoint that replaced it.
    """
    end = time.monotonic() + BOUND
    while True:
        before = _files(folder)
        try:
            shutil.copytree(folder, copy)
            if _files(folder) == before:
                return copy
        except shutil.Error:  # a file was renamed or deleted
            pass
        assert time.monotonic() < end, f"{folder} changes all the time"
        shutil.rmtree(copy)


def _files(folder):
    """Each file and folder, with what changes when it is written."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(top, name)
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            found[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


needs_names_of_descriptors = pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="descriptors have no names here"
)

#: The part of the name of a temporary file that differs each time.
RANDOM = re.compile(r"\.[0-9a-f]{8}\.tmp$")


class DiskCalls:
    """The order in which paths were synced and renamed, relative to a folder."""

    def __init__(self, root, monkeypatch):
        self.root, self.calls = root, []
        fsync, rename = os.fsync, os.rename
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: (self.note("sync", self.path(descriptor)), fsync(descriptor))
        )
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, lambda old, new: (self.note("rename", old, new), rename(old, new)))

    def path(self, descriptor):
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def note(self, kind, *paths):
        names = [RANDOM.sub(".tmp", os.path.relpath(path, self.root)) for path in paths]
        self.calls.append(" ".join([kind, *names]))


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Limits the size of files that this process writes, in the block only: pytest's own output may be one of them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
