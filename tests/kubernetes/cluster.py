"""The manifests of deploy/kubernetes as containers, under failures: `make kubernetes-test`.

Runs the pods of the rendered manifests in a Docker engine, as pods.py, containers.py and controllers.py describe.
First the overlay `small`, whose Job is deleted and made again, until it is complete; then programs with several
sessions, in one of which the nodes of a worker and of the server are lost. Then `tls` on all of MNIST: a worker is
added, one is preempted, the nodes of the chief and of a server are lost, the other server is deleted, and the Job must
be complete with nothing lost. Prints the events, and removes all that it has created, also after Ctrl-C and
SIGTERM. The exit code is 0 if all checks pass, 1 if not, 2 without a Docker engine or kubectl.

Environment variables: DOCKER_HOST; BASE_IMAGE and BUILD_NETWORK as in deploy/compose.yaml. Plain pytest does not run
this file.
"""

import json
import secrets
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compose.docker import TAIL, Failed, Images, docker, wait_for
from tests.compose.event_log import (
    COST,
    EPOCHS,
    EXAMPLES,
    Event,
    Notes,
    Story,
    all_epochs_are_complete,
    notes,
    output,
    say,
    table,
    the_accuracy_is_that_of_one_process,
    the_cost_is_that_of_one_process,
)
from tests.kubernetes import manifests
from tests.kubernetes.containers import Ended, Namespace
from tests.kubernetes.controllers import Job, StatefulSet
from tests.support.sessions_program import FIRST_LIFE, HELD, LATER_LIFE, PROGRAM, expected, results

pytestmark = pytest.mark.timeout(1800)

WORKERS, WORKER_CPU = 3, "70m"  # cores of each worker: few, so that the job lasts long enough on a fast machine too
AWAY_SECONDS = 5.0  # between the loss of a server's node and its next start
TO_TRAIN, TO_COME_BACK, TO_END = 120.0, 90.0, 300.0  # timeouts, seconds

SIGNALS = signal.SIGINT, signal.SIGTERM

SERVERS = "dns:///ps:7070"

#: An overlay as a user has it.
OVERLAY = f"""
resources: [../tls]
patches:
  - patch: |
      apiVersion: batch/v1
      kind: Job
      metadata: {{name: train}}
      spec:
        parallelism: {WORKERS}
        completions: {WORKERS}
        template:
          spec:
            containers:
              - name: worker
                env: [{{name: PSWORKER_WORKERS, value: "{WORKERS}"}}]
                resources: {{limits: {{cpu: {WORKER_CPU}}}}}
"""

#: Another one, with programs of several sessions.
SESSIONS = """
resources: [../small]
configMapGenerator:
  - {name: program, behavior: replace, files: [train.py, held.py]}
"""


class Built(NamedTuple):
    """The images by their names in the manifests, the name of all that the test makes, and its folder."""

    images: dict[str, str]
    project: str
    folder: Path


@pytest.fixture(scope="session")
def built() -> Iterator[Built]:
    """The images. At the end nothing of them may be left."""
    try:
        say(f"\nDocker engine {docker('version', '--format', '{{.Server.Version}}').strip()}")
    except Failed as error:
        pytest.exit(f"kubernetes-test: no Docker engine: {error}", returncode=2)
    if reason := manifests.reason_for_none():
        pytest.exit(f"kubernetes-test: {reason}", returncode=2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    project = f"paramserver-test-{secrets.token_hex(3)}"
    with tempfile.TemporaryFile("a+", errors="replace") as log, tempfile.TemporaryDirectory() as folder:
        images = Images(project, log)
        with ExitStack() as stack:
            stack.callback(images.remove)
            stack.callback(ignore_signals)
            say("base image:", images.find_base())
            images.build_without_compose()
            images.build_upon(f"{project}:mnist", "deploy/kubernetes/Dockerfile", "datasets")
            names = {"paramserver:0.1.0": images.name, "paramserver-mnist:0.1.0": f"{project}:mnist"}
            Path(folder).chmod(0o755)
            yield Built(names, project, manifests.copy(Path(folder)))
        assert images.left() == []


def ignore_signals() -> None:
    """For the clean-up, which is short and must complete."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def namespace(built: Built, overlay: str) -> Iterator[Namespace]:
    """A namespace with what an overlay renders. At the end nothing of it may be left."""
    state = built.folder / "state" / overlay
    found = Namespace(built.project, state, manifests.render(built.folder / overlay), built.images)
    try:
        with ExitStack() as stack:
            stack.enter_context(found.network())
            stack.callback(ignore_signals)
            yield found
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler)
    assert found.left() == []


# --- small ------------------------------------------------------------------------------------------------------------


def test_the_small_overlay_goes_on_when_its_job_is_made_again_and_its_servers_stay_until_they_are_deleted(built):
    act = Story()
    act("cluster", "`kubectl apply --kustomize small`")
    with namespace(built, "small") as small:
        servers, job = StatefulSet(small, "ps", act), Job(small, "train", act)
        servers.wait_until_started()
        wait_for("an epoch", lambda: epochs_done(servers, job), TO_TRAIN, bool)
        act("cluster", "`kubectl delete job train`, and `apply` again")
        job.delete()
        assert {ended.exit_code for _, ended in job.gone} == {143}
        job = Job(small, "train", act)
        wait_for("the end of the Job", job.sync, TO_END, bool)
        assert (sorted(job.succeeded), job.failed, job.failures) == ([0, 1], False, 0)
        epochs = notes(servers.events())["epochs"]
        assert [(epoch, examples) for epoch, _, examples in epochs] == [(n + 1, EXAMPLES) for n in range(EPOCHS)]
        assert epochs[-1][1] == pytest.approx(COST, abs=0.01)
        assert servers.ready() == [True]
        servers.take_away(0, lost=False)
        assert [(name, ended.exit_code) for name, ended in servers.gone] == [("ps-0", 0)]


def test_a_program_that_is_missing_fails_the_job_at_once(built):
    with namespace(built, "small") as small:
        spec = small.manifests("Job", "train")["spec"]
        spec["template"]["spec"]["containers"][0]["args"] = ["nope.py"]
        job = Job(small, "train", act := Story())
        act("cluster", "a Job whose program is missing")
        wait_for("the end of the Job", job.sync, TO_COME_BACK, bool)
        assert job.failed
        assert {ended.exit_code for _, ended in job.gone} == {2}
        assert "nope.py" in job.gone[0][1].log


# --- programs with several sessions -----------------------------------------------------------------------------------


@pytest.fixture
def several(built: Built) -> Iterator[tuple[StatefulSet, Callable[..., Job]]]:
    """The server, and a function that makes a Job of a name with these arguments."""
    act, folder = Story(), built.folder / "sessions"
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(SESSIONS)
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "held.py").write_text(textwrap.dedent(HELD))
    act("cluster", "`kubectl apply`: one server, two workers, programs with several sessions")
    with namespace(built, "sessions") as found:

        def run(name: str, *arguments: str) -> Job:
            spec = found.manifests("Job", "train")
            spec["metadata"]["name"] = name
            spec["spec"]["template"]["spec"]["containers"][0]["args"] = list(arguments)
            return Job(found, "train", act)

        servers = StatefulSet(found, "ps", act)
        servers.wait_until_started()
        yield servers, run


def test_each_session_of_a_program_trains_in_step_over_all_workers(several):
    servers, run = several
    for kind in ("sweep", "folds", "tuned", "steps"):
        job = run(kind, "train.py", kind, "2")
        wait_for(f"the end of {kind}", job.sync, TO_END, bool)
        assert (sorted(job.succeeded), job.failures) == ([0, 1], 0)
        assert [expected(kind, 2) in output(ended.log) for _, ended in job.gone] == [True, True], job.gone
    sessions = {"sweep": 3, "folds": 3, "tuned": 2, "steps": 3}
    jobs = [(one["name"], one["session"], one["state"]) for one in ask(servers, "jobs")]
    assert jobs == [(kind, n + 1, "done") for kind, count in sessions.items() for n in range(count)]


def test_a_program_goes_on_in_the_session_in_which_a_worker_and_the_server_were_lost(several):
    servers, run = several
    job = run("held", "held.py", "/tmp/gate")

    def held() -> set[int]:
        job.sync()
        return {index for index, one in job.pods.items() if "held" in output(one.log())}

    wait_for("both workers in the second session", held, TO_COME_BACK, lambda found: found == {0, 1})
    job.disrupt(0, lost=True)
    servers.take_away(0, lost=True)
    servers.reschedule(0)
    wait_for("the worker again", held, TO_COME_BACK, lambda found: found == {0, 1})
    for one in job.pods.values():
        one.exec("touch", "/tmp/gate")
    wait_for("the end of the Job", job.sync, TO_END, bool)
    assert (sorted(job.succeeded), job.failures) == ([0, 1], 0)
    found = {name[: len("held-0")]: results(output(ended.log)) for name, ended in job.gone if ended.exit_code == 0}
    assert found == {"held-0": LATER_LIFE, "held-1": FIRST_LIFE}


# --- a job under failures ---------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What was observed of the job with TLS."""

    complete: bool
    failures: int  # that count for the Job's backoffLimitPerIndex
    succeeded: list[int]
    codes: dict[str, int]  # exit codes of all worker pods, by name
    disrupted: dict[int, str]  # by index: how
    incarnations: dict[str, int]  # of workers by name, at the end
    addresses: list[list[str]]  # of each server, of one pod after another
    notes: Notes
    ready_at_end: list[bool]
    jobs: list[tuple[str, str]]  # name and state, of `psserver jobs` at the end
    servers: list[tuple[str, Ended]]  # ends of all server pods


@pytest.fixture(scope="session", name="job")
def job_under_failures(built: Built) -> Iterator[Facts]:
    """A worker is preempted, two nodes are lost, a worker is added and a server is deleted; the Job completes."""
    act = Story()
    (built.folder / "mine").mkdir()
    (built.folder / "mine/kustomization.yaml").write_text(OVERLAY)
    with namespace(built, "mine") as mine:
        act("cluster", f"`kubectl apply`: two servers, {WORKERS} workers with {WORKER_CPU} cores each")
        servers, job = StatefulSet(mine, "ps", act), Job(mine, "train", act)
        try:
            disrupted, complete = inject_failures(servers, job, act), True
            try:
                wait_for("the end of the Job", job.sync, TO_END, bool)
                act("cluster", "the Job is complete: all indexes have succeeded")
            except Failed as error:  # the checks report it
                say(error)
                complete = False
            ready, lives, jobs = servers.ready(), workers(servers), ask(servers, "jobs")
            servers.pods[0].exec("psserver", "reset", SERVERS)
        except Exception:
            story = sorted(act.events + job.events() + servers.events())
            say(*[f"{event.at - act.start:6.1f} s  {event.who}: {event.what}" for event in story[-TAIL:]], sep="\n")
            raise
        for index in range(len(servers.pods)):
            servers.take_away(index, lost=False)
            act(f"ps-{index}", f"is deleted, and ends with code {servers.gone[-1][1].exit_code}")
        servers.pods = []
        story = act.events + job.events() + servers.events()
        for name, ended in job.gone:
            story += [Event(ended.at, name, "ends with code 0")] * (ended.exit_code == 0)
        say("", table(story, act.start, "ps-0"), "", sep="\n")
        yield Facts(
            complete,
            job.failures,
            sorted(job.succeeded),
            {name: ended.exit_code for name, ended in job.gone},
            disrupted,
            {one["name"]: one["incarnation"] for one in lives},
            servers.addresses,
            notes([event for event in story if event.who != "ps-1" or " starts from " in event.what]),
            ready,
            [(one["name"], one["state"]) for one in jobs],
            servers.gone,
        )


def ask(servers: StatefulSet, command: str) -> dict | list:
    """The answer of `kubectl exec ps-0 -- psserver COMMAND ... --json`. Raises `Failed`."""
    return json.loads(servers.pods[0].exec("psserver", command, SERVERS, "--json"))


def workers(servers: StatefulSet) -> list[dict]:
    return ask(servers, "status")["workers"]


def index_of(worker: dict) -> int:
    return int(worker["name"].removeprefix("worker-"))


def inject_failures(servers: StatefulSet, job: Job, act: Story) -> dict[int, str]:
    """Does what the fixture `job` says; returns what was done to which index."""

    def epochs(least: int, timeout: float) -> int:
        return wait_for(f"epoch {least}", lambda: epochs_done(servers, job), timeout, lambda done: done >= least)

    def joined(index: int, incarnation: int) -> None:
        def found() -> bool:
            job.sync()
            lives = {one["name"]: one["incarnation"] for one in workers(servers)}
            return lives.get(f"worker-{index}", 0) >= incarnation

        wait_for(f"incarnation {incarnation} of worker-{index}", found, TO_COME_BACK, bool)

    servers.wait_until_started()
    for index in range(WORKERS):
        joined(index, 1)
    epochs(1, TO_TRAIN)
    chief, other = map(index_of, sorted(workers(servers), key=lambda one: not one["chief"])[:2])

    act("cluster", f"`kubectl patch job train`: {WORKERS + 1} workers")
    job.scale(WORKERS + 1)
    act(job.pods[other].pod.name, "is preempted: SIGTERM, and the condition DisruptionTarget")
    job.disrupt(other, lost=False)
    joined(other, 2)
    joined(WORKERS, 1)

    act(job.pods[chief].pod.name, "its node is lost; it was the chief")
    job.disrupt(chief, lost=True)
    act("ps-1", "its node is lost")
    servers.take_away(1, lost=True)
    time.sleep(AWAY_SECONDS)
    servers.reschedule(1)
    joined(chief, 2)

    epochs(epochs_done(servers, job) + 1, TO_TRAIN)
    act("ps-0", "is deleted, as by a drain or a rolling update")
    servers.take_away(0, lost=False)
    servers.reschedule(0)
    return {other: "preempted", chief: "lost"}


def epochs_done(servers: StatefulSet, job: Job) -> int:
    job.sync()
    return len(notes(servers.events())["epochs"])


def test_the_job_is_complete_with_every_index_and_no_failure_that_counts(job):
    assert job.complete
    assert (job.succeeded, job.failures) == (list(range(WORKERS + 1)), 0)


def test_only_disrupted_workers_ended_otherwise_than_with_code_0(job):
    expected = {index: {"preempted": 143, "lost": 137}[how] for index, how in job.disrupted.items()}
    assert {int(name.split("-")[1]): code for name, code in job.codes.items() if code} == expected


test_all_epochs_are_complete_in_order_with_all_examples = all_epochs_are_complete
test_the_cost_of_the_last_epoch_is_that_of_one_process = the_cost_is_that_of_one_process
test_the_accuracy_is_printed_once_and_that_of_one_process = the_accuracy_is_that_of_one_process


def test_replaced_workers_are_new_incarnations_of_the_names_of_their_indexes(job):
    expected = {f"worker-{index}": 1 + (index in job.disrupted) for index in range(WORKERS + 1)}
    assert job.incarnations == expected


def test_each_server_was_scheduled_twice_at_different_addresses_and_has_lost_nothing(job):
    assert [len(set(addresses)) for addresses in job.addresses] == [2, 2]
    assert sorted(job.notes["starts"]) == [(0,), (0,), (1,), (1,)]


def test_after_the_job_the_servers_are_ready_for_the_next_one_and_end_with_code_0_when_they_are_deleted(job):
    assert job.ready_at_end == [True, True]
    assert job.jobs == [("train", "done")]
    assert [(name, ended.exit_code) for name, ended in job.servers] == [
        ("ps-1", 137),
        *[("ps-0", 0)] * 2,
        ("ps-1", 0),
    ]
