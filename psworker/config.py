"""Configuration of a worker: argument, else environment variable, else default.

No other module of psworker reads environment variables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from operator import index
from pathlib import Path
from typing import TypeVar

from pswire.errors import ConfigurationError
from pswire.specs.encodings import NONE, Compression, parse_compression, parse_encoding
from pswire.system.host import process_name

#: The environment that `psworker run` and `psworker local` give to a training script.
SERVERS, NAME, TIMEOUT = "PSWORKER_SERVERS", "PSWORKER_NAME", "PSWORKER_TIMEOUT"
KEEP_MEMORY = "PSWORKER_KEEP_MEMORY"
PUSH_EVERY, PULL_EVERY = "PSWORKER_PUSH_EVERY", "PSWORKER_PULL_EVERY"
OVERLAP, LOCAL_STEPS = "PSWORKER_OVERLAP", "PSWORKER_LOCAL_STEPS"
ENCODING, COMPRESS, SHARED_MEMORY = "PSWORKER_ENCODING", "PSWORKER_COMPRESS", "PSWORKER_SHARED_MEMORY"

#: Seconds for which a worker keeps trying to reach a server.
DEFAULT_TIMEOUT = 60.0

_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)  # as click accepts them
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)


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


@dataclass(frozen=True)
class StrategyConfig:
    """When a worker pushes gradients and pulls weights (`psworker.sessions.strategies`).

    Attributes:
        push_every: steps, from 1, whose gradients are summed and pushed together.
        pull_every: steps, from 1, after which fresh weights are pulled.
        overlap: whether computing goes on while a push is under way.
        local_steps: steps of an optimizer in the worker, whose sum is pushed as one gradient; 0: none. They push and
            pull as a whole, so the other three keep their defaults.

    Raises:
        ConfigurationError: an invalid field, or an invalid combination.
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

    def environment(self) -> dict[str, str]:
        """The environment variables of this configuration."""
        values = [str(int(value)) for value in astuple(self)]
        return dict(zip((PUSH_EVERY, PULL_EVERY, OVERLAP, LOCAL_STEPS), values, strict=True))


@dataclass(frozen=True)
class TransferConfig:
    """How gradients and weights are transferred between a worker and its servers.

    Attributes:
        encoding: of float32 tensors, both ways: "float32", or one of `pswire.specs.encodings.ENCODINGS`.
        compression: of gradients, with error feedback (`psworker.client.error_feedback`).
        shared_memory: whether tensors go through shared memory where a server is on this host.

    Raises:
        ConfigurationError: an invalid field.
    """

    encoding: str = "float32"
    compression: Compression = NONE
    shared_memory: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        parse_encoding(self.encoding)
        if not isinstance(self.compression, Compression):
            raise ConfigurationError(
                f"compression must be one of NoCompression(), Int8(), TopK(FRACTION), got {self.compression!r}"
            )
        if not isinstance(self.shared_memory, bool):
            raise ConfigurationError(f"shared_memory must be True or False, got {self.shared_memory!r}")

    def environment(self) -> dict[str, str]:
        """The environment variables of this configuration."""
        return {ENCODING: self.encoding, COMPRESS: str(self.compression), SHARED_MEMORY: str(int(self.shared_memory))}


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker reaches its servers, and when.

    Attributes:
        servers: addresses in the order of their shards; none: the shard is embedded in this process.
        name: the worker's, unique in the job.
        timeout: seconds that a call is retried.
        keep_memory: whether the process keeps the memory of freed arrays for the next ones
            (`pswire.system.malloc.keep_memory`).
        strategy: when it pushes and pulls.
        transfer: how gradients and weights are transferred.

    Raises:
        ConfigurationError: an invalid field.
    """

    servers: tuple[str, ...] = ()
    name: str = ""
    timeout: float = DEFAULT_TIMEOUT
    keep_memory: bool = True
    strategy: StrategyConfig = StrategyConfig()
    transfer: TransferConfig = TransferConfig()

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.name:
            object.__setattr__(self, "name", process_name())
        if len(set(self.servers)) != len(self.servers):
            raise ConfigurationError(f"a server is listed twice in {','.join(self.servers)}: name each shard once")
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"the timeout must be a positive number of seconds, got {self.timeout}")


def parse_servers(text: str) -> tuple[str, ...]:
    """The addresses in a text, separated by commas, at least one.

    Raises:
        ConfigurationError: there is none; a worker with configured servers must not train alone.
    """
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise ConfigurationError(f"no server in {text!r}: use host:port for each shard, separated by commas")
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
    """The configuration: each argument, or else its environment variable `$PSWORKER_...`, or else the default.

    Arguments are the fields of `WorkerConfig`, `StrategyConfig` and `TransferConfig`. Servers may be a text with commas
    between the addresses; `compress` is as `parse_compression` takes it; in the environment, booleans are 1 or 0.
    `$PSWORKER_KEEP_MEMORY` has no argument.

    Raises:
        ConfigurationError: an invalid value.
    """
    if servers is None:
        servers = os.environ.get(SERVERS) or ()
    if isinstance(servers, str):
        servers = parse_servers(servers)
    strategy = StrategyConfig(
        _read(PUSH_EVERY, int, 1) if push_every is None else push_every,
        _read(PULL_EVERY, int, 1) if pull_every is None else pull_every,
        _read(OVERLAP, _flag, False) if overlap is None else overlap,
        _read(LOCAL_STEPS, int, 0) if local_steps is None else local_steps,
    )
    transfer = TransferConfig(
        os.environ.get(ENCODING) or "float32" if encoding is None else encoding,
        parse_compression(os.environ.get(COMPRESS) or "none" if compress is None else str(compress)),
        _read(SHARED_MEMORY, _flag, True) if shared_memory is None else shared_memory,
    )
    timeout = _read(TIMEOUT, float, DEFAULT_TIMEOUT) if timeout is None else timeout
    return WorkerConfig(
        tuple(servers), name or worker_name(), timeout, _read(KEEP_MEMORY, _flag, True), strategy, transfer
    )


_T = TypeVar("_T")


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


_EXPECTED = {int: "a whole number", float: "a number of seconds", _flag: "1 or 0"}


def _read(variable: str, parse: Callable[[str], _T], default: _T) -> _T:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{variable} must be {_EXPECTED[parse]}, got {text!r}") from None
