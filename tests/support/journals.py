"""Helpers for tests of journals and of the folders that hold them."""

import os
import shutil
import time

from tests.support.commands import BOUND


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
