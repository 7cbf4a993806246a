"""What the environment says; no other module of psworker reads environment variables.

Precedence is argument, environment, default. May import the standard library, travel, machine and the errors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.specs.encodings import NONE, Compression, parse_compression, parse_encoding
from pswire.system.host import process_name


def data_dir() -> str | None:
    """The user's folder of datasets, `$PARAMSERVER_DATA`; None when it is unset or empty."""
    return os.environ.get("PARAMSERVER_DATA") or None


def worker_name() -> str:
    """The name that a launcher has given to this worker, `$PSWORKER_NAME`; "" without one."""
    return os.environ.get(NAME, "")


def cache_dir() -> Path:
    """The user's cache for this project: `$XDG_CACHE_HOME/paramserver`, by default `~/.cache/paramserver`.

    As the XDG Base Directory Specification asks, a relative `$XDG_CACHE_HOME` is ignored.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else os.path.expanduser("~/.cache")) / "paramserver"


#: The environment that `psworker run` and `psworker local` give to a training script.
SERVERS, NAME, TIMEOUT = "PSWORKER_SERVERS", "PSWORKER_NAME", "PSWORKER_TIMEOUT"
KEEP_MEMORY = "PSWORKER_KEEP_MEMORY"
PUSH_EVERY, PULL_EVERY = "PSWORKER_PUSH_EVERY", "PSWORKER_PULL_EVERY"
OVERLAP, LOCAL_STEPS = "PSWORKER_OVERLAP", "PSWORKER_LOCAL_STEPS"
ENCODING, COMPRESS, SHARED_MEMORY = "PSWORKER_ENCODING", "PSWORKER_COMPRESS", "PSWORKER_SHARED_MEMORY"

#: What a flag in the environment may be, as click takes it.
_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)

#: Seconds that a worker goes on trying to reach a server.
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class StrategyConfig:
    """When what a step has computed goes to the servers, and when fresh weights come back
    (`psworker.sessions.strategies`).

    Attributes:
        push_every: steps, from 1, whose gradients are added up and pushed together.
        pull_every: steps, from 1, after which fresh weights are taken.
        overlap: whether computing goes on while a push is under way.
        local_steps: steps of an optimizer in the worker, whose sum is pushed as one gradient; 0: none. They push and
            pull as a whole, so the other three stay as they are.

    Raises:
        ConfigurationError: a field that cannot be, or two that cannot be together.
    """

    push_every: int = 1
    pull_every: int = 1
    overlap: bool = False
    local_steps: int = 0

    def __post_init__(self) -> None:
        """Checks every field."""
        for name, low in (("push_every", 1), ("pull_every", 1), ("local_steps", 0)):
            value = getattr(self, name)
            if not hasattr(value, "__index__") or isinstance(value, bool) or value < low:
                raise ConfigurationError(f"{name} must be a whole number of steps from {low} up, got {value!r}")
            object.__setattr__(self, name, index(value))  # numpy's whole numbers are welcome
        if not isinstance(self.overlap, bool):
            raise ConfigurationError(f"overlap must be True or False, got {self.overlap!r}")
        if self.local_steps and (self.push_every, self.pull_every, self.overlap) != (1, 1, False):
            raise ConfigurationError(
                f"local_steps={self.local_steps} says when to push and pull, and cannot go with push_every="
                f"{self.push_every}, pull_every={self.pull_every}, overlap={self.overlap}: leave those out, or it"
            )

    @property
    def steps(self) -> int:
        """Steps between two pushes."""
        return self.local_steps or self.push_every

    def environment(self) -> dict[str, str]:
        """The environment variables that tell a program so."""
        return {_EXCHANGE[field.name]: str(int(getattr(self, field.name))) for field in fields(self)}


_EXCHANGE = {"push_every": PUSH_EVERY, "pull_every": PULL_EVERY, "overlap": OVERLAP, "local_steps": LOCAL_STEPS}


@dataclass(frozen=True)
class EncodingConfig:
    """How gradients and weights travel between a worker and its servers.

    Attributes:
        encoding: the form of what is float32, both ways: "float32", or one of `pswire.specs.encodings.ENCODINGS`.
        compression: of gradients, with error feedback (`psworker.client.error_feedback`).
        shared_memory: whether they go through shared memory where a server is on this host.

    Raises:
        ConfigurationError: a field that cannot be.
    """

    encoding: str = "float32"
    compression: Compression = NONE
    shared_memory: bool = True

    def __post_init__(self) -> None:
        """Checks every field."""
        parse_encoding(self.encoding)
        if not isinstance(self.compression, Compression):
            raise ConfigurationError(
                f"compression must be one of NoCompression(), Int8(), TopK(FRACTION), got {self.compression!r}"
            )
        if not isinstance(self.shared_memory, bool):
            raise ConfigurationError(f"shared_memory must be True or False, got {self.shared_memory!r}")

    def environment(self) -> dict[str, str]:
        """The environment variables that tell a program so."""
        return {ENCODING: self.encoding, COMPRESS: str(self.compression), SHARED_MEMORY: str(int(self.shared_memory))}


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker reaches its servers, and when.

    Attributes:
        servers: addresses in the order of their shards; none: the shard runs in this process.
        name: the worker's, unique in the job.
        timeout: seconds that a call goes on trying before it gives up.
        keep_memory: whether the process keeps the memory of arrays it has freed, for the next ones
            (`pswire.system.malloc.keep_memory`).
        exchange: when it pushes and pulls.
        travel: how gradients and weights travel.

    Raises:
        ConfigurationError: a field that cannot be.
    """

    servers: tuple[str, ...] = ()
    name: str = ""
    timeout: float = DEFAULT_TIMEOUT
    keep_memory: bool = True
    strategy: StrategyConfig = StrategyConfig()
    travel: EncodingConfig = EncodingConfig()

    def __post_init__(self) -> None:
        """Checks every field."""
        if not self.name:
            object.__setattr__(self, "name", process_name())
        if len(set(self.servers)) != len(self.servers):
            raise ConfigurationError(f"a server is named twice in {','.join(self.servers)}: name each shard once")
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"the timeout must be a positive number of seconds, got {self.timeout}")


def parse_servers(text: str) -> tuple[str, ...]:
    """The addresses in a text with commas between them, at least one.

    Raises:
        ConfigurationError: there is none; a worker that was told of servers must not train alone.
    """
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise ConfigurationError(f"no server is named in {text!r}: write host:port, one for each shard, commas between")
    return servers


def worker_config(
    servers: str | Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
    *,
    push_every: int | None = None,
    pull_every: int | None = None,
    overlap: bool | None = None,
    local_steps: int | None = None,
    encoding: str | None = None,
    compress: str | None = None,
    shared_memory: bool | None = None,
) -> WorkerConfig:
    """The configuration: each argument, or else its environment variable, or else the default.

    Args:
        servers: addresses, or a text of them with commas between; `$PSWORKER_SERVERS`.
        name: `$PSWORKER_NAME`; by default the host's name and the process id (`pswire.system.host.process_name`).
        timeout: seconds; `$PSWORKER_TIMEOUT`.
        push_every: see `StrategyConfig`; `$PSWORKER_PUSH_EVERY`.
        pull_every: `$PSWORKER_PULL_EVERY`.
        overlap: `$PSWORKER_OVERLAP`, 1 or 0.
        local_steps: `$PSWORKER_LOCAL_STEPS`.
        encoding: see `EncodingConfig`; `$PSWORKER_ENCODING`.
        compress: as `parse_compression` has it; `$PSWORKER_COMPRESS`.
        shared_memory: `$PSWORKER_SHARED_MEMORY`, 1 or 0.

    Whether memory is kept, `$PSWORKER_KEEP_MEMORY` says: 1 or 0.

    Raises:
        ConfigurationError: a value that cannot be.
    """
    if servers is None:
        servers = os.environ.get(SERVERS) or ()
    if isinstance(servers, str):
        servers = parse_servers(servers)
    if timeout is None:
        text = os.environ.get(TIMEOUT) or str(DEFAULT_TIMEOUT)
        try:
            timeout = float(text)
        except ValueError:
            raise ConfigurationError(f"{TIMEOUT} must be a number of seconds, got {text!r}") from None
    strategy = StrategyConfig(
        _count(PUSH_EVERY, 1) if push_every is None else push_every,
        _count(PULL_EVERY, 1) if pull_every is None else pull_every,
        _flag(OVERLAP, False) if overlap is None else overlap,
        _count(LOCAL_STEPS, 0) if local_steps is None else local_steps,
    )
    travel = EncodingConfig(
        os.environ.get(ENCODING) or "float32" if encoding is None else encoding,
        parse_compression(os.environ.get(COMPRESS) or "none" if compress is None else str(compress)),
        _flag(SHARED_MEMORY, True) if shared_memory is None else shared_memory,
    )
    keep = _flag(KEEP_MEMORY, True)
    return WorkerConfig(tuple(servers), name or worker_name(), timeout, keep, strategy, travel)


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable} must be a whole number, got {text!r}") from None


def _flag(variable: str, default: bool) -> bool:
    flag = _FLAGS.get((os.environ.get(variable) or str(int(default))).lower())
    if flag is None:
        raise ConfigurationError(f"{variable} must be 1 or 0, got {os.environ[variable]!r}")
    return flag
