"""Configuration of a server. The options of `psserver serve` are its fields; click reads the environment."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from pswire.channel import check_address
from pswire.errors import ConfigurationError
from pswire.specs.consistency import Asynchronous, Consistency, IgnoreStaleness, StalenessSpec
from pswire.system import host


def default_memory_limit() -> int:
    """80 % of the memory of the machine or its container, in bytes."""
    return host.memory() * 4 // 5


def parse_shard(text: str) -> tuple[int, int]:
    """Number of a shard and count of shards: "0/2" is (0, 2). Raises `ConfigurationError`."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigurationError(f"{text!r}: write INDEX/COUNT, with the index counted from 0: 0/2 or 1/2")
    return int(found[1]), int(found[2])


def parse_addresses(text: str) -> tuple[str, ...]:
    """The addresses in `host:port,host:port,...`. Raises `ConfigurationError`."""
    return tuple(map(check_address, text.split(",")))


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes: "8G" is 8 * 1024^3; also K, M, T, or none. Raises `ConfigurationError`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", text.strip().upper())
    if not found:
        raise ConfigurationError(f"{text!r}: write a number of bytes, with K, M, G or T for powers of 1024, such as 8G")
    return int(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How one server runs its shard. Validated when built.

    Args:
        bind: address to listen on: host:port, [v6]:port or unix:/path; port 0 is a free one.
        shard: number of the shard, from 0.
        shards: how many the job has.
        lease: seconds of silence after which a worker is lost, or a stalled transfer is aborted.
        consistency: the consistency policy; the same on all shards of a job.
        staleness: the handling of stale pushes; the same on all shards of a job.
        memory_limit: bytes for the variables, their slots, and transfers under way, together.
        grace: seconds for calls in progress when the server stops.
        linger: seconds for which it waits for other workers when the job is done (a worker has finished and none is
            left) before it ends; at least four leases when none has finished. All workers are of one job. None: it
            stays until it is stopped, and when no worker is live the next job begins.
        max_calls: largest number of concurrent calls; a worker has one or two. Further calls are refused and retried.
        keep_memory: whether the process keeps the memory of freed arrays (`pswire.system.host.keep_memory`). Used by
            the command `psserver serve` only, because it affects the whole process.
        shared_memory: whether workers of this host and user may share memory with it.
        reflection: whether tools such as grpcurl can list the methods (extra `reflection`).

    Raises:
        ConfigurationError: an invalid field.
    """

    bind: str = "127.0.0.1:0"
    shard: int = 0
    shards: int = 1
    lease: float = 15.0
    consistency: Consistency = field(default_factory=Asynchronous)
    staleness: StalenessSpec = field(default_factory=IgnoreStaleness)
    memory_limit: int = field(default_factory=default_memory_limit)
    grace: float = 5.0
    linger: float | None = None
    max_calls: int = 10_000
    keep_memory: bool = True
    shared_memory: bool = True
    reflection: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        check_address(self.bind)
        if not 0 <= self.shard < self.shards:
            raise ConfigurationError(
                f"shard {self.shard} of {self.shards}: the index must be from 0 to the number of shards less 1"
            )
        if not 0 < self.lease < math.inf:
            raise ConfigurationError(f"the lease must be more than 0 seconds, got {self.lease:g}")
        if not 0 <= self.grace < math.inf:
            raise ConfigurationError(f"the grace period must be 0 seconds or more, got {self.grace:g}")
        if self.linger is not None and not 0 <= self.linger < math.inf:
            raise ConfigurationError(f"linger must be 0 seconds or more, got {self.linger:g}")
        if self.memory_limit < 1:
            raise ConfigurationError(f"the memory limit must be a positive number of bytes, got {self.memory_limit}")
        if self.max_calls < 1:
            raise ConfigurationError(f"max_calls must be at least 1, got {self.max_calls}")

    @property
    def variables_limit(self) -> int:
        """Bytes for variables and slots: half. A push and its answer need about as much as the variables."""
        return self.memory_limit - self.traffic_limit

    @property
    def traffic_limit(self) -> int:
        """Bytes for the data of requests and answers in progress: the other half."""
        return self.memory_limit // 2
