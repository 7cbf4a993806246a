"""Machines of a test: namespaces of this one, each with its network interface, host name, processes and /dev/shm.

A killed machine has lost its power: no process of it is left, and no connection is closed. All have the same files.
Needs root. Nothing outlives the process that starts them.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.commands import BOUND

NAMESPACES = ["--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]

#: Process 1 of a machine, with its name and a file for /etc/hosts: begins when its network is there.
INIT = """
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs none /dev/shm
ip link set lo up
read -r _
exec < /dev/null
shift 2
"$@" &
wait
"""


def reason_for_none() -> str:
    """The reason why this process cannot make machines; empty if it can."""
    if any(shutil.which(program) is None for program in ("unshare", "nsenter", "setpriv", "ip")):
        return "machines of tests need the Debian packages util-linux and iproute2"
    if subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True).returncode:
        return "machines of tests need root, and the right to make namespaces"
    return ""


class Machine:
    """A machine that runs one command; its output goes to the file `console`."""

    def __init__(self, name: str, *command: str, hosts: Path, console: Path, env: Mapping[str, str]) -> None:
        self.name, self._env = name, env
        init = ["bash", "-c", INIT, "init", name, str(hosts), *command]
        with console.open("ab") as output:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--", *init],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        self.pid = self._first_process()

    def _first_process(self) -> int:
        """The process id, outside, of process 1."""
        children = Path(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children")
        end = time.monotonic() + BOUND
        while not (found := children.read_text().split()):
            assert self._popen.poll() is None, f"machine {self.name} has not started"
            assert time.monotonic() < end, f"machine {self.name} has not started"
            time.sleep(0.01)
        return int(found[0])

    def begin(self) -> None:
        """Lets the command begin."""
        with self._popen.stdin as stdin:
            stdin.write(b"\n")

    def within(self, *namespaces: str) -> list[str]:
        """The beginning of a command in namespaces of this machine; without --pid it is the process itself."""
        return ["nsenter", "--target", str(self.pid), *namespaces, "--"]

    def run(self, *command: str, namespaces: tuple[str, ...] = ("--all",), **changes: str) -> str:
        """The output of a command in namespaces of this machine."""
        nsenter = [*self.within(*namespaces), *command]
        ended = subprocess.run(nsenter, env={**self._env, **changes}, capture_output=True, text=True, timeout=BOUND)
        assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
        return ended.stdout

    def processes(self) -> dict[int, str]:
        """The living processes but process 1: command lines by process id outside. A killed machine has none."""
        if self._popen.poll() is not None:
            return {}
        found = {}
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for entry in filter(lambda path: path.name.isdigit(), Path("/proc").iterdir()):
            try:
                if os.readlink(entry / "ns" / "pid") == own and int(entry.name) != self.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it has ended
        return found

    def kill(self) -> None:
        """Ends it with all its processes, as a loss of power does."""
        self._popen.stdin.close()
        if self._popen.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._popen.wait(BOUND)


class Network:
    """The network of some machines, whose switch is on one of them: without it nobody is reached."""

    def __init__(self, switch: Machine) -> None:
        self._switch, self._ports = switch, 0
        _ip(switch, "link", "add", "switch", "type", "bridge")
        # Its machine alone answers for an address. The switch would too, with its own hardware address, which changes
        # when a machine joins that has a lower one: then nobody reaches the first machine for half a minute.
        _ip(switch, "link", "set", "switch", "arp", "off", "up")

    def add(self, machine: Machine, address: str) -> None:
        """Gives a machine its address."""
        port, self._ports = f"port{self._ports}", self._ports + 1
        _ip(self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(machine.pid))
        _ip(self._switch, "link", "set", port, "master", "switch", "up")
        _ip(machine, "address", "add", f"{address}/24", "dev", "eth0")
        _ip(machine, "link", "set", "eth0", "up")


def connect(machines: Mapping[str, Machine]) -> None:
    """Gives the machines their addresses, in one network, whose switch is on the first of them."""
    network = Network(next(iter(machines.values())))
    for address, machine in machines.items():
        network.add(machine, address)


def _ip(machine: Machine, *arguments: str) -> None:
    machine.run("ip", *arguments, namespaces=("--net",))
