"""What a server can be told, in one frozen and validated place. The command line's options are its fields, one to one.

Reads no environment variables: click does, by the options' names. May import pswire.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from pswire.channel import check_address
from pswire.errors import ConfigurationError
from pswire.specs.consistency import Asynchronous, Consistency, IgnoreStaleness, StalenessSpec
from pswire.system import host


def default_memory_limit() -> int:
    """80 % of the memory that the machine or its container has, in bytes."""
    return host.memory() * 4 // 5


def parse_shard(text: str) -> tuple[int, int]:
    """Which shard of how many: "0/2" is (0, 2). Raises `ConfigurationError`."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigurationError(f"{text!r}: write which shard of how many, from 0: the two of a pair are 0/2 and 1/2")
    return int(found[1]), int(found[2])


def parse_addresses(text: str) -> tuple[str, ...]:
    """The addresses in `host:port,host:port,...`. Raises `ConfigurationError` for one that is none."""
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
        bind: where to listen: host:port, [v6]:port or unix:/path; port 0 takes a free one.
        shard: which of the job's shards this is, from 0.
        shards: how many the job has.
        lease: seconds of silence after which a worker is taken for dead, and a transfer that stalls is given up.
        consistency: whose pushes make an update, and who waits for whom; the same on all shards of a job.
        staleness: what is done about a stale push; the same on all shards of a job.
        memory_limit: bytes for the variables, their slots, and what is on its way in and out, together.
        grace: seconds that calls under way get to end when the server stops.
        linger: seconds for which it waits for others when the job is done, that is a worker has come to its end and
            none is left, before it ends; at least four leases when none has come to its end. All who join are of one
            job. None: it stays until it is stopped, and where nobody lives the next job begins.
        max_calls: callers at a time, a worker being one or two of them; those beyond it are refused, and try again.
        keep_memory: whether the process keeps the memory of arrays it has freed, for the next ones: faster, but it does
            not shrink (`pswire.system.malloc.keep_memory`). Done by the command `psserver serve`, whose process it is.
        shared_memory: whether workers of this host and user may share memory with it, so that their tensors need not be
            sent.
        reflection: whether tools such as grpcurl may ask what the server offers (extra `reflection`).

    Raises:
        ConfigurationError: a field that cannot be.
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
        """Checks every field."""
        check_address(self.bind)
        if not 0 <= self.shard < self.shards:
            raise ConfigurationError(
                f"shard {self.shard} of {self.shards}: shards are numbered from 0, below their count"
            )
        if not 0 < self.lease < math.inf:
            raise ConfigurationError(f"a lease lasts more than 0 seconds, got {self.lease:g}")
        if not 0 <= self.grace < math.inf:
            raise ConfigurationError(f"a grace lasts 0 seconds or more, got {self.grace:g}")
        if self.linger is not None and not 0 <= self.linger < math.inf:
            raise ConfigurationError(f"a server lingers for 0 seconds or more, got {self.linger:g}")
        if self.memory_limit < 1:
            raise ConfigurationError(f"a memory limit is a positive number of bytes, got {self.memory_limit}")
        if self.max_calls < 1:
            raise ConfigurationError(f"a server takes at least one call at a time, got max_calls {self.max_calls}")

    @property
    def variables_limit(self) -> int:
        """Bytes for variables and slots: half. A push and the pull after it need about what the variables do."""
        return self.memory_limit - self.traffic_limit

    @property
    def traffic_limit(self) -> int:
        """Bytes for what transfers bring and take away: the other half."""
        return self.memory_limit // 2
