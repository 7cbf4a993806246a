"""The client over several shards: one answer out of many, and no call left behind."""

import math

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import InvalidMessage
from pswire.messages import Declaration, Gradient, Outcome, Push, owned
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
