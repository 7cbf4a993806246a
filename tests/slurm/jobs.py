"""Programs that deploy/slurm/train.sbatch trains on a real Slurm cluster, and what Slurm does to them."""

import json
import os
import re
import signal
import sys
import textwrap
from datetime import datetime

import pytest

from tests.compose.event_log import COST, EPOCHS, EXAMPLES, notes
from tests.compose.event_log import Event as LogEvent
from tests.slurm.slurm_cluster import ROOT, Job
from tests.slurm.transcript import Event, table
from tests.support.combinations import few_fast
from tests.support.sessions_program import FIRST_LIFE, HELD, LATER_LIFE, PROGRAM, expected, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOFTMAX = str(ROOT / "examples" / "softmax_mnist.py")


def epochs(job: Job) -> dict[int, float]:
    """The mean cost of each epoch that is done with all examples."""
    found = notes(LogEvent(0.0, "server-0", line) for line in job.log("server-0").splitlines())["epochs"]
    return {epoch: cost for epoch, cost, examples in found if examples == EXAMPLES}


def accuracies(job: Job) -> list[str]:
    """Those that workers have printed at their ends."""
    return re.findall(r"test accuracy: .*", job.log("worker-0") + job.log("worker-1"))


def wait_for_epoch(job: Job, number: int) -> None:
    job.wait_for(f"epoch {number}", lambda: number in epochs(job))


def process(slurm, job: Job, word: str) -> tuple[str, int]:
    """The node and the process id of the server or worker of the job whose command line or environment has the word."""
    for node in job.nodes:
        for pid, command in slurm.machines[node].processes().items():
            if word in command and re.match(r"\S*python\S* \S*ps(server|worker) ", command):
                return node, pid
    raise AssertionError(f"no {word} in {[slurm.machines[node].processes() for node in job.nodes]}")


def test_a_program_trains_to_its_end_while_processes_and_a_node_are_killed_and_the_job_is_requeued(slurm):
    done = []

    def note(who, what):
        done.append(Event(datetime.now(), who, what))

    note("job", "`sbatch`: two shards and three workers on two nodes")
    job = Job(slurm, "softmax", SOFTMAX, options=("--nodes=2", "--ntasks=3"), SHARDS="2")
    wait_for_epoch(job, 1)
    node, pid = process(slurm, job, "--shard 1/2")
    assert node == job.nodes[1]
    note("server-1", "`kill -9`")
    os.kill(pid, signal.SIGKILL)
    wait_for_epoch(job, 2)
    assert "psserver has ended with exit code 137, and is started again in 1 s" in job.log("server-1")

    note("job", "`scontrol requeue`")
    slurm.command("scontrol", "requeue", job.id)
    job.wait_for_requeue()
    wait_for_epoch(job, 4)

    node, pid = process(slurm, job, "softmax_mnist.py")
    note(f"a worker on {node}", "`kill -9`")
    os.kill(pid, signal.SIGKILL)
    wait_for_epoch(job, 5)

    lost = job.nodes[1]
    note(lost, "loses its power")
    slurm.lose(lost)
    job.wait_for_requeue()
    note("job", f"is pending again: Slurm knows of the loss of {lost}")
    assert job.wait_until_over() == "COMPLETED"
    note("job", f"COMPLETED, exit code {job.field('ExitCode')}, on {', '.join(job.nodes)}")
    sys.stdout.write(f"\n{table(done, job.output, job.folder)}\n")  # for docs/deploy/slurm.md: pytest --capture=no

    assert lost not in job.nodes
    assert (job.field("Restarts"), job.field("ExitCode")) == ("2", "0:0")
    found = epochs(job)
    assert list(found) == list(range(1, EPOCHS + 1))
    assert found[EPOCHS] == pytest.approx(COST, abs=0.01)
    starts = [line for shard in (0, 1) for line in job.log(f"server-{shard}").splitlines() if "starts from" in line]
    assert len(starts) == 7
    assert all(line.endswith("nothing is lost") or "torn record" in line for line in starts)


def test_the_exit_code_of_a_program_that_fails_is_that_of_the_job(slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import psworker as ps, sys\nwith ps.session(): sys.exit(37)")
    job = Job(slurm, "failing", str(script), RESTARTS="1")
    assert job.wait_until_over() == "FAILED"
    assert job.field("ExitCode") == "37:0"
    assert "psworker has ended with exit code 37, and is started again in 1 s" in job.log("worker-0")
    assert "the job ends with exit code 37" in job.output.read_text()
    assert "psserver: shard 0/1 stopped at global step 0" in job.log("server-0")


@pytest.mark.parametrize(("code", "starts"), [(1, 2), (2, 1)], ids=["an error", "a wrong option"])
def test_a_server_that_fails_for_good_ends_the_job_with_its_exit_code(code, starts, slurm):
    fault = {"PORT": "6818"} if code == 1 else {"PSSERVER_CONSISTENCY": "none"}  # the port of slurmd is taken
    settings = {"SHARDS": "2", "RESTARTS": "1", "PSWORKER_TIMEOUT": "60", **fault}
    job = Job(slurm, f"server-{code}", SOFTMAX, options=("--nodes=2",), **settings)
    assert job.wait_until_over() == "FAILED"
    assert job.field("ExitCode") == f"{code}:0"
    assert f" has ended with exit code {code}, and the workers are ended" in job.output.read_text()
    assert job.log("server-0").count("Error: ") == starts
    assert "gave up" not in job.log("worker-0")
    slurm.wait_for("end of all processes", lambda: slurm.processes() == [])


def test_a_worker_that_has_waited_for_servers_in_vain_is_not_started_again(slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import psworker as ps\nwith ps.session(servers=['node1:9'], timeout=0.3): pass")
    job = Job(slurm, "unavailable", str(script), options=("--ntasks=1",))
    assert job.wait_until_over() == "FAILED"
    assert job.field("ExitCode") == "69:0"
    assert job.log("worker-0").count("Error: gave up after 0.") == 1
    assert "is started again" not in job.log("worker-0")


def test_scancel_ends_all_processes_and_the_same_command_goes_on_where_they_were(slurm):
    options = ("--nodes=2", "--ntasks=2")
    job = Job(slurm, "cancelled", SOFTMAX, "--epochs", "4", options=options, SHARDS="2")
    wait_for_epoch(job, 1)
    slurm.command("scancel", job.id)
    assert job.wait_until_over() == "CANCELLED"
    slurm.wait_for("end of all processes", lambda: slurm.processes() == [])
    stopped = [re.search(r"stopped at global step ([\d,]+)", job.log(f"server-{shard}"))[1] for shard in (0, 1)]
    reached = max(epochs(job))

    again = Job(slurm, "cancelled", SOFTMAX, "--epochs", "4", options=options, SHARDS="2")
    assert again.wait_until_over() == "COMPLETED"
    for shard in (0, 1):
        assert f"at global step {stopped[shard].replace(',', '')}: nothing is lost" in again.log(f"server-{shard}")
    assert reached < 4
    assert list(epochs(again)) == [1, 2, 3, 4]

    before = accuracies(again)
    done = Job(slurm, "cancelled", SOFTMAX, "--epochs", "4", SHARDS="1")
    assert done.wait_until_over() == "COMPLETED"
    assert list(epochs(done)) == [1, 2, 3, 4]
    assert len(accuracies(done)) > len(before) > 0
    assert len(set(accuracies(done))) == 1


@pytest.mark.parametrize("cause", ["preemption", "time limit"])
def test_a_preempted_job_and_one_at_its_time_limit_is_requeued_and_goes_on(cause, slurm):
    job = Job(slurm, cause.replace(" ", "-"), SOFTMAX, "--epochs", "3", options=("--ntasks=4",))
    wait_for_epoch(job, 1)
    if cause == "preemption":
        nodes = sum(state in ("idle", "mixed", "allocated") for state in slurm.states())
        urgent = ["--partition=urgent", f"--nodes={nodes}", "--exclusive", "--output=/dev/null", "--wrap=true"]
        slurm.command("sbatch", *urgent)
    else:  # what Slurm sends, by --signal, before the limit
        slurm.command("scancel", "--batch", "--signal=USR1", job.id)
    job.wait_for_requeue()
    assert job.wait_until_over() == "COMPLETED"
    assert job.field("Restarts") == "1"
    assert list(epochs(job)) == [1, 2, 3]


def test_a_worker_of_another_slurm_job_takes_part_and_a_login_node_sees_the_status_and_transports(slurm):
    job = Job(slurm, "shared", SOFTMAX, "--epochs", "1000", options=("--nodes=2", "--ntasks=2"), SHARDS="2")
    wait_for_epoch(job, 1)
    servers, credentials = f"file:{job.folder}/servers", job.folder / "credentials"
    assert credentials.stat().st_mode & 0o777 == 0o700
    access = f"--tls-ca {credentials}/ca.crt --token-file {credentials}/worker.token"
    guest = f"psworker run --servers {servers} {access} --job shared --name guest {SOFTMAX} --epochs 1000"
    number = slurm.command("sbatch", "--parsable", "--output=guest.out", f"--wrap={guest}").strip()

    def workers():
        status = slurm.command("psserver", "status", servers, "--json", *access.split())
        return {worker["name"]: worker for worker in json.loads(status)["workers"]}

    job.wait_for("steps of the guest", lambda: workers().get("guest", {}).get("steps", 0) > 0)
    assert workers().keys() == {"worker-0", "worker-1", "guest"}
    assert "gRPC" not in {worker["tensor_transport"] for worker in workers().values()}
    ports = [int(line.rpartition(":")[2]) for line in (job.folder / "servers").read_text().splitlines()]
    for shard in range(2):  # other ports than those of all shards, which may be on one node
        node, pid = process(slurm, job, f"--shard {shard}/2")
        assert f"--direct-port {ports[1] + 1 + shard}" in slurm.machines[node].processes()[pid]
    slurm.command("scancel", number, job.id)
    assert job.wait_until_over() == "CANCELLED"


@pytest.mark.parametrize("kind", few_fast(["sweep", "folds", "tuned", "steps"], fast=0))
def test_each_session_of_a_program_trains_in_step_over_all_workers(kind, slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    job = Job(slurm, kind, str(script), kind, "3", options=("--nodes=2", "--ntasks=3"), SHARDS="2")
    assert job.wait_until_over() == "COMPLETED"
    for worker in ("worker-0", "worker-1", "worker-2"):
        assert expected(kind, 3) in job.log(worker).splitlines(), job.log(worker)
    sessions = 2 if kind == "tuned" else 3
    begun = re.findall(rf"job (\d) \({kind}, session (\d)\) begins", job.log("server-0"))
    assert begun == [(str(number), str(number)) for number in range(2, sessions + 1)]


def test_a_worker_that_starts_when_others_have_ended_the_first_session_takes_part_in_it(slurm, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(textwrap.dedent(HELD))
    job = Job(slurm, "late", str(script), "/dev/null", str(tmp_path / "ended"), options=("--ntasks=2",))
    assert job.wait_until_over() == "COMPLETED"
    found = {worker: results(job.log(worker).splitlines()) for worker in ("worker-0", "worker-1")}
    assert found == {"worker-0": FIRST_LIFE, "worker-1": FIRST_LIFE}


def test_a_program_goes_on_in_the_session_in_which_its_processes_were_killed_and_it_was_requeued(slurm, tmp_path):
    script, gate = tmp_path / "held.py", tmp_path / "gate"
    script.write_text(textwrap.dedent(HELD))
    job = Job(slurm, "held", str(script), str(gate), options=("--nodes=2", "--ntasks=2"), SHARDS="2")
    workers = ["worker-0", "worker-1"]

    def held() -> list[int]:
        return sorted(job.log(worker).splitlines().count("held") for worker in workers)

    job.wait_for("both workers in the second session", lambda: held() == [1, 1])
    _, pid = process(slurm, job, str(script))
    os.kill(pid, signal.SIGKILL)
    job.wait_for("the worker again", lambda: held() == [1, 2])
    _, pid = process(slurm, job, "--shard 1/2")
    os.kill(pid, signal.SIGKILL)
    job.wait_for("the server again", lambda: job.log("server-1").count("starts from") == 2)
    slurm.command("scontrol", "requeue", job.id)
    job.wait_for_requeue()
    job.wait_for("both workers again", lambda: held() == [2, 3])
    gate.touch()
    assert job.wait_until_over() == "COMPLETED"
    found = sorted([results(job.log(worker).splitlines()) for worker in workers], key=len)
    requeued = [FIRST_LIFE[0], *LATER_LIFE]
    assert found == [requeued, [*requeued[:2], *requeued[1:]]]  # the second was killed before
