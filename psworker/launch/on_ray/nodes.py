"""The nodes of a Ray cluster, on which the processes of a job run as children of actors.

Ray places the actors: the servers' in a placement group, spread over the nodes, and each worker's where there is room.
They are not detached, so Ray ends them when this process ends. Ray transports our calls of them, with pickle.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from pswire.errors import ConfigurationError
from pswire.security.local_tokens import private_folder
from pswire.security.private_files import write_private_file
from pswire.system.host import cores
from psworker import environment
from psworker.launch.machines import JobProcess, OnEnd, OnLines, Place, Start
from psworker.launch.on_ray.actor import SERVERS, ProcessActor
from psworker.launch.on_ray.address import AUTO, LOCAL, check_ray_address, find_ray
from psworker.launch.on_ray.process import RayProcess, Shared, one_line

#: Seconds for which workers try to reach a server, unless their environment has others: Ray may need as long to notice
#: that a node has died, and to give a shard another.
WORKER_TIMEOUT = 300
#: Calls of an actor at the same time: output is read, a signal is sent.
_CALLS = 4


@dataclass(frozen=True)
class RayOptions:
    """The resources of a job on a Ray cluster at `address`: CPUs of each worker and of each server.

    `address` is as of `psworker.launch.on_ray.address.find_ray`; a new cluster has CPUs for all `workers` and servers.

    `working_dir` is the folder that Ray copies to each node, where the workers run; None: nodes have the program where
    this machine has it. `timeout` is in seconds: for a place for all shards, and for them to answer. With
    `this_machine` all processes run on this one, which must be the only node of the cluster. Raises
    `ConfigurationError` for an address that is none of a node.
    """

    address: str = AUTO
    workers: int = 1
    cpus: int = 1
    server_cpus: float = 1.0
    working_dir: Path | None = None
    timeout: float = 300.0
    this_machine: bool = False

    def __post_init__(self) -> None:
        """Refuse an address that is none of a node."""
        check_ray_address(self.address)


class RayNodes:
    """The nodes of a Ray cluster (`psworker.launch.machines.Machines`) for a job with these servers.

    `settings` are environment variables that all processes get. Uses the connection to Ray that this process has, or
    else has one while it is entered. Entering it raises `ConfigurationError` if a cluster that is named does not
    answer, or does not take the job.
    """

    def __init__(self, servers: Sequence[str], options: RayOptions, settings: Mapping[str, str]) -> None:
        self.start_timeout, self.where = options.timeout, "Ray as this process has connected to it"
        self._names, self._options = list(servers), options
        self._shared = Shared({"PSWORKER_TIMEOUT": str(WORKER_TIMEOUT), **settings})
        self._stack = ExitStack()
        self._processes: list[RayProcess] = []
        self._group: Any = None
        self._node = ""  # the id of the only one; "": any

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._connect(stack)
            if self._options.this_machine:
                self._node = _only_node()
            self._folder = stack.enter_context(private_folder())
            if not self._node:
                cpus = {"CPU": self._options.server_cpus}
                self._group = placement_group([cpus] * len(self._names), strategy="SPREAD")
                stack.callback(remove_placement_group, self._group)
            stack.callback(self._end_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, start: Callable[[Place], Start], on_lines: OnLines, on_end: OnEnd) -> JobProcess:
        """Start a process, as soon as a node has room for it: a server in the place of its shard."""
        cpus, count = self._options.server_cpus, len(self._names)
        options: dict[str, Any] = {"max_restarts": 0, "max_concurrency": _CALLS}
        if name in self._names:
            needs = f"the shards need {count} x {_cpus(cpus)}"
            if self._group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, self._names.index(name))
        else:
            cpus = self._options.cpus
            needs = f"it needs {_cpus(cpus)} of one node"
        if self._node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self._node, soft=False)
        actor = ray.remote(ProcessActor).options(num_cpus=cpus, **options).remote()
        process = RayProcess(name, actor, self._shared, start, on_lines, on_end, needs)
        self._processes = [one for one in self._processes if one.code is None]
        self._processes.append(process)
        return process

    def publish(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Write where the servers are to a file of this process; each actor learns it with the next request."""
        self._shared.servers = "".join(f"{address}\n" for address in addresses)
        write_private_file(self._folder / SERVERS, self._shared.servers.encode())
        return (f"file:{self._folder / SERVERS}",)

    def _connect(self, stack: ExitStack) -> None:
        if ray.is_initialized():
            return
        stack.callback(ray.shutdown)
        folder, found = self._options.working_dir, find_ray(self._options.address)
        environment = None if folder is None else {"working_dir": str(folder)}
        self._shared.working_dir = folder
        options: dict[str, Any] = {"runtime_env": environment, "log_to_driver": False, "logging_level": "ERROR"}
        try:
            if found.address == LOCAL:
                cpus = max(cores(), self._needed_cpus())
                ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, **options)
                self.where = f"a new local Ray with {_cpus(cpus)}, for this job alone ({found.reason})"
                return
            ray.init(address=found.address, **options)
            self.where = f"Ray at {found.address}, {found.reason}"
        except ConnectionError as error:  # its address has answered
            raise ConfigurationError(
                f"the Ray cluster at {found.address}, {found.reason}, does not take this connection: {one_line(error)}."
                " If the cluster has token authentication, name its token by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or "
                "copy the file ~/.ray/auth_token"
            ) from error
        except (OSError, ValueError, RuntimeError, RayError) as error:  # another version, a folder that is too large
            raise ConfigurationError(
                f"the Ray cluster at {found.address}, {found.reason}, does not take this job: {one_line(error)}"
            ) from error

    def _needed_cpus(self) -> int:
        options = self._options
        return math.ceil(options.workers * options.cpus + len(self._names) * options.server_cpus)

    def _end_all(self) -> None:
        for process in self._processes:
            process.abandon()


def _only_node() -> str:
    """The id of this node. Raises `ConfigurationError` if the cluster has others."""
    if (count := sum(one["Alive"] for one in ray.nodes())) > 1:
        raise ConfigurationError(
            f"the Ray cluster has {count} nodes, and servers that other machines reach need --tls-cert, --tls-key and "
            "--tls-ca (psserver certs makes the files); or, in a network that you trust, --insecure"
        )
    return str(ray.get_runtime_context().get_node_id())


def working_folder(script: str, given: str | None) -> Path | None:
    """The folder that Ray copies to the nodes: `given`, or the program's; None in a job that was submitted with one.

    Raises `ConfigurationError` if the program is not in it, or if there would be two.
    """
    if environment.submitted_with_folder():
        if given:
            raise ConfigurationError(
                f"--working-dir {given}: the nodes have the folder that was given to ray job submit: leave one out"
            )
        return None
    folder = Path(given or Path(script).parent).resolve()
    if not Path(script).resolve().is_relative_to(folder):
        raise ConfigurationError(f"{script} is not in --working-dir {folder}, which Ray copies to the nodes")
    return folder


def _cpus(count: float) -> str:
    return f"{count:g} CPU{'s' * (count != 1)}"
