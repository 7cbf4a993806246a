"""What the environment says; no other module of psworker reads environment variables.

Precedence is argument, environment, default. May import the standard library and the errors.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pswire.errors import ConfigurationError


def data_dir() -> str | None:
    """The user's folder of datasets, `$PARAMSERVER_DATA`; None when it is unset or empty."""
    return os.environ.get("PARAMSERVER_DATA") or None


def cache_dir() -> Path:
    """The user's cache for this project: `$XDG_CACHE_HOME/paramserver`, by default `~/.cache/paramserver`.

    As the XDG Base Directory Specification asks, a relative `$XDG_CACHE_HOME` is ignored.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else os.path.expanduser("~/.cache")) / "paramserver"


#: The environment that `psworker run` and `psworker local` give to a training script.
SERVERS, NAME, TIMEOUT = "PSWORKER_SERVERS", "PSWORKER_NAME", "PSWORKER_TIMEOUT"
KEEP_MEMORY = "PSWORKER_KEEP_MEMORY"

#: What a flag in the environment may be, as click takes it.
_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)

#: Seconds that a worker goes on trying to reach a server.
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker reaches its servers.

    Attributes:
        servers: addresses in the order of their shards; none: the shard runs in this process.
        name: the worker's, unique in the job.
        timeout: seconds that a call goes on trying before it gives up.
        keep_memory: whether the process keeps the memory of arrays it has freed, for the next ones
            (`pswire.memory.keep_memory`).

    Raises:
        ConfigurationError: a field that cannot be.
    """

    servers: tuple[str, ...] = ()
    name: str = ""
    timeout: float = DEFAULT_TIMEOUT
    keep_memory: bool = True

    def __post_init__(self) -> None:
        """Checks every field."""
        if not self.name:
            object.__setattr__(self, "name", f"{socket.gethostname()}-{os.getpid()}")
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
    servers: str | Sequence[str] | None = None, name: str | None = None, timeout: float | None = None
) -> WorkerConfig:
    """The configuration: each argument, or else its environment variable, or else the default.

    Args:
        servers: addresses, or a text of them with commas between; `$PSWORKER_SERVERS`.
        name: `$PSWORKER_NAME`; by default the host's name and the process id.
        timeout: seconds; `$PSWORKER_TIMEOUT`.

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
    keep = _FLAGS.get((os.environ.get(KEEP_MEMORY) or "1").lower())
    if keep is None:
        raise ConfigurationError(f"{KEEP_MEMORY} must be 1 or 0, got {os.environ[KEEP_MEMORY]!r}")
    return WorkerConfig(tuple(servers), name or os.environ.get(NAME, ""), timeout, keep)
