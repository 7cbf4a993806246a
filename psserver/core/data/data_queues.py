"""The data queues of a job by name, and the requests that wait because other workers hold all remaining blocks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from psserver.core import events
from psserver.core.data.data_queue import DataQueue
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.part import MAX_LISTED, Call, Check, Handler, Part, Position, names
from psserver.core.variables.array_tasks import StepResult
from psserver.core.waiting import WaitingCalls
from pswire.errors import AlreadyRegistered, InvalidMessage, TooLarge, Unavailable, WrongShard
from pswire.messages import (
    Block,
    EpochReport,
    LastEpoch,
    Overdue,
    Push,
    QueueSpec,
    ShardState,
    Status,
    Take,
    Taken,
    Tick,
)

#: Data queues of a job, with those that are done.
MAX_QUEUES = 10_000

#: Evaluations of which the sums are kept: the newest.
MAX_EVALUATIONS = 8


class DataQueues(Part):
    """The queues by name, and the workers that wait for a block because other workers hold all remaining ones."""

    def __init__(self, shard: int, position: Position, members: Membership) -> None:
        self._shard, self._position, self._members = shard, position, members
        self._queues: dict[str, DataQueue] = {}
        self._waiting: dict[str, WaitingCalls[str, Take]] = {}  # by worker, of each queue for which some wait
        self._blocks: dict[str, int] = {}  # that each worker holds, of all queues
        self._epochs: dict[str, int] = {}  # of each worker's last block

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {Take: (self._check, self._take)}

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        queues = tuple([queue.state() for queue in self._queues.values()])
        return {"queues": queues, "epochs": tuple([LastEpoch(*one) for one in self._epochs.items()])}

    def restore(self, state: ShardState, now: float) -> None:
        """As `Part.restore`."""
        self._queues = {one.spec.name: DataQueue.restored(one) for one in state.queues}
        self._blocks = Counter(worker for queue in self._queues.values() for worker in queue.holders())
        self._epochs = {one.worker: one.epoch for one in state.epochs}

    def waiting(self) -> Sequence[Call[Any]]:
        """As `Part.waiting`."""
        return [call for waiting in self._waiting.values() for call in waiting.calls]

    def _check(self, message: Take, member: Member) -> None:
        """Raise `AlreadyRegistered` if a queue of this name has different parameters.

        A job that is resumed may be extended: the queue gets a later end if no other worker reads it. Raise
        `Unavailable` while one does: it may be from before a restart, until it joins again or its lease ends.
        """
        self._check_has_queues()
        spec = message.queue
        queue = self._queues.get(spec.name)
        if queue is None and len(self._queues) >= MAX_QUEUES:
            raise TooLarge(
                f"data queue {spec.name!r} would be one more than the {MAX_QUEUES:,} that a job may have: call "
                "session.batches once for all epochs, or begin another job"
            )
        if spec.evaluates and spec.epochs != 1:
            raise InvalidMessage(f"data queue {spec.name!r} evaluates, and has {spec.epochs} epochs: it has one")
        if message.finished is not None and message.finished.sums:
            self._check_sums(queue, message)
        if queue is None or queue.spec == spec or message.give_back:
            return
        there, here = _differences(queue.spec, spec)
        # A block of the number that is finished may have become longer.
        if not _ends_later(spec, queue.spec) or message.finished is not None:
            raise AlreadyRegistered(
                f"data queue {spec.name!r} has {there}, but this worker requests {here}: "
                "do all workers run the same script with the same arguments?"
            )
        readers = {*queue.holders(), *self._waiting.get(spec.name, ())}
        if others := readers - {message.sender.worker}:
            raise Unavailable(
                f"data queue {spec.name!r} has {there}, and gets {here}, as this worker requests, when the others that "
                f"read it have joined again or are gone: {', '.join(sorted(others))}; do all workers run the same "
                "script with the same arguments?"
            )

    def _check_sums(self, queue: DataQueue | None, message: Take) -> None:
        """Raise `InvalidMessage` unless they belong to one of the newest evaluations."""
        assert message.finished is not None
        if queue is None or queue not in self._newest_evaluations(MAX_EVALUATIONS):
            raise InvalidMessage(f"sums of {message.queue.name!r}, which is none of the newest evaluations")
        queue.check_finished(message.finished)

    def _newest_evaluations(self, most: int) -> list[DataQueue]:
        return list(islice((queue for queue in reversed(self._queues.values()) if queue.spec.evaluates), most))

    @property
    def _trained(self) -> list[DataQueue]:
        """The queues whose examples are trained: displays, reports of the job and the guard concern these."""
        return [queue for queue in self._queues.values() if not queue.spec.evaluates]

    def check_progress(self, push: Push) -> None:
        """Raise `InvalidMessage` for positions that are not in their blocks."""
        self._check_has_queues()
        for progress in push.progress:
            if (queue := self._queues.get(progress.queue)) is not None:
                queue.check(progress)

    def note(self, push: Push) -> None:
        """Note how far the blocks of the worker are with this push; a queue that is not known here is ignored."""
        for progress in push.progress:
            if (queue := self._queues.get(progress.queue)) is not None:
                queue.note(push.sender.worker, progress)

    def _check_has_queues(self) -> None:
        if self._shard:
            raise WrongShard(f"this is shard {self._shard}: data queues are kept on shard 0")

    def _take(self, call: Call[Take], result: StepResult) -> None:
        """Take a finished block back and hand out the next, also to workers that wait; this one may have to wait."""
        message = call.message
        worker, spec = message.sender.worker, message.queue
        queue = self._queues.get(spec.name)
        if queue is None:
            queue = self._queues[spec.name] = DataQueue(spec)
            for old in self._newest_evaluations(MAX_EVALUATIONS + 1)[MAX_EVALUATIONS:] if spec.evaluates else ():
                old.forget_sums()
        held, waiting = queue.holds(worker), self._waiting.setdefault(spec.name, WaitingCalls())
        if not message.give_back:
            queue.extend(spec)
        if message.finished is not None:
            queue.finish(worker, message.finished, result)
        if message.give_back:
            waiting.replace(worker, result)
            queue.give_back(worker, result)
            result.reply(call.ticket, self._answer(call, None, done=queue.done))
        else:
            waiting.add(worker, call, result)
        self._count(worker, queue, held)
        self._hand_out([spec.name], result)
        if waiting.get(worker) is call:
            result.idle.append(call.member)

    def stop(self, result: StepResult) -> None:
        """Hand out no more blocks, since the job was stopped: tell workers that ask for one that all is done."""
        self._hand_out(list(self._waiting), result)

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """Return the blocks of members that are gone, and end their requests, before others get these blocks."""
        for waiting in self._waiting.values():
            waiting.forget(gone, self._members, result)
        holders = [worker for worker in names(gone) if worker in self._blocks]
        for queue in self._queues.values() if holders else ():
            for worker in holders:
                held = queue.holds(worker)
                block = queue.give_back(worker, result)
                self._count(worker, queue, held)
                if block is not None:
                    unit = "example" if queue.spec.size else "batch"
                    result.events.append(events.block_returned(queue.spec.name, block, worker, unit))
        self._hand_out(list(self._waiting), result)

    def forget_epoch(self, worker: str) -> None:
        """Forget the epoch of the last block of a worker that is gone."""
        self._epochs.pop(worker, None)

    def due(self, now: float) -> dict[str, Any]:
        """As `Part.due`."""
        overdue = [Overdue(worker, name) for name, waiting in self._waiting.items() for worker in waiting.overdue(now)]
        return {"overdue": tuple(overdue)}

    def tick(self, tick: Tick, result: StepResult) -> None:
        """Answer requests that have waited for long with the workers they wait for; their workers ask again."""
        for one in tick.overdue:
            waiting = self._waiting.get(one.queue)
            if waiting is not None and one.worker in waiting:
                holders = self._queues[one.queue].holders().items()
                reason = ", ".join(
                    f"{worker} (block {block.number} of epoch {block.epoch})" for worker, block in holders
                )
                answer = self._answer(waiting[one.worker], None, waiting_for=reason)
                waiting.answer(one.worker, answer, result)

    @property
    def done(self) -> bool:
        """Whether all examples of the queues that have an end are done, or the job was stopped."""
        return bool(self._position.stopped) or all(
            one.done for one in self._queues.values() if one.spec.total is not None
        )

    def epoch_of(self, worker: str) -> int:
        """The epoch of the worker's last block; 0 before its first."""
        return self._epochs.get(worker, 0)

    def between_blocks(self) -> set[str]:
        """The workers that have had blocks, and have pushed nothing of those that they hold now."""
        return set(self._epochs).difference(*[queue.begun() for queue in self._queues.values()])

    @property
    def count(self) -> int:
        """The number of queues whose examples are trained."""
        return len(self._trained)

    def status(self, asked: Status, now: float) -> dict[str, Any]:
        """How far the newest queues are, in the order in which they began."""
        queues = tuple([queue.status() for queue in self._trained[-MAX_LISTED:]])
        return {"queues": queues, "epochs": tuple(self.reports(MAX_LISTED))}

    @property
    def complete_epochs(self) -> int:
        """The number of complete epochs of all queues."""
        return sum(queue.complete for queue in self._trained)

    def reports(self, most: int) -> list[EpochReport]:
        """Complete epochs of all queues, those of the newest queues last, and the newest of them."""
        newest = (report for queue in reversed(self._trained) for report in reversed(queue.reports))
        return list(islice(newest, most))[::-1]

    def _hand_out(self, queues: Iterable[str], result: StepResult) -> None:
        """Answer each request for these queues that gets a block, or never will.

        Workers that hold a block of any queue have not finished.
        """
        for name in queues:
            queue, waiting = self._queues[name], self._waiting[name]
            for worker in list(waiting):
                held = queue.holds(worker)
                stopped = bool(self._position.stopped) and not queue.spec.evaluates
                block = None if stopped else queue.take(worker, result)
                if block is None and not (queue.done or stopped):
                    continue
                self._count(worker, queue, held)
                if block is not None and not queue.spec.evaluates:
                    self._epochs[worker] = block.epoch
                waiting.answer(worker, self._answer(waiting[worker], block, done=block is None), result)
            if not waiting:
                del self._waiting[name]
        self._members.progress.resume(self._members.progress.finished_among(self._blocks))

    def _count(self, worker: str, queue: DataQueue, held: bool) -> None:
        """Count the blocks of a worker, which `held` one of this queue before."""
        self._blocks[worker] = self._blocks.get(worker, 0) + queue.holds(worker) - held
        if not self._blocks[worker]:
            del self._blocks[worker]

    def _answer(self, call: Call[Take], block: Block | None, done: bool = False, waiting_for: str = "") -> Taken:
        message = call.message
        return Taken(
            block=block,
            done=done,
            waiting_for=waiting_for,
            reports=self._queues[message.queue.name].reports_after(message.reports_received),
            chief=self._members.chief.is_chief(message.sender.worker),
            cut=self._position.cut,
            stopped=self._position.stopped,
        )


def _ends_later(spec: QueueSpec, earlier: QueueSpec) -> bool:
    """Whether a queue is the same as an `earlier` one but for its end, which comes later."""
    same_but_end = _different(spec, earlier).keys() <= {"epochs", "limit"}
    return same_but_end and earlier.total is not None and (spec.total is None or spec.total > earlier.total)


def _differences(*queues: QueueSpec) -> list[str]:
    """The parameters of each of two queues in which they differ."""
    different = _different(*queues)
    return [", ".join(f"{name}={getattr(one, name)}" for name in different) for one in queues]


def _different(*queues: QueueSpec) -> dict[str, None]:
    """The parameters in which queues differ, in order."""
    return {one.name: None for one in fields(QueueSpec) if len({getattr(queue, one.name) for queue in queues}) > 1}
