"""Configuration of a worker: argument, else environment variable, else default.

No other module of psworker reads environment variables.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

from pswire.errors import ConfigurationError
from pswire.network.discovery import check_servers, parse_servers
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.specs.checkpoints import CheckpointEvery, EverySeconds, parse_checkpoint_every
from pswire.specs.encodings import NONE, Compression, parse_compression, parse_encoding
from pswire.system.host import process_name


def variable(option: str) -> str:
    """The environment variable of an option: `PSWORKER_PUSH_EVERY` of `push_every`."""
    return f"PSWORKER_{option.upper()}"


def environment(options: Mapping[str, object]) -> dict[str, str]:
    """The environment variables of the options that are not None, which `worker_config` reads."""
    given = {name: value for name, value in options.items() if value is not None}
    return {variable(name): str(int(value) if isinstance(value, bool) else value) for name, value in given.items()}


def server_environment(options: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of these options of `psserver serve`."""
    return {f"PSSERVER_{name.upper()}": value for name, value in options.items()}


def paramserver_environment() -> dict[str, str]:
    """The environment variables of paramserver that this process has, for processes on other machines."""
    ours = ("PSSERVER_", "PSWORKER_", "PARAMSERVER_")
    return {name: value for name, value in os.environ.items() if name.startswith(ours)}


def submitted_with_folder() -> bool:
    """True if this process was started by `ray job submit --working-dir`: all nodes have the folder that was given."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    return bool((job.get("runtime_env") or {}).get("working_dir"))


def data_dir() -> str | None:
    """The user's folder of datasets, `$PARAMSERVER_DATA`; None when it is unset or empty."""
    return os.environ.get("PARAMSERVER_DATA") or None


def worker_name() -> str:
    """The name that a launcher has given to this worker, `$PSWORKER_NAME`; "" without one."""
    return os.environ.get(variable("name"), "")


def terminal() -> str:
    """The type of the terminal, `$TERM`; "" without one."""
    return os.environ.get("TERM", "")


def cache_dir() -> Path:
    """The user's cache for this project: `$XDG_CACHE_HOME/paramserver`, by default `~/.cache/paramserver`.

    As the XDG Base Directory Specification asks, a relative `$XDG_CACHE_HOME` is ignored.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else os.path.expanduser("~/.cache")) / "paramserver"


@dataclass(frozen=True)
class StrategyConfig:
    """When a worker pushes gradients and pulls weights; the fields are arguments of `psworker.session`.

    Raises `ConfigurationError` for an invalid field, or for local steps together with another strategy.
    """

    push_every: int = 1
    pull_every: int = 1
    overlap: bool = False
    local_steps: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name, low in (("push_every", 1), ("pull_every", 1), ("local_steps", 0)):
            value = getattr(self, name)
            if not hasattr(value, "__index__") or isinstance(value, bool) or value < low:
                raise ConfigurationError(f"{name} must be an integer of at least {low}, got {value!r}")
            object.__setattr__(self, name, index(value))  # numpy integers become int
        if not isinstance(self.overlap, bool):
            raise ConfigurationError(f"overlap must be True or False, got {self.overlap!r}")
        if self.local_steps and (self.push_every, self.pull_every, self.overlap) != (1, 1, False):
            raise ConfigurationError(
                f"local_steps={self.local_steps} determines when to push and pull, and cannot be combined with "
                f"push_every={self.push_every}, pull_every={self.pull_every}, overlap={self.overlap}: leave those out, "
                "or it"
            )

    @property
    def steps(self) -> int:
        """Steps between two pushes."""
        return self.local_steps or self.push_every


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoints of an embedded session; the fields are arguments of `psworker.session`.

    `checkpoint_dir` is "" without checkpoints. Raises `ConfigurationError` for an invalid field.
    """

    checkpoint_dir: str = ""
    checkpoint_every: CheckpointEvery = field(default_factory=partial(EverySeconds, 60.0))
    keep: int = 5

    def __post_init__(self) -> None:
        """Check every field."""
        if not isinstance(self.checkpoint_every, CheckpointEvery):
            raise ConfigurationError(
                f"checkpoint_every must be EverySeconds(S) or EverySteps(N), got {self.checkpoint_every!r}"
            )
        if not hasattr(self.keep, "__index__") or isinstance(self.keep, bool) or self.keep < 1:
            raise ConfigurationError(f"keep must be an integer of at least 1, got {self.keep!r}")
        object.__setattr__(self, "keep", index(self.keep))

    @property
    def folder(self) -> Path | None:
        """The folder of checkpoints, absolute; None without checkpoints."""
        return Path(self.checkpoint_dir).absolute() if self.checkpoint_dir else None


#: Characters of a job's name, at most.
MAX_JOB_NAME = 100

#: How progress is shown on stderr (`psworker.progress.terminal`).
PROGRESS = ("auto", "live", "plain", "off")

#: The name of the worker of an embedded job with checkpoints or summaries: the same after each restart.
EMBEDDED_WORKER = "worker-0"


@dataclass(frozen=True)
class WorkerConfig:
    """The connection of a worker to its servers: the arguments of `psworker.session`, checked.

    `keep_memory` is whether the process keeps the memory of freed arrays for the next ones
    (`pswire.system.host.keep_memory`). A process with the same `name_key` takes the place of a live worker of this name
    at once; one without it waits until its lease has ended. `summary_dir` is "" without summaries. `workers` is the
    number of workers that the launcher has started; 0: unknown.

    Raises `ConfigurationError` for an invalid field.
    """

    servers: tuple[str, ...] = ()
    name: str = ""
    timeout: float = 60.0
    keep_memory: bool = True
    encoding: str = "float32"
    compression: Compression = NONE
    shared_memory: bool = True
    strategy: StrategyConfig = StrategyConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    credentials: Credentials = NO_CREDENTIALS
    progress: str = "auto"
    job: str = ""
    resume: bool = False
    name_key: str = ""
    summary_dir: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.name:
            continues = (self.checkpoints.checkpoint_dir or self.summary_dir) and not self.servers
            object.__setattr__(self, "name", EMBEDDED_WORKER if continues else process_name())
        if self.servers:
            object.__setattr__(self, "servers", check_servers(self.servers))
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"the timeout must be a positive number of seconds, got {self.timeout}")
        parse_encoding(self.encoding)
        if self.progress not in PROGRESS:
            raise ConfigurationError(f"progress must be one of {', '.join(PROGRESS)}, got {self.progress!r}")
        if not isinstance(self.compression, Compression):
            raise ConfigurationError(
                f"compression must be one of NoCompression(), Int8(), TopK(FRACTION), got {self.compression!r}"
            )
        if self.workers < 0:
            raise ConfigurationError(f"{variable('workers')}, a number of workers, must be at least 0: {self.workers}")
        for name in ("resume", "shared_memory"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if len(self.job) > MAX_JOB_NAME or not self.job.isprintable():
            raise ConfigurationError(f"a job's name has {MAX_JOB_NAME} printable characters at most, got {self.job!r}")


def worker_config(
    servers: str | Sequence[str] | None = None,
    name: str | None = None,
    *,
    compress: str | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: str | None = None,
    summary_dir: str | os.PathLike[str] | None = None,
    **options: Any,  # noqa: ANN401 - of several types
) -> WorkerConfig:
    """The configuration: each argument, or else its environment variable `$PSWORKER_...`, or else the default.

    The arguments of `psworker.session`, and `keep_memory`: fields of `WorkerConfig`, `StrategyConfig`,
    `CheckpointConfig` and `Credentials`, where servers may be a text as `parse_servers` takes it, `compress` is as
    `parse_compression` takes it, and `checkpoint_every` as `parse_checkpoint_every`. In the environment, booleans
    are 1 or 0.

    Raises:
        ConfigurationError: an invalid value.
    """
    if servers is None:
        servers = os.environ.get(variable("servers")) or ()
    if isinstance(servers, str):
        servers = parse_servers(servers)
    compression = parse_compression(
        os.environ.get(variable("compress")) or "none" if compress is None else str(compress)
    )
    every = os.environ.get(variable("checkpoint_every")) if checkpoint_every is None else str(checkpoint_every)
    options |= {
        "name": name or None,
        "checkpoint_dir": None if checkpoint_dir is None else os.fspath(checkpoint_dir),
        "checkpoint_every": parse_checkpoint_every(every) if every else None,
        "summary_dir": None if summary_dir is None else os.fspath(summary_dir),
    }
    strategy = StrategyConfig(**_given(StrategyConfig, options))
    checkpoints = CheckpointConfig(**_given(CheckpointConfig, options))
    credentials = Credentials(**_given(Credentials, options))
    values = _given(WorkerConfig, options) | options  # refuses unknown options
    return WorkerConfig(
        tuple(servers),
        compression=compression,
        strategy=strategy,
        checkpoints=checkpoints,
        credentials=credentials,
        **values,
    )


_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)  # as click accepts them
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)

#: By type of a field: how the text of its environment variable is read, and its description.
_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number of seconds"),
    "bool": (lambda text: _FLAGS[text.lower()], "1 or 0"),
    "str": (str, "text"),
}


def _given(config: type, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of `config` that an option gives, which is removed from `options`, or else the environment."""
    found = {}
    for one in fields(config):
        value = options.pop(one.name, None)
        text = os.environ.get(variable(one.name))
        if value is not None:
            found[one.name] = value
        elif text and one.type in _PARSERS:
            parse, expected = _PARSERS[one.type]
            try:
                found[one.name] = parse(text)
            except (ValueError, KeyError):
                raise ConfigurationError(f"{variable(one.name)} must be {expected}, got {text!r}") from None
    return found
