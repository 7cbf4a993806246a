"""A cluster of containers under failures: `make compose-test`.

Starts the cluster twice and stops it, at once and while it trains. Trains programs with several sessions, in one of
which it kills the processes of a worker and of a server. Then trains examples/softmax_mnist.py on all of MNIST with two
shards and three workers, kills the chief's container, disconnects another worker from the network for ten seconds,
kills all containers and starts them again, kills the process of a server, and checks that the job completes with
nothing lost. Prints the events, and removes all that it has created, also after Ctrl-C and SIGTERM. The
exit code is 0 if all checks pass, 1 if not, 2 without a Docker engine or Compose.

Environment variables: DOCKER_HOST; COMPOSE, the command of Compose (default: `docker compose` or `docker-compose`);
BASE_IMAGE and BUILD_NETWORK as in deploy/compose.yaml. Plain pytest does not run this file.
"""

import os
import secrets
import shlex
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compose.docker import (
    COMPOSE_FILE,
    TAIL,
    WORKERS,
    Cluster,
    Container,
    Failed,
    Images,
    docker,
    moment,
    run,
    wait_for,
)
from tests.compose.event_log import (
    Event,
    Notes,
    Story,
    all_epochs_are_complete,
    events,
    notes,
    output,
    say,
    table,
    the_accuracy_is_that_of_one_process,
    the_cost_is_that_of_one_process,
)
from tests.support.combinations import few_fast
from tests.support.sessions_program import FIRST_LIFE, HELD, LATER_LIFE, PROGRAM, expected, results

pytestmark = pytest.mark.timeout(1800)

WORKER_CPUS = "0.1"  # cores of each worker: few, so that the job lasts long enough on a fast machine too
CUT_SECONDS = 10.0
TO_TRAIN, TO_COME_BACK, TO_END = 120.0, 60.0, 300.0  # timeouts, seconds

PROGRAM_FILE = "softmax_mnist.py"  # the program of deploy/compose.yaml

#: The epoch that a worker has reached when the failures begin.
FAILURES_AT = 2

#: Sends a signal to the processes whose command line has a word, from inside their container: no signal of its own
#: container reaches process 1, which is init.
SEND = """
import os, signal, sys
for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {"1", str(os.getpid())}:
    if sys.argv[2].encode() in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), signal.Signals[sys.argv[1]])
"""


@pytest.fixture(scope="session")
def programs() -> list[str]:
    """The available commands of Compose, the chosen one first."""
    chosen, found = os.environ.get("COMPOSE"), []
    try:
        say(f"\nDocker engine {docker('version', '--format', '{{.Server.Version}}').strip()}")
        for program in filter(None, dict.fromkeys([chosen, "docker compose", "docker-compose"])):
            with suppress(*[Failed] * (program != chosen)):
                run(*shlex.split(program), "version", timeout=60)
                found.append(program)
        if not found:
            raise Failed("neither `docker compose` nor `docker-compose` is installed")
    except Failed as error:
        pytest.exit(f"compose-test: no Docker engine, or no Compose: {error}", returncode=2)
    return found


@pytest.fixture(scope="session")
def cluster(programs: list[str]) -> Iterator[Cluster]:
    """The cluster, with its image, built from here. At the end nothing of it may be left."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    project = f"paramserver-test-{secrets.token_hex(3)}"
    cluster = Cluster(programs[0], project, WORKER_CPUS=WORKER_CPUS, IMAGE=f"{project}:image")
    with tempfile.TemporaryFile("a+", errors="replace") as log:
        images = Images(project, log)
        with ExitStack() as stack:
            stack.callback(images.remove)
            stack.callback(cluster.down)
            for number in (signal.SIGINT, signal.SIGTERM):  # the clean-up is short and must complete
                stack.callback(signal.signal, number, signal.SIG_IGN)
            say("base image:", images.find_base())
            images.build(cluster)
            yield cluster
        assert [*cluster.left(), *images.left()] == []


@contextmanager
def started(cluster: Cluster, session: pytest.Session, **settings: str) -> Iterator[None]:
    """The cluster runs, with these settings of its file; at the end its containers are removed.

    After a failure the end of their logs is shown first.
    """
    try:
        cluster.up(**settings)
        yield
    finally:
        if session.testsfailed or isinstance(sys.exc_info()[1], Exception):
            for container in cluster.containers().values():
                last = cluster.log(container).splitlines()[-TAIL:]
                say(f"\n--- {container.name}: the last {TAIL} lines", *last, sep="\n")
        cluster.down()


def ends(containers: Mapping[str, Container], restarted: str = "", *, at_once: bool = False) -> dict[str, str]:
    """The containers that have not ended with code 0, without a restart, or after one for the restarted one.

    A worker that is stopped `at_once` after its start may end with 143: SIGTERM ends Python while it starts.
    """
    wrong = {}
    for name in ("server-0", "server-1", "worker-1", "worker-2", "worker-3"):
        end = containers[name].end if name in containers else "missing"
        early = at_once and name.startswith("worker-") and end == "143"
        if not early and end != ("0 after 1 restarts" if name == restarted else "0"):
            wrong[name] = end
    return wrong


def send(name: str, container: Container, word: str) -> None:
    """Sends this signal to the processes of a container whose command line has this word."""
    docker("exec", container.id, "python3", "-c", SEND, name, word)


def kill(container: Container, word: str) -> None:
    """Kills the process of a container whose command line has this word."""
    with suppress(Failed):  # the command ends with the container
        send("SIGKILL", container, word)


def test_all_commands_of_compose_accept_the_file(programs):
    for program in programs:
        run(*shlex.split(program), "--file", str(COMPOSE_FILE), "config", "--quiet", timeout=60)


@pytest.mark.parametrize("training", [False, True], ids=["right after up", "while training"])
def test_a_cluster_stops_without_sigkill(training, cluster, request):
    with started(cluster, request.session):
        if training:
            wait_for("a step", cluster.workers, TO_TRAIN, lambda found: any(one["steps"] for one in found))
        cluster.compose("stop")
        assert ends(cluster.containers(), at_once=not training) == {}


# --- programs with several sessions -----------------------------------------------------------------------------------


def program(folder: Path, source: str, *arguments: str) -> dict[str, str]:
    """Writes a program to the folder; the settings by which the workers run it, without limits of their CPUs."""
    folder.chmod(0o755)
    (folder / "train.py").write_text(textwrap.dedent(source))
    return {"JOB": str(folder), "SCRIPT": "train.py", "ARGS": shlex.join(arguments), "WORKER_CPUS": ""}


def printed(cluster: Cluster) -> dict[str, list[str]]:
    """The lines of each worker so far, in all its lives, without the times."""
    logs = {name: cluster.log(one) for name, one in cluster.containers().items() if name.startswith("worker-")}
    return {name: output(log) for name, log in logs.items()}


@pytest.mark.parametrize("kind", few_fast(["sweep", "folds", "tuned", "steps"], fast=0))
def test_each_session_of_a_program_trains_in_step_over_all_workers(kind, cluster, request, tmp_path):
    with started(cluster, request.session, **program(tmp_path, PROGRAM, kind, str(WORKERS))):
        wait_for("the end", cluster.running, TO_END, lambda running: not running)
        assert ends(cluster.containers()) == {}
        found = printed(cluster)
        assert len(found) == WORKERS
        assert all(expected(kind, WORKERS) in lines for lines in found.values()), found


def test_a_program_goes_on_in_the_session_in_which_a_worker_and_a_server_were_killed(cluster, request, tmp_path):
    def held(lives: int) -> bool:
        return sorted(lines.count("held") for lines in printed(cluster).values()) == [1, 1, lives]

    with started(cluster, request.session, **program(tmp_path, HELD, "/tmp/gate")):
        wait_for("all workers in the second session", lambda: held(1), TO_TRAIN, bool)
        containers = cluster.containers()
        kill(containers["worker-2"], "train.py")
        wait_for("the worker again", lambda: held(2), TO_COME_BACK, bool)
        kill(containers["server-1"], "serve")
        for name in printed(cluster):
            docker("exec", containers[name].id, "touch", "/tmp/gate")
        wait_for("the end", cluster.running, TO_END, lambda running: not running)
        found = {name: results(lines) for name, lines in printed(cluster).items()}
    assert found == {"worker-1": FIRST_LIFE, "worker-2": [FIRST_LIFE[0], *LATER_LIFE], "worker-3": FIRST_LIFE}


# --- a job under failures ---------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """The observed facts of a job."""

    seconds: float | None  # from `up` until all containers have ended by themselves; None: not in time
    notes: Notes  # those of blocks are from before the kill of all containers
    killed: str  # the worker whose container was killed
    cut: str  # the worker that was disconnected for a while
    steps: tuple[int, int]  # its steps before it was connected again, and some time after that
    restarted: str  # the server whose process was killed
    containers: Mapping[str, Container]  # their final states, by name


class Failures(NamedTuple):
    """What was done to a cluster: as `Job`, and when all its containers were killed, in seconds since 1970."""

    killed: str
    cut: str
    steps: tuple[int, int]
    restarted: str
    all_killed: float


@pytest.fixture(scope="session")
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A worker, all containers and a server are killed, another worker is disconnected, and the job completes."""
    # The engine, whose times the logs have, may be on another machine.
    act = Story(moment(docker("info", "--format", "{{.SystemTime}}").strip()) - time.time())
    act("cluster", f"`up`: two servers, then three workers with {WORKER_CPUS} cores each")
    seconds = None
    with started(cluster, request.session):
        logs = Logs(cluster)
        done = inject_failures(cluster, logs, act)
        with suppress(Failed):  # the checks report it
            wait_for("the end", cluster.running, TO_END, lambda running: not running)
            seconds = max(one.ended for one in cluster.containers().values()) - act.start
        containers = logs.read()
        story = act.events + logs.events()
        for name, container in containers.items():
            story += [Event(container.ended, name, f"ends with code {container.exit_code}")] * (seconds is not None)
        say("", table(story, act.start, "server-0"), "", sep="\n")
        starts = {"starts": notes(story)["starts"]}
        story = [event for event in story if event.who != "server-1"]
        early = notes(event for event in story if event.at < done.all_killed)
        found = {**notes(story), **starts, "given back": early["given back"], "handed out": early["handed out"]}
        yield Job(seconds, found, *done[:4], containers)


class Logs:
    """The logs of all containers. Some versions of Compose replace a container when it is started again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._containers: dict[str, Container] = {}  # by host
        self._logs: dict[str, str] = {}

    def read(self) -> dict[str, Container]:
        """Reads the logs of the present containers; returns these by name."""
        containers = self._cluster.containers()
        for container in containers.values():
            self._containers[container.host] = container
            self._logs[container.host] = self._cluster.log(container)
        return containers

    def events(self) -> list[Event]:
        names = {host: container.name for host, container in self._containers.items()}
        return [event for host, log in self._logs.items() for event in events(names[host], log, names)]

    def epochs(self) -> int:
        """The number of epochs that are done."""
        return len(self._notes()["epochs"])

    def handed_on(self, worker: str) -> bool:
        """Whether another worker has a block that this one had."""
        return any(before == worker != later for _, later, before in self._notes()["handed out"])

    def _notes(self) -> Notes:
        self.read()
        return notes(self.events())


def stopped_in_a_block(cluster: Cluster, worker: Container) -> bool:
    """Stops the program of a worker by SIGSTOP; lets it go on if it has pushed nothing of a block that it holds."""
    send("SIGSTOP", worker, PROGRAM_FILE)
    rows = [one for one in cluster.workers() if one["name"].startswith(worker.host)]
    if any(one["state"] == "live" and not one["between_blocks"] for one in rows):
        return True
    send("SIGCONT", worker, PROGRAM_FILE)
    return False


def inject_failures(cluster: Cluster, logs: Logs, act: Story) -> Failures:
    """Kills the chief, and disconnects another worker for a while; kills all containers, then a server's process."""
    workers = wait_for(
        f"epoch {FAILURES_AT}",
        cluster.workers,
        TO_TRAIN,
        lambda found: any(one["epoch"] >= FAILURES_AT for one in found),
    )
    hosts = {container.host: container for container in cluster.containers().values()}
    live = sorted((one for one in workers if one["state"] == "live"), key=lambda one: not one["chief"])
    if len(live) < 2 or not live[0]["chief"]:
        raise Failed(f"a live chief and another live worker are needed; there are: {live}")
    killed, cut = (hosts[one["name"].rpartition("-")[0]] for one in live[:2])
    wait_for("the chief within a block", lambda: stopped_in_a_block(cluster, killed), TO_TRAIN, bool)
    act(killed.name, "is killed within a block; it was the chief")
    docker("kill", killed.id)
    act(cut.name, "is disconnected from the network")
    network = cluster.network()
    docker("network", "disconnect", network, cut.id)
    time.sleep(CUT_SECONDS)

    def steps() -> int:
        return max((one["steps"] for one in cluster.workers() if one["name"].startswith(cut.host)), default=0)

    before = after = wait_for(f"the steps of {cut.name}", steps, TO_COME_BACK, lambda steps: True)
    act(cut.name, "is connected again")
    docker("network", "connect", "--alias", "worker", network, cut.id)
    with suppress(Failed):  # the checks report it
        after = wait_for(f"a step of {cut.name}", steps, TO_COME_BACK, lambda steps: steps > before)
        act(cut.name, f"continues: step {before:,}, then {after:,}")

    # Its block may be of a later epoch, which is not complete without it.
    wait_for("the killed worker's block at another", lambda: logs.handed_on(killed.name), TO_COME_BACK, bool)
    done = logs.epochs()
    all_killed = act("cluster", "all containers are killed")
    docker("kill", *[container.id for container in cluster.running()])
    logs.read()
    act("cluster", "`up` again")
    cluster.up()

    wait_for("an epoch after that", logs.epochs, TO_TRAIN, lambda later: later > done)
    restarted = cluster.containers()["server-1"]
    act(restarted.name, "its process is killed")
    kill(restarted, "serve")
    return Failures(killed.name, cut.name, (before, after), restarted.name, all_killed)


def test_the_job_ends_by_itself(job):
    assert job.seconds is not None


test_all_epochs_are_complete_in_order_with_all_examples = all_epochs_are_complete
test_the_cost_of_the_last_epoch_is_that_of_one_process = the_cost_is_that_of_one_process
test_the_accuracy_is_printed_once_and_that_of_one_process = the_accuracy_is_that_of_one_process


def test_the_blocks_of_the_killed_worker_are_handed_out_again(job):
    gone = {block for block, worker in job.notes["given back"] if worker == job.killed}
    assert gone
    assert gone <= {block for block, worker, before in job.notes["handed out"] if before == job.killed != worker}


def test_the_disconnected_worker_takes_part_again_and_finishes(job):
    before, after = job.steps
    assert after > before
    assert job.cut in {worker for worker, _ in job.notes["finished"]}


def test_the_servers_start_without_loss_at_first_after_the_kill_of_all_and_after_that_of_one(job):
    assert sorted(job.notes["starts"]) == [(0,), (0,), (1,), (1,), (1,)]


def test_every_container_ends_with_code_0_and_only_the_killed_server_was_restarted_by_the_engine(job):
    assert ends(job.containers, job.restarted) == {}
