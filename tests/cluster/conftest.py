"""Commands as real processes: their lines, their exit codes, and that nothing of them is left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

BOUND = 30.0  # seconds that no wait comes near to
MARK = "PARAMSERVER_TEST_MARK"


class Command:
    """A command that runs, and the lines it has written."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        self.popen = subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pipes = (self.popen.stdout, self.out), (self.popen.stderr, self.err)
        self._readers = [threading.Thread(target=self._read, args=args, daemon=True) for args in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe, lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    lines.append(line.rstrip("\n"))
                    self._changed.notify_all()

    def wait_for(self, *texts: str) -> None:
        """Until each of the texts is part of a line of stdout."""
        with self._changed:
            found = self._changed.wait_for(lambda: all(any(text in line for line in self.out) for text in texts), BOUND)
        assert found, f"no {texts} in {self.out} {self.err}"

    def wait(self) -> int:
        """Until it has ended and all of its lines are read; its exit code."""
        for reader in self._readers:  # first, for they wait for an event, and Popen looks every 50 ms
            reader.join(BOUND)
        return self.popen.wait(BOUND)

    @property
    def address(self) -> str:
        """Of a server that is ready."""
        return self.out[0].rpartition(" ")[2]

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[str], list[str]]:
        """Sends the signal; the exit code and the lines of stdout and stderr."""
        self.signal(number)
        return self.wait(), self.out, self.err

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)


class Commands:
    """Starts commands, all with a mark in their environment by which their children are found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = str(uuid.uuid4())

    def script(self, source: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(source))
        return name

    def environment(self, **changes: str) -> dict[str, str]:
        ours = ("PSWORKER_", "PSSERVER_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_", "NUMEXPR_", "PYTHONUNB")
        base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**base, MARK: self._mark, **changes}

    def start(self, *arguments: str, **environment: str) -> Command:
        """`python -P -m ARGUMENTS`, such as psworker local train.py."""
        return self.python("-P", "-m", *arguments, **environment)

    def python(self, *arguments: str, **environment: str) -> Command:
        """`python ARGUMENTS`."""
        return Command([sys.executable, *arguments], self.folder, self.environment(**environment))

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

    def wait_for_none(self) -> bool:
        """Whether all marked processes end within `BOUND` seconds."""
        end = time.monotonic() + BOUND
        while self.alive() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.alive()


@pytest.fixture
def commands(tmp_path) -> Iterator[Commands]:
    """The test's commands. What they leave behind is killed, and fails the test."""
    commands = Commands(tmp_path)
    yield commands
    left = commands.alive()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"
