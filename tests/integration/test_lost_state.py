"""One of two real servers is stopped and started again with nothing, at the same address, while the other goes on."""

import contextlib

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import WrongShard
from pswire.messages import Declaration
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from psworker.client import placement
from psworker.versions import ReadVersion, VersionedArray
from tests.joined_client import joined

LEASE = 60.0  # seconds; a third of it is more than a test takes, so no heartbeat comes
W = np.ones((8, 4), np.float32)


def config(shard, bind="127.0.0.1:0"):
    return ServerConfig(bind, shard=shard, shards=2, lease=LEASE)


def register(client):
    return client.register([Declaration(TensorSpec.of("W", W), W, GradientDescent(0.25))])


def push(client, step):
    return client.push([VersionedArray("W", ReadVersion((step, step)), W)], pull=["W"]).result()


@pytest.mark.slow
@pytest.mark.parametrize("anew", [0, 1])
def test_workers_old_and_new_hear_which_server_was_started_anew_and_the_other_keeps_its_half(anew, monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)
    lost = f"^shard {anew} was started anew and has lost its state; start the whole job again"
    with contextlib.ExitStack() as servers, contextlib.ExitStack() as workers:
        kept = servers.enter_context(ServerThread(config(1 - anew)))
        with ServerThread(config(anew)) as first:
            addresses = [first.address, kept.address] if anew == 0 else [kept.address, first.address]
            live = [workers.enter_context(joined(addresses, worker)) for worker in ("w0", "w1")]
            for step, client in enumerate(live):
                register(client)
                pushed = push(client, step)
            np.testing.assert_array_equal(pushed.values[0].array, W / 2, strict=True)
        again = servers.enter_context(ServerThread(config(anew, first.address)))
        for client in live:
            with pytest.raises(WrongShard, match=lost):
                push(client, 2)
        for worker in ("w2", "w0"):
            new = workers.enter_context(joined(addresses, worker))
            with pytest.raises(WrongShard, match=lost):
                register(new)
    assert again.report.variables == ()
    (variable,) = kept.report.variables
    assert (variable.spec.shape, variable.version) == ((4, 4), 4), "it goes on with what it is told"
