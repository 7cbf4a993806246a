"""Commands as real processes: their lines and exit codes; and programs that get a signal early or late."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.transports import VARIABLE

#: Seconds that no wait comes near to, also on a machine with other work: a bound, and no statement about speed.
BOUND = 120.0

T = TypeVar("T")


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, without settings of workers and numerical libraries; servers get free ports.

    The transport is the one of all tests.
    """
    ours = ("PSWORKER_", "PSSERVER_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_", "NUMEXPR_", "PYTHONUNB")
    ours += ("COLUMNS", "LINES")  # pytest-xdist sets them, and they come before the size of the terminal
    return (
        {name: value for name, value in os.environ.items() if name == VARIABLE or not name.startswith(ours)}
        | {"PSSERVER_BIND": "127.0.0.1:0"}
        | changes
    )


def loopback_host() -> str:
    """An address of this machine that no other process is given by chance."""
    draws = random.SystemRandom()
    return f"127.{draws.randrange(1, 255)}.{draws.randrange(1, 255)}.1"


def free_port(host: str) -> int:
    """A port of this address that is free."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def free_address() -> str:
    """An address of this machine that no other process uses or is given by chance, also while its server is down."""
    host = loopback_host()
    return f"{host}:{free_port(host)}"


def wait_until(condition: Callable[[], T], seen: Callable[[], object] = lambda: None) -> T:
    """Waits until the condition holds; its value. `seen` says what there is, if it does not."""
    end = time.monotonic() + BOUND
    while not (value := condition()):
        assert time.monotonic() < end, seen()
        time.sleep(0.01)
    return value


class Command:
    """`python ARGUMENTS` in a process of its own; its output is in files at `path` with the endings .out and .err.

    `within` is a command that runs another one, such as `ip netns exec NAMESPACE`, in its own process.
    """

    def __init__(
        self, path: Path, *arguments: str, folder: Path | None = None, env: dict[str, str], within: Sequence[str] = ()
    ) -> None:
        self._out, self._err = path.with_suffix(".out"), path.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [*within, sys.executable, *arguments]
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self.popen = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **files)

    @property
    def out(self) -> list[str]:
        """The complete lines so far."""
        return self._out.read_text(errors="replace").split("\n")[:-1]

    @property
    def err(self) -> list[str]:
        return self._err.read_text(errors="replace").split("\n")[:-1]

    def wait_for(self, *texts: str) -> None:
        """Waits until each of the texts is part of a line of stdout."""
        wait_until(
            lambda: all(any(text in line for line in self.out) for text in texts),
            lambda: f"no {texts} in {self.out} {self.err}",
        )

    def wait(self, seconds: float = BOUND) -> int:
        """Waits until it has ended, so many seconds at most; its exit code."""
        return self.popen.wait(seconds)

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


#: Sends SIGTERM to itself when Python has removed its handlers and clears its modules. The program's code follows.
SIGTERM_AT_THE_VERY_END = """
import os, signal, sys

class Kept:
    def __del__(self, write=os.write, kill=os.kill, process=os.getpid()):
        write(1, b"sigterm\\n")
        kill(process, 15)

sys.kept = Kept()
"""


def held_at_import(module):
    """The beginning of a program that prints a line and then blocks when it imports this module."""
    return f"""
import os, sys, threading

class Slow:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            print("importing", flush=True)
            threading.Event().wait(600)

sys.meta_path.insert(0, Slow())
"""
