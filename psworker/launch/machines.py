"""The machines of a job: the interface of a launcher to its machines, and the simplest of them, this one.

`psworker.launch.on_ray` has the nodes of a Ray cluster.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias

from psworker.launch.job import child_environment
from psworker.launch.processes import ParentPipe, Process, Stream


class JobProcess(Protocol):
    """A process of a job, which has been started or waits for a machine that has room for it (`pending`).

    `code` is None until it has ended; then its exit code, or minus the number of the signal that killed it.
    `last_lines` are the end of its output, of both streams.
    """

    name: str
    code: int | None
    pending: bool
    last_lines: deque[str]

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to it and its children, unless it has ended; a pending process is not started."""

    def describe_exit(self) -> str:
        """The way it ended, as the end of a sentence that begins with its name."""


class Place(Protocol):
    """A machine on which a process is about to start, as far as the process must know it."""

    def bind(self, address: str) -> str:
        """The address on which a server listens there, for the address it would have on this machine."""

    def file(self, path: str) -> str:
        """The path there of a file of this machine, for this process."""

    def program(self, script: str) -> str:
        """The path there of the training program."""

    def servers(self, addresses: Sequence[str]) -> str:
        """The value of `--servers` there."""


@dataclass(frozen=True)
class Start:
    """The start of a process: `command`, a Python module with its arguments, and its environment.

    `defaults` are environment variables unless the machine's environment has them; `environment` is set in any
    case. Its BLAS threads are `threads`, or as set by the user, or `share`. `held` are file descriptors that the
    process keeps open, on this machine alone.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    share: int = 1
    held: Sequence[int] = ()

    def environment_in(self, base: Mapping[str, str]) -> dict[str, str]:
        """All environment variables of the process on a machine whose own are `base`."""
        return {**self.defaults, **child_environment(base, self.threads, self.share), **self.environment}


OnLines: TypeAlias = Callable[[JobProcess, Stream, list[str]], None]
OnEnd: TypeAlias = Callable[[JobProcess], None]


class Machines(Protocol):
    """The machines of a job. A context manager, whose end leaves no process.

    `start_timeout` is in seconds: for servers to be placed and to answer. `where` describes them, once entered, for
    the user; "" for this machine.
    """

    start_timeout: float
    where: str

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self, name: str, start: Callable[[Place], Start], on_lines: OnLines, on_end: OnEnd) -> JobProcess:
        """Start a process, when there is room for it; `start` is called when its machine is known, in any thread.

        `on_lines` is called in a thread with the process, the stream and new lines; `on_end` once, when it has ended
        and all lines were passed on. Raises `OSError` if it cannot be started.
        """

    def publish(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Let all processes know where the servers are, in the order of their shards: at first, and when one moves.

        Returns the servers for clients in this process: their addresses, or a name by which a moved one is found.
        """


class ThisMachine:
    """This machine, whose processes end with this one."""

    def __init__(self) -> None:
        self.start_timeout, self.where = 30.0, ""
        self._parent = ParentPipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.close()

    def start(self, name: str, start: Callable[[Place], Start], on_lines: OnLines, on_end: OnEnd) -> JobProcess:
        """Start a process."""
        how = start(_Here())
        environment = how.environment_in(os.environ)
        return Process(name, how.command, environment, self._parent, on_lines, on_end, how.held)

    def publish(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """The addresses: a server keeps its own for the whole job."""
        return tuple(addresses)


class _Here:
    """This machine, as a process of it sees it."""

    def bind(self, address: str) -> str:
        return address

    def file(self, path: str) -> str:
        return path

    def program(self, script: str) -> str:
        return script

    def servers(self, addresses: Sequence[str]) -> str:
        return ",".join(addresses)
