"""The actor that runs one process of a job on a node of a Ray cluster.

The process is the same as of `psworker local`, a child that ends with its parent; here that is the actor, which Ray
ends with the driver or with its node. The driver reads its output, and the actor keeps the file in which the process
finds the servers.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import ray

from pswire.security.local_tokens import private_folder
from pswire.security.private_files import write_private_file
from psworker.launch.machines import JobProcess, Start
from psworker.launch.processes import ParentPipe, Process, Stream

#: Seconds until a request for output is answered without any.
POLL = 1.0
#: Batches of lines that are kept for the driver, until the process waits for it; and seconds that it waits at most.
MOST_BATCHES, READER_TIMEOUT = 1000, 60.0
#: The name of the file with the addresses of the servers.
SERVERS = "servers"


@dataclass(frozen=True)
class Arrival:
    """A process has a place: a folder of its own on a node with this address and this version of paramserver."""

    address: str
    folder: str
    version: str


@dataclass(frozen=True)
class Output:
    """Batches of lines, each with its stream; and the code of a process that has ended and has no further lines."""

    batches: tuple[tuple[Stream, list[str]], ...]
    code: int | None


class ProcessActor:
    """One process, which `start` starts. Its methods may be called at the same time in several threads, and again."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._parent = self._stack.enter_context(ParentPipe())
        self._folder = self._stack.enter_context(private_folder())
        self._process: Process | None = None
        self._batches: deque[tuple[Stream, list[str]]] = deque()
        self._taken = 0  # batches that the driver has
        self._servers = ""  # what is in the file
        self._ended = False
        self._code: int | None = None
        self._changed = threading.Condition()

    def arrive(self) -> Arrival:
        """The place where the process will run."""
        return Arrival(ray.util.get_node_ip_address(), str(self._folder), version("paramserver"))

    def start(
        self, name: str, how: Start, files: Mapping[str, bytes], servers: str, environment: Mapping[str, str]
    ) -> None:
        """Write the process's files, by their names, and start it; `environment` is added to the node's."""
        if self._process is None and not self._ended:
            self._write(servers, files)
            environment = how.environment_in({**os.environ, **environment})
            self._process = Process(name, how.command, environment, self._parent, self._on_lines, self._on_end)

    def read(self, taken: int, servers: str, changed: Mapping[str, bytes]) -> Output:
        """The lines after the `taken` batches, within about `POLL` seconds.

        `servers` are the present addresses, as lines, for the process, and `changed` the new contents of its files,
        such as renewed certificates.
        """
        self._write(servers, changed)
        with self._changed:
            while self._taken < taken and self._batches:
                self._batches.popleft()
                self._taken += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._batches or self._ended, POLL)
            return Output(tuple(self._batches), self._code if self._ended else None)

    def kill(self, number: int) -> None:
        """Send a signal to the process and its children; without a process, none will be started."""
        if self._process is not None:
            self._process.kill(signal.Signals(number))
        else:
            self._end(-number)

    def close(self) -> None:
        """Remove what the process needed; after its end."""
        self._stack.close()

    def _write(self, servers: str, files: Mapping[str, bytes]) -> None:
        with self._changed:
            for file, content in files.items():
                write_private_file(self._folder / file, content)
            if servers != self._servers:
                write_private_file(Path(self._folder, SERVERS), servers.encode())
                self._servers = servers

    def _on_lines(self, _: JobProcess, stream: Stream, lines: list[str]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < MOST_BATCHES, READER_TIMEOUT)
            self._batches.append((stream, lines))
            self._changed.notify_all()

    def _on_end(self, process: JobProcess) -> None:
        self._end(process.code)

    def _end(self, code: int | None) -> None:
        with self._changed:
            self._ended, self._code = True, code
            self._changed.notify_all()
