"""The client: a worker's calls to all shards, with whole variables, independent of the shards of their partitions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import time_ns

from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from psjob.tracing.tracing import Tracing, current
from pswire import messages as ms
from pswire.errors import ConfigurationError, ParamServerError, StateLost
from pswire.limits import MAX_TEXT_LENGTH
from pswire.optimizers import MovingAverage, UpdateSpec
from pswire.specs.consistency import (
    Asynchronous,
    Consistency,
    IgnoreStaleness,
    StalenessSpec,
    parse_consistency,
    parse_staleness,
)
from pswire.system.interrupts import deferred_signals
from pswire.tensors.values import Array
from psworker.client import joining
from psworker.client.begun_push import BegunPush
from psworker.client.blocks import Blocks
from psworker.client.error_feedback import GradientEncoder
from psworker.client.evaluations import Evaluations
from psworker.client.heartbeat import Heartbeat
from psworker.client.job_cuts import JobCuts
from psworker.client.membership import JobChoice, WorkerMembership
from psworker.client.push_pull import PushResult, ShardedPull, ShardedPush, join_rows
from psworker.client.push_spans import traced_push
from psworker.client.registration import ShardedRegistration
from psworker.client.retry import Calls
from psworker.client.rollback import Rollback, redone
from psworker.transport import DIRECT, Future, Transport
from psworker.versions import ReadVersion, VersionedArray

#: Seconds that a begun push may take at most.
MAX_BEGUN_SECONDS = 60.0


class Client:
    """One worker's calls to all shards. Used by one thread, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        [W] = client.register([Declaration(spec, value, optimizer)])
        push = client.push([VersionedArray("W", W.read, g)], loss=0.3, pull=["W"])
        pushed = push.result()
        client.leave()

    Every method raises the server's error, or `Unavailable` or `TimedOut` after `timeout` seconds of retries; and
    `UnknownVariable`, before anything is sent, for a variable that was not registered. The encoding of the `encoder` of
    gradients is also that of values.

    When shards have lost acknowledged state, all go back to a cut (`psworker.client.rollback`) within the call that
    learns of it. A push is then dropped, and any other call is redone.

    Attributes:
        membership: the worker as a member of the job, as the shards have reported it.
        consistency, staleness: the shards' policies, after `join`.
        blocks: the calls that take blocks of examples, and give them back.
        evaluations: the calls of minimizations.
        registration: the registered variables; its `value_of` gives the worker's present value of one, for a variable
            that was registered after the cut of a rollback.
        rollback: the rollbacks so far; its `on_rollback` is called after each, to pull values.
        cuts: the cuts of this worker. While it holds one (`hold_cut`), a generation, all values that are read are of
            this cut, and nothing can be changed; if shards have lost it, reads raise `GenerationLost`.
        tracing: makes each push a trace; None: it does not.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        timeout: float,
        encoder: GradientEncoder | None = None,
        job: JobChoice = JobChoice(),  # noqa: B008 - frozen
        name_key: bytes = b"",
    ) -> None:
        self._closing = threading.Event()
        self.membership = WorkerMembership(transport, worker, job, name_key)
        calls = self._calls = Calls(transport, self.membership, timeout, self._closing)
        self._heartbeat = Heartbeat(calls)
        self.encoder = encoder or GradientEncoder()
        self.shards = transport.shards
        self.consistency: Consistency = Asynchronous()
        self.staleness: StalenessSpec = IgnoreStaleness()
        self._pushing = ShardedPush(calls, self.encoder)
        self.registration = ShardedRegistration(calls)
        self.cuts = JobCuts(calls)
        self.rollback = Rollback(calls, self.registration, self.cuts, timeout)
        self.evaluations = Evaluations(calls, self.registration, self.rollback)
        self.blocks = Blocks(calls, self.rollback, self._heartbeat)
        self.tracing: Tracing | None = None
        self._process = os.getpid()
        self._timeout = timeout
        self._barriers = 0
        self._begun: BegunPush | None = None
        self._lease = 0.0

    def join(self, session: int = 0, name: str = "") -> ms.Joined:
        """Joins every shard and keeps the leases by a heartbeat in the background; shard 0's answer.

        With a `session` number, from 1, it joins the job of that session of the program, once the jobs of earlier
        sessions are over; `name` is their name, unless the worker was given one.

        Raises `SessionOver` if other workers have begun the job of a later session, `ConfigurationError` if the shards
        were started with different policies, and `WrongShard` unless they are all servers of the job, in their order.
        """
        try:
            joined, *others = joining.join(self._calls, session, name)
        except StateLost as error:
            joined, *others = self.rollback.go_back(error, "it has just joined")
        for shard, other in enumerate(others, 1):
            if (joined.consistency, joined.staleness) != (other.consistency, other.staleness):
                raise ConfigurationError(
                    f"shard 0 was started with --consistency {joined.consistency} --staleness {joined.staleness}, "
                    f"shard {shard} with --consistency {other.consistency} --staleness {other.staleness}: start all "
                    "shards of a job alike"
                )
        self.consistency = parse_consistency(joined.consistency)
        self.staleness = parse_staleness(joined.staleness)
        if self.shards > 1:
            self._pushing.decides = self.consistency.decides or self.staleness.decides
            self._pushing.orders = self.consistency.orders or self.staleness.orders
        self._lease = joined.lease
        self._heartbeat.start(joined.lease, joined.consistency)
        joining.report_tensor_transport(self._calls)
        return joined

    @redone("its registration is repeated")
    def register(self, declarations: Sequence[ms.Declaration]) -> list[VersionedArray]:
        """Declares variables; returns the servers' values of them, in their order, without the tables.

        Of several shards, all first check their part, and none registers it if one refuses. Raises `AlreadyRegistered`
        if a worker has registered one of this name that differs, or is placed elsewhere; `ShapeMismatch` if an initial
        value does not have its variable's shape and dtype; `WrongShard` if one of the shards was restarted.
        """
        self.check_changeable()
        member, pushing = self.membership, self._pushing
        names, rejoins = [declaration.spec.name for declaration in declarations], member.rejoins
        answers = self.registration.register(declarations)
        pushing.observed |= {one.spec.name for one in declarations if isinstance(one.optimizer, MovingAverage)}
        if pushing.orders and member.frontier.decided:  # in shard 0's order
            self.report_deferred_idle()
            served = [value.name for answer in answers for value in answer.values]
            values = self._start_pull(served, (), exact=False).result()
        else:
            pull = ShardedPull(self.registration.placement, names, rejoins=max(rejoins, member.went_back))
            values = pull.joined(answers, 0 if pushing.orders else None)
        self.registration.add(declarations)
        return values

    def push(
        self,
        gradients: Sequence[VersionedArray],
        loss: float | None = None,
        pull: Sequence[str] = (),
        known_values: Iterable[VersionedArray] = (),
        progress: tuple[ms.Progress, ...] = (),
    ) -> Future[PushResult]:
        """Pushes the gradients of one step; the result has the values of `pull`, in their order.

        All shards' messages are sent at once; but where shard 0 decides for all (`pswire.specs.consistency`), the
        others are sent its decision by `result`. Until the result is there, the gradients' arrays are borrowed, and
        there is no other push, tune or assign. `gradients` have the versions of the weights that they were computed
        with; of the `known_values` from this client, those that have not changed do not travel again. `progress` says
        how far the worker's blocks of examples are with this push.

        A push whose weights or examples are from before a rollback is dropped without being sent.

        Raises `ShapeMismatch` if a gradient does not have its variable's shape and dtype; then nothing was sent.
        """
        try:
            if self.tracing is None:
                return self._push(gradients, loss, pull, known_values, progress)
            return traced_push(
                self.tracing,
                lambda: self._push(gradients, loss, pull, known_values, progress),
                worker=self.membership.sender.worker,
                sequence=self.membership.sequence + 1,
            )
        finally:
            self.take_back()

    def begin_push(
        self,
        gradients: Sequence[VersionedArray],
        loss: float | None = None,
        pull: Sequence[str] = (),
        known_values: Iterable[VersionedArray] = (),
        progress: tuple[ms.Progress, ...] = (),
    ) -> BegunPush | None:
        """Begins to send the next push before its gradients are there; they travel as they are sent.

            begun = client.begin_push([VersionedArray("W", W.read, memory)], loss=0.3, pull=["W"])
            if begun is not None:
                begun.send("W", g)
            client.push([VersionedArray("W", W.read, g)], loss=0.3, pull=["W"])

        The arrays of the `gradients` are the memory from which they are sent, until `push` has its result, in this
        order. The next `push` completes it if it is the same, bit for bit; another one, or another `begin_push`, or
        `leave`, takes it back before: no shard has applied anything of it. A server holds the memory of the message
        and of its answer meanwhile, for half a lease or `MAX_BEGUN_SECONDS` at most; then it is taken back.

        None where tensors do not go over direct connections, if gradients are encoded, if shard 0 decides for others,
        or inside a generation: then there is only `push`.
        """
        self.take_back()
        calls, member, pushing, placement = self._calls, self.membership, self._pushing, self.registration.placement
        encoded = self.encoder.encoding or self.encoder.keeps_residual
        if encoded or pushing.decides or pushing.orders or self.cuts.generation or member.abandoned:
            return None
        if self._is_outdated(gradients, progress):
            return None
        if any(calls.transport.tensor_transport(shard) != DIRECT for shard in range(self.shards)):
            return None
        seconds = min(self._lease / 2, MAX_BEGUN_SECONDS)
        with deferred_signals:
            pulled = ShardedPull(placement, pull, known_values, member.rejoins)
            cut = member.cuts.to_show()
            arguments = placement, member.sequence + 1, gradients, loss, pulled, cut, progress
            messages = pushing.messages(*arguments, filled=False)
            self._begun = BegunPush(
                messages, gradients, lambda shard, message: calls.transport.begin(shard, message, seconds)
            )
        return self._begun

    def take_back(self) -> None:
        """Takes back the push that was begun, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.take_back()

    def _push(
        self,
        gradients: Sequence[VersionedArray],
        loss: float | None,
        pull: Sequence[str],
        known_values: Iterable[VersionedArray],
        progress: tuple[ms.Progress, ...],
    ) -> Future[PushResult]:
        if self.cuts.generation:
            self.check_changeable()
        calls, member, pushing, placement = self._calls, self.membership, self._pushing, self.registration.placement
        if member.abandoned:
            self.rollback.redo(calls.report_abandoned, "nothing of it is open")
        if member.went_back and self._is_outdated(gradients, progress):
            return Future(partial(self._dropped, pull))
        pulled = ShardedPull(placement, pull, known_values, member.rejoins)
        cut = member.cuts.begin_change(awaits_decision=pushing.decides)
        try:
            messages = pushing.messages(placement, member.sequence + 1, gradients, loss, pulled, cut, progress)
            if self.tracing is not None and (span := current.get()) is not None:
                span.child("encode", span.began, time_ns())
            self._heartbeat.idle_since = 0
            member.sequence += 1
            begun = None if self._begun is None else self._begun.finish(messages)
            sent = calls.send({0: messages[0]} if pushing.decides else messages, pulled.rejoins, begun=begun)
        except BaseException:
            member.cuts.end_change()
            raise
        return Future(partial(self._pushed, sent, messages, pulled, pull))

    def _pushed(
        self,
        sent: Mapping[int, Future[ms.Answer]],
        messages: Mapping[int, ms.Push | ms.Pull],
        pulled: ShardedPull,
        names: Sequence[str],
    ) -> PushResult:
        try:
            return self._pushing.result(sent, messages, pulled)
        except StateLost as error:
            self.rollback.go_back(error, "its push is dropped")
        finally:
            self.membership.cuts.end_change()
        return self._dropped(names)

    def _is_outdated(self, gradients: Iterable[VersionedArray], progress: Iterable[ms.Progress]) -> bool:
        """True if weights or examples are from before a rollback: these examples will be trained again."""
        if not all(self.blocks.has(one.queue) for one in progress):
            return True
        return any(gradient.read.rejoins < self.membership.went_back for gradient in gradients)

    def _dropped(self, names: Sequence[str]) -> PushResult:
        """The result of a push that was dropped because the shards went back, with the values of `names`."""
        values = self.pull(names) if names else []
        return PushResult(ms.Outcome.DROPPED, 0, self.membership.global_step, values, self.rollback.reason)

    def pull(
        self, names: Sequence[str], known_values: Iterable[VersionedArray] = (), *, exact: bool = False
    ) -> list[VersionedArray]:
        """The values of `names`, in their order; those of one shard are one cut. If `exact`, without an encoding."""
        return self.start_pull(names, known_values, exact=exact).result()

    def start_pull(
        self, names: Sequence[str], known_values: Iterable[VersionedArray] = (), *, exact: bool = False
    ) -> Future[list[VersionedArray]]:
        """Sends a `pull`. No push, tune or assign until its result is there."""
        self.report_deferred_idle()
        known = list(known_values)
        started = [self._start_pull(names, known, exact=exact)]

        def attempt() -> list[VersionedArray]:
            return (started.pop() if started else self._start_pull(names, known, exact=exact)).result()

        return Future(lambda: self.rollback.redo(attempt, "its pull is repeated"))

    def _start_pull(
        self, names: Sequence[str], known_values: Iterable[VersionedArray], *, exact: bool
    ) -> Future[list[VersionedArray]]:
        calls, member, encoding = self._calls, self.membership, "" if exact else self.encoder.encoding
        pull = ShardedPull(self.registration.placement, names, known_values, member.rejoins)
        messages = {shard: pull.message(shard, member.sender, encoding) for shard in sorted(pull.names)}
        if self.cuts.generation:
            messages.setdefault(0, ms.Pull(sender=member.sender, names=()))  # for its global step
            messages = {shard: replace(message, of_cut=self.cuts.generation) for shard, message in messages.items()}
        if self.cuts.generation or not self._pushing.orders:
            sent = calls.send(messages, pull.rejoins)
            return Future(lambda: pull.joined(calls.results(sent, ms.Pulled), None))
        first = calls.send({0: messages.get(0) or ms.Pull(sender=member.sender, names=())}, pull.rejoins)

        def result() -> list[VersionedArray]:
            """The other shards answer once they have made all changes that shard 0 had decided."""
            answers = calls.results(first, ms.Pulled)
            served_at = member.frontier.decided
            answers += calls.results(calls.send(member.in_order(messages), pull.rejoins), ms.Pulled)
            return pull.joined(answers, served_at)

        return Future(result)

    @redone("its request for rows is repeated")
    def choose(self, name: str, rows: Array | None = None, slot: str = "", *, exact: bool = False) -> VersionedArray:
        """Some rows of a variable, or of one of its slots, and the versions of all partitions.

        `rows` are row numbers, (n,), integers in any order and with repeats; None: all. `slot` "" is the value. Slots,
        and values if `exact`, come without an encoding.

        Raises `InvalidMessage` if there is no such slot, and as `PlacedVariable.split_rows`.
        """
        calls, member, variable = self._calls, self.membership, self.registration.placement[name]
        orders, rejoins = self._pushing.orders and not self.cuts.generation, member.rejoins
        numbers, positions = (None, None) if rows is None else variable.split_rows(rows)
        encoding = "" if slot or exact else self.encoder.encoding
        served_at = member.frontier.decided if orders else None
        messages = {}
        for index, partition in enumerate(variable.partitions):
            shard, choice = partition.shard, ms.Choice(name, None if numbers is None else numbers[index], slot)
            messages[shard] = ms.Pull(
                sender=member.sender, names=(), choices=(choice,), encoding=encoding, of_cut=self.cuts.generation
            )
        if orders:
            messages |= member.in_order(messages)
        answers = calls.results(calls.send(messages), ms.Pulled)
        values = [value for answer in answers for value in answer.values]
        read = ReadVersion(tuple([value.version for value in values]), served_at, rejoins)
        return VersionedArray(name, read, join_rows(values, positions))

    @redone("its assignment is repeated")
    def assign(self, assignments: Sequence[ms.Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that holds a partition.

        Raises `ShapeMismatch` if a value does not have its variable's shape and dtype; then nothing was sent.
        """
        self.check_changeable()
        calls, member = self._calls, self.membership
        parts: dict[int, list[ms.Assignment]] = {}
        remote = []
        for assignment in assignments:
            name, value, variable = assignment.name, assignment.array, self.registration.placement[assignment.name]
            if variable.partitions[-1].shard:
                remote.append(name)
            if assignment.first_row is not None:
                for partition, rows, row in variable.split_stretch(value, assignment.first_row):
                    parts.setdefault(partition.shard, []).append(ms.Assignment(name, rows, row))
                continue
            variable.check(value, "assigned value")
            for partition, array in zip(variable.partitions, variable.split(value), strict=True):
                parts.setdefault(partition.shard, []).append(ms.Assignment(name, array))
        self.report_deferred_idle()
        calls.report_abandoned()
        member.sequence += 1
        shards = tuple(sorted(parts.keys() - {0}))
        with deferred_signals, member.cuts as cut:
            messages = {
                shard: ms.Assign(
                    sender=member.sender,
                    sequence=member.sequence,
                    assignments=tuple(parts.get(shard, ())),
                    add=add,
                    shards=shards,
                    cut=cut,
                )
                for shard in sorted({0, *parts} if self._pushing.orders else parts)
            }
            if not self._pushing.orders:
                calls.results(calls.send(messages), ms.Assigned)
                return
            failed = list(shards)
            try:
                calls.call(0, replace(messages[0], remote=tuple(remote)), ms.Assigned)
                failed = []
                calls.results(calls.send(member.in_order(messages)), ms.Assigned, failed)
            except StateLost:
                raise
            except ParamServerError:
                calls.abandon(failed, member.sequence)
                raise

    @redone("its change of hyperparameters is repeated")
    def tune(self, names: Sequence[str], optimizer: UpdateSpec, fields: Sequence[str]) -> None:
        """Sets these hyperparameters of the variables, of the kind of `optimizer`, on all their shards."""
        self.check_changeable()
        self.report_deferred_idle()
        parts = ShardedPull(self.registration.placement, names).names
        calls, member = self._calls, self.membership
        member.sequence += 1
        with member.cuts as cut:
            messages = {
                shard: ms.Tune(
                    sender=member.sender,
                    sequence=member.sequence,
                    names=tuple(parts[shard]),
                    optimizer=optimizer,
                    fields=tuple(fields),
                    cut=cut,
                )
                for shard in sorted(parts)
            }
            calls.results(calls.send(messages), ms.Tuned)

    # --- the job --------------------------------------------------------------------------------------------------

    @redone("it begins another generation")
    def hold_cut(
        self, names: Sequence[str], known_values: Iterable[VersionedArray] = (), timeout: float | None = None
    ) -> list[VersionedArray]:
        """Begins a generation when all workers have shown its number to all shards; its values of `names`, exact.

        When a shard loses it before they are read, another one begins. Raises `TimedOut` after `timeout` seconds, by
        default those of the client, with the workers it waits for.
        """
        self.check_changeable()
        self.report_deferred_idle()
        known = () if self.encoder.encoding else tuple(known_values)
        seconds = self._timeout if timeout is None else timeout
        return self.cuts.hold(seconds, lambda: self._start_pull(names, known, exact=True).result())

    def release_cut(self) -> None:
        """Ends the generation, if it is not gone; raises nothing, unless there was a rollback during it.

        Its `on_rollback` is called now: the worker's values are of a timeline that is over.
        """
        self.cuts.release()
        self.rollback.notify()

    @redone("it begins another checkpoint")
    def checkpoint(self, timeout: float | None = None) -> int:
        """Begins a checkpoint, and waits until all servers have written it; its number. See `JobCuts.write`."""
        self.check_changeable()
        return self.cuts.write(self._timeout if timeout is None else timeout)

    def check_changeable(self) -> None:
        """Raises `ConfigurationError` while a generation is open."""
        if self.cuts.generation:
            raise ConfigurationError(
                "inside `with session.generation()` variables have the values of one moment, and cannot be trained, "
                "assigned or registered: do it after the block"
            )

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until every live worker of the job waits at the barrier.

        Raises `TimedOut` after `timeout` seconds, by default those of the client, with the workers it waits for.
        """
        self.report_deferred_idle()
        self._barriers += 1
        number = self._barriers

        def attempt() -> ms.Passed:
            return self._calls.call(0, ms.Barrier(self.membership.sender, number), ms.Passed, timeout)

        self.rollback.redo(attempt, "it waits at the barrier again")

    @redone("the job is stopped again")
    def stop(self, reason: str) -> str:
        """Stops the job: its data queues hand out no more blocks. Returns the reason that counts, the first one.

        A reason is one line; of a longer one it has the first `MAX_TEXT_LENGTH` characters.
        """
        line = " ".join("".join(one if one.isprintable() else " " for one in reason).split())[:MAX_TEXT_LENGTH]
        stopped = self._calls.call(0, ms.Stop(self.membership.sender, line), ms.Stopped)
        self.membership.stopped = stopped.reason
        return stopped.reason

    def shard_status(self) -> ms.StatusReport:
        """The status of shard 0, which has the members, the data queues and the minimizations."""
        return self._calls.call(0, ms.Status(), ms.StatusReport)

    def report_idle(self) -> None:
        """Reports to shard 0 that it need not wait for this worker's next push; raises nothing."""
        self._heartbeat.idle_since = 0
        self.membership.sequence += 1
        if not self._closing.is_set():
            renewal = self.membership.renewal(0, self.membership.sequence, idle=True)
            answer = self._calls.call_best_effort(0, renewal, "could not report that it is idle")
            if answer is not None:
                self.membership.update_chief(0, answer)

    def defer_idle(self) -> None:
        """Reports the worker as idle with its next heartbeat, or next call without a push, unless it fails first.

        For a worker that has left its loop: if an error ended the loop, the worker is not idle but about to leave.
        """
        self.membership.sequence += 1
        self._heartbeat.idle_since = self.membership.sequence

    def report_deferred_idle(self) -> None:
        """Reports now what `defer_idle` has deferred, if anything."""
        if self._heartbeat.idle_since:
            self.report_idle()

    def status(self, timeout: float) -> JobStatus:
        """The status of the job, from all shards that answer within `timeout` seconds. Any thread; does not raise."""
        transport = self._calls.transport
        calls = [transport.call(shard, ms.Status(), timeout) for shard in range(self.shards)]
        return merge_reports([_status_answer(f"shard {shard}", call) for shard, call in enumerate(calls)])

    def leave(self, *, failed: bool = False) -> None:
        """Leaves all shards and ends the heartbeat. With `failed`, synchronous updates wait for a replacement."""
        self._closing.set()
        self.take_back()
        self.membership.cuts.wake()
        self._heartbeat.join()
        sender = self.membership.sender
        if not sender.incarnation or os.getpid() != self._process:
            return  # it never joined, or is a fork of the worker that did
        done = False
        for shard in range(self.shards):
            left = self._calls.call_best_effort(shard, ms.Leave(sender, failed, done), "left without an answer")
            done |= isinstance(left, ms.Left) and left.done

    def close(self) -> None:
        """Closes the connections; no call is possible afterwards."""
        self._closing.set()
        self.take_back()
        self.membership.cuts.wake()
        self._calls.transport.close()
        if self.tracing is not None:
            self.tracing.close()


def _status_answer(shard: str, call: Future[ms.Answer]) -> ShardAnswer:
    try:
        report = call.result()
    except ParamServerError as error:
        return ShardAnswer(shard, problem=str(error))
    assert isinstance(report, ms.StatusReport)
    return ShardAnswer(shard, report)
