"""Status and counts of a shard, and its shortcut for the asynchronous policy."""

import numpy as np
import pytest

from psserver.core.policies import Asynchronous
from psserver.core.policies.policy import Apply, CallView, Serve
from psserver.core.shard import MOST_LISTED, Shard
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Gradient,
    Join,
    Leave,
    Pull,
    Push,
    Register,
    Renew,
    Sender,
    Status,
    Tick,
    Tune,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step, state_of

LEASE = 10.0


class Job:
    """A shard with a variable W of two zeros, from which each push subtracts its gradient."""

    def __init__(self, workers="ab", **options):
        self.now = 0.0
        self.shard = Shard(lease=LEASE, **options)
        for worker in workers:
            self.tell(Join(worker))
        declaration = Declaration(TensorSpec("W", (2,), "float64"), np.zeros(2), GradientDescent(1.0))
        self.tell(Register(Sender("a", 1), (declaration,)))

    def tell(self, message, ticket=0):
        """The answers by ticket."""
        return {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, self.now)}

    def push(self, ticket, worker, sequence=1, at=0, gradient=1.0, pull=("W",)):
        gradients = (Gradient("W", at, np.full(2, float(gradient))),)
        return self.tell(Push(Sender(worker, 1), sequence, gradients, None, pull), ticket)

    def status(self):
        return self.tell(Status())[0]


class InPairs:
    """Makes updates of two pushes."""

    def decide(self, calls, shard):
        held = [call.ticket for call in calls if not call.applied]
        return [Apply(tuple(held[:2]))] * (len(held) > 1) + [Serve(call.ticket) for call in calls if call.applied]

    def explain(self, call, calls, shard):
        return ""


def test_of_an_update_of_several_pushes_each_counts_with_its_own_staleness():
    job = Job(policy=InPairs())
    for sequence in (1, 2, 3):
        job.tell(Assign(Sender("a", 1), sequence, (Assignment("W", np.zeros(2)),)))
    job.push(1, "a", sequence=4, at=3)
    assert set(job.push(2, "b", at=0)) == {1, 2}
    status = job.status()
    assert [worker.staleness for worker in status.workers] == [0, 3]
    assert (status.staleness.p50, status.staleness.p99) == (0, 3)


def test_traffic_counts_every_push_of_an_update_and_the_bytes_of_each_direction():
    """W has 16 bytes, sent and served at its registration; then two gradients arrive, and one value is served."""
    job = Job(policy=InPairs())
    job.push(1, "a")
    job.push(2, "b", pull=())
    job.now = 2.0
    traffic = job.status().traffic
    assert (traffic.pushes, traffic.bytes_in, traffic.bytes_out) == (2 / 2, 3 * 16 / 2, 2 * 16 / 2)


def test_of_very_many_workers_and_changes_a_status_lists_the_live_and_the_newest():
    job = Job("a")
    for number in range(1, 1500):
        job.tell(Join(f"w{number}"))
        job.tell(Leave(Sender(f"w{number}", 1)))
    for count in range(MOST_LISTED + 2):
        job.tell(Tune(Sender("a", 1), 1 + count, ("W",), GradientDescent(float(count)), ("learning_rate",)))
    status = job.status()
    assert [worker.number for worker in status.workers] == [0, *range(501, 1500)]
    assert [change.optimizer.learning_rate for change in status.changes] == list(range(2, MOST_LISTED + 2))


@pytest.mark.parametrize(
    "options", ["async none", "bounded:3 scale", "sync:2,backup=1 delay-compensated:0.5", "sync:2 drop:4"]
)
def test_a_worker_that_joins_gets_the_consistency_of_the_shard(options):
    consistency, staleness = options.split()
    job = Job(consistency=parse_consistency(consistency), staleness=parse_staleness(staleness))
    joined, status = job.tell(Join("c"))[0], job.status()
    assert (joined.consistency, joined.staleness) == (consistency, staleness)
    assert (status.consistency, status.handling) == (consistency, staleness)


def test_a_policy_sees_calls_in_order_of_arrival_and_values_agree_with_their_versions():
    seen = []

    class ServesFirst(Asynchronous):
        """Answers pushes that were applied before it applies another one."""

        def decide(self, calls, shard):
            seen.append((list(calls), shard.global_step))
            if len(calls) < 2 and not any(call.applied for call in calls):
                return []
            serve = [Serve(call.ticket) for call in calls if call.applied]
            return [*serve, *[Apply((call.ticket,)) for call in calls if not call.applied][:1]]

    job = Job(policy=ServesFirst())
    job.push(7, "a")
    answers = job.push(8, "b", gradient=10)
    assert [(answer.values[0].version, *answer.values[0].array) for answer in answers.values()] == [(2, -11, -11)] * 2
    assert seen[:3] == [
        ([CallView(7, "a", applied=False)], 0),
        ([CallView(7, "a", applied=False), CallView(8, "b", applied=False)], 0),
        ([CallView(7, "a", applied=True), CallView(8, "b", applied=False, staleness=1)], 1),
    ]


class AskedAsynchronous(Asynchronous):
    """The same policy, which the shard does not know, and therefore asks."""


@pytest.mark.parametrize("seed", range(20250713, 20250716))
def test_a_shard_does_without_asking_what_the_asynchronous_policy_would_decide(seed):
    """Pushes, retries, pulls and lost leases in any order: the same answers, and the same state at the end."""
    random = np.random.default_rng(seed)
    jobs = Job("abc", policy=Asynchronous()), Job("abc", policy=AskedAsynchronous())
    sequences = dict.fromkeys("abc", 1)
    for ticket in range(1, 60):
        worker, kind, gradient = "abc"[random.integers(3)], random.random(), random.integers(9)
        sequences[worker] += kind < 0.5  # or it is a retry
        if kind < 0.7:
            told = [job.push(ticket, worker, sequences[worker], gradient=gradient) for job in jobs]
        elif kind < 0.9:
            told = [job.tell(Pull(Sender(worker, 1), ("W",)), ticket) for job in jobs]
        else:
            told = []
            for job in jobs:
                job.now += LEASE / 4
                told.append([job.tell(message) for message in (*(Renew(Sender(one, 1)) for one in "abc"), Tick())])
        assert state_of(told[0]) == state_of(told[1])
    assert state_of(jobs[0].status()) == state_of(jobs[1].status())
    assert jobs[0].shard.global_step > 20
