"""A folder of a test's own in /dev/shm, in the place of the one that all processes use; and mapped segments."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pswire.tensors import shared_segments


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
