"""A Slurm cluster of machines of their own: slurmctld on `head`, and a slurmd on each of some nodes.

Authentication is that of Slurm's tests (auth/none), since nobody else can reach these machines.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.commands import environment
from tests.support.machines import Machine, connect, reason_for_none

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "deploy" / "slurm" / "train.sbatch"

BOUND = 200.0  # seconds that no wait comes near to, also on a busy machine

#: `%n` is the name of a node. Jobs of `urgent` preempt those of `main`, which have 10 s to end and are requeued. No
#: time limit of Slurm's own is so short that a busy machine exceeds it, and a node that was silent comes back.
SLURM_CONF = """
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
SlurmdTimeout=300
ReturnToService=2
MessageTimeout=60
TCPTimeout=10
BatchStartTimeout=60
KillWait=20
SchedulerParameters=sched_interval=1
NodeName={nodes} CPUs=4
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


#: With the daemons, and with our commands.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"


def reason_for_none_of_slurm() -> str:
    """The reason why there can be no cluster here; empty if there can."""
    if any(shutil.which(program, path=PATH) is None for program in ("slurmctld", "slurmd", "sbatch")):
        return "no Slurm: install the Debian packages slurmctld, slurmd and slurm-client"
    return reason_for_none()


class SlurmCluster:
    """A running cluster, with all of its files in `folder`, which all machines share."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        names = ["head", *(f"node{number}" for number in range(1, nodes + 1))]
        addresses = {f"10.77.0.{number}": name for number, name in enumerate(names, start=1)}
        (folder / "state").mkdir()
        hosts, conf = folder / "hosts", folder / "slurm.conf"
        hosts.write_text(
            "".join(f"{address} {name}\n" for address, name in {"127.0.0.1": "localhost", **addresses}.items())
        )
        conf.write_text(SLURM_CONF.format(folder=folder, nodes=",".join(names[1:])))
        env = environment(SLURM_CONF=str(conf), PATH=PATH)
        self.machines: dict[str, Machine] = {}
        try:
            for name in names:
                daemon = ["slurmctld", "-D", "-i"] if name == "head" else ["slurmd", "-D"]
                (folder / f"spool-{name}").mkdir()
                console = folder / f"{name}.console"
                self.machines[name] = Machine(name, *daemon, hosts=hosts, console=console, env=env)
            connect(dict(zip(addresses, self.machines.values(), strict=True)))
            for machine in self.machines.values():
                machine.begin()
            self.wait_for("all nodes", lambda: self.states() == ["idle"] * nodes)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends all machines."""
        for machine in self.machines.values():
            machine.kill()

    def lose(self, name: str) -> None:
        """Takes the power of a node, and tells Slurm what it would find out by itself after SlurmdTimeout."""
        self.machines[name].kill()
        self.command("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost")

    def command(self, *command: str, **changes: str) -> str:
        """The output of a command of Slurm, on the machine `head`, in the folder of the cluster."""
        return self.machines["head"].run("env", f"--chdir={self.folder}", *command, **changes)

    def states(self) -> list[str]:
        """Of the nodes, such as idle."""
        return self.command("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()

    def processes(self) -> list[str]:
        """The command lines of all processes but the daemons of Slurm: those of jobs."""
        commands = [text for machine in self.machines.values() for text in machine.processes().values()]
        return [text for text in commands if text.strip(" :") not in ("slurmctld -D -i", "slurmscriptd", "slurmd -D")]

    def wait_for(self, what: str, good: Callable[[], bool]) -> None:
        end = time.monotonic() + BOUND
        while not good():
            assert time.monotonic() < end, f"no {what}: {self.describe()}"
            time.sleep(0.05)

    def describe(self) -> str:
        """The states of nodes and jobs, and the ends of all logs."""
        states = self.command("sinfo", "--long", "--Node") + self.command("scontrol", "show", "job")
        logs = [*self.folder.glob("*.console"), *self.folder.glob("*.out"), *self.folder.glob("*/logs/*.log")]
        return "\n".join([states, *(f"--- {log}\n{log.read_text()[-3000:]}" for log in logs)])


class Job:
    """One batch job of deploy/slurm/train.sbatch in a run folder of its own."""

    def __init__(
        self, cluster: SlurmCluster, name: str, *arguments: str, options: tuple[str, ...] = (), **settings: str
    ):
        self._cluster, self.folder = cluster, cluster.folder / name
        self.output = cluster.folder / f"{name}.out"
        options = (f"--job-name={name}", f"--output={self.output}", *options)
        submit = ["sbatch", "--parsable", *options, str(TRAIN), *arguments]
        self.id = cluster.command(*submit, RUN_DIR=str(self.folder), **settings).strip()

    def field(self, name: str) -> str:
        """Of `scontrol show job`, such as JobState."""
        return re.search(rf"\b{name}=(\S+)", self._cluster.command("scontrol", "show", "job", self.id))[1]

    @property
    def state(self) -> str:
        return self.field("JobState")

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes, in order."""
        return self._cluster.command("scontrol", "show", "hostnames", self.field("NodeList")).split()

    def log(self, process: str) -> str:
        """The output of a process, such as server-0, so far."""
        log = self.folder / "logs" / f"{process}.log"
        return log.read_text() if log.exists() else ""

    def wait_for(self, what: str, good: Callable[[], bool]) -> None:
        self._cluster.wait_for(what, good)

    def wait_until_over(self) -> str:
        """Its state when it has ended and its nodes are free."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait_for(f"end of job {self.id}", lambda: self.state in over)
        return self.state

    def wait_for_requeue(self) -> None:
        """Waits until it is pending, and has it begin after three seconds, in place of two minutes.

        Nodes refuse a job that begins in the second in which it was requeued: its credential is revoked.
        """
        self.wait_for(f"requeue of job {self.id}", lambda: self.state == "PENDING")
        self._cluster.command("scontrol", "update", f"JobId={self.id}", "StartTime=now+3")
