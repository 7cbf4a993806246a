"""The job of a cluster as data: program, processes with their commands and environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pswire.addresses import shard_addresses
from pswire.errors import ConfigurationError
from pswire.specs.consistency import Asynchronous, Consistency, IgnoreStaleness, StalenessSpec, Synchronous
from psworker.environment import blas_threads, blas_threads_are_set
from psworker.launch.cluster_security import ClusterSecurity
from psworker.launch.run_folder import RunFolder

#: How often a process that is killed is started again by default.
KILLED_RESTARTS = 5


@dataclass(frozen=True)
class Job:
    """A program, `script` with its arguments, and the cluster that runs it.

    `threads` is the number of BLAS threads of each worker; None: its share of the cores. `debug` makes the workers show
    tracebacks of our errors. `consistency` and `staleness` are the servers'. `worker_options` are options of
    `psworker run`, by name, which workers get in their environment. A worker that fails or is killed is started again
    up to `restarts` times; so is a server if there is a `run_folder` from which it can restore its state. None: one
    that is killed up to `KILLED_RESTARTS` times, and none that fails. `bind` has the address on which each server
    listens, by default a free port of the loopback interface; `security` is what they ask for. `http` is the address of
    the live page; None: there is none. `log_level` and `log_format` are for all processes; "": as each has it by
    default, of servers and the page's process "warning". `guard` is what the convergence guard does: one of
    `psjob.terminal.guard_option.MODES`. `optimizers` is the option of the servers. `direct_port` is that of
    the first server's direct transport, after which come those of the others; 0: free ones; None: no server has one.

    Raises `ConfigurationError` for fewer workers than a synchronous update waits for, and for servers that other
    machines would reach without TLS or tokens.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 2
    shards: int = 1
    threads: int | None = None
    debug: bool = False
    consistency: Consistency = field(default_factory=Asynchronous)
    staleness: StalenessSpec = field(default_factory=IgnoreStaleness)
    worker_options: Mapping[str, object] = field(default_factory=dict)
    restarts: int | None = None
    run_folder: RunFolder | None = None
    bind: tuple[str, ...] = ()
    security: ClusterSecurity = field(default_factory=ClusterSecurity)
    log_level: str = ""
    log_format: str = ""
    http: str | None = None
    guard: str = "warn"
    optimizers: str = ""
    direct_port: int | None = 0

    def __post_init__(self) -> None:
        """Refuse a job that would wait for more workers than it has."""
        consistency = self.consistency
        if isinstance(consistency, Synchronous) and self.workers < consistency.workers:
            raise ConfigurationError(
                f"with --consistency {consistency} each update waits for {consistency.workers} workers, and there "
                f"{'is' if self.workers == 1 else 'are'} {self.workers}: start {consistency.workers} or more, or wait "
                f"for {self.workers}"
            )
        if not self.bind:
            object.__setattr__(self, "bind", shard_addresses("127.0.0.1", self.shards))
        self.security.check(self.bind)
        if self.http is not None:
            self.security.check([self.http])

    @property
    def restart_limit(self) -> int:
        """How often a process is started again at most."""
        return KILLED_RESTARTS if self.restarts is None else self.restarts

    @property
    def worker_names(self) -> list[str]:
        """worker-0, worker-1, ..."""
        return [f"worker-{number}" for number in range(self.workers)]

    @property
    def server_names(self) -> list[str]:
        """server-0, server-1, ... by shard."""
        return [f"server-{shard}" for shard in range(self.shards)]

    @property
    def log_options(self) -> dict[str, str]:
        """The options of logs, by name, that each process gets in its environment."""
        options = {"log_level": self.log_level, "log_format": self.log_format}
        return {name: value for name, value in options.items() if value}

    def server_command(self, shard: int, bind: str) -> list[str]:
        """Module and arguments of a shard that listens on `bind`."""
        port = self.direct_port and self.direct_port + shard
        options = ["--direct-port", "off" if port is None else str(port)]
        options += ["--consistency", str(self.consistency), "--staleness", str(self.staleness)]
        options += ["--no-shared-memory"] * (not self.worker_options.get("shared_memory", True))
        options += self.run_folder.server_options() if self.run_folder else []
        return ["psserver", "serve", "--bind", bind, "--shard", f"{shard}/{self.shards}", *options]

    def monitor_command(self, servers: Sequence[str]) -> list[str]:
        """Module and arguments of the live page."""
        assert self.http is not None
        options = ["--http", self.http, "--guard", "off" if self.guard == "off" else "warn"]
        return ["psserver", "monitor", ",".join(servers), *options, *self.security.page_options(self.http)]

    def worker_command(self, name: str, servers: str, script: str) -> list[str]:
        """Module and arguments of a worker, with the value of `--servers` and the path of the program where it runs."""
        options = ["--servers", servers, "--name", name, "--launched"]
        return ["psworker", *["--debug"] * self.debug, "run", *options, "--", script, *self.arguments]


def child_environment(base: Mapping[str, str], threads: int | None, share: int) -> dict[str, str]:
    """The environment of a child; its BLAS threads are `threads`, or as set by the user, or `share`."""
    environment = {**base, "PYTHONUNBUFFERED": "1"}
    if threads is not None or not blas_threads_are_set(base):
        environment |= blas_threads(threads or share)
    return environment
