"""A job on this machine: one command runs shards and workers as processes and leaves none behind.

The main thread makes all decisions; other threads and signal handlers put events into its queue. A shard is the command
`psserver serve`, a worker is `psworker run`; no module of psserver is imported here.
"""

import math
import os
import queue
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pswire.channel import check_health
from pswire.errors import ConfigurationError, ParamServerError
from pswire.specs.consistency import Asynchronous, Consistency, IgnoreStaleness, StalenessSpec, Synchronous
from pswire.status_client import StatusClient
from pswire.system.host import cores
from psworker import config
from psworker.launch.display import Display
from psworker.launch.processes import (
    BLAS_VARIABLES,
    OnLines,
    ParentPipe,
    Process,
    Stream,
    blas_threads,
    signals_handled,
)
from psworker.launch.progress import Watch

#: Seconds for the servers to start; for a worker from SIGTERM to its end; the same for a server, which gives open calls
#: 5 s; and for the kernel after SIGKILL.
START_TIMEOUT, WORKER_GRACE, SERVER_GRACE, KILL_TIMEOUT = 30.0, 5.0, 10.0, 5.0
#: Seconds between two notes about a wait, and the longest that a signal may have to wait for the main thread.
NOTE_INTERVAL = 2.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LISTENING = re.compile(r"^psserver: .*\blistening on (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """A program, `script` with its arguments, and the cluster that runs it.

    `threads` is the number of BLAS threads of each worker; None: its share of the cores. `debug` makes the workers show
    tracebacks of our errors. `consistency` and `staleness` are the servers'. `worker_options` are options of
    `psworker run`, by name, which workers get in their environment.

    Raises `ConfigurationError` for fewer workers than a synchronous update waits for.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 2
    shards: int = 1
    threads: int | None = None
    debug: bool = False
    consistency: Consistency = field(default_factory=Asynchronous)
    staleness: StalenessSpec = field(default_factory=IgnoreStaleness)
    worker_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a job that would wait for more workers than it has."""
        consistency = self.consistency
        if isinstance(consistency, Synchronous) and self.workers < consistency.workers:
            raise ConfigurationError(
                f"with --consistency {consistency} each update waits for {consistency.workers} workers, and there "
                f"{'is' if self.workers == 1 else 'are'} {self.workers}: start {consistency.workers} or more, or wait "
                f"for {self.workers}"
            )

    @property
    def worker_names(self) -> list[str]:
        """worker-0, worker-1, ..."""
        return [f"worker-{number}" for number in range(self.workers)]

    @property
    def server_names(self) -> list[str]:
        """server-0, server-1, ... by shard."""
        return [f"server-{shard}" for shard in range(self.shards)]

    def server_command(self, shard: int) -> list[str]:
        """Module and arguments of a shard on a free port."""
        options = ["--consistency", str(self.consistency), "--staleness", str(self.staleness)]
        options += ["--no-shared-memory"] * (not self.worker_options.get("shared_memory", True))
        return ["psserver", "serve", "--bind", "127.0.0.1:0", "--shard", f"{shard}/{self.shards}", *options]

    def worker_command(self, name: str, servers: Sequence[str]) -> list[str]:
        """Module and arguments of a worker."""
        options = ["--servers", ",".join(servers), "--name", name]
        return ["psworker", *["--debug"] * self.debug, "run", *options, "--", self.script, *self.arguments]


@dataclass(frozen=True)
class Outcome:
    """The end of a job: exit code, error, and the last lines of the process that failed."""

    code: int
    error: str = ""
    last_lines: tuple[str, ...] = ()


class _Abort(Exception):
    """The job cannot continue; its argument is the `Outcome`."""


def child_environment(base: Mapping[str, str], threads: int | None, share: int) -> dict[str, str]:
    """The environment of a child; its BLAS threads are `threads`, or as set by the user, or `share`."""
    environment = {**base, "PYTHONUNBUFFERED": "1"}
    if threads is not None or not any(base.get(variable) for variable in BLAS_VARIABLES):
        environment |= blas_threads(threads or share)
    return environment


class LocalCluster:
    """One job. `run` may be called once, from the main thread, where signals arrive.

    `_events` are functions that the main thread calls in `_wait`; one that raises ends the job.
    """

    def __init__(self, job: Job, display: Display) -> None:
        self._job, self._display, self._parent = job, display, ParentPipe()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._servers: list[Process] = []
        self._workers: list[Process] = []
        self._addresses: dict[str, str] = {}  # of the servers that are ready, by name
        self._ended: set[Process] = set()
        self._watch: Watch | None = None
        self._stopping = False

    def run(self) -> Outcome:
        """Start all processes, wait for the end of the workers, stop all processes.

        The code of the outcome is 0 when all workers ended with 0; else that of the first process that failed (128 +
        the signal that killed it); 128 + the signal's number when a signal ended this process. Raises `OSError` if the
        reader of the output has closed it; all processes are stopped by then.
        """
        signals = signals_handled(_STOP_SIGNALS, partial(self._post, self._on_signal))
        with self._parent, signals, self._display:
            try:
                self._start_servers()
                self._train()
                outcome = Outcome(0)
            except _Abort as abort:
                (outcome,) = abort.args
            finally:
                self._stop()
        if self._watch is not None:
            self._display.summary(self._watch.progress)
        return outcome

    def _start_servers(self) -> None:
        environment, job = child_environment(os.environ, None, 1), self._job
        for shard, name in enumerate(job.server_names):
            self._servers.append(self._child(name, job.server_command(shard), environment, self._server_lines))
        if not self._wait(self._silent, START_TIMEOUT, "to answer"):
            silent = self._silent()
            last_lines = next(tuple(server.last_lines) for server in self._servers if server.name == silent[0])
            raise _Abort(Outcome(1, f"no answer from {' and '.join(silent)} within {START_TIMEOUT:g} s", last_lines))

    def _train(self) -> None:
        job = self._job
        environment = child_environment(os.environ, job.threads, max(1, cores() // job.workers))
        environment |= config.environment(job.worker_options)
        servers = [self._addresses[name] for name in job.server_names]
        for name in job.worker_names:
            self._workers.append(self._child(name, job.worker_command(name, servers), environment, self._pass_on))
        show = partial(self._guarded, self._display.show)
        with Watch(StatusClient(servers), job.worker_names, show) as self._watch:
            self._wait(partial(self._running, self._workers))

    def _child(self, name: str, command: Sequence[str], environment: Mapping[str, str], on_lines: OnLines) -> Process:
        try:
            return Process(name, command, environment, self._parent, on_lines, partial(self._post, self._on_end))
        except OSError as error:
            raise _Abort(Outcome(1, f"cannot start {name}: {error}")) from error

    def _stop(self) -> None:
        """End all processes: workers first, so that they can leave the job."""
        self._stopping = True
        for processes, grace in ((self._workers, WORKER_GRACE), (self._servers, SERVER_GRACE)):
            running = partial(self._running, processes)
            self._kill(processes, signal.SIGTERM)
            if not self._wait(running, grace, "to stop"):
                self._kill(processes, signal.SIGKILL)
                self._wait(running, KILL_TIMEOUT, "to be killed")

    def _kill(self, processes: Sequence[Process], number: signal.Signals) -> None:
        for process in processes:
            process.kill(number)

    def _silent(self) -> list[str]:
        return [name for name in self._job.server_names if name not in self._addresses]

    def _running(self, processes: Sequence[Process]) -> list[str]:
        return [process.name for process in processes if process not in self._ended]

    def _wait(self, missing: Callable[[], list[str]], seconds: float = math.inf, reason: str = "") -> bool:
        """Handle events until `missing` names nothing; False after `seconds`. With a `reason`, notes show it."""
        begin = time.monotonic()
        while names := missing():
            waited = time.monotonic() - begin
            if waited >= seconds:
                return False
            try:
                self._events.get(timeout=min(NOTE_INTERVAL, seconds - waited))()
            except queue.Empty:
                if reason:
                    since = f"{time.monotonic() - begin:.0f} s"
                    self._guarded(self._display.note, f"waiting for {' and '.join(names)} {reason}, since {since}")
        return True

    def _on_end(self, process: Process) -> None:
        self._ended.add(process)
        if not self._stopping and (process.code or process in self._servers):
            then = "; the others were stopped" if self._workers else " before the workers were started"
            code = process.code or 1  # 1 for a server that ended with 0
            error = f"{process.name} {process.describe_exit()}{then}"
            raise _Abort(Outcome(128 - code if code < 0 else code, error, tuple(process.last_lines)))

    def _on_signal(self, number: int) -> None:
        if not self._stopping:
            raise _Abort(Outcome(128 + number))
        self._kill(self._workers + self._servers, signal.SIGKILL)

    def _on_error(self, error: Exception) -> None:
        if not self._stopping:
            raise error

    # --- in other threads -----------------------------------------------------------------------------------------

    def _post(self, handle: Callable[..., None], *arguments: object) -> None:
        """Have the main thread call `handle`."""
        self._events.put(partial(handle, *arguments))

    def _server_lines(self, server: Process, stream: Stream, lines: list[str]) -> None:
        """Read where a server listens, and check that it serves; pass on the lines that are not its own."""
        if others := [line for line in lines if not line.startswith("psserver: ")]:
            self._pass_on(server, stream, others)
        for address in _LISTENING.findall("\n".join(lines)):
            try:
                if check_health(address, START_TIMEOUT):  # a server that does not serve stays silent
                    self._post(self._addresses.__setitem__, server.name, address)
            except ParamServerError as error:
                self._post(self._on_error, error)

    def _pass_on(self, process: Process, stream: Stream, lines: list[str]) -> None:
        self._guarded(self._display.lines, process.name, stream, lines)

    def _guarded(self, write: Callable[..., None], *arguments: object) -> None:
        """Write to the display; an output that its reader has closed ends the job, not only this thread."""
        try:
            write(*arguments)
        except OSError as error:
            self._post(self._on_error, error)
