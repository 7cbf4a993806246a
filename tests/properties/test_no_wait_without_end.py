"""Workers that push are never held for longer than the progress timeout, whatever others do that renew their leases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.messages import Declaration, Gradient, Join, Push, Register, Renew, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency
from pswire.tensors.values import TensorSpec
from tests.support.combinations import few_fast
from tests.support.shards import new_shard, run_step

TIMEOUT = 5.0

#: What the other workers do in a second: nothing but renew their leases, push with the newest weights or with the
#: first ones, or begin another life.
acts = st.lists(
    st.tuples(*[st.sampled_from(["renew"] * 6 + ["push", "late push", "join"])] * 2), min_size=30, max_size=60
)


class Worker:
    """A worker; `held`: since when its push has had no answer."""

    def __init__(self, job, name):
        self.job, self.name, self.held, self.ticket = job, name, None, None
        self.join()

    def join(self):
        joined = self.job.send(Join(worker=self.name, name_key=b"key"))
        self.sender, self.sequence = Sender(self.name, joined.incarnation), 0

    def push(self, version):
        self.sequence += 1
        self.held, self.ticket = self.job.now, self.job.ticket + 1
        gradient = Gradient("W", version, np.float32(1))
        self.job.send(Push(sender=self.sender, sequence=self.sequence, gradients=(gradient,)))


class Job:
    """A shard, two workers that push as soon as they may, and two others."""

    def __init__(self, consistency):
        self.now, self.ticket, self.workers = 0.0, 0, []
        self.shard = new_shard(lease=1e9, consistency=parse_consistency(consistency), progress_timeout=TIMEOUT)
        self.workers = [Worker(self, name) for name in ("w0", "w1", "other0", "other1")]
        value = np.zeros((), np.float32)
        declared = Declaration(TensorSpec.of("W", value), value, GradientDescent(1.0))
        self.send(Register(sender=self.workers[0].sender, declarations=(declared,)))
        for worker in self.workers:  # all of them begin
            worker.push(0)

    def send(self, message):
        """Its answer; those that come to held pushes are noted."""
        self.ticket += 1
        answers = {one.ticket: one.answer for one in run_step(self.shard, self.ticket, message, self.now)}
        for worker in self.workers:
            if worker.ticket in answers:
                worker.held = None
        return answers.get(self.ticket)

    @property
    def version(self):
        return self.shard.variables["W"].version

    def second(self, acts):
        self.now += 1.0
        honest, others = self.workers[:2], self.workers[2:]
        for other, act in zip(others, acts, strict=True):
            if act == "join":
                other.join()
            elif act == "renew":
                self.send(Renew(sender=other.sender))
            else:
                other.push(self.version if act == "push" else 0)
        for worker in honest:
            if worker.held is None:
                worker.push(self.version)
            self.send(Renew(sender=worker.sender))
        tick = self.shard.due(self.now)
        if any((tick.lost, tick.overdue, tick.stalled)):
            self.send(tick)
        return max([self.now - worker.held for worker in honest if worker.held is not None], default=0.0)


@pytest.mark.parametrize("consistency", ["bounded:0", "bounded:2", "sync:3", "sync:4", "sync:3,backup=1"])
@pytest.mark.parametrize("examples", few_fast([5, 30]))
def test_no_push_is_held_for_longer_than_the_progress_timeout_and_two_ticks(consistency, examples):
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(acts=acts)
    def check(acts):
        job = Job(consistency)
        assert [held for held in map(job.second, acts) if held > TIMEOUT + 2] == []

    check()
