"""A job on this machine: shards and workers as processes, from one command, with one exit code and no process left.

One thread decides: those that read pipes, wait for ends and receive signals put events into a queue, and `LocalCluster`
takes them out. A shard is the command `psserver serve`, a worker is `psworker run`; no module of psserver is imported
here.
"""

from __future__ import annotations

import functools
import os
import queue
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pswire.channel import check_health
from pswire.errors import ConfigurationError, ParamServerError
from pswire.specs.consistency import Synchronous, parse_consistency
from pswire.system.host import cores
from psworker.config import EncodingConfig, StrategyConfig
from psworker.launch.display import Display
from psworker.launch.processes import BLAS_VARIABLES, Lifeline, Process, Stream, blas_threads
from psworker.launch.progress import JobView, Watch
from psworker.launch.signals import signals
from psworker.transport.grpc_transport import GrpcTransport

#: Seconds that the servers have to start; that a worker has from SIGTERM to its end; the same for a server, which
#: itself gives open calls 5 s; and that the kernel has for SIGKILL.
START, WORKER_GRACE, SERVER_GRACE, KILL = 30.0, 5.0, 10.0, 5.0
#: Seconds between two notes about what is being waited for.
NOTE_INTERVAL = 2.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LISTENING = re.compile(r"^psserver: .*\blistening on (\S+)$")


@dataclass(frozen=True)
class Job:
    """What to run: `script` with its arguments, by `workers` workers and `shards` shards.

    `threads` is the number of BLAS threads of each worker; None: its share of the cores. `debug` has the workers
    show tracebacks of errors that have a message of their own. `consistency` and `staleness` are the servers', as text;
    `strategy` says when the workers push and pull, `travel` how what they push and pull travels.

    Raises:
        ConfigurationError: fewer workers than a synchronous update waits for.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 2
    shards: int = 1
    threads: int | None = None
    debug: bool = False
    consistency: str = "async"
    staleness: str = "none"
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    travel: EncodingConfig = field(default_factory=EncodingConfig)

    def __post_init__(self) -> None:
        """Refuses a job that would wait for a worker that never comes."""
        consistency = parse_consistency(self.consistency)
        if isinstance(consistency, Synchronous) and self.workers < consistency.workers:
            raise ConfigurationError(
                f"with --consistency {consistency} each update waits for {consistency.workers} workers, and there "
                f"{'is' if self.workers == 1 else 'are'} {self.workers}: start {consistency.workers} or more, or wait "
                f"for {self.workers}"
            )

    @property
    def worker_names(self) -> tuple[str, ...]:
        """worker-0, worker-1, ..."""
        return tuple(f"worker-{number}" for number in range(self.workers))

    @property
    def server_names(self) -> tuple[str, ...]:
        """server-0, server-1, ... by shard."""
        return tuple(f"server-{shard}" for shard in range(self.shards))

    def server_command(self, shard: int) -> list[str]:
        """Module and arguments of a shard on a free port."""
        options = ["--consistency", self.consistency, "--staleness", self.staleness]
        options += ["--no-shared-memory"] * (not self.travel.shared_memory)
        return ["psserver", "serve", "--bind", "127.0.0.1:0", "--shard", f"{shard}/{self.shards}", *options]

    def worker_command(self, name: str, servers: Sequence[str]) -> list[str]:
        """Module and arguments of a worker."""
        options = ["--servers", ",".join(servers), "--name", name]
        return ["psworker", *["--debug"] * self.debug, "run", *options, "--", self.script, *self.arguments]


@dataclass(frozen=True)
class Outcome:
    """How a job ended: exit code, what went wrong, and the last lines of the process that it went wrong in."""

    code: int
    error: str = ""
    last_lines: tuple[str, ...] = ()


def child_environment(base: Mapping[str, str], threads: int | None, share: int) -> dict[str, str]:
    """The environment of a child: BLAS threads as told, or as the user has set any of them, or else its share."""
    environment = {**base, "PYTHONUNBUFFERED": "1"}
    if threads is not None or not any(base.get(variable) for variable in BLAS_VARIABLES):
        environment |= blas_threads(threads or share)
    return environment


def listening_address(line: str) -> str | None:
    """The address in the line by which a server says that it is ready."""
    match = _LISTENING.match(line)
    return match and match[1]


@dataclass(frozen=True)
class _Ready:
    shard: int
    address: str


@dataclass(frozen=True)
class _Ended:
    process: Process


@dataclass(frozen=True)
class _Signalled:
    number: int


@dataclass(frozen=True)
class _Broken:
    error: Exception


_Event: TypeAlias = _Ready | _Ended | _Signalled | _Broken


class _Over(Exception):
    """The job cannot go on."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


class LocalCluster:
    """One job. `run` may be called once, from the main thread, where signals arrive."""

    def __init__(self, job: Job, display: Display) -> None:
        self._job, self._display = job, display
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._servers: list[Process] = []
        self._workers: list[Process] = []
        self._addresses: dict[int, str] = {}
        self._ended: set[Process] = set()
        self._watch: Watch | None = None
        self._stopping = False

    def run(self) -> Outcome:
        """Starts everything, waits for the workers' end, stops everything.

        The code of the outcome is 0 when all workers ended with 0; else that of the first process that failed (128 +
        the signal that killed it); 128 + the signal's number when this process was told to end.

        Raises:
            OSError: nobody reads the output any more; all processes are stopped by then.
        """
        with signals(_STOP_SIGNALS, self._signal), Lifeline() as lifeline, self._display:
            try:
                self._start_servers(lifeline)
                self._train(lifeline)
                outcome = Outcome(0)
            except _Over as over:
                outcome = over.outcome
            finally:
                self._stop()
        if self._watch is not None:
            self._display.summary(self._watch.view)
        return outcome

    def _start_servers(self, lifeline: Lifeline) -> None:
        environment = child_environment(os.environ, None, 1)
        for shard, name in enumerate(self._job.server_names):
            self._servers.append(
                self._start(name, self._job.server_command(shard), environment, lifeline, self._server_lines)
            )
        if not self._wait(self._silent_servers, START, "to answer"):
            silent = self._silent_servers()
            last_lines = next(server.last_lines for server in self._servers if server.name == silent[0])
            error = f"no answer from {' and '.join(silent)} within {START:g} s"
            raise _Over(Outcome(1, error, last_lines))

    def _train(self, lifeline: Lifeline) -> None:
        job = self._job
        environment = child_environment(os.environ, job.threads, max(1, cores() // job.workers))
        environment |= job.strategy.environment() | job.travel.environment()
        servers = [self._addresses[shard] for shard in range(job.shards)]
        for name in job.worker_names:
            command = job.worker_command(name, servers)
            self._workers.append(self._start(name, command, environment, lifeline, self._pass_on))
        with Watch(GrpcTransport(servers), job.worker_names, self._show) as self._watch:
            self._wait(functools.partial(self._running, self._workers))

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        lifeline: Lifeline,
        on_lines: Callable[[Process, Stream, list[str]], None],
    ) -> Process:
        try:
            return Process(
                name, command, environment, lifeline, on_lines, lambda process: self._events.put(_Ended(process))
            )
        except OSError as error:
            raise _Over(Outcome(1, f"cannot start {name}: {error}")) from error

    def _stop(self) -> None:
        """Ends all processes: workers first, so that they can say good-bye to the servers."""
        self._stopping = True
        for processes, grace in ((self._workers, WORKER_GRACE), (self._servers, SERVER_GRACE)):
            running = functools.partial(self._running, processes)
            self._kill(processes, signal.SIGTERM)
            if not self._wait(running, grace, "to stop"):
                self._kill(processes, signal.SIGKILL)
                self._wait(running, KILL, "to be killed")

    def _kill(self, processes: Sequence[Process], number: signal.Signals) -> None:
        for process in processes:
            process.kill(number)

    # --- events ---------------------------------------------------------------------------------------------------

    def _wait(self, missing: Callable[[], list[str]], seconds: float | None = None, reason: str = "") -> bool:
        """Handles events until nobody is missing; False when `seconds` pass before. Says whom it waits for."""
        begin = time.monotonic()
        while names := missing():
            waited = time.monotonic() - begin
            if seconds is None:
                self._handle(self._events.get())
                continue
            if waited >= seconds:
                return False
            try:
                self._handle(self._events.get(timeout=min(NOTE_INTERVAL, seconds - waited)))
            except queue.Empty:
                waited = time.monotonic() - begin
                self._guarded(self._display.note, f"waiting for {' and '.join(names)} {reason}, since {waited:.0f} s")
        return True

    def _handle(self, event: _Event) -> None:
        """Takes notice of an event; raises `_Over`, or the error of the output, when the job cannot go on."""
        match event:
            case _Ready(shard, address):
                self._addresses[shard] = address
            case _Ended(process):
                self._ended.add(process)
                if not self._stopping and (process.code or process in self._servers):
                    raise _Over(self._failure(process))
            case _Signalled(number) if self._stopping:
                self._kill(self._workers + self._servers, signal.SIGKILL)
            case _Signalled(number):
                raise _Over(Outcome(128 + number))
            case _Broken(error) if not self._stopping:
                raise error

    def _failure(self, process: Process) -> Outcome:
        then = "; the others were stopped" if self._workers else " before the workers were started"
        return Outcome(process.shell_code or 1, f"{process.name} {process.ending}{then}", process.last_lines)

    def _running(self, processes: Sequence[Process]) -> list[str]:
        return [process.name for process in processes if process not in self._ended]

    def _silent_servers(self) -> list[str]:
        return [name for shard, name in enumerate(self._job.server_names) if shard not in self._addresses]

    # --- in other threads -----------------------------------------------------------------------------------------

    def _server_lines(self, server: Process, stream: Stream, lines: list[str]) -> None:
        """What a server says of itself is for the launcher, above all where it listens; the rest is passed on."""
        if others := [line for line in lines if not line.startswith("psserver: ")]:
            self._pass_on(server, stream, others)
        for address in filter(None, map(listening_address, lines)):
            try:
                serves = check_health(address, START)
            except ParamServerError as error:
                self._events.put(_Broken(error))
            else:  # one that does not serve is missed by `_wait`
                if serves:
                    self._events.put(_Ready(self._job.server_names.index(server.name), address))

    def _signal(self, number: int) -> None:
        self._events.put(_Signalled(number))

    def _pass_on(self, process: Process, stream: Stream, lines: list[str]) -> None:
        self._guarded(self._display.lines, process.name, stream, lines)

    def _show(self, view: JobView) -> None:
        self._guarded(self._display.show, view)

    def _guarded(self, write: Callable[..., None], *arguments: object) -> None:
        """A reader of ours that went away ends the job, and not just the thread that noticed."""
        try:
            write(*arguments)
        except OSError as error:
            self._events.put(_Broken(error))
