"""A job of three workers over a transport that loses, doubles and delays messages: what they did, and what is left.

Real clients talk to real shards; there is no socket and no pause. One seed makes one run. Training on an example, and
counting it, makes an element of its own one larger, so what was done twice or never shows in the values; where pushes
are applied together it is a part of one. Gradients for `V` are whole, for `W` they are rows. A push that is dropped is
made again. All workers but one say what they have of the values that they ask for, which then does not come again.
"""

import itertools
import math
import random
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np

from pswire import placement
from pswire.errors import ParamServerError, TimedOut, Unavailable
from pswire.messages import Assignment, Finished, Outcome, Pushed, QueueSpec, Reply, Status
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.values import IndexedSlices
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from psworker.transport import Future
from tests.support.shards import declared, new_shard, run_step

QUEUE = QueueSpec(name="mnist", size=7, block=2, epochs=3)
SHAPE = (QUEUE.epochs, QUEUE.size)
WORKERS = ("w0", "w1", "w2")
TRAINED = ("V", "W")  # of one size: with two shards each has one
COUNTED = "examples"

#: Seconds on the shards' clocks, which go on while a call waits: a worker whose Leave was lost is lost at last.
LEASE = 1000.0

#: What may happen to a message, and how often.
FATES = {"delivered": 8, "lost": 2, "answer lost": 2, "doubled": 2, "delayed": 3}

#: Seconds after which a turn that never comes has failed the test.
MAX_WAIT_SECONDS = 60.0


class Turns:
    """Threads of which one runs at a time: they hand the turn on where they would wait, and a seed says to whom.

    What they do together is decided by the seed alone, so nothing that they share needs a lock.
    """

    def __init__(self, seed):
        self._random, self._gates, self._failure = random.Random(seed), {}, None

    def run(self, lives):
        """Lets all of them live, each in a thread of its name, until the last has ended; raises what one has raised."""
        self._gates = {name: threading.Semaphore(0) for name in lives}
        threads = [threading.Thread(target=self._live, args=(life,), name=name) for name, life in lives.items()]
        for thread in threads:
            thread.start()
        self._give()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def pass_on(self, *, give=True):
        """Hand the turn on and wait for it to come back. Does nothing in a thread that takes no turns."""
        mine = self._gates.get(threading.current_thread().name)
        if mine is not None:
            if give:
                self._give()
            assert mine.acquire(timeout=MAX_WAIT_SECONDS), "the turn has not come"
            assert self._failure is None, "another has failed"

    def _live(self, life):
        try:
            self.pass_on(give=False)
            life()
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            self._failure = self._failure or error
        finally:
            del self._gates[threading.current_thread().name]
            self._give()

    def _give(self):
        if self._gates:
            self._gates[self._random.choice(list(self._gates))].release()


class UnreliableTransport:
    """Calls to shards in this process, of which any may go wrong."""

    def __init__(self, shards, seed, *options):
        self.turns, self.shards = Turns(f"{seed}/turns"), shards
        self.links = [Link(new_shard(one, shards, *options), f"{seed}/{one}", self.turns) for one in range(shards)]

    def call(self, shard, message, timeout):
        return self.links[shard].call(message)

    def tensor_transport(self, shard):
        return ""

    def close(self):
        """The shards stay: other workers use them."""


class Link:
    """The way to one shard and back, and the time there. `applied`: the pushes that the shard applied, in order."""

    def __init__(self, shard, seed, turns):
        self.fates, self.stalenesses, self.applied, self._messages = Counter(), Counter(), [], {}
        self._shard, self._random, self._turns = shard, random.Random(seed), turns
        self._tickets, self._answers, self._late, self._now = itertools.count(1), {}, [], 0.0

    def call(self, message):
        """The result raises `Unavailable` or `TimedOut` when no answer comes."""
        self._deliver_late()
        fate = self._random.choices(list(FATES), list(FATES.values()))[0]
        self.fates[fate] += 1
        if fate == "delayed":
            self._late.append(message)
        if fate in ("doubled", "answer lost"):
            self._step(message)
        ticket = self._step(message) if fate in ("doubled", "delivered") else None
        return Future(lambda: self._result(ticket, f"{type(message).__name__}: {fate}"))

    def status(self):
        return self._result(self._step(Status()), "Status")

    def _result(self, ticket, what):
        answer = None if ticket is None else self._wait_for(ticket)
        if answer is None:
            raise self._random.choice([Unavailable, TimedOut])(what)
        if isinstance(answer, ParamServerError):
            raise answer
        return answer

    def _deliver_late(self):
        """Some of what was delayed comes now, in any order. Its answer or refusal is lost."""
        for message in self._random.sample(self._late, self._random.randint(0, len(self._late))):
            self._late.remove(message)
            self._step(message)

    def _wait_for(self, ticket):
        """The answer. While the shard keeps it back, others go on and time passes; a call has a deadline."""
        for _ in range(10):
            self._turns.pass_on()
            if ticket in self._answers:
                return self._answers.pop(ticket)
            self._deliver_late()
            self._now += 0.5
            self._step(self._shard.due(self._now))
        return None

    def _replies(self, ticket, message):
        return run_step(self._shard, ticket, message, self._now)

    def _step(self, message):
        ticket = next(self._tickets)
        self._messages[ticket] = message
        try:
            replies = self._replies(ticket, message)
        except ParamServerError as refusal:
            replies = [Reply(ticket, refusal)]
        for reply in replies:
            self._answers[reply.ticket] = reply.answer
            if isinstance(reply.answer, Pushed) and reply.answer.outcome is Outcome.APPLIED:
                self.stalenesses[reply.answer.staleness] += 1
                self.applied.append(self._messages[reply.ticket])
        return ticket


class Run:
    """What the workers saw and did, and what the shards have at the end.

    `served` has the value that each version of a variable was, `kept` counts those that were there already.
    `stalenesses` has for each shard those of the pushes that it applied, `half_pushes` counts those that, as the
    shards know, were applied on some of them and not on others, and `seen_half` those of which their workers know it.
    """

    def __init__(self, lease):
        self.handed_out, self.pushes, self.reports, self.values = Counter(), Counter(), {}, {}
        self.served, self.kept, self.leases_end = {}, 0, lease < LEASE
        self.seen_half = 0


def run(seed, shards, *, split=False, consistency="async", staleness="none", lease=LEASE):
    """Lets the workers live, one at a time, until all is done. With `split` every variable has rows on every shard."""
    options = parse_consistency(consistency), parse_staleness(staleness)
    transport, result = UnreliableTransport(shards, seed, lease, None, *options), Run(lease)
    with (
        mock.patch.multiple("psworker.client.retry", INITIAL_BACKOFF=0.0, MAX_BACKOFF=0.0),
        mock.patch("psworker.client.heartbeat.Heartbeat.start"),
        mock.patch.object(placement, "SPLIT_BYTES", 0 if split else placement.SPLIT_BYTES),
    ):
        clients = {name: Client(transport, name, timeout=60, job=JobChoice(resume=True)) for name in WORKERS}
        transport.turns.run({name: partial(_work, client, name, result) for name, client in clients.items()})
    result.status = [link.status() for link in transport.links]
    result.stalenesses = [link.stalenesses for link in transport.links]
    result.half_pushes = sum(report.half_pushes for report in result.status)
    result.fates = sum((link.fates for link in transport.links), Counter())
    return result


def _work(client, name, result):
    """One worker's life."""
    client.join()
    variables = [declared(name, np.zeros(SHAPE), GradientDescent(learning_rate=1)) for name in TRAINED]
    variables.append(declared(COUNTED, np.zeros(SHAPE, np.int64)))
    weights = {whole.name: whole for whole in client.register(variables)}
    reports = result.reports.setdefault(name, [])
    finished = None
    while not (taken := client.blocks.take(QUEUE, finished, len(reports))).done:
        reports += [report.epoch for report in taken.reports]
        if taken.block is None:
            client.report_idle()
            continue
        block = taken.block
        for position in range(block.start, block.stop):
            result.handed_out[block.epoch, position] += 1
            mark = np.zeros(SHAPE)
            mark[block.epoch - 1, position] = 1
            _train(client, mark, block.epoch - 1, weights, result, named=name != WORKERS[-1])
            client.assign([Assignment(COUNTED, mark.astype(np.int64))], add=True)
        finished = Finished(block.number, float(block.stop - block.start))
    reports += [report.epoch for report in taken.reports]
    client.report_idle()
    result.values = {whole.name: whole.array for whole in client.pull([*TRAINED, COUNTED])}
    client.leave()
    client.close()


def _train(client, mark, row, weights, result, *, named):
    """Pushes until it is applied. With `named` the worker says what it has; a version of a variable is one value."""
    rows = IndexedSlices(-mark[[row]], np.array([row]), SHAPE)
    outcome = Outcome.DROPPED
    while outcome is Outcome.DROPPED:
        gradients = [replace(weights["V"], array=-mark), replace(weights["W"], array=rows)]
        pushed = client.push(gradients, 1.0, list(weights), weights.values() if named else ()).result()
        result.pushes[pushed.outcome] += 1
        result.seen_half += pushed.half_applied
        outcome = pushed.outcome
        for whole in pushed.values:
            was_done = outcome is not Outcome.DROPPED and whole.name in TRAINED and not result.leases_end
            for now, before in zip(whole.read.versions, weights[whole.name].read.versions, strict=True):
                assert now >= before + was_done, "a worker's own push is in what it is served"
            value = result.served.setdefault((whole.name, whole.read.versions), whole.array.tobytes())
            assert whole.array.tobytes() == value, f"two values of {whole.name} at version {whole.read.versions}"
            result.kept += whole.array is weights[whole.name].array
            weights[whole.name] = whole


def check_exactly_once(run):
    """Raises `AssertionError` unless everything that was to happen has happened, once.

    Each element is then the part that its push had in an update, and each update the sum of its pushes' parts.
    """
    examples = math.prod(SHAPE)
    assert len(run.handed_out) == examples, "an example was not handed out"
    assert set(run.handed_out.values()) == {1}, "an example was handed out twice"
    assert (run.values[COUNTED] == 1).all(), f"something was counted never, or more than once:\n{run.values[COUNTED]}"
    assert run.pushes[Outcome.APPLIED] + run.pushes[Outcome.REPEATED] == examples
    updates = run.status[0].global_step
    for name in TRAINED:
        value = run.values[name]
        parts = np.unique(value)
        assert np.isin(parts, [1 / pushes for pushes in range(1, len(WORKERS) + 1)]).all(), (
            f"something was done to {name} never, or more than once:\n{value}"
        )
        assert math.isclose(value.sum(), updates), f"{name} has had {value.sum()} updates, and there were {updates}"
    np.testing.assert_array_equal(run.values["V"], run.values["W"], "the shards have applied others together")
    for shard in run.status:
        trained = not shard.shard or any(variable.spec.name in TRAINED for variable in shard.variables)
        assert shard.global_step == trained * updates
        assert sum(worker.steps for worker in shard.workers) == trained * examples
    epochs = list(range(1, QUEUE.epochs + 1))
    assert [(report.epoch, report.examples, report.cost) for report in run.status[0].epochs] == [
        (epoch, QUEUE.size, 1.0) for epoch in epochs
    ]
    assert run.reports == dict.fromkeys(WORKERS, epochs), "each epoch is reported to each worker once, in order"
