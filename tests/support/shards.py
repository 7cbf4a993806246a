"""Shards in a test: state as plain data, a shard driven by hand, one with checkpoints, a transport to several."""

import dataclasses
import itertools
import json
import math
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property, partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import pytest

from psserver.core.cuts.late_changes import Late
from psserver.core.options import ShardOptions
from psserver.core.policies.policy import Policy
from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import StepResult, run
from psserver.storage.checkpoints import served_arrays, state_from_json, state_to_json
from pswire import messages as ms
from pswire.errors import InvalidMessage, ParamServerError, TimedOut, Unavailable, WrongShard
from pswire.messages import Cut, Declaration, Gradient, Join, Message, Push, Register, Reply, Sender, ShardState, Status
from pswire.specs.consistency import Asynchronous, IgnoreStaleness
from pswire.tensors.values import Array, IndexedSlices, TensorSpec
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from psworker.transport import Future


def state_of(thing: Any) -> Any:
    """A shard, or anything in it, as tuples and texts that compare by value; floats and arrays bit for bit."""
    return _state(thing, {})


#: Counts for displays, which begin anew with each process.
_COUNTS = {("Member", "counts"), ("Variable", "bytes_in"), ("Variable", "bytes_out"), ("PendingCall", "since")}
_COUNTS |= {("Variable", "rounding"), ("Shard", "_next_samples")}
_COUNTS |= {("Position", "changes"), ("Attendance", "_explained_at"), ("Attendance", "_explanations")}
_PLAIN = frozenset({type(None), bool, int, str, bytes})  # most of all there is
_CODE = frozenset({FunctionType, MethodType})


def _state(thing: Any, seen: dict[int, int]) -> Any:
    """`seen` numbers the mutable objects met so far: they refer to each other, and each is written once."""
    kind = type(thing)
    if kind in _PLAIN or isinstance(thing, Enum | type):
        return thing
    if kind in _CODE:
        return kind.__name__
    if isinstance(thing, float):
        return float(thing).hex()
    if kind in (tuple, list, deque):
        return tuple([one if type(one) in _PLAIN else _state(one, seen) for one in thing])
    if isinstance(thing, dict):
        return tuple([(_state(key, seen), _state(one, seen)) for key, one in thing.items() if not callable(one)])
    if kind is set:
        return tuple(sorted(thing, key=repr))
    if isinstance(thing, np.ndarray | np.generic):
        return thing.dtype.str, thing.shape, thing.tobytes()
    if isinstance(thing, BaseException):
        return kind.__name__, str(thing)
    if not _is_value(kind):
        if id(thing) in seen:
            return kind.__name__, seen[id(thing)]
        seen[id(thing)] = len(seen)
    fields = _fields(kind)
    if hasattr(thing, "__dict__"):
        cached = [name for name in vars(thing) if isinstance(getattr(kind, name, None), cached_property)]
        fields = tuple(name for name in dict.fromkeys([*fields, *vars(thing)]) if name not in cached)
    fields = tuple([name for name in fields if (kind.__name__, name) not in _COUNTS])
    parts = [getattr(thing, name) for name in fields]
    values = [one if type(one) in _PLAIN else _state(one, seen) for one in parts if not callable(one)]
    return kind.__name__, fields, tuple(values)


@cache
def _is_value(kind: type) -> bool:
    """Whether two that are equal are as good as one."""
    return issubclass(kind, tuple) or (dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", ())
    return tuple(getattr(kind, "__slots__", ()))


def new_shard(
    *options: Any, policy: Policy | None = None, identity: int = 0, stores_cuts: bool = False, **named: Any
) -> Shard:
    """A shard with these options, in the order of `ShardOptions` or by name."""
    return Shard(ShardOptions(*options, **named), policy=policy, identity=identity, stores_cuts=stores_cuts)


def slots_of(shard: Shard, name: str) -> dict[str, Array]:
    """What the optimizer keeps beside a variable; no message asks for it."""
    return shard._store[name].slots


def restored(shard: Shard, new: Shard, now: float) -> list[Reply]:
    """Gives a new shard the state of another, by way of the text of a manifest; the replies to calls that waited."""
    state = shard.state()
    copies = {one.spec.name: VariableArrays(one.value.copy(), _copies(one.arrays.slots)) for one in shard._store}
    text = json.dumps(state_to_json(state))
    new.restore(state_from_json(json.loads(text), _copies(served_arrays(state))), copies, now)
    return [reply for ticket, message in shard.waiting() for reply in run_step(new, ticket, message, now)]


def _copies(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def finish_copies(shard: Shard) -> None:
    """Makes the copies of the cut in progress that no change has needed yet."""
    result = StepResult()
    for copy in shard.cuts.current.copies.values():
        copy.start(result)
    run(result.tasks)


def run_step(shard: Shard, ticket: int, message: Message, now: float, **options: Any) -> list[Reply]:
    """One step and its array tasks; returns the replies."""
    result = shard.step(ticket, message, now, **options)
    run(result.tasks)
    return result.replies


A, B = Sender("a", 1), Sender("b", 1)


def declared(name, value, optimizer=None):
    """A variable with its value."""
    value = np.asarray(value)
    return Declaration(TensorSpec.of(name, value), value, optimizer)


class ShardDriver:
    """A shard, its clock, and the workers that have joined it; the first one declares the variables."""

    def __init__(self, *declarations, workers="ab", **options):
        self.shard, self.now, self.sequences = new_shard(**options), 0.0, {}
        for worker in workers:
            self.answer(Join(worker=worker, incarnation=0, shard=self.shard.shard, shards=self.shard.shards))
        if declarations:
            self.answer(Register(sender=A, declarations=declarations))

    def step(self, message, ticket=0, **options):
        """The answers by ticket, when the tasks are done."""
        return {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, self.now, **options)}

    def answer(self, message, ticket=0, **options):
        """The answer to this message; None if it is pending."""
        return self.step(message, ticket, **options).get(ticket)

    def push(self, worker="a", ticket=0, loss=None, pull=(), version=0, sequence=None, **gradients):
        """The answers by ticket to a push with the worker's next sequence number."""
        self.sequences[worker] = sequence or self.sequences.get(worker, 0) + 1
        arrays = {name: one if isinstance(one, IndexedSlices) else np.asarray(one) for name, one in gradients.items()}
        chosen = tuple(Gradient(name, version, array) for name, array in arrays.items())
        return self.step(
            Push(sender=Sender(worker, 1), sequence=self.sequences[worker], gradients=chosen, loss=loss, pull=pull),
            ticket,
        )

    def refuse(self, message, error, match):
        """The message must be refused with this error, and change nothing."""
        before = state_of(self.shard)
        with pytest.raises(error, match=match) as refusal:
            self.shard.step(0, message, self.now)
        assert type(refusal.value) is error
        assert state_of(self.shard) == before


_identities = itertools.count(1)


@dataclass
class Checkpoint:
    """A cut of one shard: its snapshot, and the late changes, which are made again."""

    state: ShardState
    arrays: dict[str, VariableArrays]
    late: list[Late]

    def restored(self, new, now=0.0):
        """A new shard from this cut."""
        copies = {}
        for name, one in self.arrays.items():
            copies[name] = VariableArrays(one.value.copy(), {slot: array.copy() for slot, array in one.slots.items()})
        new.restore(self.state, copies, now)
        for number, message in enumerate(self.late):
            run(new.step(-1 - number, message, now).tasks)
        return new


class StoredShard:
    """`checkpoints` has all complete cuts by number. `refuses`: the shard was started with --on-lost-state fail."""

    def __init__(self, new):
        self._new, self.shard = new, new()
        self.checkpoints, self.began, self.refuses = {}, 0, False

    def step(self, ticket, message, now):
        """The replies, when all tasks have run."""
        if isinstance(message, ms.Restore):
            return self._go_back(ticket, message, now)
        result = self.shard.step(ticket, message, now)
        run(result.tasks)
        self._write(result.began_cut)
        return result.replies

    def lose(self, now=0.0):
        """As a server that was killed, and began again from its newest checkpoint; the calls that this ended."""
        waiting, timeline = self._ended("the server was killed"), self.shard.timeline
        if self.checkpoints:
            self.shard = self.checkpoints[max(self.checkpoints)].restored(self._new(), now)
        else:
            self.shard = self._new(identity=next(_identities))
        self.shard.begin_from(timeline, now, lost=True)
        return waiting

    def _write(self, began):
        cut = self.shard.cuts.current
        if began and cut is not None:
            cut.writing = True
        if cut is None or not cut.writing or not cut.complete:
            return
        finish_copies(self.shard)
        arrays = {name: copy.arrays for name, copy in cut.copies.items()}
        self.checkpoints[cut.number] = Checkpoint(cut.state, arrays, list(cut.late))
        cut.writing = False
        self.shard.cuts.end_if_idle()

    def _go_back(self, ticket, message, now):
        replies = []
        if message.timeline > self.shard.timeline:
            if self.refuses:
                raise WrongShard("this server was started with --on-lost-state fail")
            if message.cut not in self.checkpoints:
                raise InvalidMessage(f"no checkpoint {message.cut}")
            replies = self._ended(f"went back to {message.cut}")
            self.shard = self.checkpoints[message.cut].restored(self._new(), now)
            self.shard.begin_from(message.timeline, now, went_back=True)
            self.began = message.cut
            self.checkpoints = {number: one for number, one in self.checkpoints.items() if number <= message.cut}
        shard = self.shard
        answer = ms.Restored(
            timeline=shard.timeline, cut=self.began, lost=shard.lost, cuts=tuple(sorted(self.checkpoints))
        )
        return [*replies, ms.Reply(ticket, answer)]

    def _ended(self, why):
        return [ms.Reply(ticket, Unavailable(why)) for ticket, _ in self.shard.waiting()]


PATIENCE = 10.0  # seconds to wait for an answer that depends on another thread


class ShardsInProcess:
    """A transport to shards in this process; thread-safe, so that pushes can wait for each other.

    `sent` and `answers` have (shard, message), in order, `ended` the shards whose calls have ended. `refuse` and `lose`
    are called for each message: whether it is refused, or its answer lost. `now` are seconds on the shards' clock. With
    `stored`, shards write each cut, and go back to one.
    """

    def __init__(
        self,
        shards=3,
        consistency=Asynchronous(),  # noqa: B008
        staleness=IgnoreStaleness(),  # noqa: B008
        lease=math.inf,
        *,
        stored=False,
    ):
        self.shards = shards
        self._new = partial(new_shard, shards=shards, lease=lease, consistency=consistency, staleness=staleness)
        self.machines = [self._new(shard) for shard in range(shards)]
        self.stored = [StoredShard(partial(self._new, shard)) for shard in range(shards)] if stored else []
        self.sent, self.answers, self.ended, self._answers = [], [], [], {}
        self.refuse = self.lose = lambda shard, message: False
        self.now = 0.0
        self._changed = threading.Condition()  # guards all
        self._tickets, self._identities = itertools.count(1), itertools.count(1)

    def restart(self, *shards):
        """Starts shards without state, each with an identity different from any before."""
        for shard in shards:
            self.machines[shard] = self._new(shard, identity=next(self._identities))

    def lose_state(self, *shards):
        """Kills stored shards, which begin again from their newest checkpoints."""
        with self._changed:
            for shard in shards:
                for reply in self.stored[shard].lose(self.now):
                    self._answers.setdefault(reply.ticket, reply.answer)
                self.machines[shard] = self.stored[shard].shard
            self._changed.notify_all()

    def show_cuts(self, *clients, begin=False):
        """What the heartbeats of these clients do: they learn of the last cut and show it to all shards."""
        number = self.call(0, Cut(), 1.0).result().number if begin else self.machines[0].cuts.number
        for client in clients:
            client.membership.cuts.note(number)
            for shard in range(self.shards):
                self.call(shard, client.membership.renewal(shard, 0), 1.0).result()
        return number

    def call(self, shard, message, timeout):
        with self._changed:
            self.sent.append((shard, message))
            ticket = next(self._tickets)
            try:
                if self.refuse(shard, message):
                    raise InvalidMessage("not this one")
                self._step(shard, ticket, message)
                if self.lose(shard, message):
                    raise TimedOut("no answer")
            except ParamServerError as error:
                self._answers[ticket] = error
        return Future(lambda: self._result(shard, ticket, min(timeout, PATIENCE)))

    def _result(self, shard, ticket, timeout):
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._answers, timeout)
            answer = self._answers.pop(ticket, TimedOut("no answer"))
            self.ended.append(shard)
        if isinstance(answer, ParamServerError):
            raise answer
        self.answers.append((shard, answer))
        return answer

    def _step(self, shard, ticket, message):
        if self.stored:
            replies = self.stored[shard].step(ticket, message, self.now)
            self.machines[shard] = self.stored[shard].shard
        else:
            replies = run_step(self.machines[shard], ticket, message, self.now)
        for reply in replies:
            self._answers.setdefault(reply.ticket, reply.answer)
        self._changed.notify_all()

    def tensor_transport(self, shard):
        return f"transport {shard}"

    def client(self, worker="w0", *declarations, encoder=None, job=JobChoice(resume=True)):  # noqa: B008 - frozen
        """A client that has joined, and by name what it has registered."""
        client = Client(self, worker, 60, encoder, job)
        client.join()
        return client, {whole.name: whole for whole in (client.register(declarations) if declarations else ())}

    def close(self):
        """The shards stay: other clients use them."""

    def sleep(self, seconds):
        """Lets time pass on the shards' clock."""
        with self._changed:
            self.now += seconds
            for shard in range(self.shards):
                self._step(shard, 0, self.machines[shard].due(self.now))

    def messages(self, kind):
        """(shard, message) of all messages of this kind."""
        return [(shard, message) for shard, message in self.sent if isinstance(message, kind)]

    def status(self, shard):
        (reply,) = run_step(self.machines[shard], 0, Status(), self.now)
        return reply.answer
