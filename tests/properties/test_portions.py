"""Portions of evaluations on several shards, with workers that die, messages that come late or twice, and restarts.

The gradient of a portion is 1 in its own place, so the sum of an evaluation is 1 everywhere if every portion was
counted exactly once, whatever happened. The workers here follow `TakePortionRequest` in the protocol, and nothing else.
"""

import contextlib
import itertools
import math
import random
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire import messages as ms
from pswire.errors import InvalidMessage, NotJoined, OutOfOrder, ParamServerError, Unavailable, Zombie
from pswire.specs.vectors import GRADIENT
from pswire.tensors.values import TensorSpec
from tests.support.combinations import few_fast
from tests.support.shards import new_shard, restored, run_step, state_of

SHARDS, PORTIONS, LEASE = 3, 7, 8.0
LOSSES = [1e16, 0.1, -1e16, 0.2, 1.0, 1e-20, 3.0]
NAMES = "abc"

#: What a worker does: calls of a shard, each of which gets an answer.
Calls = Generator[tuple[int, ms.Request], Any, None]


class Worker:
    """One life of a worker, which computes, and evaluates if it is the chief."""

    def __init__(self, job: "Job", name: str, nonce: int) -> None:
        self.job, self.nonce, self.sequence, self.number = job, nonce, 0, ms.Job()
        self.changing = ""  # the thread that sends a change
        self.me = ms.Sender(name, 0)
        joined = job.deliver(0, self.joining(0))
        self.me, self.number = ms.Sender(name, joined.incarnation), joined.job
        for shard in range(1, SHARDS):
            job.deliver(shard, self.joining(shard))
        job.deliver_registration(self.me)
        self.threads = {"compute": Thread(self.compute()), "renew": Thread(self.renew())}

    def joining(self, shard: int) -> ms.Join:
        name, incarnation = self.me.worker, self.me.incarnation
        return ms.Join(
            worker=name,
            incarnation=incarnation,
            shard=shard,
            shards=SHARDS,
            process_nonce=self.nonce,
            name_key=b"key",
            job=self.number,
            resume=True,
        )

    def renew(self) -> Calls:
        """Heartbeats."""
        for shard in itertools.cycle(range(SHARDS)):
            yield shard, ms.Renew(sender=self.me)

    def compute(self) -> Calls:
        evaluation, holding, total, withdrawn = 0, {}, [], ()
        while True:
            answer = yield (
                0,
                ms.TakePortion(
                    sender=self.me, name="fit", evaluation=evaluation, holding=tuple(holding), withdrawn=withdrawn
                ),
            )
            withdrawn = ()
            if answer.evaluation != evaluation:
                evaluation, holding, total = answer.evaluation, {}, []
            for number in answer.stop:
                holding.pop(number, None)
            if (portion := answer.portion) is not None:
                holding[portion.number] = portion
                if len(holding) < 2 and self.job.random.random() < 0.5:
                    continue
            if answer.push:
                withdrawn, total = (yield from self.push(evaluation, total)), []
            elif holding:
                number, portion = holding.popitem()
                claimed = yield (
                    0,
                    ms.ClaimPortion(
                        sender=self.me, name="fit", evaluation=evaluation, portion=number, loss=LOSSES[number]
                    ),
                )
                if claimed.counted and portion.alone:
                    withdrawn = yield from self.push(evaluation, [number])
                elif claimed.counted:
                    total.append(number)

    def push(self, evaluation: int, numbers: list[int]) -> Generator[Any, Any, tuple[int, ...]]:
        """Push to the other shards first; returns the portions of a sum that one has dropped."""
        yield from self.begin_change("compute")
        portions = ms.CountedPortions("fit", evaluation, tuple(numbers))
        gradient = np.zeros(PORTIONS)
        gradient[numbers] = 1
        for shard in (*range(1, SHARDS), 0):
            value = (ms.Assignment(f"V{shard}", gradient.copy()),)
            answer = yield (
                shard,
                ms.Assign(sender=self.me, sequence=self.sequence, assignments=value, add=True, portions=portions),
            )
            if answer.outcome is ms.Outcome.DROPPED:
                break
        self.changing = ""
        return portions.numbers if answer.outcome is ms.Outcome.DROPPED else ()

    def begin_change(self, thread: str) -> Calls:
        """Wait for the change of the other thread; the next sequence number."""
        while self.changing:
            yield 0, ms.Renew(sender=self.me)
        self.changing = thread
        self.sequence += 1

    def compute_on_all(self, term: int) -> Generator[Any, Any, int]:
        """Begin a term, or ask with 0; the highest one that a shard knows."""
        highest = 0
        yield from self.begin_change("evaluate")
        for shard in range(SHARDS):
            answer = yield shard, ms.Compute(sender=self.me, sequence=self.sequence, minimization="fit", term=term)
            highest = max(highest, answer.term)
        self.changing = ""
        return highest

    def evaluate(self) -> Calls:
        """As the chief: one evaluation after the other, each until all shards have all portions."""
        number, term = 0, 1 + (yield from self.compute_on_all(0))
        yield from self.compute_on_all(term)
        for shard in range(SHARDS):
            number = max(number, (yield shard, ms.Evaluate(sender=self.me, name="fit")).number)
        while True:
            number += 1
            evaluation, loss, complete = ms.Evaluation(number, PORTIONS, 1), None, set()
            for shard in (*range(1, SHARDS), 0):
                yield shard, ms.Evaluate(sender=self.me, name="fit", evaluation=evaluation, wait=False, term=term)
            while len(complete) < SHARDS:
                for shard in range(SHARDS):
                    answer = yield shard, ms.Evaluate(sender=self.me, name="fit", evaluation=evaluation, term=term)
                    assert answer.number == number, "nobody else evaluates"
                    loss = loss if shard else answer.loss
                    complete |= {shard} if answer.counted == PORTIONS else set()
            self.job.note_complete(loss)


class Thread:
    """A sequence of calls; the one that is open, and its ticket while the shard has it."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.open: tuple[int, ms.Request] = next(calls)
        self.ticket: int | None = None


class Job:
    """Some shards and workers, and what happens to them: drawn by `seed`."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = random.Random(seed), 0.0
        self.shards = [self.new_shard(shard) for shard in range(SHARDS)]
        self.tickets, self.nonces = itertools.count(1), itertools.count(1)
        self.answers: dict[int, ms.Answer | ParamServerError] = {}
        self.sent: list[tuple[int, ms.Request]] = []
        self.complete = 0
        self.asleep: set[str] = set()
        self.workers: dict[str, Worker] = {}
        for name in NAMES:
            self.workers[name] = Worker(self, name, next(self.nonces))

    def new_shard(self, shard: int) -> Shard:
        return new_shard(shard, SHARDS, LEASE, identity=shard + 1)

    def deliver(self, shard: int, message: ms.Request) -> Any:
        (ticket,) = itertools.islice(self.tickets, 1)
        self.step(shard, ticket, message)
        answer = self.answers.pop(ticket)
        if isinstance(answer, ParamServerError):
            raise answer
        return answer

    def deliver_registration(self, sender: ms.Sender) -> None:
        places = tuple(ms.Place(f"V{shard}", shard) for shard in range(SHARDS))
        for shard in range(SHARDS):
            value = np.zeros(PORTIONS)
            declared = ms.Declaration(TensorSpec.of(f"V{shard}", value), value)
            self.deliver(shard, ms.Register(sender=sender, declarations=(declared,), places=() if shard else places))

    def step(self, shard: int, ticket: int, message: ms.Message) -> None:
        for reply in run_step(self.shards[shard], ticket, message, self.now):
            self.answers[reply.ticket] = reply.answer

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for shard, one in enumerate(self.shards):
            self.step(shard, 0, one.due(self.now))

    def note_complete(self, loss: float) -> None:
        """The chief says so: then it is."""
        for shard, one in enumerate(self.shards):
            np.testing.assert_array_equal(one.variables[f"V{shard}"].vectors[GRADIENT], np.ones(PORTIONS))
        assert loss == math.fsum(LOSSES)
        self.complete += 1

    # --- what happens ---------------------------------------------------------------------------------------------

    def threads(self) -> Iterator[tuple[Worker, Thread]]:
        """Those of all workers, and of the present chief one more."""
        for worker in self.workers.values():
            is_chief = self.shards[0]._members.chief.is_chief(worker.me.worker)
            if is_chief and "evaluate" not in worker.threads:
                worker.threads["evaluate"] = Thread(worker.evaluate())
            elif not is_chief and worker.threads.pop("evaluate", None) is not None and worker.changing == "evaluate":
                worker.changing = ""
            for thread in worker.threads.values():
                yield worker, thread

    def go_on(self, worker: Worker, thread: Thread) -> None:
        """Send what is open, or take the answer if there is one; an answer that is an error is no answer."""
        shard, message = thread.open
        if thread.ticket is None:
            thread.ticket = next(self.tickets)
            self.sent.append(thread.open)
            try:
                self.step(shard, thread.ticket, message)
            except NotJoined:
                thread.ticket = None
                self.deliver(shard, worker.joining(shard))
            except Unavailable:
                thread.ticket = None
        elif thread.ticket in self.answers:
            answer = self.answers.pop(thread.ticket)
            thread.ticket = None
            if not isinstance(answer, ParamServerError):
                thread.open = thread.calls.send(answer)

    def something(self) -> None:
        """One of many things happens."""
        threads = [(worker, thread) for worker, thread in self.threads() if worker.me.worker not in self.asleep]
        match self.random.choices(range(8), (200, 6, 8, 6, 1, 1, 1, 1))[0]:
            case 0 if threads:
                self.go_on(*self.random.choice(threads))
            case 1:
                self.tick(self.random.choice([0.1, 1.0, 2.5]))
            case 2 if threads:  # an answer, or a request, is lost: the worker sends it again
                self.random.choice(threads)[1].ticket = None
            case 3 if self.sent:  # a message comes late, or twice
                shard, message = self.random.choice(self.sent[-20:])
                with contextlib.suppress(NotJoined, Zombie, OutOfOrder, Unavailable, InvalidMessage):
                    self.step(shard, next(self.tickets), message)
            case 4 if len(self.workers) > 1:
                del self.workers[self.random.choice(sorted(self.workers))]
            case 5:
                name = self.random.choice(NAMES)
                self.workers[name] = Worker(self, name, next(self.nonces))
            case 6 if len(self.asleep) < 2:  # a worker is stopped for a while, so that shards may lose it
                self.asleep.add(self.random.choice(NAMES))
            case 6:
                self.asleep.clear()
            case 7:
                self.restart(self.random.randrange(SHARDS))

    def restart(self, shard: int) -> None:
        """A shard goes on from its state as a checkpoint has it; calls that waited are sent again."""
        new = self.new_shard(shard)
        restored(self.shards[shard], new, self.now)
        assert state_of(new.state()) == state_of(self.shards[shard].state())
        self.shards[shard] = new
        for _, thread in self.threads():
            if thread.open[0] == shard:
                thread.ticket = None


@pytest.mark.parametrize("seed", few_fast(range(40), 5))
def test_every_portion_is_counted_once_on_every_shard_and_every_evaluation_ends(seed):
    job = Job(seed)
    for _ in range(2000):
        job.something()
    before = job.complete
    for _ in range(400):  # now nothing happens any more but work, by whoever is left
        for worker, thread in list(job.threads()):
            job.go_on(worker, thread)
        job.tick(0.5)
        if job.complete >= before + 2:
            return
    pytest.fail(f"no evaluation ends: {job.shards[0]._minimizations.status(1)}")
