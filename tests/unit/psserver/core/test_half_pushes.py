"""Half pushes: reported by their worker, or found by comparing shards after its death.

What one shard counts is in `tests/scenarios/half_pushes.txt`.
"""

from dataclasses import replace

import numpy as np
import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.cli.status import job_line
from psserver.core.members.deduplication import HalfPushes
from psserver.core.members.member import Member
from pswire.errors import InvalidMessage
from pswire.messages import LastPush, Push, Renew, StatusReport, WorkerStatus
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import DropStalePushes, IgnoreStaleness
from psworker.client.client import Client
from tests.support.shards import ShardsInProcess, declared

LEASE = 10.0


class Job(ShardsInProcess):
    """Two shards, each with one of two variables."""

    def __init__(self, staleness=DropStalePushes(9)):  # noqa: B008
        super().__init__(2, staleness=staleness, lease=LEASE)

    def join(self, worker="w0"):
        """A client without a heartbeat of its own, and a gradient of ones for each variable."""
        client = Client(self, worker, timeout=30)
        client._heartbeat.start = lambda *_: None
        client.join()
        sizes = {"large": 9, "small": 2}
        variables = [declared(name, np.zeros(rows, np.float32), GradientDescent(1.0)) for name, rows in sizes.items()]
        return client, [replace(whole, array=np.ones_like(whole.array)) for whole in client.register(variables)]

    @property
    def half_pushes(self):
        return merge_reports([ShardAnswer(f"h:{shard}", self.status(shard)) for shard in (0, 1)]).half_pushes


@pytest.mark.parametrize(("staleness", "lives"), [(IgnoreStaleness(), 3), (DropStalePushes(9), 1)])
def test_a_push_left_half_by_the_death_of_its_worker_is_counted(staleness, lives):
    job = Job(staleness)
    for _ in range(lives):
        client, ones = job.join()
        client.push(ones).result()
        job.call(
            0, Push(sender=client.membership.sender, sequence=2, gradients=(), shards=(1,)), 1
        ).result()  # and then it is killed
    assert job.half_pushes == lives - 1, "of the last life it may still be under way"
    job.sleep(LEASE + 1)
    assert job.half_pushes == lives


@pytest.mark.parametrize("refusing", [(1,), (0, 1)])
@pytest.mark.parametrize("staleness", [IgnoreStaleness(), DropStalePushes(9)])
def test_a_worker_reports_a_push_that_one_shard_refused_and_not_all_and_it_counts_once(staleness, refusing):
    job = Job(staleness)
    client, ones = job.join()
    job.refuse = lambda shard, message: shard in refusing and isinstance(message, Push)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push(ones).result()
    job.refuse = lambda shard, message: False
    for _ in range(2):
        client.report_idle()
    half = 2 - len(refusing)
    assert job.half_pushes == half
    job.sleep(LEASE + 1)
    assert job.half_pushes == half, "it is not found out once more"
    job.join()
    assert job.half_pushes == half, "the next life of the worker begins from none, and the first one counts"


def test_a_dropped_push_is_not_half_even_if_a_shard_does_not_serve_its_values():
    job = Job(DropStalePushes(0))
    (client, ones), (other, theirs) = job.join(), job.join("w1")
    other.push(theirs).result()
    job.refuse = lambda shard, message: shard == 1 and not isinstance(message, Renew)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push(ones, pull=["small"]).result()
    client.report_idle()
    assert job.half_pushes == 0


def test_a_part_that_comes_too_late_is_reported_and_the_worker_goes_on():
    job = Job()
    (client, ones), (other, theirs) = job.join(), job.join("w1")

    def expire_before_shard_1(shard, message):
        if shard == 1 and isinstance(message, Push) and message.sender.worker == "w0":
            job.refuse = lambda shard, message: False
            job.machines[1]._members["w0"].expires = -1.0
            job._step(1, 0, job.machines[1].due(job.now))
            other.push(theirs).result()  # goes on without it
        return False

    job.refuse = expire_before_shard_1
    client.push(ones, pull=["small"]).result()
    result = client.push(ones, pull=["small"]).result()
    assert result.values[0].array.tolist() == [-2, -2], "one of each worker on shard 1"
    client.report_idle()
    assert job.half_pushes == 1


def test_the_status_counts_half_pushes_of_the_shards_that_answer():
    gone = WorkerStatus(
        name="w0",
        incarnation=2,
        number=0,
        state="lost",
        steps=0,
        staleness=0,
        staleness_sum=0,
        loss=None,
        epoch=0,
        lease_left=0.0,
    )
    last = LastPush(worker="w0", incarnation=1, sequence=7, shards=(1, 2))
    first = StatusReport(
        shard=0, shards=3, global_step=9, repeated=0, workers=(gone,), half_pushes=2, last_pushes=(last,)
    )
    second = StatusReport(
        shard=1,
        shards=3,
        global_step=9,
        repeated=0,
        last_pushes=(last, LastPush(worker="w0", incarnation=2, sequence=3, shards=(1,))),
    )
    answers = [ShardAnswer("a:1", first), ShardAnswer("b:1", second), ShardAnswer("c:1", problem="silent")]
    status = merge_reports(answers)
    assert status.half_pushes == 3, "two reported, and one of the second life that shard 0 never had"
    assert "3 half-applied" in job_line(status)


def test_a_shard_lists_the_newest_last_pushes_and_none_of_a_worker_that_has_sent_nothing():
    members = {f"w{number}": Member(f"w{number}", number, 1) for number in range(4)}
    half_pushes = HalfPushes(members)
    for sequence, member in enumerate(members.values()):
        assert half_pushes.settle(member, sequence) == (sequence > 0)
    assert [one.sequence for one in half_pushes.last_pushes(2)] == [2, 3]
    assert [one.sequence for one in half_pushes.last_pushes(9)] == [1, 2, 3]
