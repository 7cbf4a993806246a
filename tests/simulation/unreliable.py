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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from unittest import mock

import numpy as np

from psserver.core.shard import Shard
from pswire.errors import ParamServerError, TimedOut, Unavailable
from pswire.messages import (
    Answer,
    Assignment,
    Declaration,
    Finished,
    Message,
    Outcome,
    Pushed,
    QueueSpec,
    Reply,
    Request,
    Status,
    StatusReport,
    Tick,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.values import Array, IndexedSlices, TensorSpec
from psworker.client import placement
from psworker.client.client import Client
from psworker.transport import Future
from psworker.versions import VersionedArray
from tests.shard_state import run_step

QUEUE = QueueSpec("mnist", size=7, block=2, epochs=3)
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

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._gates: dict[str, threading.Semaphore] = {}
        self._failure: BaseException | None = None

    def run(self, lives: Mapping[str, Callable[[], None]]) -> None:
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

    def pass_on(self) -> None:
        """Hand the turn on and wait for it to come back. Does nothing in a thread that takes no turns."""
        mine = self._gates.get(threading.current_thread().name)
        if mine is not None:
            self._give()
            self._wait(mine)

    def _live(self, life: Callable[[], None]) -> None:
        name = threading.current_thread().name
        try:
            self._wait(self._gates[name])
            life()
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            self._failure = self._failure or error
        finally:
            del self._gates[name]
            self._give()

    def _give(self) -> None:
        if self._gates:
            self._gates[self._random.choice(list(self._gates))].release()

    def _wait(self, mine: threading.Semaphore) -> None:
        if not mine.acquire(timeout=MAX_WAIT_SECONDS):
            raise AssertionError("the turn has not come")
        if self._failure is not None:
            raise AssertionError("another has failed")


class UnreliableTransport:
    """Calls to shards in this process, of which any may go wrong."""

    def __init__(self, shards: int, seed: int, consistency: str, staleness: str, lease: float) -> None:
        self.turns = Turns(f"{seed}/turns")
        options = parse_consistency(consistency), parse_staleness(staleness)
        self.links = [
            Link(Shard(shard, shards, lease, None, *options), f"{seed}/{shard}", self.turns) for shard in range(shards)
        ]

    @property
    def shards(self) -> int:
        return len(self.links)

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        return self.links[shard].call(message)

    def tensor_transport(self, shard: int) -> str:
        return ""

    def close(self) -> None:
        """The shards stay: other workers use them."""


class Link:
    """The way to one shard and back, and the time there."""

    def __init__(self, shard: Shard, seed: str, turns: Turns) -> None:
        self.fates: Counter[str] = Counter()
        self.stalenesses: Counter[int] = Counter()  # of the pushes that the shard applied
        self._shard = shard
        self._turns = turns
        self._random = random.Random(seed)
        self._tickets = itertools.count(1)
        self._answers: dict[int, Answer | ParamServerError] = {}
        self._late: list[Request] = []
        self._now = 0.0

    def call(self, message: Request) -> Future[Answer]:
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

    def status(self) -> StatusReport:
        answer = self._result(self._step(Status()), "Status")
        assert isinstance(answer, StatusReport)
        return answer

    def _result(self, ticket: int | None, what: str) -> Answer:
        answer = None if ticket is None else self._wait_for(ticket)
        if answer is None:
            raise self._random.choice([Unavailable, TimedOut])(what)
        if isinstance(answer, ParamServerError):
            raise answer
        return answer

    def _deliver_late(self) -> None:
        """Some of what was delayed comes now, in any order. Its answer or refusal is lost."""
        for message in self._random.sample(self._late, self._random.randint(0, len(self._late))):
            self._late.remove(message)
            self._step(message)

    def _wait_for(self, ticket: int) -> Answer | ParamServerError | None:
        """The answer. While the shard keeps it back, others go on and time passes; a call has a deadline."""
        for _ in range(10):
            self._turns.pass_on()
            if ticket in self._answers:
                return self._answers.pop(ticket)
            self._deliver_late()
            self._now += 0.5
            self._step(Tick())
        return None

    def _step(self, message: Message) -> int:
        ticket = next(self._tickets)
        try:
            replies = run_step(self._shard, ticket, message, self._now)
        except ParamServerError as refusal:
            replies = [Reply(ticket, refusal)]
        for reply in replies:
            self._answers[reply.ticket] = reply.answer
            if isinstance(reply.answer, Pushed) and reply.answer.outcome is Outcome.APPLIED:
                self.stalenesses[reply.answer.staleness] += 1
        return ticket


@dataclass
class Run:
    """What the workers saw and did, and what the shards have at the end.

    `served` has the value that each version of a variable was, `kept` counts those that were there already.
    `stalenesses` has for each shard those of the pushes that it applied, `half_pushes` counts those that, as the
    shards know, were applied on some of them and not on others.
    """

    handed_out: Counter[tuple[int, int]] = field(default_factory=Counter)
    pushes: Counter[Outcome] = field(default_factory=Counter)
    reports: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    status: list[StatusReport] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    served: dict[tuple[str, tuple[int, ...]], bytes] = field(default_factory=dict)
    kept: int = 0
    stalenesses: list[Counter[int]] = field(default_factory=list)
    half_pushes: int = 0
    leases_end: bool = False


def run(
    seed: int,
    shards: int,
    *,
    split: bool = False,
    consistency: str = "async",
    staleness: str = "none",
    lease: float = LEASE,
) -> Run:
    """Lets the workers live, one at a time, until all is done. With `split` every variable has rows on every shard."""
    transport = UnreliableTransport(shards, seed, consistency, staleness, lease)
    result = Run(leases_end=lease < LEASE)
    with (
        mock.patch.multiple("psworker.client.retrying_calls", INITIAL_BACKOFF=0.0, MAX_BACKOFF=0.0),
        mock.patch("psworker.client.heartbeat.Heartbeat.start"),
        mock.patch.object(placement, "SPLIT_BYTES", 0 if split else placement.SPLIT_BYTES),
    ):
        clients = {name: Client(transport, name, timeout=60) for name in WORKERS}
        transport.turns.run({name: partial(_work, client, name, result) for name, client in clients.items()})
    result.status = [link.status() for link in transport.links]
    result.stalenesses = [link.stalenesses for link in transport.links]
    result.half_pushes = sum(report.half_pushes for report in result.status)
    result.fates = sum((link.fates for link in transport.links), Counter())
    return result


def _work(client: Client, name: str, result: Run) -> None:
    """One worker's life."""
    client.join()
    weights = {whole.name: whole for whole in _register(client)}
    reports = result.reports.setdefault(name, [])
    finished = None
    while not (taken := client.take(QUEUE, finished, len(reports))).done:
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


def _train(
    client: Client, mark: Array, row: int, weights: dict[str, VersionedArray], result: Run, *, named: bool
) -> None:
    """Pushes until it is applied. With `named` the worker says what it has; a version of a variable is one value."""
    rows = IndexedSlices(-mark[[row]], np.array([row]), SHAPE)
    outcome = Outcome.DROPPED
    while outcome is Outcome.DROPPED:
        gradients = [replace(weights["V"], array=-mark), replace(weights["W"], array=rows)]
        pushed = client.push(gradients, 1.0, list(weights), weights.values() if named else ()).result()
        result.pushes[pushed.outcome] += 1
        outcome = pushed.outcome
        for whole in pushed.values:
            was_done = outcome is not Outcome.DROPPED and whole.name in TRAINED and not result.leases_end
            for now, before in zip(whole.versions, weights[whole.name].versions, strict=True):
                assert now >= before + was_done, "a worker's own push is in what it is served"
            value = result.served.setdefault((whole.name, whole.versions), whole.array.tobytes())
            assert whole.array.tobytes() == value, f"two values of {whole.name} at version {whole.versions}"
            result.kept += whole.array is weights[whole.name].array
            weights[whole.name] = whole


def _register(client: Client) -> list[VersionedArray]:
    """The variables' first values."""
    optimizer = GradientDescent(learning_rate=1)
    trained = [Declaration(TensorSpec(name, SHAPE, "float64"), np.zeros(SHAPE), optimizer) for name in TRAINED]
    counted = Declaration(TensorSpec(COUNTED, SHAPE, "int64"), np.zeros(SHAPE, np.int64))
    return client.register([*trained, counted])


def check_exactly_once(run: Run) -> None:
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
