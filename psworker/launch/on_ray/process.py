"""A process of a job on a node of a Ray cluster, as the driver sees it: placed, started, read and ended in a thread."""

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from pswire.addresses import is_local
from pswire.errors import ConfigurationError, ParamServerError
from pswire.security.private_files import read_file
from psworker.launch.machines import OnEnd, OnLines, Place, Start
from psworker.launch.on_ray.actor import SERVERS, Arrival, Output
from psworker.launch.processes import LAST_LINES, describe_code

#: Seconds after which a process without a place is first reported; then the pause doubles, up to the longest.
FIRST_NOTE, LONGEST_PAUSE = 3.0, 60.0
#: Seconds for one answer of an actor; for how long it is asked again while it cannot be reached; between two requests.
CALL_TIMEOUT, UNREACHABLE, PAUSE = 30.0, 60.0, 0.5


class Shared:
    """State shared by all processes of a job: environment variables, the program's folder, and the servers.

    `working_dir` is the folder that Ray has copied to the nodes, None without one; `servers` are the present addresses,
    as lines.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.working_dir: Path | None = None
        self.servers = ""


class RayProcess:
    """A process (`psworker.launch.machines.JobProcess`) whose actor Ray places; `needs` describes the resources.

    One whose node or actor is lost counts as killed by SIGKILL.
    """

    def __init__(
        self,
        name: str,
        actor: Any,  # noqa: ANN401 - Ray has no types for us
        shared: Shared,
        start: Callable[[Place], Start],
        on_lines: OnLines,
        on_end: OnEnd,
        needs: str,
    ) -> None:
        self.name, self.pending = name, True
        self.code: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._actor, self._shared, self._start, self._needs = actor, shared, start, needs
        self._on_lines, self._on_end = on_lines, on_end
        self._node = self._lost = ""
        self._killed: signal.Signals | None = None
        self._abandoned = threading.Event()
        threading.Thread(target=self._run, name=f"{name} on Ray", daemon=True).start()

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children; a process without a place will not get one."""
        self._killed = number
        if self.pending:
            ray.kill(self._actor)
        elif self.code is None:
            self._actor.kill.remote(int(number))

    def describe_exit(self) -> str:
        """The way it ended, as the end of a sentence that begins with its name."""
        return self._lost or describe_code(self.code)

    def abandon(self) -> None:
        """End its actor, and so the process, without waiting for it."""
        self._abandoned.set()
        ray.kill(self._actor)

    def _run(self) -> None:
        try:
            code = self._follow()
        except RayActorError as error:
            code = -(self._killed or signal.SIGKILL)
            if not self._killed:
                reason = str(error).strip().partition("\n")[0]  # then ids of Ray
                self._lost = f"was lost with its actor{f' on node {self._node}' if self._node else ''}: {reason}"
        except (RayError, ParamServerError) as error:  # no environment is made, or a file not read or written
            cause = error.cause if isinstance(error, RayTaskError) else error
            self._write(f"psworker: {one_line(cause)}")
            code = 1
        self.pending = False
        if not self._abandoned.is_set():
            ray.kill(self._actor)
            self.code = code
            self._on_end(self)

    def _follow(self) -> int:
        """Place and start the process, and pass on its lines until it has ended; returns its code.

        Raises `RayActorError` if the actor is lost, another `RayError` if Ray cannot start it, and `ParamServerError`.
        """
        arrival = self._arrive()
        place = _Node(arrival, self._shared.working_dir)
        how = self._start(place)
        self.pending = False
        self._call(self._actor.start, self.name, how, place.changed(), self._shared.servers, self._shared.settings)
        taken = 0
        while True:
            output: Output = self._call(self._actor.read, taken, self._shared.servers, place.changed())
            for stream, lines in output.batches:
                self.last_lines.extend(lines)
                self._on_lines(self, stream, lines)
            taken += len(output.batches)
            if output.code is not None:
                self._call(self._actor.close)
                return output.code

    def _arrive(self) -> Arrival:
        """Wait for a place, however long, and say so; the driver ends the wait by `kill`."""
        begin, pause, answer = time.monotonic(), FIRST_NOTE, self._actor.arrive.remote()
        while not ray.wait([answer], timeout=pause)[0]:
            since = f"{time.monotonic() - begin:.0f} s"
            self._write(f"psworker: pending for {since}: {self._needs}, and {_room()}")
            pause = min(2 * pause, LONGEST_PAUSE)
        arrival: Arrival = ray.get(answer)
        if arrival.version != (own := version("paramserver")):
            raise ConfigurationError(
                f"node {arrival.address} has paramserver {arrival.version}, and the driver {own}: install the same"
            )
        self._node = arrival.address
        self._write(f"psworker: on node {arrival.address}")
        return arrival

    def _call(self, method: Any, *arguments: object) -> Any:  # noqa: ANN401
        """The answer of the actor, which is asked again while it is only out of reach. It does nothing twice."""
        end = math.inf
        while True:
            try:
                return ray.get(method.remote(*arguments), timeout=CALL_TIMEOUT)
            except (ActorUnavailableError, GetTimeoutError):
                end = min(end, time.monotonic() + UNREACHABLE)
                if time.monotonic() > end or self._abandoned.wait(PAUSE):
                    raise RayActorError(error_msg=f"no answer for {UNREACHABLE:g} s") from None

    def _write(self, line: str) -> None:
        self.last_lines.append(line)
        self._on_lines(self, "stderr", [line])


class _Node:
    """A node, as a process sees it (`psworker.launch.machines.Place`), whose files are copied to its folder there."""

    def __init__(self, arrival: Arrival, working_dir: Path | None) -> None:
        self._files: dict[str, str] = {}  # paths here, by the names there
        self._copied: dict[str, bytes] = {}
        self._address, self._folder, self._working_dir = arrival.address, arrival.folder, working_dir

    def bind(self, address: str) -> str:
        if is_local(address):  # the cluster is this machine
            return address
        return f"{f'[{self._address}]' if ':' in self._address else self._address}:0"

    def file(self, path: str) -> str:
        name = f"{len(self._files)}-{Path(path).name}"  # two files may have the same name
        self._files[name] = path
        return f"{self._folder}/{name}"

    def changed(self) -> dict[str, bytes]:
        """The files by name that differ from those before: all at first, later renewed certificates.

        Raises `ConfigurationError` if one cannot be read that was not copied before.
        """
        found = {}
        for name, path in self._files.items():
            try:
                content = read_file(path, "the file")
            except ConfigurationError:
                if name not in self._copied:
                    raise
                continue  # it is being renewed, or was removed: the process has it
            if content != self._copied.get(name):
                found[name] = self._copied[name] = content
        return found

    def program(self, script: str) -> str:
        return script if self._working_dir is None else os.path.relpath(Path(script).resolve(), self._working_dir)

    def servers(self, addresses: Sequence[str]) -> str:
        return f"file:{self._folder}/{SERVERS}"


def _room() -> str:
    """The number of free CPUs of the cluster, for people."""
    free, total = ray.available_resources().get("CPU", 0.0), ray.cluster_resources().get("CPU", 0.0)
    return f"{free:g} of {total:g} CPUs of the cluster are free"


def one_line(error: object) -> str:
    """The beginning of an error in one line."""
    return " ".join(str(error).split())[:300]
