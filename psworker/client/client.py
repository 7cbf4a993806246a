"""The client: a worker's calls to all shards, with whole variables, independent of the shards of their partitions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import TypeVar

from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from psjob.tracing.tracing import Tracing, current
from pswire import messages as ms
from pswire.errors import ConfigurationError, GenerationLost, ParamServerError, StateLost
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
from pswire.specs.vectors import Operation
from pswire.system.signals import deferred_signals
from pswire.tensors.values import Array
from psworker.client.error_feedback import GradientEncoder
from psworker.client.heartbeat import Heartbeat
from psworker.client.job_cuts import JobCuts
from psworker.client.placement import PlacedVariable, Placement
from psworker.client.push_pull import PushResult, ShardedPull, ShardedPush, join_rows
from psworker.client.push_spans import traced_push
from psworker.client.recovery import Recovery, WentBack
from psworker.client.registration import Registration
from psworker.client.retrying_calls import JobChoice, RetryingCalls
from psworker.transport import Future, Transport
from psworker.versions import ReadVersion, VersionedArray

#: Recoveries allowed within one call.
MAX_RECOVERIES = 10

T = TypeVar("T")


class Client:
    """One worker's calls to all shards. Used by one thread, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        [W] = client.register([Declaration(spec, value, optimizer)])
        push = client.push([VersionedArray("W", W.read, g)], loss=0.3, pull=["W"])
        pushed = push.result()
        client.leave()

    Every method raises the server's error, or `Unavailable` or `TimedOut` after `timeout` seconds of retries; and
    `UnknownVariable` for a variable that was not registered, when nothing has been sent yet. The encoding of the
    `encoder` of gradients is also that of values. After `join`, `consistency` and `staleness` are the shards' policies.

    When shards have lost acknowledged state, all go back to a cut (`psworker.client.recovery`) within the call that
    learns of it. Then a push is dropped, and what else was called is repeated. `value_of` gives the worker's present
    value of a variable, for one that was registered after the cut; `on_recovery` is called afterwards, to pull values.

    The calls of a minimization may be made by several threads. `_changing` lets a worker have one change open at a time
    then, and one recovery of all shards.

    `generation` is the number of the cut that is held (`hold_cut`); 0: none. All values that are read are of this cut,
    and nothing can be changed; when shards do not have it any more, reads raise `GenerationLost`. With `tracing` each
    push is a trace.
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
        self._calls = RetryingCalls(transport, worker, timeout, self._closing, job, name_key)
        self._heartbeat = Heartbeat(self._calls)
        self.encoder = encoder or GradientEncoder()
        self.shards = transport.shards
        self.consistency: Consistency = Asynchronous()
        self.staleness: StalenessSpec = IgnoreStaleness()
        self._pushing = ShardedPush(self._calls, self.encoder)
        self._registration = Registration(self._calls, lambda name: self.value_of(name))
        self._recovery = Recovery(self._calls, self._registration, timeout)
        self._cuts = JobCuts(self._calls)
        self.generation = 0
        self.tracing: Tracing | None = None
        self._process = os.getpid()
        self._timeout = timeout
        self._sequence = self._barriers = 0
        self._changing = threading.RLock()
        self._taken: dict[str, int] = {}  # by data queue, the recoveries when a block was taken
        self.value_of: Callable[[str], Array | None] = lambda name: None
        self.on_recovery: Callable[[], None] = lambda: None
        self._recovered = 0  # `recoveries` at the last call of `on_recovery`

    @property
    def chief(self) -> bool:
        """Whether this worker is chief, as last reported by shard 0."""
        return self._calls.chief

    @property
    def job(self) -> ms.Job:
        """The job in which the worker takes part."""
        return self._calls.job

    @property
    def stopped(self) -> str:
        """Why the job was stopped, as last reported by shard 0; "": it was not."""
        return self._calls.stopped

    @property
    def global_step(self) -> int:
        """Shard 0's global step in its last answer with values, or at the last barrier; inside a generation, its."""
        return self._calls.global_step

    @property
    def half_applied(self) -> int:
        """Pushes of this worker that some of their shards have applied, and others have not."""
        return self._calls.half_applied

    @property
    def timeline(self) -> int:
        """Of the shards when the worker joined them: it counts how often a job went back, from 1 with storage."""
        return self._calls.timeline

    @property
    def recoveries(self) -> int:
        """How often all shards went back to a cut."""
        return self._recovery.count

    @property
    def sender(self) -> ms.Sender:
        """The worker as a member of the job."""
        return self._calls.sender

    @property
    def _placement(self) -> Placement:
        return self._registration.placement

    def placed(self, name: str) -> PlacedVariable:
        """A variable with its partitions."""
        return self._placement[name]

    def join(self, session: int = 0, name: str = "") -> ms.Joined:
        """Joins every shard and keeps the leases by a heartbeat in the background; shard 0's answer.

        With the number of a `session` of the program, from 1, the job is that of the session, after those before it;
        `name` is the name that their jobs had, unless the worker was given one.

        Raises `SessionOver` if other workers have begun the job of a later session, `ConfigurationError` if the shards
        were started with different policies, and `WrongShard` if they are not the servers of the job, all of them and
        in their order.
        """
        try:
            joined, *others = self._calls.join(session, name)
        except StateLost as error:
            joined, *others = self._go_back(error, "it has just joined")
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
        self._heartbeat.start(joined.lease)
        self._calls.report_tensor_transport()
        return joined

    def register(self, declarations: Sequence[ms.Declaration]) -> list[VersionedArray]:
        """Declares variables; returns the servers' values of them, in their order, without the tables.

        Of several shards, all first check their part, and none registers it if one refuses. Raises `AlreadyRegistered`
        if a worker has registered one of this name that differs, or is placed elsewhere; `ShapeMismatch` if an initial
        value does not have its variable's shape and dtype; `WrongShard` if one of the shards was restarted.
        """
        self.check_changeable()
        values = self._repeated(lambda: self._register(declarations), "its registration is repeated")
        self._registration.add(declarations)
        return values

    def _register(self, declarations: Sequence[ms.Declaration]) -> list[VersionedArray]:
        calls, pushing = self._calls, self._pushing
        names, rejoins = [declaration.spec.name for declaration in declarations], calls.rejoins
        answers = self._registration.register(declarations)
        pushing.observed |= {one.spec.name for one in declarations if isinstance(one.optimizer, MovingAverage)}
        if pushing.orders and calls.frontier.decided:  # in shard 0's order
            self.report_deferred_idle()
            served = [value.name for answer in answers for value in answer.values]
            return self._start_pull(served, (), exact=False).result()
        pull = ShardedPull(self._placement, names, rejoins=max(rejoins, calls.went_back))
        return pull.joined(answers, 0 if pushing.orders else None)

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

        A push is dropped without being sent if its weights, or its examples, are from before the shards went back.

        Raises `ShapeMismatch` if a gradient does not have its variable's shape and dtype; then nothing was sent.
        """
        if self.tracing is None:
            return self._push(gradients, loss, pull, known_values, progress)
        return traced_push(
            self.tracing,
            lambda: self._push(gradients, loss, pull, known_values, progress),
            worker=self._calls.sender.worker,
            sequence=self._sequence + 1,
        )

    def _push(
        self,
        gradients: Sequence[VersionedArray],
        loss: float | None,
        pull: Sequence[str],
        known_values: Iterable[VersionedArray],
        progress: tuple[ms.Progress, ...],
    ) -> Future[PushResult]:
        if self.generation:
            self.check_changeable()
        calls, pushing = self._calls, self._pushing
        if calls.abandoned:
            self._repeated(calls.report_abandoned, "nothing of it is open")
        if calls.went_back and self._is_outdated(gradients, progress):
            return Future(partial(self._dropped, pull))
        pulled = ShardedPull(self._placement, pull, known_values, calls.rejoins)
        cut = calls.cuts.begin_change(awaits_decision=pushing.decides)
        try:
            messages = pushing.messages(self._placement, self._sequence + 1, gradients, loss, pulled, cut, progress)
            if self.tracing is not None and (span := current.get()) is not None:
                span.child("encode", span.began, time_ns())
            self._heartbeat.idle_since = 0
            self._sequence += 1
            sent = calls.send({0: messages[0]} if pushing.decides else messages, pulled.rejoins)
        except BaseException:
            calls.cuts.end_change()
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
            self._go_back(error, "its push is dropped")
        finally:
            self._calls.cuts.end_change()
        return self._dropped(names)

    def _is_outdated(self, gradients: Iterable[VersionedArray], progress: Iterable[ms.Progress]) -> bool:
        """Whether weights or examples are from before the shards went back: these examples will be trained again."""
        if any(self._taken.get(one.queue) != self.recoveries for one in progress):
            return True
        return any(gradient.read.rejoins < self._calls.went_back for gradient in gradients)

    def _dropped(self, names: Sequence[str]) -> PushResult:
        """The result of a push that was dropped because the shards went back, with the values of `names`."""
        values = self.pull(names) if names else []
        return PushResult(ms.Outcome.DROPPED, 0, self._calls.global_step, values, self._recovery.reason)

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

        return Future(lambda: self._repeated(attempt, "its pull is repeated"))

    def _start_pull(
        self, names: Sequence[str], known_values: Iterable[VersionedArray], *, exact: bool
    ) -> Future[list[VersionedArray]]:
        calls, encoding = self._calls, "" if exact else self.encoder.encoding
        pull = ShardedPull(self._placement, names, known_values, calls.rejoins)
        messages = {shard: pull.message(shard, calls.sender, encoding) for shard in sorted(pull.names)}
        if self.generation:
            messages.setdefault(0, ms.Pull(sender=calls.sender, names=()))  # for its global step
            messages = {shard: replace(message, of_cut=self.generation) for shard, message in messages.items()}
        if self.generation or not self._pushing.orders:
            sent = calls.send(messages, pull.rejoins)
            return Future(lambda: pull.joined(calls.results(sent, ms.Pulled), None))
        first = calls.send({0: messages.get(0) or ms.Pull(sender=calls.sender, names=())}, pull.rejoins)

        def result() -> list[VersionedArray]:
            """The other shards answer once they have made all changes that shard 0 had decided."""
            answers = calls.results(first, ms.Pulled)
            served_at = calls.frontier.decided
            answers += calls.results(calls.send(calls.in_order(messages), pull.rejoins), ms.Pulled)
            return pull.joined(answers, served_at)

        return Future(result)

    def choose(self, name: str, rows: Array | None = None, slot: str = "", *, exact: bool = False) -> VersionedArray:
        """Some rows of a variable, or of one of its slots, and the versions of all partitions.

        `rows` are row numbers, (n,), integers in any order and with repeats; None: all. `slot` "" is the value. Slots,
        and values if `exact`, come without an encoding.

        Raises `InvalidMessage` if there is no such slot, and as `PlacedVariable.split_rows`.
        """
        return self._repeated(lambda: self._choose(name, rows, slot, exact=exact), "its request for rows is repeated")

    def _choose(self, name: str, rows: Array | None, slot: str, *, exact: bool) -> VersionedArray:
        calls, variable, orders = self._calls, self._placement[name], self._pushing.orders and not self.generation
        rejoins = calls.rejoins
        numbers, positions = (None, None) if rows is None else variable.split_rows(rows)
        encoding = "" if slot or exact else self.encoder.encoding
        served_at = calls.frontier.decided if orders else None
        messages = {}
        for index, partition in enumerate(variable.partitions):
            shard, choice = partition.shard, ms.Choice(name, None if numbers is None else numbers[index], slot)
            messages[shard] = ms.Pull(
                sender=calls.sender, names=(), choices=(choice,), encoding=encoding, of_cut=self.generation
            )
        if orders:
            messages |= calls.in_order(messages)
        answers = calls.results(calls.send(messages), ms.Pulled)
        values = [value for answer in answers for value in answer.values]
        read = ReadVersion(tuple([value.version for value in values]), served_at, rejoins)
        return VersionedArray(name, read, join_rows(values, positions))

    def assign(self, assignments: Sequence[ms.Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that holds a partition.

        Raises `ShapeMismatch` if a value does not have its variable's shape and dtype; then nothing was sent.
        """
        self.check_changeable()
        parts: dict[int, list[ms.Assignment]] = {}
        for assignment in assignments:
            name, value, variable = assignment.name, assignment.array, self._placement[assignment.name]
            if assignment.first_row is not None:
                for partition, rows, row in variable.split_stretch(value, assignment.first_row):
                    parts.setdefault(partition.shard, []).append(ms.Assignment(name, rows, row))
                continue
            variable.check(value, "assigned value")
            for partition, array in zip(variable.partitions, variable.split(value), strict=True):
                parts.setdefault(partition.shard, []).append(ms.Assignment(name, array))
        self.report_deferred_idle()
        self._repeated(lambda: self._assign(assignments, parts, add=add), "its assignment is repeated")

    def _assign(
        self, assignments: Sequence[ms.Assignment], parts: Mapping[int, list[ms.Assignment]], *, add: bool
    ) -> None:
        self._calls.report_abandoned()
        self._sequence += 1
        calls, sequence = self._calls, self._sequence
        shards = tuple(sorted(parts.keys() - {0}))
        messages = {
            shard: ms.Assign(
                sender=calls.sender, sequence=sequence, assignments=tuple(parts[shard]), add=add, shards=shards
            )
            for shard in sorted(parts)
        }
        remote = tuple([one.name for one in assignments if self._placement[one.name].partitions[-1].shard])
        with deferred_signals, calls.cuts as cut:
            messages = {shard: replace(message, cut=cut) for shard, message in messages.items()}
            if not self._pushing.orders:
                calls.results(calls.send(messages), ms.Assigned)
                return
            first = messages.get(0) or ms.Assign(
                sender=calls.sender, sequence=sequence, assignments=(), add=add, shards=shards, cut=cut
            )
            failed = list(shards)
            try:
                calls.call(0, replace(first, remote=remote), ms.Assigned)
                failed = []
                calls.results(calls.send(calls.in_order(messages)), ms.Assigned, failed)
            except StateLost:
                raise
            except ParamServerError:
                calls.abandon(failed, sequence)
                raise

    def tune(self, names: Sequence[str], optimizer: UpdateSpec, fields: Sequence[str]) -> None:
        """Sets these hyperparameters of the variables, of the kind of `optimizer`, on all their shards."""
        self.check_changeable()
        self.report_deferred_idle()
        self._repeated(lambda: self._tune(names, optimizer, fields), "its change of hyperparameters is repeated")

    def _tune(self, names: Sequence[str], optimizer: UpdateSpec, fields: Sequence[str]) -> None:
        parts = ShardedPull(self._placement, names).names
        self._sequence += 1
        calls, sequence = self._calls, self._sequence
        with calls.cuts as cut:
            messages = {
                shard: ms.Tune(
                    sender=calls.sender,
                    sequence=sequence,
                    names=tuple(parts[shard]),
                    optimizer=optimizer,
                    fields=tuple(fields),
                    cut=cut,
                )
                for shard in sorted(parts)
            }
            calls.results(calls.send(messages), ms.Tuned)

    def take(self, queue: ms.QueueSpec, finished: ms.Finished | None, reports: int = 0) -> ms.Taken:
        """The next block of a data queue, or within seconds why there is none yet; epoch reports from `reports` on.

        After the shards went back, the block that was taken before was given back, and `finished` is ignored.
        """
        self._heartbeat.idle_since = 0
        calls = self._calls

        def attempt() -> ms.Taken:
            done = finished if self.has_block(queue) else None  # a retry would finish the block that comes again
            return calls.call(
                0,
                ms.Take(
                    sender=calls.sender, queue=queue, finished=done, reports_received=reports, timeline=calls.timeline
                ),
                ms.Taken,
            )

        taken = self._repeated(attempt, "it takes another block of examples")
        self._taken[queue.name] = self.recoveries
        return taken

    def has_block(self, queue: ms.QueueSpec) -> bool:
        """Whether the last `take` is still valid: False after the shards went back, when another may have the block."""
        return self._taken.get(queue.name) == self.recoveries

    def queues(self) -> tuple[ms.QueueStatus, ...]:
        """How far the data queues of the job are."""
        return self._status().queues

    # --- minimization ---------------------------------------------------------------------------------------------

    def compute(
        self, names: Sequence[str], operations: Sequence[Operation], minimization: str, term: int, note: str = ""
    ) -> list[ms.Computed]:
        """Applies operations to vectors of these variables on all shards, once; the answers, in the order of shards.

        With a `note`, only shard 0 gets the message. Raises `WentBack` if all shards went back to a cut: vectors and
        notes are those of the cut then; `OutOfOrder` if another worker coordinates the minimization.
        """
        parts: Mapping[int, Sequence[str]] = {} if note else ShardedPull(self._placement, names).names
        shards = [0] if note else range(self.shards)
        calls = self._calls
        with self._changing, self._recovering("the minimization goes on from its last point there"):
            self._sequence += 1
            with calls.cuts as cut:
                messages = {
                    shard: ms.Compute(
                        sender=calls.sender,
                        sequence=self._sequence,
                        names=tuple(parts.get(shard, ())),
                        operations=tuple(operations),
                        minimization=minimization,
                        term=term,
                        note=note,
                        cut=cut,
                    )
                    for shard in shards
                }
                return calls.results(calls.send(messages), ms.Computed)

    def begin_evaluation(
        self,
        names: Sequence[str],
        minimization: str,
        term: int,
        evaluation: ms.Evaluation | None,
        end: str = "",
        point: ms.AcceptedPoint | None = None,
    ) -> None:
        """Begins an evaluation on the shards with variables, on shard 0 at last, or ends the minimization.

        `point` is the last accepted one, for status and displays. Raises `WentBack` and `OutOfOrder` as `compute` does.
        """
        calls = self._calls
        shards = self.shards_of(names)
        with self._changing, calls.cuts as cut:
            message = ms.Evaluate(
                sender=calls.sender,
                name=minimization,
                evaluation=evaluation,
                end=end,
                timeline=calls.timeline,
                point=point,
                wait=False,
                cut=cut,
                term=term,
            )
            for some in (shards[1:], shards[:1]):
                self._evaluate(some, message)

    def evaluated(
        self, names: Sequence[str], minimization: str, term: int = 0, evaluation: ms.Evaluation | None = None
    ) -> list[ms.Evaluated]:
        """How far an evaluation is on shard 0, and on the shards with a part of a variable, in order.

        When it is complete, at latest after some seconds; without an evaluation at once. Raises `WentBack` and
        `OutOfOrder` as `compute` does.
        """
        calls = self._calls
        message = ms.Evaluate(
            sender=calls.sender, name=minimization, evaluation=evaluation, timeline=calls.timeline, term=term
        )
        return self._evaluate(self.shards_of(names), message)

    def _evaluate(self, shards: Sequence[int], message: ms.Evaluate) -> list[ms.Evaluated]:
        calls = self._calls
        with self._recovering("the evaluation begins again"):
            return calls.results(calls.send(dict.fromkeys(shards, message)), ms.Evaluated)

    def shards_of(self, names: Sequence[str]) -> list[int]:
        """Shard 0, and the shards that have a part of one of these variables, in order."""
        return sorted({0, *ShardedPull(self._placement, names).names})

    def take_portion(
        self, minimization: str, evaluation: int, holding: Sequence[int], withdrawn: Sequence[int]
    ) -> ms.PortionTaken:
        """The next portion of the present evaluation, or within seconds what else there is to do."""
        calls = self._calls

        def attempt() -> ms.PortionTaken:
            message = ms.TakePortion(
                sender=calls.sender,
                name=minimization,
                evaluation=evaluation,
                holding=tuple(holding),
                withdrawn=tuple(withdrawn),
                timeline=calls.timeline,
            )
            return calls.call(0, message, ms.PortionTaken)

        return self._repeated(attempt, "it takes another portion of the data")

    def claim_portion(self, minimization: str, evaluation: int, portion: int, loss: float) -> bool:
        """Claims a portion, with the sum of its losses; whether the claim counts. Not after the shards went back."""
        calls = self._calls
        message = ms.ClaimPortion(
            sender=calls.sender,
            name=minimization,
            evaluation=evaluation,
            portion=portion,
            loss=loss,
            timeline=calls.timeline,
        )
        try:
            with self._recovering("what it has computed of a portion is discarded"):
                return calls.call(0, message, ms.PortionClaimed).counted
        except WentBack:
            return False

    def push_sum(self, gradients: Mapping[str, Array], portions: ms.CountedPortions, recoveries: int) -> str:
        """Adds gradients to the sum of an evaluation, on each shard once, on shard 0 at last; why not, "" if all have.

        A shard that drops it keeps shard 0 from counting its portions. One that has counted all of them adds nothing.
        Nothing is pushed if the shards went back since the gradients were computed, as of so many `recoveries`.
        """
        parts: dict[int, list[ms.Assignment]] = {shard: [] for shard in self.shards_of(list(gradients))}
        for name, gradient in gradients.items():
            variable = self._placement[name]
            variable.check(gradient, "gradient")
            for partition, array in zip(variable.partitions, variable.split(gradient), strict=True):
                parts[partition.shard].append(ms.Assignment(name, array))
        with self._changing:
            if self.recoveries != recoveries:
                return self._recovery.reason
            try:
                with self._recovering("its gradients of portions are discarded"):
                    return self._push_sum(parts, portions)
            except WentBack as error:
                return str(error)

    def _push_sum(self, parts: Mapping[int, list[ms.Assignment]], portions: ms.CountedPortions) -> str:
        calls = self._calls
        calls.report_abandoned()
        self._sequence += 1
        others = tuple([shard for shard in parts if shard])
        with calls.cuts as cut:
            messages = {
                shard: ms.Assign(
                    sender=calls.sender,
                    sequence=self._sequence,
                    assignments=tuple(mine),
                    add=True,
                    shards=others,
                    cut=cut,
                    portions=portions,
                )
                for shard, mine in parts.items()
            }
            for some in ({shard: messages[shard] for shard in others}, {0: messages[0]}):
                for answer in calls.results(calls.send(some), ms.Assigned):
                    if answer.outcome is ms.Outcome.DROPPED:
                        return answer.reason
        return ""

    # --- the job --------------------------------------------------------------------------------------------------

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

        def read(number: int) -> list[VersionedArray]:
            self.generation = number
            try:
                return self._start_pull(names, known, exact=True).result()
            except BaseException:
                self.generation = 0
                raise

        return self._repeated(lambda: self._cuts.hold(seconds, read), "it begins another generation")

    def release_cut(self) -> None:
        """Ends the generation, if it is not gone; raises nothing, unless all shards went back during it.

        Then `on_recovery` is called now: the values that the worker has are of a timeline that is over.
        """
        generation, self.generation = self.generation, 0
        if generation:
            self._cuts.release(generation)
        if self._recovered != self.recoveries:
            self._call_on_recovery()

    def checkpoint(self, timeout: float | None = None) -> int:
        """Begins a checkpoint, and waits until all servers have written it; its number. See `JobCuts.write`."""
        self.check_changeable()
        seconds = self._timeout if timeout is None else timeout
        return self._repeated(lambda: self._cuts.write(seconds), "it begins another checkpoint")

    def check_changeable(self) -> None:
        """Raises `ConfigurationError` while a generation is held."""
        if self.generation:
            raise ConfigurationError(
                "inside `with session.generation()` variables have the values of one moment, and cannot be trained, "
                "assigned or registered: do it after the block"
            )

    def _repeated(self, attempt: Callable[[], T], consequence: str) -> T:
        """The result of an attempt, which is made again when all shards went back to a cut during it."""
        for _ in range(MAX_RECOVERIES):
            recoveries = self.recoveries
            try:
                return attempt()
            except StateLost as error:
                self._recover(recoveries, error, consequence)
        return attempt()

    @contextmanager
    def _recovering(self, consequence: str) -> Iterator[None]:
        """Raises `WentBack` when all shards went back to a cut during calls that are not repeated after that."""
        recoveries = self.recoveries
        try:
            yield
        except StateLost as error:
            self._recover(recoveries, error, consequence)
            raise WentBack(self._recovery.reason) from None

    def _recover(self, recoveries: int, error: StateLost, consequence: str) -> None:
        """Goes back to a cut, unless another thread has done that since there were as many `recoveries`."""
        with self._changing:
            if self.recoveries == recoveries:
                self._go_back(error, consequence)

    def _go_back(self, error: StateLost, consequence: str) -> list[ms.Joined]:
        answers = self._recovery.go_back(error, self._sequence, consequence)
        if self.generation:
            raise GenerationLost(
                f"the values of generation {self.generation} are gone, repeat the block of session.generation(): "
                f"{self._recovery.reason}"
            )
        self._call_on_recovery()
        return answers

    def _call_on_recovery(self) -> None:
        self._recovered = self.recoveries
        self.on_recovery()

    def give_back(self, queue: ms.QueueSpec) -> None:
        """Gives back the block that this worker holds, so that it need not leave first; raises nothing."""
        if not self._closing.is_set():  # it has not left
            message = ms.Take(sender=self._calls.sender, queue=queue, give_back=True)
            self._calls.call_best_effort(0, message, f"could not give back the block of {queue.name}")

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until every live worker of the job waits at the barrier.

        Raises `TimedOut` after `timeout` seconds, by default those of the client, with the workers it waits for.
        """
        self.report_deferred_idle()
        self._barriers += 1
        number = self._barriers

        def attempt() -> ms.Passed:
            return self._calls.call(0, ms.Barrier(self._calls.sender, number), ms.Passed, timeout)

        self._repeated(attempt, "it waits at the barrier again")

    def stop(self, reason: str) -> str:
        """Stops the job: its data queues hand out no more blocks. Returns the reason that counts, the first one.

        A reason is one line; of a longer one it has the first `MAX_TEXT_LENGTH` characters.
        """
        line = " ".join("".join(one if one.isprintable() else " " for one in reason).split())[:MAX_TEXT_LENGTH]
        stopped = self._repeated(
            lambda: self._calls.call(0, ms.Stop(self._calls.sender, line), ms.Stopped), "the job is stopped again"
        )
        self._calls.stopped = stopped.reason
        return stopped.reason

    def workers(self) -> list[ms.WorkerStatus]:
        """The live workers of the job, in the order in which they joined first."""
        return [worker for worker in self._status().workers if worker.state == "live"]

    def _status(self) -> ms.StatusReport:
        """The status of shard 0."""
        return self._calls.call(0, ms.Status(), ms.StatusReport)

    def report_idle(self) -> None:
        """Reports to shard 0 that it need not wait for this worker's next push; raises nothing."""
        self._heartbeat.idle_since = 0
        self._sequence += 1
        if not self._closing.is_set():
            renewal = self._calls.renewal(0, self._sequence, idle=True)
            answer = self._calls.call_best_effort(0, renewal, "could not report that it is idle")
            if answer is not None:
                self._calls.update_chief(0, answer)

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

    def status(self, timeout: float) -> JobStatus:
        """The status of the job, from all shards that answer within `timeout` seconds. Any thread; does not raise."""
        transport = self._calls.transport
        calls = [transport.call(shard, ms.Status(), timeout) for shard in range(self.shards)]
        return merge_reports([_status_answer(f"shard {shard}", call) for shard, call in enumerate(calls)])

    def leave(self, *, failed: bool = False) -> None:
        """Leaves all shards and ends the heartbeat. With `failed`, synchronous updates wait for a replacement."""
        self._closing.set()
        self._calls.cuts.wake()
        self._heartbeat.join()
        sender = self._calls.sender
        if not sender.incarnation or os.getpid() != self._process:
            return  # it never joined, or is a fork of the worker that did
        done = False
        for shard in range(self.shards):
            left = self._calls.call_best_effort(shard, ms.Leave(sender, failed, done), "left without an answer")
            done |= isinstance(left, ms.Left) and left.done

    def close(self) -> None:
        """Closes the connections; no call is possible afterwards."""
        self._closing.set()
        self._calls.cuts.wake()
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
