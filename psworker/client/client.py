"""The client: a worker's calls to all shards, with whole variables, independent of the shards of their partitions.

May import placement, partitions, push_pull, retrying_calls, heartbeat and messages; knows no tape.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pswire.errors import ConfigurationError, ParamServerError
from pswire.messages import (
    Answer,
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
from psworker.client import splitting
from psworker.client.error_feedback import GradientEncoder
from psworker.client.heartbeat import Heartbeat
from psworker.client.placement import Placement
from psworker.client.push_pull import PushResult, ShardedPull, ShardedPush, concatenated, unpacked
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future, Transport
from psworker.versions import ReadVersion, VersionedArray


class Client:
    """One worker's calls to all shards. Used by one thread, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        [W] = client.register([Declaration(spec, value, optimizer)])
        push = client.push([VersionedArray("W", W.read, g)], loss=0.3, pull=["W"])
        pushed = push.result()
        client.leave()

    Every method raises the server's error, or `Unavailable` or `TimedOut` after `timeout` seconds; and
    `UnknownVariable` for a variable that was not registered, when nothing has been sent yet.

    Args:
        transport: reaches the shards.
        worker: the worker's name.
        timeout: seconds for which each call is retried while a server cannot be reached or holds a push.
        encoder: of gradients; its encoding is also that of values. None: unchanged.

    Attributes:
        consistency, staleness: policies of the shards, once the worker has joined.
    """

    def __init__(
        self, transport: Transport, worker: str, timeout: float, encoder: GradientEncoder | None = None
    ) -> None:
        self._transport = transport
        self._closing = threading.Event()
        self._calls = RetryingCalls(transport, worker, timeout, self._closing)
        self._heartbeat = Heartbeat(self._calls)
        self.encoder = encoder or GradientEncoder()
        self.shards = transport.shards
        self.consistency: Consistency = Asynchronous()
        self.staleness: StalenessSpec = IgnoreStaleness()
        self._pushing = ShardedPush(self._calls, self.encoder)
        self._placement = Placement(transport.shards)
        self._process = os.getpid()
        self._sequence = 0

    @property
    def chief(self) -> bool:
        """Whether this worker is chief, as last reported by shard 0."""
        return self._calls.chief_status.chief

    def join(self) -> Joined:
        """Joins every shard and keeps the leases by a heartbeat in the background; shard 0's answer.

        Raises:
            ConfigurationError: the shards were started with different policies.
            WrongShard: they are not the servers of the job, all of them and in their order.
        """
        joined, *others = self._calls.join()
        for shard, other in enumerate(others, 1):
            if (joined.consistency, joined.staleness) != (other.consistency, other.staleness):
                raise ConfigurationError(
                    f"shard 0 was started with --consistency {joined.consistency} --staleness {joined.staleness}, "
                    f"shard {shard} with --consistency {other.consistency} --staleness {other.staleness}: start all "
                    "shards of a job alike"
                )
        self.consistency = parse_consistency(joined.consistency)
        self.staleness = parse_staleness(joined.staleness)
        self._pushing.decides = (self.consistency.decides or self.staleness.decides) and self.shards > 1
        self._pushing.orders = (self.consistency.orders or self.staleness.orders) and self.shards > 1
        self._heartbeat.start(joined.lease)
        return joined

    def register(self, declarations: Sequence[Declaration]) -> list[VersionedArray]:
        """Declares variables; returns the servers' values of them, in their order, without the tables.

        Of several shards, all first check their part, and none registers it if one refuses.

        Raises:
            AlreadyRegistered: a worker has registered one of this name that differs, or is placed elsewhere.
            ShapeMismatch: an initial value does not have its variable's shape and dtype; then nothing was sent.
            WrongShard: one of the shards was restarted while others continued the job.
        """
        calls, names = self._calls, [declaration.spec.name for declaration in declarations]
        placement = self._placement.extended([declaration.spec for declaration in declarations])
        parts: list[list[Declaration]] = [[] for _ in range(self.shards)]
        for name, declaration in zip(names, declarations, strict=True):
            split = splitting.split_declaration(placement[name], declaration)
            for partition, part in zip(placement[name].partitions, split, strict=True):
                parts[partition.shard].append(part)
        pull = ShardedPull(placement, names, rejoins=calls.rejoins)
        messages = [Register(calls.sender, tuple(part), states=calls.states) for part in parts]
        if self.shards > 1:
            places = tuple([Place(name, placement[name].partitions[0].shard) for name in names])
            messages[0] = replace(messages[0], places=places)
            for name, declaration in zip(names, declarations, strict=True):
                if declaration.value is not None:
                    splitting.check_finite(name, declaration.value, "initial value")
            checks = [
                replace(one, declarations=tuple([replace(part, value=None) for part in one.declarations]), dry_run=True)
                for one in messages
            ]
            calls.results(calls.send(checks), Registered)
        answers = [calls.call(0, messages[0], Registered)]
        others = [message if message.declarations else None for message in messages[1:]]
        answers += calls.results(calls.send([None, *others]), Registered)
        self._placement = placement
        self._pushing.observed |= {one.spec.name for one in declarations if isinstance(one.optimizer, MovingAverage)}
        if self._pushing.orders and calls.frontier.decided:
            return self.pull([value.name for answer in answers for value in answer.values])  # in shard 0's order
        return pull.joined(answers, 0 if self._pushing.orders else None)

    def push(
        self,
        gradients: Sequence[VersionedArray],
        loss: float | None = None,
        pull: Sequence[str] = (),
        known_values: Iterable[VersionedArray] = (),
    ) -> Future[PushResult]:
        """Pushes the gradients of one step; the result has the values of `pull`, in their order.

        All shards' messages are sent at once; but where shard 0 decides for all (`pswire.specs.consistency`), the
        others are sent its decision by `result`. Until the result is there, the gradients' arrays are borrowed, and
        there is no other push, tune or assign.

        Args:
            gradients: one a variable, with the version of the weights that it was computed with.
            loss: of the step, for the shards' metrics.
            pull: variables whose values the result is to bring.
            known_values: values from this client: those that have not changed do not travel again.

        Raises:
            ShapeMismatch: a gradient does not have its variable's shape and dtype; then nothing was sent.
        """
        pulled = ShardedPull(self._placement, pull, known_values, self._calls.rejoins)
        messages = self._pushing.messages(self._placement, self._sequence + 1, gradients, loss, pulled)
        if self._calls.abandoned:
            self._calls.report_abandoned()
        self._heartbeat.idle_since = 0
        self._sequence += 1
        sent = self._calls.send(messages[:1] if self._pushing.decides else messages, pulled.rejoins)
        return Future(partial(self._pushing.result, sent, messages, pulled))

    def pull(self, names: Sequence[str], known_values: Iterable[VersionedArray] = ()) -> list[VersionedArray]:
        """The values of `names`, in their order; those of one shard are one cut."""
        return self.start_pull(names, known_values).result()

    def start_pull(
        self, names: Sequence[str], known_values: Iterable[VersionedArray] = ()
    ) -> Future[list[VersionedArray]]:
        """Sends a `pull`. No push, tune or assign until its result is there."""
        self.report_deferred_idle()
        sender, encoding = self._calls.sender, self.encoder.encoding
        pull = ShardedPull(self._placement, names, known_values, self._calls.rejoins)
        messages = [pull.message(shard, sender, encoding) for shard in range(self.shards)]
        if self._pushing.orders:
            sent = self._calls.send([messages[0] or Pull(sender, ())], pull.rejoins)
            return Future(partial(self._pulled_in_order, sent, messages, pull))
        sent = self._calls.send(messages, pull.rejoins)
        return Future(lambda: pull.joined(self._calls.results(sent, Pulled)))

    def _pulled_in_order(
        self, sent: Mapping[int, Future[Answer]], messages: Sequence[Pull | None], pull: ShardedPull
    ) -> list[VersionedArray]:
        """The result of a pull whose other shards answer once they have made all changes that shard 0 had decided."""
        answers = self._calls.results(sent, Pulled)
        served_at, others = self._calls.frontier.decided, self._calls.in_order(messages)
        answers += self._calls.results(self._calls.send(others, pull.rejoins), Pulled)
        return pull.joined(answers, served_at)

    def choose(self, name: str, rows: Array | None = None, slot: str = "") -> VersionedArray:
        """Some rows of a variable, or of one of its slots, and the versions of all partitions.

        Args:
            name: the variable's.
            rows: numbers of rows, (n,), integers in any order and with repeats; None: all.
            slot: a slot's name; "": the value.

        Raises `InvalidMessage` if there is no such slot, and as `splitting.split_rows`.
        """
        calls, variable, orders = self._calls, self._placement[name], self._pushing.orders
        split = None if rows is None else splitting.split_rows(variable, rows)
        encoding = "" if slot else self.encoder.encoding
        served_at = calls.frontier.decided if orders else None
        after = calls.after() if orders else [()] * self.shards
        messages: list[Pull | None] = [None] * self.shards
        for index, partition in enumerate(variable.partitions):
            shard, numbers = partition.shard, None if split is None else split.rows[index]
            before = after[shard] if shard else ()
            messages[shard] = Pull(calls.sender, (), (Choice(name, numbers, slot),), encoding=encoding, after=before)
        answers = calls.results(calls.send(messages), Pulled)
        values = [value for answer in answers for value in answer.values]
        array = concatenated(values) if split is None else split.join([unpacked(value) for value in values])
        return VersionedArray(name, ReadVersion(tuple([value.version for value in values]), served_at), array)

    def assign(self, assignments: Sequence[Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that holds a partition.

        Raises:
            ShapeMismatch: a value does not have its variable's shape and dtype; then nothing was sent.
        """
        parts: list[list[Assignment]] = [[] for _ in range(self.shards)]
        for assignment in assignments:
            variable = self._placement[assignment.name]
            variable.check(assignment.array, "assigned value")
            arrays = splitting.split_array(variable, assignment.array)
            for partition, array in zip(variable.partitions, arrays, strict=True):
                parts[partition.shard].append(Assignment(assignment.name, array))
        self.report_deferred_idle()
        self._calls.report_abandoned()
        self._sequence += 1
        calls, sequence = self._calls, self._sequence
        shards = tuple([shard for shard, part in enumerate(parts) if shard and part])
        messages = [Assign(calls.sender, sequence, tuple(part), add, shards) if part else None for part in parts]
        if not self._pushing.orders:
            calls.results(calls.send(messages), Assigned)
            return
        remote = tuple([one.name for one in assignments if self._placement[one.name].partitions[-1].shard])
        first = messages[0] or Assign(calls.sender, sequence, (), add, shards)
        failed = list(shards)
        try:
            calls.call(0, replace(first, remote=remote), Assigned)
            failed = []
            calls.results(calls.send(calls.in_order(messages)), Assigned, failed)
        except ParamServerError:
            calls.abandon(failed, sequence)
            raise

    def tune(self, names: Sequence[str], optimizer: UpdateSpec, fields: Sequence[str]) -> None:
        """Sets these hyperparameters of the variables, of the kind of `optimizer`, on all their shards."""
        self.report_deferred_idle()
        parts = self._placement.by_shard(names)
        self._sequence += 1
        sender, sequence = self._calls.sender, self._sequence
        messages = [Tune(sender, sequence, tuple(part), optimizer, tuple(fields)) if part else None for part in parts]
        self._calls.results(self._calls.send(messages), Tuned)

    def take(self, queue: QueueSpec, finished: Finished | None, reports: int = 0) -> Taken:
        """The next block of a data queue, or within seconds why there is none yet; epoch reports from `reports` on."""
        self._heartbeat.idle_since = 0
        return self._calls.call(0, Take(self._calls.sender, queue, finished, reports), Taken)

    def give_back(self, queue: QueueSpec) -> None:
        """Gives back the block that this worker holds, so that it need not leave first; raises nothing."""
        if not self._closing.is_set():  # it has not left
            message = Take(self._calls.sender, queue, give_back=True)
            self._calls.call_best_effort(0, message, f"could not give back the block of {queue.name}")

    def report_idle(self) -> None:
        """Reports to shard 0 that it need not wait for this worker's next push; raises nothing."""
        self._heartbeat.idle_since = 0
        self._sequence += 1
        if not self._closing.is_set():
            renewal = self._calls.renewal(0, self._sequence, idle=True)
            answer = self._calls.call_best_effort(0, renewal, "could not report that it is idle")
            if answer is not None:
                self._calls.chief_status.update(0, answer)

    def defer_idle(self) -> None:
        """Reports the worker as idle with its next heartbeat, or next call without a push, unless it fails first.

        For a worker that has left its loop: if an error ended the loop, the worker is not idle but about to leave.
        """
        self._sequence += 1
        self._heartbeat.idle_since = self._sequence

    def report_deferred_idle(self) -> None:
        """Reports now what `defer_idle` has deferred, if anything."""
        if self._heartbeat.idle_since:
            self.report_idle()

    def leave(self, *, failed: bool = False) -> None:
        """Leaves every shard that can be reached at once, and ends the heartbeat.

        With `failed`, synchronous updates wait for a replacement.
        """
        self._closing.set()
        self._heartbeat.join()
        sender = self._calls.sender
        if not sender.incarnation or os.getpid() != self._process:
            return  # it never joined, or is a fork of the worker that did
        for shard in range(self.shards):
            self._calls.call_best_effort(shard, Leave(sender, failed), "left without an answer")

    def close(self) -> None:
        """Closes the connections; no call is possible afterwards."""
        self._closing.set()
        self._transport.close()
