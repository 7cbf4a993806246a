"""The data queues of a job by name, and the requests that wait because other workers hold all remaining blocks."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace

from psserver.core import events
from psserver.core.cuts import Cuts
from psserver.core.data_queue import DataQueue
from psserver.core.members.membership import Membership
from psserver.core.state import LastEpoch, QueueState
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import AlreadyRegistered, Unavailable
from pswire.messages import Block, EpochReport, Push, QueueSpec, QueueStatus, Reply, Take, Taken

#: Seconds after which a waiting Take is answered with the workers it waits for, so that its worker can report them.
MAX_WAIT_SECONDS = 2.0


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
        self._epochs: dict[str, int] = {}
        self.stopped = ""  # why no more blocks are handed out

    def state(self) -> tuple[tuple[QueueState, ...], tuple[LastEpoch, ...]]:
        """All queues, and the epoch of each worker's last block; without requests that wait."""
        queues = tuple([queue.state() for queue in self._queues.values()])
        return queues, tuple([LastEpoch(worker, epoch) for worker, epoch in self._epochs.items()])

    def restore(self, queues: Iterable[QueueState], epochs: Iterable[LastEpoch]) -> None:
        """Continue from a `state`."""
        self._queues = {one.spec.name: DataQueue.restored(one) for one in queues}
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
        if queue is None or queue.spec == spec or message.give_back:
            return
        there, here = _differences(queue.spec, spec)
        # A block of the number that is finished may have become longer.
        if not _ends_later(spec, queue.spec) or message.finished is not None:
            raise AlreadyRegistered(
                f"data queue {spec.name!r} has {there}, but this worker requests {here}: "
                "do all workers run the same script with the same arguments?"
            )
        readers = {*queue.holders(), *[worker for worker, name in self._waiting if name == spec.name]}
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
        queue = self._queues.setdefault(spec.name, DataQueue(spec))
        if not message.give_back:
            queue.extend(spec)
        if message.finished is not None:
            queue.finish(worker, message.finished, result)
        key, request = (worker, spec.name), _Waiting(ticket, message, now)
        if (replaced := self._waiting.get(key)) is not None:
            error = Unavailable("another call of this worker has replaced this one")
            result.replies.append(Reply(replaced.ticket, error))
        self._waiting[key] = request
        if message.give_back:
            del self._waiting[key]
            queue.give_back(worker, result)
            result.replies.append(self._answer(request, None, done=queue.done))
        self._hand_out(result)
        return self._waiting.get(key) is not request

    def stop(self, reason: str, result: StepResult) -> None:
        """Hand out no more blocks: tell workers that ask for one that all is done."""
        self.stopped = reason
        self._hand_out(result)

    def forget(self, workers: Collection[str], result: StepResult) -> None:
        """Return the blocks of workers that are gone, and end their requests, before others get these blocks."""
        for key in [key for key in self._waiting if key[0] in workers]:
            request = self._waiting.pop(key)
            result.replies.append(Reply(request.ticket, self._members.refusal(request.message.sender)))
        for queue in self._queues.values():
            for worker in workers:
                if (block := queue.give_back(worker, result)) is not None:
                    unit = "example" if queue.spec.size else "batch"
                    result.events.append(events.block_returned(queue.spec.name, block, worker, unit))
        self._hand_out(result)

    def forget_epoch(self, worker: str) -> None:
        """Forget the epoch of the last block of a worker that is gone."""
        self._epochs.pop(worker, None)

    def overdue(self, now: float) -> tuple[tuple[str, str], ...]:
        """The requests, by worker and queue, that have waited for long."""
        return tuple([key for key, request in self._waiting.items() if now - request.since >= MAX_WAIT_SECONDS])

    def explain(self, overdue: Iterable[tuple[str, str]], result: StepResult) -> None:
        """Answer requests that have waited for long with the workers they wait for; their workers ask again."""
        for key in overdue:
            request = self._waiting.pop(key, None)
            if request is None:
                continue
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

    def status(self) -> list[QueueStatus]:
        """How far each queue is."""
        return [queue.status() for queue in self._queues.values()]

    @property
    def complete_epochs(self) -> int:
        """The number of complete epochs of all queues."""
        return sum(queue.complete for queue in self._queues.values())

    def reports(self) -> list[EpochReport]:
        """The newest complete epochs of all queues."""
        return [report for queue in self._queues.values() for report in queue.reports]

    def _hand_out(self, result: StepResult) -> None:
        """Answer each request that gets a block, or never will; workers that hold a block have not finished."""
        for key, request in list(self._waiting.items()):
            worker, queue = key[0], self._queues[key[1]]
            block = None if self.stopped else queue.take(worker, result)
            if block is None and not (queue.done or self.stopped):
                continue
            if block is not None:
                self._epochs[worker] = block.epoch
            del self._waiting[key]
            result.replies.append(self._answer(request, block, done=block is None))
        self._members.progress.resume(worker for queue in self._queues.values() for worker in queue.holders())

    def _answer(self, request: _Waiting, block: Block | None, done: bool = False, waiting_for: str = "") -> Reply:
        message = request.message
        unreported = self._queues[message.queue.name].reports_after(message.reports_received)
        chief = self._members.chief.is_chief(message.sender.worker)
        number = self._cuts.number
        taken = Taken(block, done, waiting_for, unreported, chief, number, self.stopped)
        return Reply(request.ticket, taken)


def _ends_later(spec: QueueSpec, earlier: QueueSpec) -> bool:
    """Whether a queue is the same as an `earlier` one but for its end, which comes later."""
    same = replace(spec, epochs=earlier.epochs, limit=earlier.limit) == earlier
    return same and earlier.total is not None and (spec.total is None or spec.total > earlier.total)


def _differences(*queues: QueueSpec) -> list[str]:
    """The parameters of each of two queues in which they differ."""
    different = [field.name for field in fields(QueueSpec) if len({getattr(one, field.name) for one in queues}) > 1]
    return [", ".join(f"{name}={getattr(one, name)}" for name in different) for one in queues]
