"""The commands of a test, and that nothing of them is left."""

import os
import signal
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands import BOUND, Command, environment

MARK = "PARAMSERVER_TEST_MARK"


class Commands:
    """Starts commands in `folder`, all with a mark in their environment by which their children are found."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder, self._logs = folder, logs
        self._mark = str(uuid.uuid4())
        self._started = 0

    def script(self, source: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(source))
        return name

    def environment(self, **changes: str) -> dict[str, str]:
        return environment(**{MARK: self._mark}, **changes)

    def start(self, *arguments: str, **environment: str) -> Command:
        """`python -P -m ARGUMENTS`, such as psworker local train.py."""
        return self.python("-P", "-m", *arguments, **environment)

    def python(self, *arguments: str, **environment: str) -> Command:
        """`python ARGUMENTS`."""
        self._started += 1
        path, env = self._logs / str(self._started), self.environment(**environment)
        return Command(path, *arguments, folder=self.folder, env=env)

    def serve(self, *options: str, **environment: str) -> Command:
        """A `psserver serve` that is ready."""
        server = self.start("psserver", "serve", *options, **environment)
        server.wait_for("listening on")
        return server

    def run(self, *arguments: str, **environment: str) -> tuple[int, list[str], list[str]]:
        command = self.start(*arguments, **environment)
        return command.wait(), command.out, command.err

    def alive(self) -> dict[int, str]:
        """The marked processes that live now: command lines by process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if f"{MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        return found

    def kill(self) -> dict[int, str]:
        """Kill the marked processes; those that lived."""
        left = self.alive()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def wait_for_none(self) -> bool:
        """Whether all marked processes end within `BOUND` seconds."""
        end = time.monotonic() + BOUND
        while self.alive() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.alive()


@pytest.fixture
def commands(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """The test's commands. What they leave behind is killed, and fails the test."""
    commands = Commands(tmp_path, tmp_path_factory.mktemp("logs"))
    yield commands
    left = commands.kill()
    assert not left, "processes were left behind"
