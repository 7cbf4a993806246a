"""A sweep: the runs of all combinations, some at once, each by a `psworker local` in a process of its own.

The main thread makes all decisions; signal handlers and the threads of processes put events into its queue. What a run
has reached is read from its folder (`psworker.runs`).
"""

import os
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from psjob.terminal.fitted_table import Column, FittedTable, make_console
from pswire.errors import ConfigurationError, DamagedFile
from pswire.plurals import pluralize
from pswire.system.host import cores
from psworker.launch.job import Job, child_environment
from psworker.launch.processes import ParentPipe, Process, signals_handled
from psworker.launch.run_folder import locked_folder
from psworker.launch.run_recorder import without_secrets
from psworker.launch.sweep.grid import Combination
from psworker.runs.listing import NONE, RunRow, duration, number, result_columns, run_row, style
from psworker.runs.run_file import NAME, Run, read_run

#: Seconds that a signal may have to wait for the main thread.
SIGNAL_INTERVAL = 0.5


@dataclass(frozen=True)
class _Row:
    """A line of the table; a combination that has not begun has no run."""

    combination: Combination
    run: RunRow | None


class Sweep:
    """The runs of `combinations` of a job, in folders below `folder`. `run` may be called once, from the main thread.

    `options` are those of `psworker local` for each run. With `resume` completed runs are left as they are, and others
    continue. `say` shows a line.
    """

    def __init__(
        self,
        job: Job,
        combinations: Sequence[Combination],
        folder: Path,
        options: Sequence[str],
        *,
        jobs: int,
        resume: bool,
        say: Callable[[str], None],
    ) -> None:
        self._job, self._combinations, self._folder, self._options = job, combinations, folder, options
        self._jobs, self._resume, self._say = jobs, resume, say
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: dict[str, Process] = {}
        self._signal = 0

    def run(self) -> int:
        """Run all combinations and print the table; the exit code: 0, 1 if a run is not completed, 128 + a signal's.

        Raises `ConfigurationError` before anything is started if the folder cannot be used, or a run in it was started
        with other arguments.
        """
        signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        handle = lambda number: self._events.put(partial(self._on_signal, number))
        user = "another psworker sweep"
        with (
            signals_handled(signals, handle),
            locked_folder(self._folder, [self._folder], user, resume=self._resume),
            ParentPipe() as parent,
        ):
            waiting = deque([one for one in self._combinations if not self._is_completed(one)])
            while self._running or (waiting and not self._signal):
                while waiting and len(self._running) < self._jobs and not self._signal:
                    self._start(waiting.popleft(), parent)
                try:
                    self._events.get(timeout=SIGNAL_INTERVAL)()
                except queue.Empty:
                    continue
        return self._show()

    def _is_completed(self, combination: Combination) -> bool:
        """Whether an earlier sweep has completed this run."""
        run = self._read(combination)
        if run is None:
            return False
        earlier, given = list(run.lives[-1].start.arguments), without_secrets(self._arguments(combination))
        if earlier != given:
            raise ConfigurationError(
                f"the run in {self._folder / combination.folder} was started with the arguments {' '.join(earlier)}, "
                f"not {' '.join(given)}: use another folder"
            )
        return run.lives[-1].state == "completed"

    def _start(self, combination: Combination, parent: ParentPipe) -> None:
        folder = self._folder / combination.folder
        command = ["psworker", *["--debug"] * self._job.debug, "local", *self._options, "--run-dir", str(folder)]
        command += ["--resume"] * folder.exists()
        self._running[combination.folder] = Process(
            combination.label,
            [*command, "--", self._job.script, *self._arguments(combination)],
            child_environment(os.environ, None, max(1, cores() // (self._job.workers * self._jobs))),
            parent,
            lambda *_: None,  # the folder has logs of all processes
            lambda process: self._events.put(partial(self._on_end, combination, process)),
        )
        self._tell(combination, "has begun")

    def _arguments(self, combination: Combination) -> list[str]:
        return [*self._job.arguments, *combination.arguments]

    def _on_end(self, combination: Combination, process: Process) -> None:
        del self._running[combination.folder]
        run = self._read(combination)
        if run is None or (process.code and not run.lives[-1].error):
            why = "" if self._signal else ": " + (list(process.last_lines) or [process.describe_exit()])[-1]
            self._tell(combination, f"has stopped{why}")
        elif process.code:
            self._tell(combination, f"has failed: {run.lives[-1].error}")
        else:
            row = run_row(self._folder, run)
            self._tell(combination, f"is complete in {duration(row.seconds)}, cost {number(row.cost)}")

    def _on_signal(self, number: int) -> None:
        """Stop all runs: each ends its processes, and kills them at a second signal."""
        self._signal = self._signal or number
        for process in self._running.values():
            process.kill(signal.SIGTERM)

    def _tell(self, combination: Combination, what: str) -> None:
        self._say(f"psworker: {time.strftime('%H:%M:%S')} {combination.label} {what}")

    def _read(self, combination: Combination) -> Run | None:
        """The run of a combination; None if it has not begun, or its file is damaged, as by a full disk."""
        folder = self._folder / combination.folder
        try:
            return read_run(folder) if (folder / NAME).exists() else None
        except DamagedFile:
            return None

    def _show(self) -> int:
        """Print the table; the exit code."""
        runs = [self._read(one) for one in self._combinations]
        rows = [
            _Row(one, None if run is None else run_row(self._folder / one.folder, run))
            for one, run in zip(self._combinations, runs, strict=True)
        ]
        names = self._combinations[0].values
        columns = [Column(name, partial(_value, name=name), shortest=8, cut=True) for name in names]
        for column in result_columns([row.run for row in rows if row.run is not None]):
            columns.append(column._replace(cell=partial(_result, cell=column.cell, header=column.header)))
        make_console().print(FittedTable(columns, rows, style=style))
        left = sum(row.run is None or row.run.outcome != "completed" for row in rows)
        if left:
            click.echo(
                f"psworker: {pluralize(left, 'run')} of {len(rows)} not completed (psworker runs {self._folder}/NAME, "
                f"{self._folder}/NAME/logs): the same command with --resume continues with them",
                err=True,
            )
        return 128 + self._signal if self._signal else int(left > 0)


def _value(row: _Row, name: str) -> str:
    return row.combination.values[name]


def _result(row: _Row, cell: Callable[[RunRow], str], header: str) -> str:
    if row.run is None:
        return "not begun" if header == "outcome" else NONE
    return cell(row.run)
