"""The record of a run while it lasts: its file `run.json`, written at the start, now and then, and at the end; events.

`psworker.runs` has the files' fields. What was typed is recorded, except values of arguments that name a secret.
"""

import hashlib
import os
import platform
import re
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Self

from psjob.status.job_status import mean_staleness
from psjob.status.job_view import JobView
from pswire.errors import ConfigurationError, DamagedFile
from pswire.system.host import cores
from pswire.v1.paramserver_pb2 import DESCRIPTOR
from psworker.launch.job import Job
from psworker.runs import run_file
from psworker.runs.process_identity import ProcessIdentity
from psworker.runs.run_events import RunEvents
from psworker.runs.run_file import Life, Option, Results, Run, Start, WorkerResult
from psworker.runs.scalar_files import last_scalars, read_scalars

#: Seconds between two writes of `run.json` while a run lasts: a quarter of its duration, at least and at most these.
SHORTEST_INTERVAL, WRITE_INTERVAL = 1.0, 10.0
#: Packages whose versions are recorded.
PACKAGES = ("paramserver", "numpy", "grpcio", "protobuf", "numba")
#: Workers whose results are recorded, at most.
MAX_WORKERS = 1000
_SECRET = re.compile(r"token|secret|passw|credential|api.?key|access.?key|name.?key", re.IGNORECASE)
_HIDDEN = "***"


class RunRecorder:
    """Writes the record of one life of a run in `folder`, the newest of its lives if there are others.

    The thread that shows the progress calls `follow`, the main thread `end` when that thread has ended; any thread may
    add to `events`. `problem` is the reason why `run.json` is out of date, or "". Raises
    `ConfigurationError` if the file cannot be written.
    """

    def __init__(self, folder: Path, start: Start) -> None:
        self.problem = ""
        self._folder, self._begin = folder, time.monotonic()
        run = _earlier(folder)
        self._run = run.with_life(Life(start, time.time(), updated=time.time()))
        run_file.write_run(folder, self._run)
        self._next_write = self._begin + SHORTEST_INTERVAL
        self.events = RunEvents(folder)

    @property
    def complete(self) -> bool:
        """True if the end of this life is recorded."""
        return self._run.lives[-1].state != "running"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Record an exception as the end of this life, unless its end is recorded."""
        if not self.complete:
            self.end("failed", 1, str(error or "") or type(error).__name__)

    def follow(self, view: JobView) -> None:
        """Write what is reached, if that is due."""
        now = time.monotonic()
        if now >= self._next_write:
            self._next_write = now + min(WRITE_INTERVAL, max(SHORTEST_INTERVAL, (now - self._begin) / 4))
            self._write(replace(self._run.lives[-1], results=results(view, {})))

    def end(
        self,
        state: str,
        code: int | None,
        error: str = "",
        view: JobView | None = None,
        restarts: Mapping[str, int] | None = None,
    ) -> None:
        """Write the end of this life; `restarts` by name of the process."""
        life = replace(self._run.lives[-1], state=state, exit_code=code, error=error, end=time.time())
        if view is not None:
            found = replace(results(view, restarts or {}), scalars=last_scalars(read_scalars(self._folder)[0]))
            life = replace(life, results=found)
        self._write(life)

    def _write(self, life: Life) -> None:
        now = replace(life, updated=time.time(), seconds=time.monotonic() - self._begin)
        self._run = self._run.with_last(now)
        try:
            run_file.write_run(self._folder, self._run)
            self.problem = ""
        except ConfigurationError as error:
            self.problem = str(error)


def _earlier(folder: Path) -> Run:
    """The run in a folder, whose last life is over; a new one if there is none. A damaged file is put aside."""
    path = folder / run_file.NAME
    new = Run(id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}", lives=())
    if not path.exists():
        return new
    try:
        run = run_file.read_run(folder)
    except DamagedFile:
        try:
            os.replace(path, path.with_suffix(".damaged"))
        except OSError as error:
            raise ConfigurationError(f"{path} is damaged and cannot be renamed: {error.strerror}") from error
        return new
    last = run.lives[-1]
    return run.with_last(replace(last, state="interrupted")) if last.state == "running" else run


def results(view: JobView, restarts: Mapping[str, int]) -> Results:
    """What a job has reached by its view."""
    workers = view.workers[:MAX_WORKERS]
    costs = [one.cost for one in workers if one.cost is not None]
    return Results(
        first_step=view.first or 0,
        step=view.step,
        seconds=max(0.0, view.advanced - view.began),
        cost=fmean(costs) if costs else None,
        staleness=mean_staleness(workers),
        dropped=sum(one.dropped for one in workers),
        workers=tuple(
            WorkerResult(
                one.name,
                one.state,
                one.steps,
                one.dropped,
                one.mean_staleness,
                one.cost,
                restarts.get(one.name, 0),
            )
            for one in workers
        ),
    )


def start_of(job: Job, environment: Mapping[str, str]) -> Start:
    """The start of a job by the command of this process, in an environment."""
    path = Path(job.script)
    names = ("PSSERVER_", "PSWORKER_", "PARAMSERVER_", "OMP_NUM", "OPENBLAS_NUM", "MKL_NUM")
    return Start(
        command=("psworker", *without_secrets(sys.argv[1:])),
        directory=os.getcwd(),
        script=job.script,
        arguments=tuple(without_secrets(job.arguments)),
        options=options_of(job),
        versions=dict(_versions()),
        system=platform.platform(terse=True),
        cores=cores(),
        process=ProcessIdentity.of_this_process(),
        environment={
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(names) and not _SECRET.search(name)
        },
        script_sha256=_sha256(path),
    )


def options_of(job: Job) -> dict[str, Option]:
    """The options of `psworker local` that have brought about a job."""
    folder = job.run_folder
    options: dict[str, object] = {
        "workers": job.workers,
        "shards": job.shards,
        "threads": job.threads,
        "consistency": str(job.consistency),
        "staleness": str(job.staleness),
        "restarts": job.restarts,
        "guard": job.guard,
        **job.worker_options,
    }
    if job.optimizers:
        options["optimizers"] = job.optimizers
    if folder is not None:
        options |= {"checkpoint_every": str(folder.checkpoint_every), "keep": folder.keep, "journal": folder.journal}
    plain = (str, int, float, bool, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in options.items()}


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command; the value of an argument whose name suggests a secret is left out."""
    shown, hide = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and _SECRET.search(name) is not None and not name.endswith("-file")
        shown.append(
            _HIDDEN if hide and not word.startswith("-") else f"{name}={_HIDDEN}" if secret and equals else word
        )
        hide = secret and not equals
    return shown


def _versions() -> list[tuple[str, str]]:
    digest = hashlib.sha256(DESCRIPTOR.serialized_pb).hexdigest()[:8]  # of every field: versions under way differ
    found = [("python", platform.python_version()), ("protocol", f"{DESCRIPTOR.package} {digest}")]
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
