"""Minimizations whose workers and servers are killed or stopped: the minimum is that of a run without faults."""

import json
import signal
import sys

import pytest

from tests.cluster.minimize_job import PROGRAM, MinimizeJob
from tests.support.combinations import few_fast

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses addresses 127.x.y.1")

#: Portions that a worker computes before its fault, of the 10 of each of about 45 evaluations.
MIDDLE = 50


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The minimum of a run in one process."""
    from tests.cluster.conftest import Commands

    commands = Commands(tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("logs"))
    (commands.folder / "weights").mkdir()
    settings = {"folder": str(commands.folder), "holds": {}, "raises": {}, "stop_at": None, "portion": 150}
    (commands.folder / "begun").touch()
    command = commands.python(str(PROGRAM), json.dumps(settings))
    assert command.wait() == 0, command.err
    return json.loads(command.out[-1].removeprefix("minimum "))


def check(job, found, undisturbed, *workers):
    """The minimum and the points on the way."""
    assert found["loss"] == pytest.approx(undisturbed["loss"], rel=1e-10), (found, job.lines())
    job.check(found, *workers)


def check_goes_on(job, before, after):
    """The points of the second chief begin where those of the first one ended, and their numbers go on."""
    first, second = ([point["iterations"] for point in job.points(worker)] for worker in (before, after))
    assert first == list(range(len(first)))
    assert second == list(range(second[0], second[0] + len(second)))
    # The first one may have saved later points without having printed them, in a portion that it did not finish.
    assert 1 <= first[-1] <= second[0] < second[-1]


@pytest.mark.slow
def test_the_portions_of_a_killed_worker_are_computed_by_others_each_once(commands, undisturbed):
    job = MinimizeJob(commands, holds={"w1": MIDDLE})
    job.begin("w0", "w1", "w2")
    job.held("w1")
    job.workers["w1"].end(signal.SIGKILL)
    check(job, job.finish("w0", "w2"), undisturbed, "w0")
    assert [point["iterations"] for point in job.points("w0")] == list(range(len(job.points("w0"))))


@pytest.mark.slow
@pytest.mark.parametrize("held", few_fast(["w0", "w1"], fast=0, ids=["chief", "worker"]))
def test_others_reach_the_minimum_while_a_worker_stays_in_a_portion(commands, undisturbed, held):
    other = "w1" if held == "w0" else "w0"
    job = MinimizeJob(commands, holds={held: MIDDLE})
    job.begin("w0", "w1")
    job.held(held)
    job.wait_for_end(other)
    job.go(held)
    check(job, job.finish("w0", "w1"), undisturbed, "w0", "w1")


@pytest.mark.slow
def test_the_next_chief_goes_on_from_the_last_accepted_point_of_a_killed_one(commands, undisturbed):
    job = MinimizeJob(commands, holds={"w0": MIDDLE, "w1": MIDDLE})
    job.begin("w0", "w1")
    job.held("w0", "w1")
    job.workers["w0"].end(signal.SIGKILL)
    job.go("w1")
    check(job, job.finish("w1"), undisturbed, "w0", "w1")
    check_goes_on(job, "w0", "w1")


@pytest.mark.slow
@pytest.mark.parametrize("shard", few_fast([0, 1], fast=0))
def test_a_shard_that_comes_back_with_its_journal_loses_no_portion_and_doubles_none(commands, undisturbed, shard):
    job = MinimizeJob(commands, holds={"w0": MIDDLE}, serve=["--checkpoint-dir", "run", "--journal"])
    job.begin("w0", "w1")
    job.held("w0")
    job.restart(shard, signal.SIGKILL)
    job.go("w0")
    check(job, job.finish("w0", "w1"), undisturbed, "w0")
    assert [point["iterations"] for point in job.points("w0")] == list(range(len(job.points("w0"))))


@pytest.mark.slow
@pytest.mark.parametrize("shard", few_fast([0, 1], fast=0))
def test_a_shard_that_comes_back_from_a_checkpoint_takes_all_back_to_its_point(commands, undisturbed, shard):
    job = MinimizeJob(commands, holds={"w0": MIDDLE}, serve=["--checkpoint-dir", "run", "--checkpoint-every", "1s"])
    job.begin("w0", "w1")
    job.held("w0")
    job.restart(shard, signal.SIGKILL)
    job.go("w0")
    check(job, job.finish("w0", "w1"), undisturbed, "w0", "w1")  # either of them may be the chief then
    assert any("went back to checkpoint" in line for line in job.workers["w0"].err)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", few_fast(["w0", "w1"], fast=0, ids=["chief", "worker"]))
def test_a_worker_that_sleeps_for_longer_than_its_lease_disturbs_nothing_when_it_wakes(commands, undisturbed, stopped):
    other = "w1" if stopped == "w0" else "w0"
    job = MinimizeJob(commands, holds={stopped: MIDDLE, other: 3 * MIDDLE})
    job.begin("w0", "w1")
    job.held(stopped)
    job.workers[stopped].signal(signal.SIGSTOP)
    job.held(other)  # it has gone on alone
    job.workers[stopped].signal(signal.SIGCONT)
    job.go(stopped, other)
    check(job, job.finish("w0", "w1"), undisturbed, "w0", "w1")
    if stopped == "w0":
        check_goes_on(job, "w0", "w1")


@pytest.mark.slow
def test_workers_join_and_leave_in_the_middle(commands, undisturbed):
    job = MinimizeJob(commands, holds={"w0": MIDDLE, "w1": MIDDLE, "w2": 1})
    job.begin("w0", "w1")
    job.held("w0", "w1")
    job.start("w2")
    job.go("w0")
    job.held("w2")  # it has a portion
    code, _, _ = job.workers["w1"].end(signal.SIGINT)
    assert code == 130
    job.go("w2")
    check(job, job.finish("w0", "w2"), undisturbed, "w0")


@pytest.mark.slow
def test_stop_all_ends_it_in_all_workers_at_the_last_accepted_point_with_the_reason(commands):
    job = MinimizeJob(commands, stop_at=5)
    job.begin("w0", "w1")
    found = job.finish("w0", "w1")
    assert found["reason"] == "the job was stopped: w0: enough"
    assert not found["converged"]
    last = job.points("w0")[-1]
    assert last["iterations"] >= 5
    assert found == found | {name: last[name] for name in ("iterations", "evaluations", "loss", "gradient")}
    job.check_point(found)


@pytest.mark.slow
def test_a_worker_whose_loss_raises_fails_and_others_go_on(commands, undisturbed):
    job = MinimizeJob(commands, raises={"w0": MIDDLE})
    job.begin("w0", "w1")
    assert job.workers["w0"].wait() == 1
    assert any("the loss of w0 has failed" in line for line in job.workers["w0"].err)
    check(job, job.finish("w1"), undisturbed, "w0", "w1")
    check_goes_on(job, "w0", "w1")


@pytest.mark.slow
@pytest.mark.parametrize("policy", few_fast(["sync:2", "bounded:2"], fast=0))
def test_no_policy_holds_the_sums_of_a_minimization(commands, undisturbed, policy):
    job = MinimizeJob(commands, serve=["--consistency", policy])
    job.begin("w0", "w1")
    check(job, job.finish("w0", "w1"), undisturbed, "w0")
