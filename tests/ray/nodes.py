"""A real Ray cluster on this machine: each node is a machine of tests with a raylet."""

import os
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.support.commands import Command, environment
from tests.support.machines import Machine, Network, reason_for_none

#: Ray notices within about two seconds that the processes of a node have died, in place of thirty; a busy machine is
#: not taken for a dead one.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
#: The command of a machine, which keeps it.
KEEP = ["sleep", "infinity"]
RAY = str(Path(sys.executable).with_name("ray"))
#: Of each node, whatever this machine has.
CPUS = 2


def missing() -> str:
    """What to install for these tests; "" if nothing is missing."""
    if find_spec("ray") is None:
        return "Ray is not installed: python -m pip install 'paramserver[ray]'"
    return reason_for_none()


def no_job_server() -> str:
    """What to install for the tests of `ray job submit`; "" if nothing is missing."""
    if find_spec("aiohttp_cors") is None:
        return "Ray has no job server: python -m pip install 'paramserver[ray-jobs]'"
    return ""


class Nodes(ExitStack):
    """The nodes by number, from 1; the first one is the head. A context manager, which leaves nothing behind.

    `folder` is that of Ray and for temporary files of all nodes. `commands` ends what a test has started. `settings`
    are environment variables of the nodes, not of commands.
    """

    def __init__(self, logs: Path, **settings: str) -> None:
        super().__init__()
        self.commands = ExitStack()
        self._logs = logs
        self._machines: dict[int, Machine] = {}
        self._killed: set[int] = set()
        self._network: Network | None = None
        self.folder = Path(
            self.enter_context(tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True))
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._settings = {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(self.folder), "PATH": path, **HEALTH}
        self._of_nodes = self._settings | settings
        self._hosts = self.folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")

    @property
    def alive(self) -> int:
        """The number of nodes that were not killed."""
        return len(self._machines) - len(self._killed)

    def grow(self, count: int) -> None:
        """Start nodes, one after the other, until so many are alive."""
        while self.alive < count:
            self.add()

    def add(self) -> int:
        """Start the next node; its number."""
        number = len(self._machines) + 1
        name, env = f"node{number}", environment(**self._of_nodes)
        console = self._logs / f"{name}.console"
        machine = Machine(name, *KEEP, hosts=self._hosts, console=console, env=env)
        self.callback(machine.kill)
        self._machines[number] = machine
        self._network = self._network or Network(machine)
        self._network.add(machine, self.address(number))
        machine.begin()
        where = ["--address", self.head]
        if number == 1:
            dashboard = f"--include-dashboard={str(not no_job_server()).lower()}"
            where = ["--head", "--port", "6379", dashboard, "--temp-dir", str(self.folder)]
        resources = ["--num-cpus", str(CPUS), "--object-store-memory", "80000000"]
        machine.run(RAY, "start", *where, "--node-ip-address", self.address(number), *resources)
        return number

    def address(self, number: int) -> str:
        return f"10.78.0.{number}"

    @property
    def head(self) -> str:
        """Where the cluster is reached."""
        return f"{self.address(1)}:6379"

    def number(self, address: str) -> int:
        """The number of the node with this address."""
        return int(address.rpartition(".")[2])

    def kill(self, number: int) -> None:
        """Kill all processes of a node at once. Its network stays: the others learn it from their connections."""
        self._killed.add(number)
        for pid, command in self._machines[number].processes().items():
            if command.split() != KEEP:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self, number: int, *words: str) -> list[int]:
        """The processes of a node whose command lines have all these words."""
        commands = self._machines[number].processes()
        return [pid for pid, command in commands.items() if all(word in command for word in words)]

    def jobs(self) -> list[int]:
        """The processes of jobs on all nodes: servers and workers."""
        return [pid for number in self._machines for pid in self.processes(number, "processes.py")]

    def psworker(self, *arguments: str, folder: Path, **changes: str) -> Command:
        """`psworker ray ARGUMENTS`, on the head."""
        return self.python("-P", "-m", "psworker", "ray", "--no-shared-memory", *arguments, folder=folder, **changes)

    def ray(self, *arguments: str, folder: Path) -> Command:
        """`ray ARGUMENTS`, on the head."""
        return self.python("-u", "-m", "ray.scripts.scripts", *arguments, folder=folder)

    def python(self, *arguments: str, folder: Path, **changes: str) -> Command:
        """`python ARGUMENTS`, on the head; a process of this machine, which gets signals itself."""
        env = environment(**self._settings, RAY_ADDRESS=self.head, **changes)
        within = self._machines[1].within("--net", "--uts", "--ipc")
        path = folder / f"command-{len(list(folder.glob('command-*.out')))}"
        command = Command(path, *arguments, folder=folder, env=env, within=within)
        self.commands.callback(command.wait)
        self.commands.callback(command.popen.kill)
        return command
