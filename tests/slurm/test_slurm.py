"""Programs that deploy/slurm/train.sbatch trains on a real Slurm cluster, and what Slurm does to them."""

import os
import re
import signal

import pytest

from tests.slurm.slurm_cluster import ROOT, Job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOFTMAX = str(ROOT / "examples" / "softmax_mnist.py")
#: Of examples/softmax_mnist.py in one process.
EPOCHS, COST = 10, 0.3924

EPOCH = re.compile(r"epoch (\d+) of queue '[^']*' is done: mean cost ([\d.]+) over 55,000 examples")


def epochs(job: Job) -> dict[int, float]:
    """The mean cost of each epoch that is done."""
    return {int(number): float(cost) for number, cost in EPOCH.findall(job.log("server-0"))}


def wait_for_epoch(job: Job, number: int) -> None:
    job.wait_for(f"epoch {number}", lambda: number in epochs(job), 60)


def process(slurm, job: Job, word: str) -> tuple[str, int]:
    """The node and the process id of the server or worker of the job whose command line or environment has the word."""
    for node in job.nodes:
        for pid, command in slurm.machines[node].processes().items():
            if word in command and re.match(r"\S*python\S* \S*ps(server|worker) ", command):
                return node, pid
    raise AssertionError(f"no {word} in {[slurm.machines[node].processes() for node in job.nodes]}")


def test_a_program_trains_to_its_end_while_processes_and_a_node_are_killed_and_the_job_is_requeued(slurm):
    job = Job(slurm, "softmax", SOFTMAX, options=("--nodes=2", "--ntasks=3"), SHARDS="2")
    wait_for_epoch(job, 1)
    node, pid = process(slurm, job, "--shard 1/2")
    assert node == job.nodes[1]
    os.kill(pid, signal.SIGKILL)
    wait_for_epoch(job, 2)
    assert "psserver has ended with exit code 137, and is started again in 1 s" in job.log("server-1")

    slurm.command("scontrol", "requeue", job.id)
    job.wait_for_requeue()
    wait_for_epoch(job, 4)

    _, pid = process(slurm, job, "softmax_mnist.py")
    os.kill(pid, signal.SIGKILL)
    wait_for_epoch(job, 5)

    lost = job.nodes[1]
    slurm.machines[lost].kill()
    job.wait_for_requeue()
    assert job.wait_until_over(120) == "COMPLETED"
    assert lost not in job.nodes
    assert job.field("Restarts") == "2"
    assert job.field("ExitCode") == "0:0"
    found = epochs(job)
    assert list(found) == list(range(1, EPOCHS + 1))
    assert found[EPOCHS] == pytest.approx(COST, abs=0.01)
    starts = [line for shard in (0, 1) for line in job.log(f"server-{shard}").splitlines() if "starts from" in line]
    assert len(starts) == 7
    assert all(line.endswith("nothing is lost") for line in starts)
