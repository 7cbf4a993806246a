"""psworker ray on a real Ray cluster: several raylets, each in a network namespace of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import Command
from tests.ray.nodes import Nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"
TLS = {"cert": "server.crt", "key": "server.key", "ca": "ca.crt"}
SOFTMAX = str(EXAMPLES / "softmax_mnist.py")
FROM_PYTHON = """
import psworker.ray
from pswire.errors import ConfigurationError
print(psworker.ray.run("train.py", "a", "--b", workers=1, insecure=True, quiet=True, journal=False), flush=True)
try:
    psworker.ray.run("train.py", shard=2)
except ConfigurationError as error:
    print(error)
"""
#: Seconds that no wait for a line comes near to.
BOUND = 90.0


def wait_for(job: Command, *patterns: str) -> list[re.Match[str]]:
    """Waits until each of the patterns is found in the output of the job; the matches."""
    end = time.monotonic() + BOUND
    while True:
        text = "\n".join([*job.out, *job.err])
        found = [re.search(pattern, text) for pattern in patterns]
        if all(found):
            return [one for one in found if one]
        assert time.monotonic() < end, f"no {patterns} in {text}"
        assert job.popen.poll() is None, f"ended without {patterns}: {text}"
        time.sleep(0.05)


def nodes_of(job: Command, process: str) -> list[str]:
    """The addresses of the nodes on which a process was, in this order."""
    return re.findall(rf"^{process} \| psworker: on node (\S+)$", "\n".join(job.err), re.MULTILINE)


def not_on_the_head(nodes: Nodes, job: Command, *processes: str) -> tuple[str, str]:
    """One of the processes that is on another node than the driver, and the address of its node."""
    return next((one, at) for one in processes if (at := nodes_of(job, one)[-1]) != nodes.address(1))


def last_cost(job: Command) -> float:
    return float(re.findall(r"epoch 10: mean cost (\S+)", "\n".join(job.out))[-1])


def ended(job: Command) -> int:
    return job.popen.wait(BOUND)


def test_a_program_trains_unchanged_on_three_nodes_over_tls_with_secrets_in_no_arguments(nodes, tmp_path):
    nodes.add(cpus=2, count=3)
    certs = [sys.executable, "-m", "psserver", "certs", "certs", "--hosts", "ps.internal"]
    subprocess.run(certs, cwd=tmp_path, check=True, capture_output=True)
    tls = ["--tls-name=ps.internal", *(f"--tls-{name}={tmp_path}/certs/{file}" for name, file in TLS.items())]
    job = nodes.psworker("job", "--workers", "2", "--shards", "2", *tls, SOFTMAX, folder=tmp_path)
    wait_for(job, "epoch  1")
    commands = " ".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in nodes.jobs())
    assert commands.count("psserver serve") == commands.count("psworker run") == 2
    assert "token" not in commands
    assert "PRIVATE" not in commands
    servers = re.search(r"servers at (\S+) ", "\n".join(job.err))[1]
    ask = ["-m", "psserver", "status", servers, "--json", f"--tls-ca={tmp_path}/certs/ca.crt", "--tls-name=ps.internal"]
    status = nodes.python("status", *ask, folder=tmp_path)
    assert ended(status) == 0, status.err
    assert '"worker-1"' in "\n".join(status.out)
    subprocess.run([*certs, "--renew"], cwd=tmp_path, check=True, capture_output=True)
    renewed = (tmp_path / "certs" / "server.crt").read_bytes()
    end = time.monotonic() + BOUND
    while [file.read_bytes() for file in nodes.folder.glob("paramserver-*/*/*-server.crt")] != [renewed] * 2:
        assert time.monotonic() < end, "the servers have no renewed certificates"
        time.sleep(0.05)
    assert ended(job) == 0, job.err
    assert "--insecure" not in "\n".join(job.err)
    assert last_cost(job) == pytest.approx(0.3924, abs=0.01)
    assert len({*nodes_of(job, "server-0"), *nodes_of(job, "server-1")}) == 2
    assert [len(nodes_of(job, worker)) for worker in ("worker-0", "worker-1")] == [1, 1]
    assert not list(nodes.folder.glob("paramserver-*/*")), "the files of processes are left"


def test_a_shard_and_a_worker_whose_nodes_die_go_on_elsewhere_and_the_job_ends_as_without(nodes, tmp_path):
    nodes.add(cpus=1, count=5)  # the driver is on the first, which is not killed
    run = ["--insecure", "--workers", "2", "--shards", "2", "--restarts", "3", "--run-dir", str(tmp_path / "run")]
    job = nodes.psworker("job", *run, "--journal", SOFTMAX, folder=tmp_path)
    wait_for(job, r"epoch  2: mean cost")
    shard, victim = not_on_the_head(nodes, job, "server-0", "server-1")
    nodes.add(cpus=1)
    nodes.kill(nodes.number(victim))
    wait_for(
        job, rf"{shard} \| psworker: \S+ was lost with its actor on node {victim}", rf"{shard} \| .*listens again on"
    )
    worker, victim = not_on_the_head(nodes, job, "worker-0", "worker-1")
    nodes.add(cpus=1)
    nodes.kill(nodes.number(victim))
    wait_for(job, rf"{worker} \| psworker: \S+ was lost with its actor on node {victim}")
    assert ended(job) == 0, job.err
    assert last_cost(job) == pytest.approx(0.3924, abs=0.01)
    assert len(set(nodes_of(job, shard))) == 2


def test_workers_without_a_place_are_pending_and_join_on_a_node_that_is_added_and_the_job_ends_without_the_last(
    nodes, tmp_path
):
    nodes.add(cpus=1, count=2)
    program = SOFTMAX, "--epochs", "40"  # which takes longer than to add a node
    job = nodes.psworker("job", "--insecure", "--workers", "3", *program, folder=tmp_path)
    wait_for(job, r"worker-\d \| psworker: pending for 3 s: needs 1 CPUs of a node, and Ray has 0 of 2", "epoch  1")
    added = nodes.address(nodes.add(cpus=1))
    assert ended(job) == 0, job.err
    places = [nodes_of(job, f"worker-{number}") for number in range(3)]
    assert sorted(map(len, places)) == [0, 1, 1]
    assert [added] in places
    assert last_cost(job) == pytest.approx(0.3924, abs=0.01)


def test_the_exit_code_is_that_of_a_program_that_fails(two_nodes, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print('begins'); sys.exit(int(sys.argv[1]))")
    job = two_nodes.psworker("failing", "--insecure", "train.py", "7", folder=tmp_path)
    assert ended(job) == 7
    assert re.search(r"^Error: worker-[01] ended with exit code 7; the others were stopped$", "\n".join(job.err), re.M)


def test_a_program_runs_from_python_and_wrong_options_are_errors(two_nodes, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    (tmp_path / "start.py").write_text(FROM_PYTHON)
    job = two_nodes.python("python", "start.py", folder=tmp_path)
    assert ended(job) == 0, job.err
    assert job.out[:2] == ["worker-0 | ['a', '--b']", "7"]
    assert job.out[2].startswith("No such option '--shard'")


def test_a_lost_shard_ends_the_job_if_there_is_no_run_folder(two_nodes, tmp_path):
    job = two_nodes.psworker("lost", "--insecure", "--restarts", "1", SOFTMAX, folder=tmp_path)
    wait_for(job, "epoch  1")
    (address,) = nodes_of(job, "server-0")
    (server,) = two_nodes.processes(two_nodes.number(address), "psserver serve")
    os.kill(server, signal.SIGKILL)
    assert ended(job) == 128 + signal.SIGKILL
    lost = "server-0 was killed by SIGKILL; the others were stopped. Its state was lost with it: with --run-dir"
    assert lost in "\n".join(job.err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_end_of_the_command_leaves_no_process_on_any_node(two_nodes, tmp_path, number, code):
    job = two_nodes.psworker(f"signal-{code}", "--insecure", "--shards", "2", SOFTMAX, folder=tmp_path)
    wait_for(job, "epoch  1")
    assert len(two_nodes.jobs()) == 4
    job.signal(number)
    assert ended(job) == code
    end = time.monotonic() + BOUND
    while two_nodes.jobs():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_cluster_that_is_not_there_and_servers_that_others_could_reach_are_errors(two_nodes, tmp_path):
    arguments = (("--insecure", "--address", "127.0.0.1:1", SOFTMAX), (SOFTMAX,), ("--address", "ray://h:1", SOFTMAX))
    jobs = [two_nodes.psworker(f"error-{one}", *words, folder=tmp_path) for one, words in enumerate(arguments)]
    assert [ended(job) for job in jobs] == [1, 2, 1]
    assert "Error: cannot connect to a Ray cluster at 127.0.0.1:1: " in "\n".join(jobs[0].err)
    assert "use --insecure" in jobs[1].err[-1]
    assert "use ray job submit" in jobs[2].err[-1]
