"""A job of three workers over a transport that loses, doubles and delays messages: what they did, and what is left.

Real clients talk to real shards; there is no socket and no pause. One seed makes one run. Training on an example, and
counting it, makes an element of its own one larger, so what was done twice or never shows in the values. Gradients for
`V` are whole, for `W` they are rows.
"""

import contextlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from psserver.core.shard import Shard
from pswire.errors import ParamServerError, TimedOut, Unavailable
from pswire.messages import (
    Answer,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Message,
    QueueSpec,
    Request,
    Status,
    StatusReport,
    Tick,
)
from pswire.payload import owned
from pswire.specs import GradientDescent
from pswire.values import Array, IndexedSlices, TensorSpec
from psworker.client import Client
from psworker.transport import Call

QUEUE = QueueSpec("mnist", size=7, block=2, epochs=3)
SHAPE = (QUEUE.epochs, QUEUE.size)
WORKERS = ("w0", "w1", "w2")
TRAINED = ("V", "W")  # of one size: with two shards each has one
COUNTED = "examples"

#: What may happen to a message, and how often.
FATES = {"delivered": 8, "lost": 2, "answer lost": 2, "doubled": 2, "delayed": 3}


class UnreliableTransport:
    """Calls to shards in this process, of which any may go wrong."""

    def __init__(self, shards: int, seed: int) -> None:
        self.links = [Link(Shard(shard, shards, lease=math.inf), f"{seed}/{shard}") for shard in range(shards)]

    @property
    def shards(self) -> int:
        return len(self.links)

    def call(self, shard: int, message: Request, timeout: float) -> Call:
        return self.links[shard].call(message)

    def close(self) -> None:
        """The shards stay: other workers use them."""


class Link:
    """The way to one shard and back, and the time there."""

    def __init__(self, shard: Shard, seed: str) -> None:
        self.fates: Counter[str] = Counter()
        self._shard = shard
        self._random = random.Random(seed)
        self._tickets = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._late: list[Request] = []
        self._now = 0.0

    def call(self, message: Request) -> Call:
        """The result raises `Unavailable` or `TimedOut` when no answer comes."""
        self._deliver_late()
        fate = self._random.choices(list(FATES), list(FATES.values()))[0]
        self.fates[fate] += 1
        if fate == "delayed":
            self._late.append(message)
        if fate in ("doubled", "answer lost"):
            self._step(message)
        ticket = self._step(message) if fate in ("doubled", "delivered") else None
        return Call(lambda: self._result(ticket, f"{type(message).__name__}: {fate}"))

    def status(self) -> StatusReport:
        answer = self._result(self._step(Status()), "Status")
        assert isinstance(answer, StatusReport)
        return answer

    def _result(self, ticket: int | None, what: str) -> Answer:
        answer = None if ticket is None else self._wait_for(ticket)
        if answer is None:
            raise self._random.choice([Unavailable, TimedOut])(what)
        return answer

    def _deliver_late(self) -> None:
        """Some of what was delayed comes now, in any order. Nobody hears the answer, or the refusal."""
        for message in self._random.sample(self._late, self._random.randint(0, len(self._late))):
            self._late.remove(message)
            with contextlib.suppress(ParamServerError):
                self._step(message)

    def _wait_for(self, ticket: int) -> Answer | None:
        """The answer. While the shard keeps it back, time passes and late messages come; a call has a deadline."""
        for _ in range(10):
            if ticket in self._answers:
                return self._answers.pop(ticket)
            self._deliver_late()
            self._now += 0.5
            self._step(Tick())
        return None

    def _step(self, message: Message) -> int:
        ticket = next(self._tickets)
        for reply in self._shard.step(ticket, message, self._now):
            self._answers[reply.ticket] = owned(reply.answer)
        return ticket


@dataclass
class Run:
    """What the workers saw and did, and what the shards have at the end."""

    handed_out: Counter[tuple[int, int]] = field(default_factory=Counter)
    pushes: int = 0
    heard: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    status: list[StatusReport] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)


def run(seed: int, shards: int) -> Run:
    """Lets the workers work in turn, one call after the other, until all is done."""
    transport = UnreliableTransport(shards, seed)
    result = Run()
    with mock.patch.multiple("psworker.client", FIRST_PAUSE=0.0, LONGEST_PAUSE=0.0):
        waiting = [_work(Client(transport, name, timeout=60), name, result) for name in WORKERS]
        while waiting:
            waiting = [worker for worker in waiting if next(worker, "done") != "done"]
    result.status = [link.status() for link in transport.links]
    result.fates = sum((link.fates for link in transport.links), Counter())
    return result


def _work(client: Client, name: str, result: Run) -> Iterator[None]:
    """One worker's life; a yield lets the others go on."""
    client.join()
    _register(client)
    versions = dict.fromkeys(TRAINED, 0)
    heard = result.heard.setdefault(name, [])
    finished = None
    while not (taken := client.take(QUEUE, finished, len(heard))).done:
        yield
        heard += [report.epoch for report in taken.reports]
        if taken.block is None:
            continue
        block = taken.block
        for position in range(block.start, block.stop):
            result.handed_out[block.epoch, position] += 1
            mark = np.zeros(SHAPE)
            mark[block.epoch - 1, position] = 1
            row = IndexedSlices(-mark[[block.epoch - 1]], np.array([block.epoch - 1]), SHAPE)
            gradients = [Gradient("V", versions["V"], -mark), Gradient("W", versions["W"], row)]
            pushed = client.push(gradients, loss=1.0, pull=TRAINED).wait()
            result.pushes += 1
            for value in pushed.values:
                assert value.version > versions[value.name], "a worker's own push is in what it is served"
                versions[value.name] = value.version
            yield
            client.assign([Assignment(COUNTED, mark.astype(np.int64))], add=True)
            yield
        finished = Finished(block.number, float(block.stop - block.start))
    heard += [report.epoch for report in taken.reports]
    result.values = {value.name: value.array for value in client.pull([*TRAINED, COUNTED])}
    client.leave()
    client.close()


def _register(client: Client) -> None:
    optimizer = GradientDescent(learning_rate=1)
    trained = [Declaration(TensorSpec(name, SHAPE, "float64"), np.zeros(SHAPE), optimizer) for name in TRAINED]
    counted = Declaration(TensorSpec(COUNTED, SHAPE, "int64"), np.zeros(SHAPE, np.int64))
    client.register([*trained, counted])


def check_exactly_once(run: Run) -> None:
    """Raises `AssertionError` unless everything that was to happen has happened, once."""
    examples = math.prod(SHAPE)
    assert len(run.handed_out) == examples, "an example was not handed out"
    assert set(run.handed_out.values()) == {1}, "an example was handed out twice"
    for name, value in run.values.items():
        assert (value == 1).all(), f"something was done to {name} never, or more than once:\n{value}"
    assert run.pushes == examples
    for shard in run.status:
        assert shard.global_step == examples
        assert sum(worker.steps for worker in shard.workers) == examples
    epochs = list(range(1, QUEUE.epochs + 1))
    assert [(report.epoch, report.examples, report.cost) for report in run.status[0].epochs] == [
        (epoch, QUEUE.size, 1.0) for epoch in epochs
    ]
    assert run.heard == dict.fromkeys(WORKERS, epochs), "a worker hears of each epoch once, in order"
