"""Configuration of a server. The options of `psserver serve` are its fields; click reads the environment."""

import os
import re
import secrets
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from psserver.key_file import KEY_BYTES, user_key
from pswire.addresses import check_address
from pswire.errors import ConfigurationError
from pswire.security.exposure import check_exposure
from pswire.security.token_files import read_tokens
from pswire.specs.checkpoints import CheckpointEvery, JournalSync
from pswire.specs.consistency import Asynchronous, Consistency, IgnoreStaleness, StalenessSpec
from pswire.specs.gradient_norm import GradientNormLimit
from pswire.specs.spec import check_count, check_number
from pswire.system import host

#: The key of servers without another one: servers of one process accept each other's tokens.
_PROCESS_KEY = secrets.token_bytes(KEY_BYTES)


def _state_folder() -> Path:
    """The folder in which this user's servers keep what is not of one job: `$XDG_STATE_HOME/paramserver`."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state") / "paramserver"


def default_memory_limit() -> int:
    """80 % of the memory of the machine or its container, in bytes."""
    return host.memory() * 4 // 5


def default_shared_memory_limit() -> int:
    """Half of the memory of the machine or its container, in bytes."""
    return host.memory() // 2


def parse_shard(text: str) -> tuple[int, int]:
    """Number of a shard and count of shards: "0/2" is (0, 2). Raises `ConfigurationError`."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigurationError(f"{text!r}: write INDEX/COUNT, with the index counted from 0: 0/2 or 1/2")
    return int(found[1]), int(found[2])


def parse_timeout(text: str) -> float | None:
    """Seconds above 0; None for "off". Raises `ConfigurationError`."""
    if text.strip() == "off":
        return None
    try:
        return check_number("", float(text), 0, open_low=True)
    except ValueError:
        raise ConfigurationError(f"{text!r}: write a number of seconds above 0, or off") from None


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes: "8G" is 8 * 1024^3; also K, M, T, or none. Raises `ConfigurationError`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", text.strip().upper())
    if not found:
        raise ConfigurationError(f"{text!r}: write a number of bytes, with K, M, G or T for powers of 1024, such as 8G")
    return int(float(found[1]) * _UNITS[found[2]])


#: Whether clients need a certificate that is signed by `--tls-ca`.
CLIENT_CERTIFICATES = ("off", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Options for storing the state of a shard.

    Attributes:
        checkpoint_every: when shard 0 begins a checkpoint; None: only on demand and at a stop.
        keep: the number of complete checkpoints that stay.
        journal: whether every change is written down before it is acknowledged.
        journal_sync: when it counts as written (`pswire.specs.checkpoints.JournalSync`).
        journal_limit: bytes of the journal; a checkpoint begins at half of it.
        keep_journal: whether segments stay after a checkpoint; `journal_limit` then counts bytes since the last one.
        on_lost_state: whether the shard follows others to an older checkpoint ("rollback"), or refuses ("fail").
    """

    checkpoint_every: CheckpointEvery | None = None
    keep: int = 5
    journal: bool = False
    journal_sync: JournalSync = JournalSync.EVERY
    journal_limit: int = 4 << 30
    keep_journal: bool = False
    on_lost_state: str = "rollback"


@dataclass(frozen=True, slots=True)
class StorageConfig(StorageOptions):
    """The folder and the options for storing the state of a shard.

    Attributes:
        folder: of the checkpoints and the journal; may be shared by all shards of a job.
    """

    folder: Path


@dataclass(frozen=True, slots=True)
class ServerConfig(StorageOptions):
    """The configuration of a server: times in seconds, sizes in bytes. `psserver serve --help` explains each field.

    By default it listens on a free port; the command has a default of its own: DEFAULT_ADDRESS of
    `pswire.addresses`.

    `default_key` is their key without one in a token file (`job_key`), by default the same for servers of one process;
    None: this user's key, or a publicly known one if they are `insecure`.

    Without `linger` it runs until stopped; a worker that joins when none is live begins a job. `keep_memory` affects
    the whole process, and so do `optimizers`: only the command `psserver serve` uses them. `ConfigurationError` for an
    invalid field.
    """

    bind: str = "127.0.0.1:0"
    shard: int = 0
    shards: int = 1
    lease: float = 15.0
    consistency: Consistency = field(default_factory=Asynchronous)
    staleness: StalenessSpec = field(default_factory=IgnoreStaleness)
    progress_timeout: float | None = 45.0
    max_gradient_norm: GradientNormLimit | None = None
    memory_limit: int = field(default_factory=default_memory_limit)
    grace: float = 5.0
    linger: float | None = None
    max_calls: int = 10_000
    max_workers: int = 10_000
    keep_memory: bool = True
    direct_port: int | None = 0
    shared_memory: bool = True
    shared_memory_limit: int = field(default_factory=default_shared_memory_limit)
    reflection: bool = False
    checkpoint_dir: Path | None = None
    optimizers: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    client_certificates: str = "off"
    token_file: Path | None = None
    insecure: bool = False
    default_key: bytes | None = field(default=_PROCESS_KEY, repr=False)

    def __post_init__(self) -> None:
        """Check every field."""
        check_address(self.bind)
        if not 0 <= self.shard < self.shards:
            raise ConfigurationError(
                f"shard {self.shard} of {self.shards}: the index must be from 0 to the number of shards less 1"
            )
        try:
            check_number("the lease, in seconds,", self.lease, 0, open_low=True)
            check_number("the grace period, in seconds,", self.grace, 0)
            check_number("linger, in seconds,", self.linger or 0, 0)
            if self.progress_timeout is not None:
                check_number("the progress timeout, in seconds,", self.progress_timeout, 0, open_low=True)
            check_count("the memory limit, in bytes,", self.memory_limit)
            check_count("the limit of shared memory, in bytes,", self.shared_memory_limit)
            check_count("max_calls", self.max_calls)
            check_count("max_workers", self.max_workers)
            check_count("keep", self.keep)
            check_count("the journal's limit, in bytes,", self.journal_limit)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from error

        self._check_security()
        limit = self.max_gradient_norm
        if limit is not None and limit.action == "reject" and self.shards > 1:
            raise ConfigurationError(
                f"--max-gradient-norm {limit} needs a single shard: one of several knows only its part of a push, and "
                f"a push is applied on all of them or on none; use {replace(limit, action='clip')}"
            )
        if self.checkpoint_dir is None and (self.journal or self.checkpoint_every is not None):
            raise ConfigurationError("--journal and --checkpoint-every need a folder: --checkpoint-dir")
        if self.keep_journal and not self.journal:
            raise ConfigurationError("--keep-journal needs a journal: --journal")

    def _check_security(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError("--tls-cert and --tls-key belong together: give both, or neither")
        if self.client_certificates not in CLIENT_CERTIFICATES:
            raise ConfigurationError(
                f"client_certificates must be one of {', '.join(CLIENT_CERTIFICATES)}, got {self.client_certificates!r}"
            )
        if self.asks_clients and (self.tls_cert is None or self.tls_ca is None):
            raise ConfigurationError(
                "--client-certificates required needs --tls-cert and --tls-key, and the CA of the clients: --tls-ca"
            )
        _ = self.exposure

    @property
    def asks_clients(self) -> bool:
        """True if clients need a certificate."""
        return self.client_certificates == "required"

    @property
    def exposure(self) -> str:
        """The warning about a server that is open to other machines on purpose; "" without one."""
        knows_callers = self.token_file is not None or self.asks_clients
        return check_exposure(
            self.bind, tls=self.tls_cert is not None, knows_callers=knows_callers, insecure=self.insecure
        )

    def job_key(self) -> bytes:
        """The key by which the servers of a job believe each other (`psserver.rpc.identity`).

        That of the token file if it has one, or else `default_key`; the file of the user's key is made if it is needed.
        Raises `ConfigurationError` if a file cannot be used.
        """
        key = None if self.token_file is None else read_tokens(self.token_file).key
        if key is None:
            key = self.default_key
        if key is None:
            key = b"insecure" if self.insecure else user_key(_state_folder())
        return key

    @property
    def storage(self) -> StorageConfig | None:
        """The options of checkpoints and journal; None without a folder for them."""
        if self.checkpoint_dir is None:
            return None
        options = {field.name: getattr(self, field.name) for field in fields(StorageOptions)}
        return StorageConfig(self.checkpoint_dir, **options)

    @property
    def variables_limit(self) -> int:
        """Bytes for variables and slots: half. A push and its answer need about as much as the variables."""
        return self.memory_limit - self.traffic_limit

    @property
    def traffic_limit(self) -> int:
        """Bytes for the data of requests and answers in progress: the other half."""
        return self.memory_limit // 2
