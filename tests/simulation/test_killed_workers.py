"""Each example is trained once an epoch, although workers are killed at any moment and messages are lost and doubled.

A killed worker says nothing any more; another incarnation of it begins, while messages of the old one may still come.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest

from pswire.errors import Zombie
from pswire.messages import Finished, Outcome, Progress, QueueSpec
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from tests.simulation.unreliable import LEASE, WORKERS, UnreliableTransport
from tests.support.combinations import few_fast
from tests.support.shards import declared

QUEUE = QueueSpec(name="mnist", size=11, block=4, epochs=2)
BLOCKS = 3  # of an epoch
SHAPE = (QUEUE.epochs, QUEUE.size)
LIMITED = QueueSpec(name="mnist", size=11, block=4, epochs=0, limit=17)  # its last block is cut off
MOMENTS = ("before a push", "in a push", "after a push")


class KilledError(Exception):
    """A worker is killed."""


class Job:
    """Three workers, each of which is killed some times; `open` and `dropped` are the examples of such pushes."""

    def __init__(self, seed, shards, consistency, staleness, queue=QUEUE):
        options = parse_consistency(consistency), parse_staleness(staleness)
        self.queue = queue
        self.seed, self.transport = seed, UnreliableTransport(shards, seed, LEASE, None, *options)
        self.killed, self.open, self.dropped = Counter(), set(), set()

    def run(self):
        with (
            mock.patch.multiple("psworker.client.retry", INITIAL_BACKOFF=0.0, MAX_BACKOFF=0.0),
            mock.patch("psworker.client.heartbeat.Heartbeat.start"),
        ):
            self.transport.turns.run({name: partial(self.worker, name) for name in WORKERS})
        self.trained = Counter()
        for push in self.transport.links[0].applied:
            [example] = push.progress
            self.trained[example.block // BLOCKS + 1, example.position - 1] += 1

    def worker(self, name):
        """The incarnations of one worker."""
        draws = random.Random(f"{self.seed}/{name}")
        lasts = draws.choices(range(1, 7), k=draws.randint(1, 3))
        while True:
            try:
                return self.live(name, lasts.pop() if lasts else 0, draws.choice(MOMENTS))
            except KilledError as moment:
                self.killed[str(moment)] += 1
            except Zombie:  # a late Join of an earlier incarnation has ended this one
                self.killed["by a late Join"] += 1

    def live(self, name, last, moment):
        """Trains to the end, or is killed with the push of the number `last`."""
        client = Client(self.transport, name, timeout=60, job=JobChoice(resume=True))
        client.join()
        [weights] = client.register([declared("V", np.zeros(SHAPE), GradientDescent(learning_rate=1))])
        finished, step = None, 0
        while not (taken := client.blocks.take(self.queue, finished)).done:
            finished, block = None, taken.block
            if block is None:
                client.report_idle()
                continue
            for position in range(block.start, block.stop):
                step += 1
                if (step, moment) == (last, MOMENTS[0]):
                    raise KilledError(moment)
                mark = np.zeros(SHAPE)
                mark[block.epoch - 1, position] = -1
                progress = Progress(
                    queue=QUEUE.name, block=block.number, position=position + 1, cost_sum=position + 1.0 - block.start
                )
                push = client.push([replace(weights, array=mark)], 1.0, ["V"], progress=(progress,))
                self.open.add((block.epoch, position))
                if (step, moment) == (last, MOMENTS[1]):
                    raise KilledError(moment)
                result = push.result()
                self.open.remove((block.epoch, position))
                [weights] = result.values
                if result.outcome is Outcome.DROPPED:
                    self.dropped.add((block.epoch, position))
                if (step, moment) == (last, MOMENTS[2]):
                    raise KilledError(moment)
            finished = Finished(block.number, float(block.stop - block.start))
        client.report_idle()
        client.leave()
        client.close()


JOBS = ["async none", "async drop:0", "async drop:1", "bounded:0 none", "bounded:1 drop:1", "sync:2 none"]
JOBS += ["sync:2,backup=1 none", "sync:3 drop:3"]


def check_that_each_was_trained(job, total, *, drops):
    """The first so many examples, of all epochs, are applied or dropped once, and no others."""
    everything = {(number // QUEUE.size + 1, number % QUEUE.size) for number in range(total)}
    assert set(job.trained.values()) == {1}
    assert not job.trained.keys() & job.dropped
    assert job.trained.keys() | job.dropped <= everything
    assert everything - job.trained.keys() - job.dropped <= (job.open if drops else set())


@pytest.mark.parametrize("options", JOBS)
@pytest.mark.parametrize("seed", few_fast(range(25)))
def test_a_limit_ends_the_job_after_the_same_examples_whoever_is_killed(seed, options):
    job = Job(seed, 1, *options.split(), queue=LIMITED)
    job.run()
    check_that_each_was_trained(job, LIMITED.limit, drops="drop" in options or "sync" in options)
    status = job.transport.links[0].status()
    assert [(one.epoch, one.examples) for one in status.epochs] == [(1, QUEUE.size)]
    assert [(one.epoch, one.done, one.blocks_out) for one in status.queues] == [(2, LIMITED.limit, 0)]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("options", JOBS)
@pytest.mark.parametrize("seed", few_fast(range(25)))
def test_each_example_is_applied_or_dropped_once_an_epoch(seed, options, shards):
    job = Job(seed, shards, *options.split())
    job.run()
    check_that_each_was_trained(job, QUEUE.total, drops="drop" in options or "sync" in options)
    epochs = [(one.epoch, one.examples, one.cost) for one in job.transport.links[0].status().epochs]
    assert epochs == [(epoch, QUEUE.size, 1.0) for epoch in (1, 2)]


def test_workers_are_killed_at_every_moment():
    killed = Counter()
    for seed in range(5):
        job = Job(seed, 1, "async", "none")
        job.run()
        killed += job.killed
    assert set(killed) >= set(MOMENTS)
