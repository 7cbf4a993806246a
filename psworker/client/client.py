"""A worker's side of the conversation: sequence numbers, and which shard gets what of each message.

Three verbs, push, pull and take, and what they need around them. Variables are whole here, whatever shards they are on.
May import placement, pieces, wanted, pushing, calls and messages; knows no tape and no optimizer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pswire.errors import ParamServerError
from pswire.messages import (
    Assign,
    Assigned,
    Assignment,
    Choice,
    Declaration,
    Finished,
    Joined,
    Leave,
    Place,
    Pull,
    Pulled,
    QueueSpec,
    Register,
    Registered,
    Take,
    Taken,
    Tune,
    Tuned,
)
from pswire.optimizers import MovingAverage, UpdateSpec
from pswire.specs.consistency import (
    Asynchronous,
    Consistency,
    IgnoreStaleness,
    StalenessSpec,
    parse_consistency,
    parse_staleness,
)
from pswire.tensors.values import Array
from psworker.client import partitions
from psworker.client.chief import ChiefStatus
from psworker.client.error_feedback import Packer
from psworker.client.heartbeat import Heartbeat
from psworker.client.placement import Placement, Whole
from psworker.client.pull import ShardedPull
from psworker.client.push import ShardedPush
from psworker.client.push_results import PushResult as PushResult
from psworker.client.push_results import check_alike
from psworker.client.retrying_calls import Handle as Handle
from psworker.client.retrying_calls import RetryingCalls, Sent
from psworker.transport import Transport


class Client:
    """One worker's conversation with all shards. One thread speaks at a time, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        [W] = client.register([Declaration(spec, value, optimizer)])
        handle = client.push([Whole("W", W.versions, g)], loss=0.3, pull=["W"])
        ...                                           # something useful; rows may be looked up
        pushed = handle.wait()
        client.leave()

    Args:
        transport: reaches the shards.
        worker: the worker's name.
        timeout: seconds that each call goes on trying while a server cannot be reached, or holds a push.
        packer: gives gradients the form in which they travel, and says that of values; None: as they are.

    Attributes:
        packer: what was given.

    Every method raises the server's error as it is, or `Unavailable` or `TimedOut` after `timeout` seconds; and
    `UnknownVariable` for one that was not registered, when nothing has been sent yet.
    """

    def __init__(self, transport: Transport, worker: str, timeout: float, packer: Packer | None = None) -> None:
        self._transport = transport
        self._timeout = timeout
        self._closing = threading.Event()
        self._role = ChiefStatus(worker)
        self._heartbeat = Heartbeat(transport, self._closing, self._role)
        self._calls = RetryingCalls(transport, worker, timeout, self._closing, self._heartbeat.held_for, self._role)
        self._heartbeat.half_pushes = self._calls.half_pushes.__getitem__
        self.packer = packer or Packer()
        self._pushing = ShardedPush(self._calls, self.packer)
        self._placement = Placement(transport.shards)
        self._process = os.getpid()
        self._sequence = 0
        self._consistency: Consistency = Asynchronous()
        self._staleness: StalenessSpec = IgnoreStaleness()

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return self._transport.shards

    @property
    def consistency(self) -> Consistency:
        """What the shards were started with; known when the worker has joined."""
        return self._consistency

    @property
    def staleness(self) -> StalenessSpec:
        """What the shards do about stale pushes; known when the worker has joined."""
        return self._staleness

    @property
    def chief(self) -> bool:
        """Whether this worker is the chief, as shard 0 said last; False before it has joined."""
        return self._role.chief

    def join(self) -> Joined:
        """Becomes a member of every shard, and keeps its leases by a heartbeat in the background; shard 0's answer.

        Raises:
            ConfigurationError: the shards were not started alike.
            WrongShard: they are not the servers of the job, all of them and in their order.
        """
        answers = self._calls.join()
        check_alike(answers)
        joined = answers[0]
        self._consistency = parse_consistency(joined.consistency)
        self._staleness = parse_staleness(joined.staleness)
        self._pushing.decides = (self._consistency.decides or self._staleness.decides) and self.shards > 1
        self._pushing.orders = (self._consistency.orders or self._staleness.orders) and self.shards > 1
        self._heartbeat.start(self._calls.sender, joined.lease)
        return joined

    def register(self, declarations: Sequence[Declaration]) -> list[Whole]:
        """Declares variables, as a whole; returns the servers' values of them, in their order, without the tables.

        Raises:
            AlreadyRegistered: a worker has registered one of this name that differs, or has another place.
            ShapeMismatch: an initial value does not have its variable's shape and dtype; then nothing was sent.
            WrongShard: one of the shards was started anew, while others went on with the job.

        Of several shards all are asked first, also those that get no part, and none does its part when one refuses.
        """
        placement = self._placement.extended([declaration.spec for declaration in declarations])
        parts: list[list[Declaration]] = [[] for _ in range(self.shards)]
        for declaration in declarations:
            variable = placement[declaration.spec.name]
            split = partitions.split_declaration(variable, declaration)
            for piece, part in zip(variable.pieces, split, strict=True):
                parts[piece.shard].append(part)
        names = [declaration.spec.name for declaration in declarations]
        wanted = ShardedPull(placement, names, rejoins=self._calls.rejoins)
        places = tuple(Place(name, placement[name].pieces[0].shard) for name in names) if self.shards > 1 else ()
        sender, states, (first, *others) = self._calls.sender, self._calls.states, parts
        if others:
            for declaration in declarations:
                if declaration.value is not None:
                    partitions.check_finite(declaration.spec.name, declaration.value, "initial value")
            self._ask(parts, places)
        answers = [self._calls.call(0, Register(sender, tuple(first), places, states=states), Registered)]
        rest = [Register(sender, tuple(part), states=states) if part else None for part in others]
        sent = self._calls.send([None, *rest])
        answers += self._calls.results(sent, Registered)
        self._placement = placement
        self._pushing.observed |= {one.spec.name for one in declarations if isinstance(one.optimizer, MovingAverage)}
        if self._pushing.orders and self._calls.frontier.decided:
            return self.pull([value.name for answer in answers for value in answer.values])  # in shard 0's order
        return wanted.wholes(answers, 0 if self._pushing.orders else None)

    def push(
        self,
        gradients: Sequence[Whole],
        loss: float | None = None,
        pull: Sequence[str] = (),
        known_versions: Iterable[Whole] = (),
    ) -> Handle[PushResult]:
        """Pushes the gradients of one step; the answer has the values of `pull`, in their order.

        Shard 0 gets a push of each step, others where they have a part of a gradient or of `pull`. All are told at
        once; but where shard 0 decides for all (`pswire.specs.consistency`), `wait` tells the others what it decided.
        The gradients' arrays are borrowed until the answer is there; before that no other push, tune or assign.

        Args:
            gradients: one a variable, with the versions of the weights that it was computed with.
            loss: what the shards note of the step.
            pull: variables whose values the answer is to bring.
            known_versions: values of them that came from this client, just as they came, and which are still there:
            those that
                have not changed do not travel again, and their arrays are given back.

        Raises:
            ShapeMismatch: a gradient does not have its variable's shape and dtype; then nothing was sent.
        """
        wanted = ShardedPull(self._placement, pull, known_versions, self._calls.rejoins)
        messages = self._pushing.messages(self._placement, self._sequence + 1, gradients, loss, wanted)
        self._calls.settle_all()
        self._heartbeat.idle_since = 0
        self._sequence += 1
        return self._pushing.start(messages, wanted)

    def pull(self, names: Sequence[str], known_versions: Iterable[Whole] = ()) -> list[Whole]:
        """The values of `names`, in their order; those of one shard belong to one moment."""
        return self.start_pull(names, known_versions).wait()

    def start_pull(self, names: Sequence[str], known_versions: Iterable[Whole] = ()) -> Handle[list[Whole]]:
        """Asks for what `pull` gives; it is there when `wait` returns. No push, tune or assign before."""
        self.rest()
        sender, encoding = self._calls.sender, self.packer.encoding
        wanted = ShardedPull(self._placement, names, known_versions, self._calls.rejoins)
        messages = [
            Pull(sender, part, known_versions=known, encoding=encoding) if part else None
            for part, known in zip(wanted.names, wanted.known_versions, strict=True)
        ]
        if self._pushing.orders:
            first = messages[0] or Pull(sender, ())
            sent = self._calls.send([first], wanted.rejoins)
            return Handle(lambda: self._pulled_in_order(sent, messages, wanted))
        sent = self._calls.send(messages, wanted.rejoins)
        return Handle(lambda: wanted.wholes(self._calls.results(sent, Pulled), None))

    def _pulled_in_order(
        self, first: Sequence[Sent], messages: Sequence[Pull | None], wanted: ShardedPull
    ) -> list[Whole]:
        """What a pull brings from the other shards, when they have made all that shard 0 had decided."""
        answers = self._calls.results(first, Pulled)
        served_at, others = self._calls.frontier.decided, self._calls.in_order(messages)
        answers += self._calls.results(self._calls.send(others, wanted.rejoins), Pulled)
        return wanted.wholes(answers, served_at)

    def choose(self, name: str, rows: Array | None = None, slot: str = "") -> Whole:
        """Some rows of a variable, or of one of its optimizer's slots.

        Args:
            name: the variable's.
            rows: numbers of rows, (n,), integers in any order and with repeats; None: all.
            slot: a slot's name; "": the value.

        Returns:
            An array of shape (n, *shape[1:]), with the rows in the order asked for; and the versions of all parts. A
            value comes as all values do, a slot as it is.

        Raises:
            InvalidMessage: there is no such row, or no such slot.
            TypeError: `rows` are not integers.
        """
        variable = self._placement[name]
        chosen = None if rows is None else partitions.split_rows(variable, rows)
        encoding = "" if slot else self.packer.encoding
        messages: list[Pull | None] = [None] * self.shards
        orders = self._pushing.orders
        served_at = self._calls.frontier.decided if orders else None
        after = self._calls.after() if orders else [()] * self.shards
        for index, piece in enumerate(variable.pieces):
            mine = None if chosen is None else chosen.rows[index]
            choices = (Choice(name, mine, slot),)
            place = piece.shard
            messages[place] = Pull(
                self._calls.sender, (), choices, encoding=encoding, after=after[place] if place else ()
            )
        answers = self._calls.results(self._calls.send(messages), Pulled)
        values = [value for answer in answers for value in answer.values]
        array = partitions.concatenated(values) if chosen is None else chosen.join(values)
        return Whole(name, tuple([value.version for value in values]), array, served_at)

    def assign(self, assignments: Sequence[Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that has some of one.

        Raises:
            ShapeMismatch: a value does not have its variable's shape and dtype; then nothing was sent.
        """
        parts: list[list[Assignment]] = [[] for _ in range(self.shards)]
        for assignment in assignments:
            variable = self._placement[assignment.name]
            variable.check(assignment.array, "assigned value")
            for piece, array in zip(variable.pieces, partitions.split_array(variable, assignment.array), strict=True):
                parts[piece.shard].append(Assignment(assignment.name, array))
        self.rest()
        self._calls.settle_all()
        self._sequence += 1
        sender, sequence = self._calls.sender, self._sequence
        shards = tuple([shard for shard, part in enumerate(parts) if shard and part])
        messages = [Assign(sender, sequence, tuple(part), add, shards) if part else None for part in parts]
        if not self._pushing.orders:
            self._calls.results(self._calls.send(messages), Assigned)
            return
        names = [one.name for one in assignments]
        remote = tuple([name for name in names if self._placement[name].pieces[-1].shard])
        first = messages[0] or Assign(sender, sequence, (), add, shards)
        try:
            self._calls.call(0, replace(first, remote=remote), Assigned)
        except ParamServerError:
            self._calls.settle(shards, sequence)
            raise
        failed: list[int] = []
        try:
            self._calls.results(self._calls.send(self._calls.in_order(messages)), Assigned, failed)
        except ParamServerError:
            self._calls.settle(failed, sequence)
            raise

    def tune(self, names: Sequence[str], optimizer: UpdateSpec, fields: Sequence[str]) -> None:
        """Gives variables these fields of `optimizer`, which is of their kind, on every shard that has some of one."""
        self.rest()
        parts = self._placement.by_shard(names)
        self._sequence += 1
        sender, sequence = self._calls.sender, self._sequence
        messages = [Tune(sender, sequence, tuple(part), optimizer, tuple(fields)) if part else None for part in parts]
        self._calls.results(self._calls.send(messages), Tuned)

    def take(self, queue: QueueSpec, finished: Finished | None, heard: int = 0) -> Taken:
        """The next block of a data queue; the shard answers within seconds, if need be with whom it waits for."""
        self._heartbeat.idle_since = 0
        return self._calls.call(0, Take(self._calls.sender, queue, finished, heard), Taken)

    def give_back(self, queue: QueueSpec) -> None:
        """What this worker holds of a data queue is handed out again, if shard 0 can be reached at once.

        If not, that happens when the worker leaves, or its lease ends; raises nothing.
        """
        if not self._closing.is_set():  # it has not left
            message = Take(self._calls.sender, queue, give_back=True)
            self._calls.say(0, message, f"could not give back what it holds of {queue.name}")

    def idle(self) -> None:
        """Says that nobody shall wait for this worker's next push; raises nothing.

        If shard 0 cannot be reached at once, it waits until the worker pushes again, leaves, or its lease ends.
        """
        self._heartbeat.idle_since = 0
        self._sequence += 1
        self._calls.rest(self._sequence)

    def idle_soon(self) -> None:
        """Will say so with the next call that asks for no work, or the next heartbeat, unless the worker fails before.

        For one that has left its loop: a worker that an error has thrown out of it is not idle, and `leave` says so.
        """
        self._sequence += 1
        self._heartbeat.idle_since = self._sequence

    def rest(self) -> None:
        """Says now what `idle_soon` has left to be said, if anything."""
        if self._heartbeat.idle_since:
            self.idle()

    def leave(self, *, failed: bool = False) -> None:
        """Says good-bye to every shard, as far as it can be reached at once, and ends the heartbeat.

        With `failed` the worker has not come to its end, and a synchronous update waits for one in its place.
        """
        self._closing.set()
        self._heartbeat.join()
        sender = self._calls.sender
        if not sender.incarnation or os.getpid() != self._process:
            return  # it never joined, or is a fork of the one that did
        for shard in range(self.shards):
            self._calls.say(shard, Leave(sender, failed), "left without an answer")

    def close(self) -> None:
        """Ends the connections; no call is possible afterwards."""
        self._closing.set()
        self._transport.close()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, parts: Sequence[Sequence[Declaration]], places: tuple[Place, ...]) -> None:
        """Raises what a shard has against its part of a registration, before any has done its own."""
        sender, states = self._calls.sender, self._calls.states
        asked = [tuple([replace(declaration, value=None) for declaration in part]) for part in parts]
        sent = self._calls.send(
            [
                Register(sender, part, () if shard else places, dry_run=True, states=states)
                for shard, part in enumerate(asked)
            ]
        )
        self._calls.results(sent, Registered)
