"""What a server counts of real calls: outcomes, refusals, and bytes of tensors by the way in which they travel."""

from dataclasses import replace

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.measurements import Measurements
from psserver.rpc import server as module
from psserver.rpc.server import ServerThread
from pswire.errors import NotFinite
from pswire.messages import Gradient, Push
from pswire.specs.gradient_norm import parse_gradient_norm
from psworker import ops
from tests.support.servers import Client


@pytest.fixture
def measured(monkeypatch):
    """The measurements of the next server in this process."""
    measured = Measurements()
    monkeypatch.setattr(module, "Measurements", lambda: measured)
    return measured


def by_transport(counted):
    return counted.inline, counted.stream, counted.shared_memory


def test_pushes_count_by_outcome_refused_ones_by_class_and_all_tensors_that_came_inline_or_on_a_stream(measured):
    value = np.zeros(600, np.float32)
    limit = parse_gradient_norm("100:clip")
    with ServerThread(ServerConfig(max_gradient_norm=limit)) as server:
        client = Client(server.address)
        sender = client.join()
        client.register(sender, W=value)
        assert by_transport(measured.received) == (0, value.nbytes, 0)
        first = Push(sender=sender, sequence=1, gradients=(Gradient("W", 0, value + 1),), pull=("W",))
        client.transfer(first)
        client.transfer(first)
        client.unary(replace(first, sequence=2))
        client.transfer(replace(first, sequence=3, gradients=(Gradient("W", 2, value + 50),)))
        for send in (client.transfer, client.unary):
            with pytest.raises(NotFinite):
                send(replace(first, sequence=4, gradients=(Gradient("W", 3, value + np.nan),)))
        np.testing.assert_array_equal(client.value(sender, "W").shape, value.shape)
        client.channel.close()
    assert measured.pushes == {"applied": 3, "dropped": 0, "repeated": 1, "refused": 2}
    assert measured.clipped == 1
    assert measured.refused["NotFinite"] == 2
    assert measured.staleness.counts[:3] == [2, 1, 0], "the push by a unary call had missed one update"
    assert sum(measured.push_seconds.counts) == 4
    assert sum(measured.pull_seconds.counts) == 1
    assert by_transport(measured.received) == (2 * value.nbytes, 5 * value.nbytes, 0)
    assert by_transport(measured.sent)[0] == value.nbytes
    assert by_transport(measured.sent)[1] == 5 * value.nbytes  # the answer to Register too


@pytest.mark.parametrize("nbytes", [256 << 10, 8 << 20], ids=["one frame", "beyond one frame"])
def test_tensors_of_a_worker_on_this_host_count_as_shared_memory_whatever_their_size(measured, nbytes):
    steps = 3
    with ServerThread() as server, ps.session(server.address, "w0"):
        w = ps.Variable(np.zeros(nbytes // 4, np.float32), name="w")
        optimizer = ps.GradientDescent(0.1)
        optimizer.minimize(ops.sum(w))
        before = by_transport(measured.received), by_transport(measured.sent)
        for _ in range(steps):
            optimizer.minimize(ops.sum(w))
        after = by_transport(measured.received), by_transport(measured.sent)
    differences = np.subtract(after, before).tolist()
    assert differences == [[0, 0, steps * nbytes], [0, 0, steps * nbytes]]
