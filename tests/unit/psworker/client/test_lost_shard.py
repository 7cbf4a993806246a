"""A shard that lost its state while others go on: no worker trains half of a model unnoticed."""

import itertools

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import WrongShard
from pswire.messages import Declaration, Join, Outcome, Register
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(1.0)
NAMES = ("a", "b")  # one a shard
DECLARED = [Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), SGD) for name in NAMES]
LOST = "shard {} was started anew and has lost its state; start the whole job again"


class Job:
    """Two shards with identities, each of which can be started anew, and the clients of their workers."""

    def __init__(self):
        self.transport = ShardsInProcess(2, lease=1000.0)
        self._identities = itertools.count(1)
        self.clients = []
        self.start(0, 1)

    def start(self, *shards):
        """With no state, and hence with another identity than any before."""
        for shard in shards:
            self.transport.machines[shard] = Shard(shard, 2, lease=1000.0, identity=next(self._identities))

    def join(self, worker):
        client = Client(self.transport, worker, timeout=60)
        self.clients.append(client)
        client.join()
        return client

    def register(self, worker):
        client = self.join(worker)
        client.register(DECLARED)
        return client

    def variables(self):
        """The variables of each shard."""
        return [self.transport.status(shard).variables for shard in range(2)]


@pytest.fixture
def job():
    job = Job()
    yield job
    for client in job.clients:
        client.leave()
        client.close()


def push(client, version=0):
    return client.push([VersionedArray(name, ReadVersion((version,)), np.full(2, -1.0)) for name in NAMES], pull=NAMES)


@pytest.mark.parametrize("anew", [0, 1])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_worker_that_comes_when_one_shard_has_lost_its_state_registers_nothing(job, anew, steps):
    first = job.register("w0")
    for step in range(steps):
        push(first, step).result()
    job.start(anew)
    before = job.variables()
    late = job.join("w1")
    with pytest.raises(WrongShard, match=LOST.format(anew)):
        late.register(DECLARED)
    assert job.variables() == before
    assert before[anew] == ()
    with pytest.raises(WrongShard, match=LOST.format(anew)):
        job.register("w0")  # the first one, started again


@pytest.mark.parametrize("anew", [0, 1])
def test_every_call_of_a_live_worker_raises_when_a_shard_has_lost_its_state(job, anew):
    workers = [job.register(f"w{number}") for number in range(4)]
    push(workers[0]).result()
    job.start(anew)
    said = (
        lambda: push(workers[0], 1).result(),
        lambda: workers[1].pull(NAMES),
        lambda: workers[2].register(DECLARED),
        lambda: workers[3].tune(NAMES, SGD, ["learning_rate"]),
    )
    for call in (*said, *said):  # also a second time
        with pytest.raises(WrongShard, match=LOST.format(anew)):
            call()
    assert job.transport.status(anew).workers == ()


def test_a_shard_that_is_started_anew_between_a_worker_s_question_and_its_registration_gets_nothing(job):
    job.register("w0")
    late = job.join("w1")

    def restart(shard, message):
        if isinstance(message, Register) and not message.dry_run and shard == 0:
            job.start(1)
        return False

    job.transport.refuse = restart
    with pytest.raises(WrongShard, match=LOST.format(1)):
        late.register(DECLARED)
    assert job.variables()[1] == ()


def test_where_all_servers_were_started_anew_a_new_job_begins_and_workers_of_the_old_one_end(job):
    old = job.register("w0")
    push(old).result()
    job.start(0, 1)
    new = job.register("w1")
    pushed = push(new).result()
    assert (pushed.outcome, pushed.global_step) == (Outcome.APPLIED, 1)
    with pytest.raises(WrongShard, match="shard 0 was started anew"):
        push(old, 1).result()
    np.testing.assert_array_equal([one.array for one in new.pull(NAMES)], np.ones((2, 2)))


def test_a_worker_whose_lease_has_ended_names_the_states_that_it_met_and_goes_on(job):
    worker = job.register("w0")
    push(worker).result()
    job.transport.sleep(2000)
    assert push(worker, 1).result().global_step == 2
    joins = [message.states for _, message in job.transport.messages(Join)]
    assert joins == [(), (), (1, 2), (1, 2)]
    assert {message.states for _, message in job.transport.messages(Register)} == {(1, 2)}
