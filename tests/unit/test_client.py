"""The client over several shards: one answer out of many, and no call left behind."""

import math

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import AlreadyRegistered, InvalidMessage, NotJoined, Zombie
from pswire.messages import Declaration, Finished, Gradient, Outcome, Push, QueueSpec, Tick
from pswire.payload import owned
from pswire.specs import GradientDescent
from pswire.values import TensorSpec
from psworker.client import Client
from psworker.transport import Call

NAMES = ("a", "b", "c")


class Shards:
    """Three shards in this process, one of which may refuse pushes; `ended` has those whose calls have ended."""

    shards = 3

    def __init__(self):
        self._shards = [Shard(shard, self.shards, lease=math.inf) for shard in range(self.shards)]
        self.refusing = None
        self.ended = []

    def call(self, shard, message, timeout):
        refused = isinstance(message, Push) and shard == self.refusing
        replies = [] if refused else self._shards[shard].step(1, message, 0.0)
        answers = [owned(reply.answer) for reply in replies]

        def result():
            self.ended.append(shard)
            if refused:
                raise InvalidMessage("not this one")
            return answers[0]

        return Call(result)

    def close(self):
        pass


@pytest.fixture
def transport():
    return Shards()


@pytest.fixture
def client(transport):
    client = Client(transport, "w0", timeout=60)
    client.join()
    optimizer = GradientDescent(learning_rate=1)
    client.register([Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), optimizer) for name in NAMES])
    yield client
    client.close()


def gradient(name, version=0):
    return Gradient(name, version, np.full(2, -1.0))


def test_a_push_reaches_every_shard_and_its_values_come_in_the_order_asked_for(client):
    pushed = client.push([gradient("a"), gradient("c")], pull=("c", "b", "a")).wait()
    assert (pushed.outcome, pushed.staleness, pushed.global_step) == (Outcome.APPLIED, 0, 1)
    assert [(value.name, value.version, value.array[0]) for value in pushed.values] == [
        ("c", 1, 1),
        ("b", 0, 0),
        ("a", 1, 1),
    ]
    pushed = client.push([gradient("a", 0), gradient("b", 0)]).wait()
    assert (pushed.staleness, pushed.global_step) == (1, 2), "the staleness is the largest of all shards"


@pytest.mark.parametrize("refusing", range(3))
def test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more(client, transport, refusing):
    transport.refusing, transport.ended = refusing, []
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push([gradient(name) for name in NAMES]).wait()
    assert transport.ended == [0, 1, 2]


def test_workers_that_place_a_variable_on_different_shards_are_told_and_the_first_goes_on(client, transport):
    other = Client(transport, "w1", timeout=60)
    other.join()
    alone = [Declaration(TensorSpec("c", (2,), "float64"), np.zeros(2))]
    with pytest.raises(AlreadyRegistered, match="'c' is on shard 2, worker 'w1' places it on shard 0"):
        other.register(alone)
    other.close()
    assert client.push([gradient("c")], pull=("c",)).wait().values[0].array[0] == 1


class Sleeping:
    """One shard in this process, on a clock of the test's; it may be started anew, with nothing of the old state."""

    shards = 1

    def __init__(self):
        self.now = 0.0
        self.start_anew()

    def start_anew(self):
        self.shard = Shard(lease=1000.0)

    def sleep(self, seconds):
        self.now += seconds
        self.shard.step(0, Tick(), self.now)

    def call(self, shard, message, timeout):
        def result():
            (reply,) = self.shard.step(1, message, self.now)
            return owned(reply.answer)

        return Call(result)

    def close(self):
        pass


@pytest.fixture
def sleeping():
    transport = Sleeping()
    client = Client(transport, "w0", timeout=60)
    client.join()
    client.register([Declaration(TensorSpec("a", (2,), "float64"), np.zeros(2), GradientDescent(1.0))])
    client.push([gradient("a")]).wait()
    yield transport, client
    client.leave()
    client.close()


def test_a_worker_whose_lease_has_ended_joins_again_and_goes_on(sleeping):
    transport, client = sleeping
    queue = QueueSpec("q", size=4, block=2, epochs=1)
    held = client.take(queue, None).block
    transport.sleep(2000)
    pushed = client.push([gradient("a", 1)], pull=("a",)).wait()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 2, 2)
    transport.sleep(2000)
    assert client.take(queue, Finished(held.number)).block == held, "what it held counts for nothing, and is free again"


def test_a_worker_of_a_server_that_was_started_anew_is_told_so(sleeping):
    transport, client = sleeping
    transport.start_anew()
    with pytest.raises(NotJoined, match="shard 0 is at step 0 and was at 1: the server was started anew"):
        client.push([gradient("a", 1)]).wait()


def test_a_worker_whose_name_was_taken_ends(sleeping):
    transport, client = sleeping
    thief = Client(transport, "w0", timeout=60)
    thief.join()
    with pytest.raises(Zombie, match="do two workers have the same name"):
        client.push([gradient("a", 1)]).wait()
    transport.sleep(2000)
    with pytest.raises(Zombie):
        client.push([gradient("a", 1)]).wait()
    thief.leave()
    thief.close()
