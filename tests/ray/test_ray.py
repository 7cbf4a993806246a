"""psworker ray on a real Ray cluster: several raylets, each in a network namespace of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ray.nodes import CPUS, Nodes, missing, no_job_server
from tests.support.commands import Command, environment, wait_until
from tests.support.sessions_program import PROGRAM, expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
SOFTMAX = str(ROOT / "examples" / "softmax_mnist.py")
PYTORCH = str(ROOT / "examples" / "pytorch" / "mnist.py")
TLS = {"cert": "server.crt", "key": "server.key", "ca": "ca.crt"}
#: Trains until so many workers have joined.
UNTIL_JOINED = """
import sys
import tempfile
from pathlib import Path

import psworker as ps

folder, workers = Path(sys.argv[1]), int(sys.argv[2])
x = ps.Variable(10.0, name="x")
optimizer = ps.GradientDescent(learning_rate=0.1)
with ps.session() as session:
    tempfile.mkstemp(prefix="joined-", dir=folder)
    print("begins", flush=True)
    while len(list(folder.glob("joined-*"))) < workers:
        optimizer.minimize(0.5 * x**2)
print("ends at step", session.global_step)
"""
FROM_PYTHON = """
import psworker.ray
from pswire.errors import ConfigurationError
print(psworker.ray.run("train.py", "a", "--b", workers=1, insecure=True, quiet=True, journal=False), flush=True)
try:
    psworker.ray.run("train.py", shard=2)
except ConfigurationError as error:
    print(error)
"""


#: A token of Ray.
TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def one_node(tmp_path):
    """A cluster that is one machine, as after `ray start --head`, and asks for Ray's token."""
    if what := missing():
        pytest.skip(what)
    with Nodes(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as nodes:
        nodes.add()
        with nodes.commands:
            yield nodes


@pytest.fixture
def until_joined(tmp_path):
    """A program that trains until so many workers have joined, as words of a command; by default it does not end."""
    (tmp_path / "train.py").write_text(UNTIL_JOINED)
    return lambda workers=1000: ("train.py", str(tmp_path), str(workers))


def test_without_more_a_job_runs_where_the_cluster_is_this_machine_with_the_token_of_its_user(
    one_node, until_joined, tmp_path
):
    refused = one_node.psworker("--workers", "1", *until_joined(1), folder=tmp_path)
    job = one_node.psworker("--workers", "1", *until_joined(1), folder=tmp_path, RAY_AUTH_TOKEN=TOKEN)
    assert job.wait() == 0, job.err
    assert f"psworker: Ray at {one_node.head}, named by RAY_ADDRESS" in job.err
    assert refused.wait() == 1
    assert "does not take this connection" in refused.err[-1]
    assert "name its token by RAY_AUTH_TOKEN" in refused.err[-1]
    assert any("ends at step" in line for line in job.out), job.out
    assert nodes_of(job, "server-0") == nodes_of(job, "worker-0") == [one_node.address(1)]


def test_without_a_cluster_one_is_started_on_this_machine_with_room_for_the_job_and_ends_with_it(
    until_joined, tmp_path
):
    if find_spec("ray") is None:
        pytest.skip(missing())
    with tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True) as folder:  # sockets: a short path
        env = environment(HOME=folder, RAY_TMPDIR=folder, RAY_ADDRESS="", RAY_USAGE_STATS_ENABLED="0")
        words = "-P", "-m", "psworker", "ray", "--no-shared-memory", "--workers", "3", *until_joined(3)
        job = Command(tmp_path / "local", *words, folder=tmp_path, env=env)
        try:
            assert job.wait(200.0) == 0, job.err
        finally:
            job.popen.kill()
        wait_until(lambda: not [one for one in Path("/proc").glob("[0-9]*/cmdline") if folder in read(one)])
    (line,) = [line for line in job.err if "a new local Ray with" in line]
    assert int(re.search(r"with (\d+) CPUs", line)[1]) >= 4
    assert "none that you have started runs here" in line


def read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""


@pytest.mark.exhaustive
def test_without_more_a_job_on_several_nodes_says_what_they_need(nodes, until_joined, tmp_path):
    job = nodes.psworker("--workers", "1", *until_joined(1), folder=tmp_path)
    assert job.wait() == 1
    said = " ".join(job.err)
    assert f"the Ray cluster has {nodes.alive} nodes" in said
    assert "--tls-cert" in said
    assert "--insecure" in said
    assert "0.0.0.0" not in said


def wait_for(job: Command, *patterns: str) -> list[re.Match[str]]:
    """Waits until each of the patterns is found in the output of the job; the matches."""

    def matches():
        ended = job.popen.poll() is not None
        text = "\n".join([*job.out, *job.err])
        found = [re.search(pattern, text) for pattern in patterns]
        assert all(found) or not ended, f"ended without {patterns}: {text}"
        return found if all(found) else None

    return wait_until(matches, lambda: f"no {patterns} in {job.out} {job.err}")


def nodes_of(job: Command, process: str) -> list[str]:
    """The addresses of the nodes on which a process was, in this order."""
    return re.findall(rf"^{process} \| psworker: on node (\S+)$", "\n".join([*job.out, *job.err]), re.MULTILINE)


def not_on_the_head(nodes: Nodes, job: Command, *processes: str) -> tuple[str, str]:
    """One of the processes that is on another node than the driver, and the address of its node."""
    return next((one, at) for one in processes if (at := nodes_of(job, one)[-1]) != nodes.address(1))


def last_cost(job: Command, epoch: int = 10) -> float:
    return float(re.findall(rf"epoch {epoch:2d}: mean cost (\S+)", "\n".join(job.out))[-1])


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_program_of_pytorch_trains_unchanged_on_two_nodes(nodes, tmp_path):
    job = nodes.psworker("--workers", "2", "--shards", "2", "--insecure", PYTORCH, "--epochs", "1", folder=tmp_path)
    assert job.wait(200.0) == 0, job.err
    accuracies = [float(one) for one in re.findall(r"epoch 1: test accuracy (\S+)", "\n".join(job.out))]
    assert len(accuracies) == 2
    assert min(accuracies) > 0.95
    assert len({*nodes_of(job, "worker-0"), *nodes_of(job, "worker-1")}) == 2


def test_a_program_trains_unchanged_on_three_nodes_over_tls_with_secrets_in_no_arguments(nodes, tmp_path):
    nodes.grow(3)
    certs = [sys.executable, "-m", "psserver", "certs", "certs", "--hosts", "ps.internal"]
    subprocess.run(certs, cwd=tmp_path, check=True, capture_output=True)
    tls = ["--tls-name=ps.internal", *(f"--tls-{name}={tmp_path}/certs/{file}" for name, file in TLS.items())]
    job = nodes.psworker("--workers", "2", "--shards", "2", *tls, SOFTMAX, "--epochs", "5", folder=tmp_path)
    wait_for(job, "epoch  1")
    commands = " ".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in nodes.jobs())
    assert commands.count("psserver serve") == commands.count("psworker run") == 2
    assert "token" not in commands
    assert "PRIVATE" not in commands
    servers = re.search(r"servers at (\S+) ", "\n".join(job.err))[1]
    ask = ["-m", "psserver", "status", servers, "--json", f"--tls-ca={tmp_path}/certs/ca.crt", "--tls-name=ps.internal"]
    status = nodes.python(*ask, folder=tmp_path)
    assert status.wait() == 0, status.err
    assert '"worker-1"' in "\n".join(status.out)
    subprocess.run([*certs, "--renew"], cwd=tmp_path, check=True, capture_output=True)
    renewed = (tmp_path / "certs" / "server.crt").read_bytes()
    copies = partial(nodes.folder.glob, "paramserver-*/*/*-server.crt")
    wait_until(lambda: [file.read_bytes() for file in copies()] == [renewed] * 2, lambda: [*copies()])
    assert job.wait() == 0, job.err
    assert "--insecure" not in "\n".join(job.err)
    assert last_cost(job, epoch=5) == pytest.approx(0.4654, abs=0.01)
    assert len({*nodes_of(job, "server-0"), *nodes_of(job, "server-1")}) == 2
    assert [len(nodes_of(job, worker)) for worker in ("worker-0", "worker-1")] == [1, 1]
    assert not list(copies()), "the files of processes are left"


@pytest.mark.timeout(480)  # beside other tests Ray starts its actors slowly
def test_a_shard_and_a_worker_whose_nodes_die_go_on_elsewhere_and_the_job_ends_as_without(nodes, tmp_path):
    nodes.grow(6)  # a node for each process, and two more; the driver is on the first, which is not killed
    whole = "--cpus", str(CPUS), "--server-cpus", str(CPUS)
    run = "--insecure", "--workers", "2", "--shards", "2", "--restarts", "3", "--run-dir", str(tmp_path / "run")
    job = nodes.psworker(*whole, *run, "--journal", SOFTMAX, folder=tmp_path)
    wait_for(job, r"epoch  2: mean cost")
    shard, its_node = not_on_the_head(nodes, job, "server-0", "server-1")
    worker, worker_node = not_on_the_head(nodes, job, "worker-0", "worker-1")
    nodes.kill(nodes.number(its_node))
    wait_for(job, rf"{shard} \| psworker: \S+ was lost with its actor on node {its_node}")
    nodes.kill(nodes.number(worker_node))  # while the job waits for the shard, and so cannot end
    wait_for(
        job,
        rf"{worker} \| psworker: \S+ was lost with its actor on node {worker_node}",
        rf"{shard} \| .*listens again on",
    )
    assert job.wait(240.0) == 0, job.err
    assert last_cost(job) == pytest.approx(0.3924, abs=0.01)
    assert len(set(nodes_of(job, shard))) == 2


@pytest.mark.exhaustive
def test_workers_without_a_place_are_pending_and_join_on_a_node_that_is_added_and_the_job_ends_without_the_last(
    nodes, tmp_path, until_joined
):
    places = nodes.alive - 1  # of workers that need a whole node: the server takes a part of one
    workers = ["--workers", str(places + 2), "--cpus", str(CPUS)]
    job = nodes.psworker("--insecure", *workers, *until_joined(places + 1), folder=tmp_path)
    free = rf"{CPUS - 1} of {CPUS * nodes.alive} CPUs of the cluster are free"
    wait_for(
        job,
        r"worker-\d \| begins",
        rf"worker-\d \| psworker: pending for \d+ s: it needs 2 CPUs of one node, and {free}",
    )
    added = nodes.address(nodes.add())
    assert job.wait() == 0, job.err
    found = [nodes_of(job, f"worker-{number}") for number in range(places + 2)]
    assert sorted(map(len, found)) == [0, *[1] * (places + 1)]
    assert [added] in found


@pytest.mark.parametrize("kind", ["sweep", "steps"])
@pytest.mark.exhaustive
def test_each_session_of_a_program_is_a_job_of_its_own(nodes, tmp_path, kind):
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    job = nodes.psworker("--insecure", "--shards", "2", "train.py", kind, "2", folder=tmp_path)
    assert job.wait() == 0, job.err
    results = [line for line in job.out if line.endswith(expected(kind, 2))]
    assert sorted(results) == [f"worker-{number} | {expected(kind, 2)}" for number in (0, 1)], job.out


def test_the_exit_code_is_that_of_a_program_that_fails(nodes, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print('begins'); sys.exit(int(sys.argv[1]))")
    job = nodes.psworker("--insecure", "train.py", "7", folder=tmp_path)
    assert job.wait() == 7
    assert re.search(r"^Error: worker-[01] ended with exit code 7; the others were stopped$", "\n".join(job.err), re.M)


def test_a_program_runs_from_python_and_wrong_options_are_errors(nodes, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    (tmp_path / "start.py").write_text(FROM_PYTHON)
    job = nodes.python("start.py", folder=tmp_path)
    assert job.wait() == 0, job.err
    assert job.out[:2] == ["worker-0 | ['a', '--b']", "7"]
    assert job.out[2].startswith("No such option '--shard'")


def test_a_lost_shard_ends_the_job_if_there_is_no_run_folder(nodes, tmp_path, until_joined):
    job = nodes.psworker("--insecure", "--restarts", "1", *until_joined(), folder=tmp_path)
    wait_for(job, "begins")
    (address,) = nodes_of(job, "server-0")
    (server,) = nodes.processes(nodes.number(address), "psserver serve")
    os.kill(server, signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    lost = "server-0 was killed by SIGKILL; the others were stopped. Its state was lost with it: with --run-dir"
    assert lost in "\n".join(job.err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_end_of_the_command_leaves_no_process_on_any_node(nodes, tmp_path, until_joined, number, code):
    job = nodes.psworker("--insecure", "--shards", "2", *until_joined(), folder=tmp_path)
    wait_for(job, "worker-0 . begins", "worker-1 . begins")
    assert len(nodes.jobs()) == 4
    job.signal(number)
    assert job.wait() == code
    wait_until(lambda: not nodes.jobs(), nodes.jobs)


@pytest.mark.exhaustive
def test_a_job_for_whose_shards_there_is_no_room_says_so_and_can_be_stopped(nodes, tmp_path, until_joined):
    job = nodes.psworker("--insecure", "--shards", "2", "--server-cpus", "99", *until_joined(), folder=tmp_path)
    wait_for(job, r"server-\d \| psworker: pending for \d+ s: the shards need 2 x 99 CPUs, and \d+ of \d+ CPUs")
    assert job.end()[0] == 128 + signal.SIGTERM
    said = "\n".join([*job.out, *job.err])
    assert "SIGTERM" not in said, "Ray has ended the process"
    assert "to be killed" not in said, "the processes did not end"


def submit(nodes: Nodes, name: str, logs: Path, folder: Path, *command: str, **variables: str) -> Command:
    """`ray job submit` of a command that runs in the folder; it ends with the job."""
    environment = json.dumps({"env_vars": variables})
    options = ["--submission-id", name, "--working-dir", str(folder), "--runtime-env-json", environment]
    return nodes.ray("job", "submit", *options, "--", *command, folder=logs)


def test_a_submitted_job_trains_on_the_data_that_its_environment_names(nodes, tmp_path):
    if reason := no_job_server():
        pytest.skip(reason)
    nodes.grow(3)
    train = "psworker", "ray", "--insecure", "--workers", "2", "--shards", "2", "softmax_mnist.py"
    job = submit(nodes, "trains", tmp_path, Path(SOFTMAX).parent, *train, PARAMSERVER_DATA=str(ROOT / "datasets"))
    assert job.wait() == 0, job.out
    assert last_cost(job) == pytest.approx(0.3924, abs=0.01)
    assert len({*nodes_of(job, "server-0"), *nodes_of(job, "server-1")}) == 2


@pytest.mark.exhaustive
def test_ray_job_stop_ends_servers_after_their_last_checkpoint_and_leaves_no_process(nodes, tmp_path, until_joined):
    if reason := no_job_server():
        pytest.skip(reason)
    train = "psworker", "ray", "--insecure", "--shards", "2", "--run-dir", str(tmp_path / "run"), *until_joined()
    program = tmp_path / "program"
    program.mkdir()
    (tmp_path / "train.py").rename(program / "train.py")
    job = submit(nodes, "stopped", tmp_path, program, *train, RAY_JOB_STOP_WAIT_TIME_S="330")
    wait_for(job, "worker-0 . begins", "worker-1 . begins")
    stop = nodes.ray("job", "stop", "stopped", folder=tmp_path)
    assert stop.wait() == 0, stop.out
    assert not nodes.jobs()
    logs = [(tmp_path / "run" / "logs" / f"server-{shard}.log").read_text() for shard in range(2)]
    assert all(re.search(r"^psserver: .* stopped at global step ", log, re.MULTILINE) for log in logs), logs


def test_a_cluster_that_is_not_there_and_an_address_of_ray_client_are_errors(nodes, tmp_path):
    arguments = (("--insecure", "--address", "127.0.0.1:1", SOFTMAX), ("--address", "ray://h:1", SOFTMAX))
    jobs = [nodes.psworker(*words, folder=tmp_path) for words in arguments]
    assert [job.wait() for job in jobs] == [1, 1]
    assert "Error: cannot connect to a Ray cluster at 127.0.0.1:1 (--address): " in "\n".join(jobs[0].err)
    assert "use ray job submit" in jobs[1].err[-1]
