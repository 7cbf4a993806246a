"""The system calls that make files and folders durable, in their order."""

import os
import re

import pytest

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
