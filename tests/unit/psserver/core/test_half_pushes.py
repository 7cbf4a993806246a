"""Half pushes: reported by their worker, or found by comparing shards after its death."""

from dataclasses import replace

import numpy as np
import pytest

from psserver.cli.status import job_line
from pswire.errors import InvalidMessage
from pswire.job_status import ShardAnswer, merge_reports
from pswire.messages import (
    Declaration,
    Gradient,
    LastPush,
    Push,
    RemoteWeights,
    Renew,
    StatusReport,
    Tick,
    WorkerStatus,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import DropStalePushes, IgnoreStaleness
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from tests.shards_in_process import ShardsInProcess

LEASE = 10.0


def joined(transport, worker="w0"):
    """A client without a heartbeat of its own, and a gradient of ones for each of two variables on two shards."""
    client = Client(transport, worker, timeout=30)
    client._heartbeat.start = lambda lease: None
    client.join()
    declared = [
        Declaration(TensorSpec(name, (rows,)), np.zeros(rows, np.float32), GradientDescent(1.0))
        for name, rows in (("large", 9), ("small", 2))
    ]
    return client, [replace(whole, array=np.ones_like(whole.array)) for whole in client.register(declared)]


def half_pushes(transport):
    return merge_reports([ShardAnswer(f"h:{shard}", transport.status(shard)) for shard in (0, 1)]).half_pushes


@pytest.mark.parametrize(("staleness", "lives"), [(IgnoreStaleness(), 3), (DropStalePushes(9), 1)])
def test_a_push_left_half_by_the_death_of_its_worker_is_counted(staleness, lives):
    transport = ShardsInProcess(2, staleness=staleness, lease=LEASE)
    for _ in range(lives):
        client, ones = joined(transport)
        client.push(ones).result()
        transport.call(0, Push(client._calls.sender, 2, (), shards=(1,)), 1).result()  # and then it is killed
    assert half_pushes(transport) == lives - 1, "of the last life it may still be under way"
    transport.sleep(LEASE + 1)
    assert half_pushes(transport) == lives


@pytest.mark.parametrize("staleness", [IgnoreStaleness(), DropStalePushes(9)])
def test_a_worker_reports_a_push_that_one_shard_refused_and_it_counts_once(staleness):
    transport = ShardsInProcess(2, staleness=staleness, lease=LEASE)
    client, ones = joined(transport)
    transport.refuse = lambda shard, message: shard == 1 and isinstance(message, Push)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push(ones).result()
    transport.refuse = lambda shard, message: False
    for _ in range(2):
        client.report_idle()
    assert half_pushes(transport) == 1
    transport.sleep(LEASE + 1)
    assert half_pushes(transport) == 1, "it is not found out once more"
    joined(transport)
    assert half_pushes(transport) == 1, "the next life of the worker begins from none, and the first one counts"


@pytest.mark.parametrize("staleness", [IgnoreStaleness(), DropStalePushes(9)])
def test_a_push_that_every_shard_refused_is_not_half(staleness):
    transport = ShardsInProcess(2, staleness=staleness, lease=LEASE)
    client, ones = joined(transport)
    transport.refuse = lambda shard, message: isinstance(message, Push)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push(ones).result()
    client.report_idle()
    assert half_pushes(transport) == 0


def test_a_dropped_push_is_not_half_even_if_a_shard_does_not_serve_its_values():
    transport = ShardsInProcess(2, staleness=DropStalePushes(0), lease=LEASE)
    (client, ones), (other, theirs) = joined(transport), joined(transport, "w1")
    other.push(theirs).result()
    transport.refuse = lambda shard, message: shard == 1 and not isinstance(message, Renew)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push(ones, pull=["small"]).result()
    client.report_idle()
    assert half_pushes(transport) == 0


def test_a_part_that_comes_too_late_is_reported_and_the_worker_goes_on():
    transport = ShardsInProcess(2, staleness=DropStalePushes(9), lease=LEASE)
    (client, ones), (other, theirs) = joined(transport), joined(transport, "w1")

    def sleep_before_shard_1(shard, message):
        if shard == 1 and isinstance(message, Push) and message.sender.worker == "w0":
            transport.refuse = lambda shard, message: False
            transport.machines[1]._members["w0"].expires = -1.0
            transport._step(1, 0, Tick())
            other.push(theirs).result()  # goes on without it
        return False

    transport.refuse = sleep_before_shard_1
    client.push(ones, pull=["small"]).result()
    result = client.push(ones, pull=["small"]).result()
    assert result.values[0].array.tolist() == [-2, -2], "one of each worker on shard 1"
    client.report_idle()
    assert half_pushes(transport) == 1


def test_the_status_counts_half_pushes_of_the_shards_that_answer():
    gone = WorkerStatus("w0", 2, 0, "lost", 0, 0, 0, None, 0, 0.0)
    first = StatusReport(0, 3, 9, 0, workers=(gone,), half_pushes=2, last_pushes=(LastPush("w0", 1, 7, (1, 2)),))
    second = StatusReport(1, 3, 9, 0, last_pushes=(LastPush("w0", 1, 7, (1, 2)), LastPush("w0", 2, 3, (1,))))
    job = merge_reports([ShardAnswer("a:1", first), ShardAnswer("b:1", second), ShardAnswer("c:1", problem="silent")])
    assert job.half_pushes == 3, "two reported, and one of the second life that shard 0 never had"
    assert "3 half-applied" in job_line(job)


def test_a_heartbeat_reports_the_count_and_an_old_one_does_not_lower_it():
    transport = ShardsInProcess(2, lease=LEASE)
    client, _ = joined(transport)
    transport.call(0, Renew(client._calls.sender, half_pushes=3), 1).result()
    transport.call(0, Renew(client._calls.sender, half_pushes=2), 1).result()  # an old one
    assert half_pushes(transport) == 3


def test_a_late_part_counts_even_without_a_report_of_its_worker():
    transport = ShardsInProcess(2, staleness=DropStalePushes(9), lease=LEASE)
    (client, ones), (other, theirs) = joined(transport), joined(transport, "w1")
    sender = client._calls.sender
    remote = (RemoteWeights("small", 0),)
    transport.call(0, Push(sender, 1, (), shards=(1,), remote=remote), 1).result()
    transport.machines[1]._members["w0"].expires = -1.0
    transport.sleep(0)
    other.push(theirs).result()  # goes on without it
    transport.call(1, client._calls._join(1), 1).result()
    (gradient,) = [Gradient(one.name, 0, one.array) for one in ones if one.name == "small"]
    for _ in range(2):
        transport.call(1, Push(sender, 1, (gradient,), shards=(1,)), 1).result()
    assert half_pushes(transport) == 1
    transport.sleep(LEASE + 1)
    assert half_pushes(transport) == 1
