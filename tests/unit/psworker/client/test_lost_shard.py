"""A shard that lost its state while others go on: no worker trains half of a model unnoticed."""

import numpy as np
import pytest

from pswire.errors import WrongShard
from pswire.messages import Declaration, Join, Outcome, Register
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(1.0)
NAMES = ("a", "b")  # one a shard
DECLARED = [Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), SGD) for name in NAMES]
LOST = "shard {} was restarted and has lost its state; restart the whole job"


@pytest.fixture
def job():
    """Two shards with identities."""
    job = ShardsInProcess(2, lease=1000.0)
    job.restart(0, 1)
    return job


def register(job, worker="w0"):
    return job.client(worker, *DECLARED)[0]


def push(client, version=0):
    gradients = [VersionedArray(name, ReadVersion((version,)), np.full(2, -1.0)) for name in NAMES]
    return client.push(gradients, pull=NAMES).result()


@pytest.mark.parametrize(("anew", "steps"), [(0, 0), (1, 0), (0, 3), (1, 3)])
def test_a_worker_that_comes_when_one_shard_has_lost_its_state_registers_nothing(job, anew, steps):
    first = register(job)
    for step in range(steps):
        push(first, step)
    job.restart(anew)
    before = [job.status(shard).variables for shard in range(2)]
    for worker in ("w1", "w0"):  # a new worker, and the first one started again
        with pytest.raises(WrongShard, match=LOST.format(anew)):
            register(job, worker)
    assert [job.status(shard).variables for shard in range(2)] == before
    assert before[anew] == ()


@pytest.mark.parametrize("anew", [0, 1])
def test_every_call_of_a_live_worker_raises_when_a_shard_has_lost_its_state(job, anew):
    workers = [register(job, f"w{number}") for number in range(4)]
    push(workers[0])
    job.restart(anew)
    calls = (
        lambda: push(workers[0], 1),
        lambda: workers[1].pull(NAMES),
        lambda: workers[2].register(DECLARED),
        lambda: workers[3].tune(NAMES, SGD, ["learning_rate"]),
    )
    for call in (*calls, *calls):  # also a second time
        with pytest.raises(WrongShard, match=LOST.format(anew)):
            call()
    assert job.status(anew).workers == ()


def test_a_shard_that_is_started_anew_between_dry_run_and_registration_gets_nothing(job):
    register(job)

    def restart(shard, message):
        if isinstance(message, Register) and not message.dry_run and shard == 0:
            job.restart(1)
        return False

    job.refuse = restart
    with pytest.raises(WrongShard, match=LOST.format(1)):
        register(job, "w1")
    assert job.status(1).variables == ()


def test_where_all_servers_were_started_anew_a_new_job_begins_and_workers_of_the_old_one_end(job):
    old = register(job)
    push(old)
    job.restart(0, 1)
    new = register(job, "w1")
    pushed = push(new)
    assert (pushed.outcome, pushed.global_step) == (Outcome.APPLIED, 1)
    with pytest.raises(WrongShard, match="shard 0 was restarted"):
        push(old, 1)
    np.testing.assert_array_equal([one.array for one in new.pull(NAMES)], np.ones((2, 2)))


def test_a_worker_whose_lease_has_ended_names_the_states_that_it_met_and_goes_on(job):
    worker = register(job)
    push(worker)
    job.sleep(2000)
    assert push(worker, 1).global_step == 2
    assert [message.states for _, message in job.messages(Join)] == [(), (), (1, 2), (1, 2)]
    assert {message.states for _, message in job.messages(Register)} == {(1, 2)}
