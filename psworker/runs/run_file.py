"""The file `run.json` in the folder of a run: how the run was started, each life of it, its results.

`psworker local --run-dir` writes it (`psworker.launch.run_recorder`); this module has its fields, and reads and writes
it whole. A run has one life for each start of `psworker local`: the first one, and those with `--resume`.
"""

import dataclasses
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pswire.errors import ConfigurationError, DamagedFile
from pswire.system.files import open_file, write_file
from psworker.runs.process_identity import ProcessIdentity
from psworker.runs.typed_json import built

NAME = "run.json"
#: The version of the file's fields. A reader ignores fields that it does not know.
FORMAT = 1
#: Lives that a file keeps: the first one and the newest others. `Run.omitted` counts those in between.
MAX_LIVES = 100
#: Bytes of a file that is read, at most.
MAX_BYTES = 16 << 20
#: Seconds without a change of its file after which a run on another host is taken for interrupted.
SILENT_HOST = 120.0

Option: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """A worker at the end of a life, or so far: its applied pushes (`steps`) and what became of it."""

    name: str
    state: str = ""
    steps: int = 0
    dropped: int = 0
    staleness: float | None = None
    cost: float | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a life.

    Attributes:
        first_step, step: the global step at its beginning and now.
        seconds: from its first to its last update.
        cost: the mean of the workers' recent costs; `staleness`: the mean of all pushes; None before any.
        dropped: pushes that the consistency policy refused.
        scalars: the last value of each tag of the program (`session.summary.scalar`), over all lives.
    """

    first_step: int = 0
    step: int = 0
    seconds: float = 0.0
    cost: float | None = None
    staleness: float | None = None
    dropped: int = 0
    workers: tuple[WorkerResult, ...] = ()
    scalars: dict[str, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Updates in this life."""
        return self.step - self.first_step


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a life: command, folder, environment.

    Attributes:
        command: of the launcher, whose working directory was `directory`.
        script, arguments: the program; `script_sha256` of its text, "" if that could not be read.
        options: of `psworker local`, by name.
        environment: the variables of servers and workers that were set, except names of secrets.
        versions: of paramserver, of its protocol, of Python, numpy and others, by name.
    """

    command: tuple[str, ...]
    directory: str
    script: str
    arguments: tuple[str, ...]
    options: dict[str, Option]
    versions: dict[str, str]
    system: str
    cores: int
    process: ProcessIdentity
    environment: dict[str, str] = field(default_factory=dict)
    script_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """One start of the launcher until its end; times are in seconds since 1970.

    `state` is "running", "completed", "failed", "stopped" by a signal, or "interrupted", of a launcher that was killed.
    `updated` is when this was written, `seconds` how long the life had lasted then.
    """

    start: Start
    begin: float
    state: str = "running"
    updated: float = 0.0
    seconds: float = 0.0
    end: float | None = None
    exit_code: int | None = None
    error: str = ""
    results: Results = Results()

    def state_now(self) -> str:
        """The state; "interrupted" if it is "running" in the file and its launcher is not alive."""
        if self.state != "running":
            return self.state
        alive = self.start.process.is_alive()
        if alive is None:
            alive = time.time() - self.updated < SILENT_HOST
        return "running" if alive else "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: its id, and its lives, the first one first; `omitted` after the first one are not in the file."""

    format: int = FORMAT
    id: str
    omitted: int = 0
    lives: tuple[Life, ...]

    def with_life(self, life: Life) -> "Run":
        """The run with one more life, and without the second oldest if there are more than `MAX_LIVES`."""
        lives = (*self.lives, life)
        more = max(0, len(lives) - MAX_LIVES)
        return dataclasses.replace(self, lives=(*lives[:1], *lives[1 + more :]), omitted=self.omitted + more)

    def with_last(self, life: Life) -> "Run":
        """The run with another last life."""
        return dataclasses.replace(self, lives=(*self.lives[:-1], life))


def write_run(folder: Path, run: Run) -> None:
    """Replace the file of a run by one that is complete and durable; it can be read by whom its folder can be.

    Raises `ConfigurationError` if it cannot be written; then the file is as it was.
    """
    path = folder / NAME
    text = json.dumps(_plain(run), indent=1, allow_nan=False) + "\n"
    try:
        mode = folder.stat().st_mode & 0o666
        write_file(path, text.encode(), mode=mode)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - data of any kind
    """JSON data: of a number that is not finite, None."""
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(folder: Path) -> Run:
    """The run in a folder. Raises `DamagedFile` if its file is cut, is none of ours, or cannot be read."""
    path = folder / NAME
    try:
        with open_file(path) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DamagedFile(f"{path} has more than {MAX_BYTES:,} bytes: it is no file of a run")
        run = built(Run, json.loads(data))
        if not run.lives:
            raise ValueError("it has no life")
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, RecursionError) as error:  # cut or absurd JSON, text that is no UTF-8
        raise DamagedFile(f"{path} is damaged, or no file of a run: {error}") from error
    return run


def plain_run(run: Run) -> Any:  # noqa: ANN401 - JSON data
    """The run as JSON data, as in its file, with the states of now."""
    data = _plain(run)
    for life, text in zip(run.lives, data["lives"], strict=True):
        text["state"] = life.state_now()
    return data
