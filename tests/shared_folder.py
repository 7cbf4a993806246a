"""A folder of a test's own in /dev/shm, in the place of the one that all processes use."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pswire.lanes import segments

needs_shared_memory = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this machine has no /dev/shm")


@contextmanager
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Segments are made in it; at the end nothing may be left there."""
    folder = tempfile.mkdtemp(prefix="test-paramserver-", dir="/dev/shm")
    monkeypatch.setattr(segments, "FOLDER", folder)
    try:
        yield folder
        monkeypatch.undo()
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)
