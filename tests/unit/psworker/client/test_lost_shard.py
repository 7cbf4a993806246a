"""A shard that lost its state while others go on: no worker trains half of a model unnoticed."""

import itertools

import numpy as np
import pytest

from psserver.core.shard import Shard
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


class Job(ShardsInProcess):
    """Two shards with identities, each of which can be started anew."""

    def __init__(self):
        super().__init__(2)
        self._identities = itertools.count(1)
        self.start(0, 1)

    def start(self, *shards):
        """Starts shards without state, each with an identity different from any before."""
        for shard in shards:
            self.machines[shard] = Shard(shard, 2, lease=1000.0, identity=next(self._identities))

    def register(self, worker):
        return self.client(worker, *DECLARED)[0]


@pytest.fixture
def job():
    return Job()


def push(client, version=0):
    gradients = [VersionedArray(name, ReadVersion((version,)), np.full(2, -1.0)) for name in NAMES]
    return client.push(gradients, pull=NAMES).result()


@pytest.mark.parametrize("anew", [0, 1])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_worker_that_comes_when_one_shard_has_lost_its_state_registers_nothing(job, anew, steps):
    first = job.register("w0")
    for step in range(steps):
        push(first, step)
    job.start(anew)
    before = [job.status(shard).variables for shard in range(2)]
    for worker in ("w1", "w0"):  # a new worker, and the first one started again
        with pytest.raises(WrongShard, match=LOST.format(anew)):
            job.register(worker)
    assert [job.status(shard).variables for shard in range(2)] == before
    assert before[anew] == ()


@pytest.mark.parametrize("anew", [0, 1])
def test_every_call_of_a_live_worker_raises_when_a_shard_has_lost_its_state(job, anew):
    workers = [job.register(f"w{number}") for number in range(4)]
    push(workers[0])
    job.start(anew)
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
    job.register("w0")

    def restart(shard, message):
        if isinstance(message, Register) and not message.dry_run and shard == 0:
            job.start(1)
        return False

    job.refuse = restart
    with pytest.raises(WrongShard, match=LOST.format(1)):
        job.register("w1")
    assert job.status(1).variables == ()


def test_where_all_servers_were_started_anew_a_new_job_begins_and_workers_of_the_old_one_end(job):
    old = job.register("w0")
    push(old)
    job.start(0, 1)
    new = job.register("w1")
    pushed = push(new)
    assert (pushed.outcome, pushed.global_step) == (Outcome.APPLIED, 1)
    with pytest.raises(WrongShard, match="shard 0 was restarted"):
        push(old, 1)
    np.testing.assert_array_equal([one.array for one in new.pull(NAMES)], np.ones((2, 2)))


def test_a_worker_whose_lease_has_ended_names_the_states_that_it_met_and_goes_on(job):
    worker = job.register("w0")
    push(worker)
    job.sleep(2000)
    assert push(worker, 1).global_step == 2
    assert [message.states for _, message in job.messages(Join)] == [(), (), (1, 2), (1, 2)]
    assert {message.states for _, message in job.messages(Register)} == {(1, 2)}
