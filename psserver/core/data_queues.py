"""The data queues of a job by name, and the requests that wait because other workers hold all remaining blocks."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from itertools import islice

from psserver.core import events
from psserver.core.cuts import Cuts
from psserver.core.data_queue import DataQueue
from psserver.core.members.membership import Membership
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import AlreadyRegistered, TooLarge, Unavailable
from pswire.messages import (
    Block,
    EpochReport,
    LastEpoch,
    Overdue,
    Push,
    QueueSpec,
    QueueState,
    QueueStatus,
    Reply,
    Take,
    Taken,
)

#: Seconds after which a waiting Take is answered with the workers it waits for, so that its worker can report them.
MAX_WAIT_SECONDS = 2.0

#: Data queues of a job, with those that are done.
MAX_QUEUES = 10_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: int
    message: Take
    since: float


class DataQueues:
    """The queues by name, and the workers that wait for a block because other workers hold all remaining ones."""

    def __init__(self, members: Membership, cuts: Cuts) -> None:
        self._members, self._cuts = members, cuts
        self._queues: dict[str, DataQueue] = {}
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._waiting_for: dict[str, dict[str, None]] = {}  # the workers that wait, by queue, in order
        self._blocks: dict[str, int] = {}  # that each worker holds, of all queues
        self._epochs: dict[str, int] = {}
        self.stopped = ""  # why no more blocks are handed out

    def state(self) -> tuple[tuple[QueueState, ...], tuple[LastEpoch, ...]]:
        """All queues, and the epoch of each worker's last block; without requests that wait."""
        queues = tuple([queue.state() for queue in self._queues.values()])
        return queues, tuple([LastEpoch(worker, epoch) for worker, epoch in self._epochs.items()])

    def restore(self, queues: Iterable[QueueState], epochs: Iterable[LastEpoch]) -> None:
        """Continue from a `state`."""
        self._queues = {one.spec.name: DataQueue.restored(one) for one in queues}
        self._blocks = Counter(worker for queue in self._queues.values() for worker in queue.holders())
        self._epochs = {one.worker: one.epoch for one in epochs}

    def waiting(self) -> list[tuple[int, Take]]:
        """The tickets and messages of requests that wait, in order."""
        return [(request.ticket, request.message) for request in self._waiting.values()]

    def check(self, message: Take) -> None:
        """Raise `AlreadyRegistered` if a queue of this name has different parameters.

        A job that is resumed may be extended: the queue gets a later end if no other worker reads it. Raise
        `Unavailable` while one does: it may be from before a restart, until it joins again or its lease ends.
        """
        spec = message.queue
        queue = self._queues.get(spec.name)
        if queue is None and len(self._queues) >= MAX_QUEUES:
            raise TooLarge(
                f"data queue {spec.name!r} would be one more than the {MAX_QUEUES:,} that a job may have: call "
                "session.batches once for all epochs, or begin another job"
            )
        if queue is None or queue.spec == spec or message.give_back:
            return
        there, here = _differences(queue.spec, spec)
        # A block of the number that is finished may have become longer.
        if not _ends_later(spec, queue.spec) or message.finished is not None:
            raise AlreadyRegistered(
                f"data queue {spec.name!r} has {there}, but this worker requests {here}: "
                "do all workers run the same script with the same arguments?"
            )
        readers = {*queue.holders(), *self._waiting_for.get(spec.name, ())}
        if others := readers - {message.sender.worker}:
            raise Unavailable(
                f"data queue {spec.name!r} has {there}, and gets {here}, as this worker requests, when the others that "
                f"read it have joined again or are gone: {', '.join(sorted(others))}; do all workers run the same "
                "script with the same arguments?"
            )

    def check_progress(self, push: Push) -> None:
        """Raise `InvalidMessage` for positions that are not in their blocks."""
        for progress in push.progress:
            if (queue := self._queues.get(progress.queue)) is not None:
                queue.check(progress)

    def note(self, push: Push) -> None:
        """Note how far the blocks of the worker are with this push; a queue that is not known here is ignored."""
        for progress in push.progress:
            if (queue := self._queues.get(progress.queue)) is not None:
                queue.note(push.sender.worker, progress)

    def take(self, ticket: int, message: Take, now: float, result: StepResult) -> bool:
        """Take a finished block back and hand out the next, also to workers that wait; False if this one must wait."""
        worker, spec = message.sender.worker, message.queue
        queue = self._queues.get(spec.name)
        if queue is None:
            queue = self._queues[spec.name] = DataQueue(spec)
        held = queue.holds(worker)
        if not message.give_back:
            queue.extend(spec)
        if message.finished is not None:
            queue.finish(worker, message.finished, result)
        key, request = (worker, spec.name), _Waiting(ticket, message, now)
        if (replaced := self._waiting.get(key)) is not None:
            error = Unavailable("another call of this worker has replaced this one")
            result.replies.append(Reply(replaced.ticket, error))
        if message.give_back:
            self._end_wait(key)
            queue.give_back(worker, result)
            result.replies.append(self._answer(request, None, done=queue.done))
        else:
            self._waiting[key] = request
            self._waiting_for.setdefault(spec.name, {})[worker] = None
        self._count(worker, queue, held)
        self._hand_out([spec.name], result)
        return self._waiting.get(key) is not request

    def stop(self, reason: str, result: StepResult) -> None:
        """Hand out no more blocks: tell workers that ask for one that all is done."""
        self.stopped = reason
        self._hand_out(list(self._waiting_for), result)

    def forget(self, workers: Collection[str], result: StepResult) -> None:
        """Return the blocks of workers that are gone, and end their requests, before others get these blocks."""
        for key in [key for key in self._waiting if key[0] in workers]:
            request = self._waiting[key]
            self._end_wait(key)
            result.replies.append(Reply(request.ticket, self._members.refusal(request.message.sender)))
        holders = [worker for worker in workers if worker in self._blocks]
        for queue in self._queues.values() if holders else ():
            for worker in holders:
                held = queue.holds(worker)
                block = queue.give_back(worker, result)
                self._count(worker, queue, held)
                if block is not None:
                    unit = "example" if queue.spec.size else "batch"
                    result.events.append(events.block_returned(queue.spec.name, block, worker, unit))
        self._hand_out(list(self._waiting_for), result)

    def forget_epoch(self, worker: str) -> None:
        """Forget the epoch of the last block of a worker that is gone."""
        self._epochs.pop(worker, None)

    def overdue(self, now: float) -> tuple[Overdue, ...]:
        """The requests that have waited for long."""
        return tuple(
            [Overdue(*key) for key, request in self._waiting.items() if now - request.since >= MAX_WAIT_SECONDS]
        )

    def explain(self, overdue: Iterable[Overdue], result: StepResult) -> None:
        """Answer requests that have waited for long with the workers they wait for; their workers ask again."""
        for one in overdue:
            key = one.worker, one.queue
            request = self._waiting.get(key)
            if request is None:
                continue
            self._end_wait(key)
            holders = self._queues[key[1]].holders().items()
            reason = ", ".join(f"{worker} (block {block.number} of epoch {block.epoch})" for worker, block in holders)
            result.replies.append(self._answer(request, None, waiting_for=reason))

    @property
    def done(self) -> bool:
        """Whether all examples of the queues that have an end are done, or the job was stopped."""
        return bool(self.stopped) or all(one.done for one in self._queues.values() if one.spec.total is not None)

    def epoch_of(self, worker: str) -> int:
        """The epoch of the worker's last block; 0 before its first."""
        return self._epochs.get(worker, 0)

    def between_blocks(self) -> set[str]:
        """The workers that have had blocks, and have pushed nothing of those that they hold now."""
        return set(self._epochs).difference(*[queue.begun() for queue in self._queues.values()])

    @property
    def count(self) -> int:
        """The number of queues."""
        return len(self._queues)

    def status(self, most: int) -> list[QueueStatus]:
        """How far the newest queues are, in the order in which they began."""
        newest = list(islice(reversed(self._queues.values()), most))
        return [queue.status() for queue in reversed(newest)]

    @property
    def complete_epochs(self) -> int:
        """The number of complete epochs of all queues."""
        return sum(queue.complete for queue in self._queues.values())

    def reports(self, most: int) -> list[EpochReport]:
        """Complete epochs of all queues, those of the newest queues last, and the newest of them."""
        newest = (report for queue in reversed(self._queues.values()) for report in reversed(queue.reports))
        return list(islice(newest, most))[::-1]

    def _hand_out(self, names: Iterable[str], result: StepResult) -> None:
        """Answer each request for these queues that gets a block, or never will.

        Workers that hold a block of any queue have not finished.
        """
        for name in names:
            queue = self._queues[name]
            for worker in list(self._waiting_for.get(name, ())):
                held = queue.holds(worker)
                block = None if self.stopped else queue.take(worker, result)
                if block is None and not (queue.done or self.stopped):
                    continue
                self._count(worker, queue, held)
                if block is not None:
                    self._epochs[worker] = block.epoch
                request = self._waiting[worker, name]
                self._end_wait((worker, name))
                result.replies.append(self._answer(request, block, done=block is None))
        self._members.progress.resume(self._members.progress.finished_among(self._blocks))

    def _end_wait(self, key: tuple[str, str]) -> None:
        worker, name = key
        self._waiting.pop(key, None)
        workers = self._waiting_for.get(name, {})
        workers.pop(worker, None)
        if not workers:
            self._waiting_for.pop(name, None)

    def _count(self, worker: str, queue: DataQueue, held: bool) -> None:
        """Count the blocks of a worker, which `held` one of this queue before."""
        self._blocks[worker] = self._blocks.get(worker, 0) + queue.holds(worker) - held
        if not self._blocks[worker]:
            del self._blocks[worker]

    def _answer(self, request: _Waiting, block: Block | None, done: bool = False, waiting_for: str = "") -> Reply:
        message = request.message
        unreported = self._queues[message.queue.name].reports_after(message.reports_received)
        chief = self._members.chief.is_chief(message.sender.worker)
        number = self._cuts.number
        taken = Taken(
            block=block,
            done=done,
            waiting_for=waiting_for,
            reports=unreported,
            chief=chief,
            cut=number,
            stopped=self.stopped,
        )
        return Reply(request.ticket, taken)


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
