"""A job: one command runs shards and workers as processes, on this machine or others, and leaves none behind.

The main thread makes all decisions; other threads and signal handlers put events into its queue. A shard is the command
`psserver serve`, a worker is `psworker run`; no module of psserver is imported here.
"""

import math
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from psjob.guard import Finding
from psjob.guard.actions import GuardActions, guarding
from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView
from psjob.status.poller import Poller
from psjob.status.status_client import StatusClient
from pswire.addresses import local_address, remote_address
from pswire.errors import ParamServerError
from pswire.network.channel import check_health
from pswire.plurals import pluralize
from pswire.security.local_tokens import LocalTokens
from pswire.security.token_files import Role
from psworker.launch.display.dashboard import Note
from psworker.launch.display.plain import Display
from psworker.launch.job import Job
from psworker.launch.machines import JobProcess, Machines, OnLines, Place, Start, ThisMachine
from psworker.launch.process_output import ProcessOutput
from psworker.launch.processes import signals_handled, was_killed
from psworker.launch.restart_times import Restarts
from psworker.launch.run_recorder import RunRecorder, start_of
from psworker.launch.script import without_session
from psworker.launch.starts import Starts

#: Seconds for a server that listens to answer; for a worker from SIGTERM to its end; the same for a server, which gives
#: open calls 5 s; and for the kernel after SIGKILL.
HEALTH_TIMEOUT, WORKER_GRACE, SERVER_GRACE, KILL_TIMEOUT = 30.0, 5.0, 10.0, 5.0
#: Seconds for the start and for the end of servers that read and write a checkpoint there, which may be large.
CHECKPOINT_TIMEOUT = 300.0
#: Seconds between two notes about a wait, and the longest that a signal may have to wait for the main thread.
NOTE_INTERVAL = 2.0

#: Seconds between two requests for the status.
STATUS_INTERVAL = 0.25
#: Seconds for the last status of a job that has failed.
LAST_TIMEOUT = 1.0
#: One of this many requests asks for events too.
DETAIL_EVERY = 4
#: The exit code of a job that the guard has stopped; seconds that its workers have then for their end.
GUARD_CODE, GUARD_GRACE = 3, 10.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The name of the process with the live page.
MONITOR = "monitor"


@dataclass(frozen=True)
class Outcome:
    """The end of a job: exit code, error, the last lines of the process that failed, and a warning.

    Without an error, a code other than 0 is a signal's.
    """

    code: int
    error: str = ""
    last_lines: tuple[str, ...] = ()
    warning: str = ""


class _Abort(Exception):
    """The job cannot continue; its argument is the `Outcome`."""


class Cluster:
    """One job, whose processes run on `machines`, by default this one. `run` may be called once, from the main thread.

    `_events` are functions that the main thread calls in `_wait`; one that raises ends the job. `_processes` are those
    that run, by name; one that has failed is either due in `_restarts` or ends the job.
    """

    def __init__(self, job: Job, display: Display, machines: Machines | None = None) -> None:
        self._job, self._display = job, display
        self._here: Machines = ThisMachine()
        self._machines = machines or self._here
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._processes: dict[str, JobProcess] = {}
        self._addresses: dict[str, str] = {}  # on which the servers that have answered listen, by name
        self._servers: tuple[str, ...] = ()  # as this process reaches them, now and after one has moved
        self._restarts = Restarts(job.restart_limit)
        self._recorder: RunRecorder | None = None
        self._tokens: LocalTokens | None = None
        self._starts: Starts
        self._output = ProcessOutput(display, self._on_listening, partial(self._post, self._on_error))
        self._poller: Poller | None = None
        self._guard: GuardActions | None = None
        self._stopped_by_guard = ""  # why
        self._asked = 0
        self._stopping = self._trained = False
        self._finished = False  # whether a worker has
        self._failed = ""  # the process because of which the job ends

    def run(self) -> Outcome:
        """Start all processes, wait for the end of the workers, stop all processes.

        The code of the outcome is 0 when all workers ended with 0; else the code of the first process that failed
        without a restart (128 + the signal that killed it); 128 + the signal's number when a signal ended this
        process. Raises `OSError` if the reader of the output has closed it, when all processes have been stopped, and
        `ConfigurationError` if the run folder or a file of its security cannot be used, before anything is started.
        """
        signals = signals_handled(_STOP_SIGNALS, partial(self._post, self._on_signal))
        folder = self._job.run_folder.opened() if self._job.run_folder else nullcontext()
        tokens = self._job.security.tokens()
        with (
            folder as self._output.folder,
            self._recording() as self._recorder,
            tokens as self._tokens,
            self._here,
            self._machines,
            signals,
            self._display,
        ):
            self._starts = Starts(self._job, self._tokens, self._output.folder)
            if self._machines.where:
                self._output.shown(self._display.notice, f"psworker: {self._machines.where}")
            try:
                self._start_servers()
                self._train()
                outcome = Outcome(0, warning=self._warning())
            except _Abort as abort:
                (outcome,) = abort.args
            finally:
                self._stop()
            self._record_end(outcome)
        if self._poller is not None:
            self._display.summary(self._poller.view)
        return outcome

    def _start_servers(self) -> None:
        for name in self._job.server_names:
            self._start(name)
        seconds = max(self._machines.start_timeout, CHECKPOINT_TIMEOUT if self._job.run_folder else 0.0)
        if not self._wait(self._silent, seconds, "to answer"):
            silent = self._silent()
            last_lines = tuple(self._processes[silent[0]].last_lines)
            raise _Abort(Outcome(1, f"no answer from {' and '.join(silent)} within {seconds:g} s", last_lines))

    def _train(self) -> None:
        job = self._job
        self._servers = self._publish()
        self._output.shown(self._display.notice, self._servers_line())
        if job.http is not None:
            if self._tokens is not None:
                self._output.page_query = f"?token={self._tokens.read(Role.OBSERVER)}"
            self._start(MONITOR)
        credentials = self._starts.credentials(Role.ADMIN)
        with StatusClient(self._servers, credentials) as client, self._guarding() as self._guard:
            ask, names = partial(self._ask, client), job.worker_names
            poller = self._poller = Poller(ask, self._follow, interval=STATUS_INTERVAL, names=names)
            poller.poll()
            try:
                with poller:
                    for name in names:
                        self._start(name)
                    self._wait(self._training)
                    if self._stopped_by_guard:
                        self._end_by_guard()
                    self._trained = True
            except _Abort:
                if not self._failed:  # stopped: the last status has all steps of the workers
                    self._stop_workers()
                    poller.poll()
                elif self._guard is not None:  # perhaps it knows why; the poller's thread has ended
                    self._guard.observe(client.ask(LAST_TIMEOUT), poller.seconds, last=True)
                raise

    def _ask(self, client: StatusClient, timeout: float) -> JobStatus:
        """The status of the job; every `DETAIL_EVERY`-th one and the last with its detail, which is larger."""
        self._asked += 1
        return client.ask(timeout, detail=self._trained or self._asked % DETAIL_EVERY == 1)

    def _follow(self, view: JobView) -> None:
        """Record, guard and show a view of the job; in the thread of the poller."""
        if view.latest is not None:
            if self._recorder is not None:
                self._recorder.events.follow(view.latest)
                self._recorder.follow(view)
            if self._guard is not None:
                self._guard.observe(view.latest, view.seconds)
        self._output.shown(self._display.show, view)

    def _guarding(self) -> AbstractContextManager[GuardActions | None]:
        return guarding(
            self._job.guard,
            self._servers,
            self._starts.credentials(Role.ADMIN),
            report=self._on_finding,
            note=self._on_guard_note,
            stopped=partial(self._post, self._on_guard_stop),
        )

    def _server_addresses(self) -> list[str]:
        """The addresses of all servers for processes of this machine, in the order of their shards."""
        return [local_address(self._addresses[name]) for name in self._job.server_names]

    def _servers_line(self) -> str:
        """The servers' addresses, for other commands; also on other machines if the servers listen there."""
        local = self._server_addresses()
        remote = [remote_address(self._addresses[name]) for name in self._job.server_names]
        others = "" if not all(remote) or remote == local else f"; from other machines: {','.join(remote)}"
        return f"psworker: servers at {','.join(local)} (psserver status, psworker run --servers){others}"

    def _start(self, name: str) -> None:
        """Start a process of the job."""
        starts, output, machines = self._starts, self._output, self._machines
        start: Callable[[Place], Start]
        on_lines: OnLines
        if name in self._job.server_names:
            start, on_lines = lambda place: starts.server(name, self._addresses.get(name), place), output.of_server
        elif name == MONITOR:
            machines = self._here
            start, on_lines = lambda _: starts.monitor(self._servers), output.of_monitor
        else:
            start, on_lines = lambda place: starts.worker(name, self._server_addresses(), place), output.of_worker
            output.reports.started(name)
        try:
            self._processes[name] = machines.start(name, start, on_lines, partial(self._post, self._on_end))
        except OSError as error:
            raise _Abort(Outcome(1, f"cannot start {name}: {error}")) from error
        self._restarts.started(name, time.monotonic())
        self._record("started", name, "was started")

    def _stop_workers(self) -> None:
        """End the workers, which leave the job."""
        self._stopping = self._output.stopping = True
        self._restarts.cancel()
        self._end(self._job.worker_names, WORKER_GRACE)

    def _stop(self) -> None:
        """End all processes: workers first."""
        self._stop_workers()
        self._end([MONITOR, *self._job.server_names], CHECKPOINT_TIMEOUT if self._job.run_folder else SERVER_GRACE)

    def _end(self, names: Iterable[str], grace: float) -> None:
        """Ask processes to end, and kill those that have not after `grace` seconds."""
        running = partial(self._unfinished, names)
        self._kill(names, signal.SIGTERM)
        if not self._wait(running, grace, "to stop"):
            self._kill(names, signal.SIGKILL)
            self._wait(running, KILL_TIMEOUT, "to be killed")

    def _kill(self, names: Iterable[str], number: signal.Signals) -> None:
        for name in names:
            if name in self._processes:
                self._processes[name].kill(number)

    def _silent(self) -> list[str]:
        return [name for name in self._job.server_names if name not in self._addresses]

    def _unfinished(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._processes or self._restarts.waiting(name)]

    def _training(self) -> list[str]:
        """The workers that have not finished; none if one has, and the others wait for a machine with room for them."""
        names = self._unfinished(self._job.worker_names)
        placed = [name for name in names if name not in self._processes or not self._processes[name].pending]
        return names if placed or not self._finished else []

    def _wait(self, missing: Callable[[], list[str]], seconds: float = math.inf, reason: str = "") -> bool:
        """Handle events and restarts until `missing` names nothing; False after `seconds`. A `reason` is for notes."""
        begin = time.monotonic()
        while names := missing():
            now = time.monotonic()
            if now - begin >= seconds:
                return False
            for name in self._restarts.take_due(now):
                self._start(name)
            next_note = min(NOTE_INTERVAL, begin + seconds - now)
            try:
                self._events.get(timeout=min(next_note, self._restarts.next_due - now))()
            except queue.Empty:
                if reason:
                    since = f"{time.monotonic() - begin:.0f} s"
                    self._output.shown(self._display.note, f"waiting for {' and '.join(names)} {reason}, since {since}")
        return True

    def _on_end(self, process: JobProcess) -> None:
        name = process.name
        del self._processes[name]
        how = process.describe_exit()
        if self._stopping:
            self._record("ended", name, how)
            self._say_why_stopped(process)
            return
        if process.code == 0 and name in self._job.worker_names:
            self._finished = True
            self._record("ended", name, how)
            return
        if name == MONITOR:
            self._record("ended", name, how, "warning")
            self._output.say(name, f"{how}; the job goes on without the live page")
            return
        pause = self._restarts.schedule(name, time.monotonic()) if self._restartable(process) else None
        if pause is None:
            self._record("ended", name, how, "error")
            self._failed = name
            raise _Abort(self._failure(process))
        how += f"; restart {self._restarts.count(name)} of {self._job.restart_limit} in {pause:g} s"
        self._record("ended", name, how, "warning")
        self._output.say(name, how)

    def _say_why_stopped(self, worker: JobProcess) -> None:
        """Say of a worker that was stopped because of another process that it was; not if it had ended by itself."""
        names = {-signal.SIGKILL: "killed", -signal.SIGTERM: "stopped", 128 + signal.SIGTERM: "stopped"}
        how = names.get(worker.code or 0) if worker.name in self._job.worker_names and self._failed else None
        if how and worker.name not in self._output.reports.errors:
            self._output.say(worker.name, f"{how}, because {self._failed} has failed")

    def _warning(self) -> str:
        """A line about workers that have opened no session."""
        silent = [name for name in self._job.worker_names if name in self._output.reports.without_session]
        everyone = len(silent) == len(self._job.worker_names)
        return without_session(self._job.script if everyone else " and ".join(silent)) if silent else ""

    def _restartable(self, process: JobProcess) -> bool:
        """Not a server that has ended without an error, has never listened, or would have lost its state.

        Without --restarts only what was killed: a program that fails would fail again.
        """
        if self._job.restarts is None and not was_killed(process.code):
            return False
        if process.name in self._job.worker_names:
            return True
        return bool(process.code and process.name in self._addresses and self._job.run_folder)

    def _failure(self, process: JobProcess) -> Outcome:
        """The end of the job because of this process."""
        code = process.code or 1  # 1 for a server that ended with 0
        restarts = self._restarts.count(process.name)
        after = f" after {pluralize(restarts, 'restart')}" if restarts else ""
        then = "; the others were stopped" if self._poller else " before the workers were started"
        if process.name in self._addresses and self._job.restart_limit and not self._job.run_folder:
            then += ". Its state was lost with it: with --run-dir it is saved, and the server is started again"
        error, last_lines = f"{process.name} {process.describe_exit()}{after}{then}", process.last_lines
        if (reported := self._output.reports.errors.get(process.name)) is not None:  # its traceback was shown
            error, last_lines = f"{error}. Its error: {reported}", deque()
        return Outcome(128 - code if code < 0 else code, error, self._output.reports.strip(last_lines))

    def _on_signal(self, number: int) -> None:
        if not self._stopping:
            raise _Abort(Outcome(128 + number))
        self._kill([*self._processes], signal.SIGKILL)

    def _on_guard_stop(self, reason: str) -> None:
        """Give workers some time to end by themselves, as they do after `Session.stop_all`."""
        self._stopped_by_guard = reason
        timer = threading.Timer(GUARD_GRACE, self._post, [self._end_by_guard])
        timer.daemon = True
        timer.start()

    def _end_by_guard(self) -> None:
        if not self._stopping:
            raise _Abort(Outcome(GUARD_CODE, f"the guard has stopped the job: {self._stopped_by_guard}"))

    def _on_error(self, error: Exception) -> None:
        if not self._stopping:
            raise error

    def _publish(self) -> tuple[str, ...]:
        """Tell the workers, and other commands of this user, where the servers are; as this process reaches them."""
        addresses = self._server_addresses()
        if self._tokens is not None:
            self._tokens.publish(addresses)
        return self._machines.publish(addresses)

    def _on_moved(self, name: str, address: str) -> None:
        """A server listens again, perhaps elsewhere."""
        self._addresses[name] = address
        self._publish()

    # --- the record of the run ------------------------------------------------------------------------------------

    def _recording(self) -> AbstractContextManager[RunRecorder | None]:
        folder = self._job.run_folder
        return nullcontext() if folder is None else RunRecorder(folder.path, start_of(self._job, os.environ))

    def _record(self, kind: str, name: str, text: str, level: str = "info") -> None:
        """Record an event of a process."""
        if self._recorder is not None:
            self._recorder.events.add(kind, f"{name} {text}", level=level, worker=name)

    def _record_end(self, outcome: Outcome) -> None:
        if self._recorder is None:
            return
        state = "completed" if outcome.code == 0 else "failed" if outcome.error else "stopped"
        restarts = {name: self._restarts.count(name) for name in self._job.worker_names}
        view = None if self._poller is None else self._poller.view
        level = "error" if state == "failed" else "info"
        text = outcome.error or {"completed": "the run is complete", "stopped": "the run was stopped"}[state]
        self._recorder.events.add("job", text, level=level)
        self._recorder.end(state, outcome.code, outcome.error, view, restarts)
        for problem in filter(None, (self._recorder.problem, self._recorder.events.problem)):
            self._output.shown(self._display.notice, f"psworker: {problem}")

    # --- in other threads -----------------------------------------------------------------------------------------

    def _on_finding(self, finding: Finding) -> None:
        self._of_guard(finding.line, f"guard: {finding.line} (docs/guard.md, {finding.kind})", finding)

    def _on_guard_note(self, text: str) -> None:
        self._of_guard(text, text)

    def _of_guard(self, recorded: str, shown: str, finding: Finding | None = None) -> None:
        """Record and show a line of the guard."""
        level, worker = ("warning", "") if finding is None else (finding.level, finding.worker)
        if self._recorder is not None:
            self._recorder.events.add("guard", recorded, source="guard", level=level, worker=worker)
        self._output.shown(self._display.finding, Note(f"psworker: {shown}", warning=True))

    def _post(self, handle: Callable[..., None], *arguments: object) -> None:
        """Have the main thread call `handle`."""
        self._events.put(partial(handle, *arguments))

    def _on_listening(self, name: str, address: str) -> None:
        """Check that a server serves, which says that it listens; or, if it did before, note where it is now."""
        if name in self._addresses:
            self._output.say(name, f"listens again on {address}")
            self._post(self._on_moved, name, address)
            return
        try:  # a server that does not serve stays silent
            if check_health(local_address(address), HEALTH_TIMEOUT, self._starts.credentials(Role.ADMIN)):
                self._post(self._addresses.__setitem__, name, address)
        except ParamServerError as error:
            self._post(self._on_error, error)
