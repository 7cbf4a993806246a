"""A real Ray cluster on this machine: a raylet in each of several network namespaces, which a bridge connects."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.commands import Command, environment

#: Seconds for Ray to start, and for a command in a namespace.
TIMEOUT = 60.0
#: Ray notices within about two seconds that a node has died, in place of thirty.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def missing() -> str:
    """What to install for these tests; "" if nothing is missing."""
    if find_spec("ray") is None:
        return "Ray is not installed: python -m pip install 'paramserver[ray]'"
    if shutil.which("ip") is None:
        return "ip is not installed: apt-get install iproute2"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return "this process may make no network namespaces"
    return ""


def _run(*command: str, **changes: str) -> str:
    env = environment(**changes)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=env)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Nodes(ExitStack):
    """The nodes by number, from 1; the first one is the head. A context manager, which leaves nothing behind.

    `folder` is that of Ray and for temporary files of all nodes.
    """

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs, self._started = logs, 0
        self._prefix = f"ps{os.getpid()}"
        self._network = f"10.{os.getpid() // 200 % 200 + 20}.{os.getpid() % 200}"
        self.folder = Path(
            self.enter_context(tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True))
        )
        self._settings = {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(self.folder), **HEALTH}
        switch = self._namespace("switch")
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")

    def add(self, cpus: int) -> int:
        """Start the next node; its number."""
        number = self._started = self._started + 1
        name, port = self._namespace(number), f"port{number}"
        _run(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            name,
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            self._of("switch"),
        )
        _run("ip", "-n", self._of("switch"), "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run("ip", "-n", name, "link", "set", device, "up")
        where = ["--address", self.head]
        if number == 1:
            where = ["--head", "--port", "6379", "--include-dashboard=false", "--temp-dir", str(self.folder)]
        ray = [str(Path(sys.executable).with_name("ray")), "start", *where, "--node-ip-address", self.address(number)]
        _run(
            "ip",
            "netns",
            "exec",
            name,
            *ray,
            "--num-cpus",
            str(cpus),
            "--object-store-memory",
            "80000000",
            **self._settings,
        )
        return number

    def address(self, number: int) -> str:
        return f"{self._network}.{number}"

    @property
    def head(self) -> str:
        """Where the cluster is reached."""
        return f"{self.address(1)}:6379"

    def number(self, address: str) -> int:
        """The number of the node with this address."""
        return int(address.rpartition(".")[2])

    def kill(self, number: int | str) -> None:
        """Kill all processes of a node at once."""
        for pid in self.processes(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, number: int | str, *words: str) -> list[int]:
        """The processes of a node whose command lines have all these words."""
        found = []
        for pid in map(int, _run("ip", "netns", "pids", self._of(number)).split()):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                if all(word in command for word in words):
                    found.append(pid)
        return found

    def jobs(self) -> list[int]:
        """The processes of jobs on all nodes: servers and workers."""
        return [pid for number in range(1, self._started + 1) for pid in self.processes(number, "processes.py")]

    def psworker(self, name: str, *arguments: str, folder: Path, **changes: str) -> Command:
        """`psworker ray ARGUMENTS`, on the head."""
        return self.python(
            name, "-P", "-m", "psworker", "ray", "--no-shared-memory", *arguments, folder=folder, **changes
        )

    def python(self, name: str, *arguments: str, folder: Path, **changes: str) -> Command:
        """`python ARGUMENTS`, on the head."""
        changes |= {"RAY_ADDRESS": self.head}
        return Command(
            self._logs / name,
            *arguments,
            folder=folder,
            env=environment(**self._settings, **changes),
            within=["ip", "netns", "exec", self._of(1)],
        )

    def _of(self, number: int | str) -> str:
        return f"{self._prefix}-{number}"

    def _namespace(self, number: int | str) -> str:
        _run("ip", "netns", "add", self._of(number))
        self.callback(_run, "ip", "netns", "delete", self._of(number))
        self.callback(self.kill, number)
        return self._of(number)
