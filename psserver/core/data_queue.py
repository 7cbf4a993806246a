"""Data queues: which blocks of examples are handed out, to which workers, and done. On shard 0; without the data.

The positions 0 to size of every epoch are cut into blocks, numbered through the epochs, so a `DataQueue` is a counter,
the blocks that are out, and those that were returned. A worker holds one block at a time, which makes taking
idempotent: a repeated request gets the same block. Its pushes say how far it is (`Progress`), so that only the rest of
a returned block is handed out again. `DataQueues` keeps the requests that wait.
"""

import heapq
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from psserver.core import events
from psserver.core.cuts import Cuts
from psserver.core.members.membership import Membership
from psserver.core.state import Holding, LastEpoch, OpenEpoch, QueueState
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import AlreadyRegistered, InvalidMessage, Unavailable
from pswire.messages import Block, EpochReport, Finished, Progress, Push, QueueSpec, Reply, Take, Taken

#: Seconds after which a waiting Take is answered with the workers it waits for, so that its worker can report them.
MAX_WAIT_SECONDS = 2.0


@dataclass(slots=True)
class _Epoch:
    done: int = 0
    cost_sum: float = 0.0
    cost_examples: int = 0


@dataclass(slots=True)
class _Held:
    """A block as it was handed out to a worker; its examples before `position` are done, at this cost."""

    block: Block
    position: int
    cost_sum: float | None = None


class DataQueue:
    """Hands out the blocks of all epochs, lowest number first; the rest of a lost worker's block is handed out again.

    An example is done when a push that contains its gradient is applied, or dropped by the policy, or when its block is
    finished, if that comes first.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self._blocks_an_epoch = math.ceil(spec.size / spec.block)
        self._handed_out = 0
        self._returned: list[tuple[int, int, str]] = []  # a heap of (number, start of the rest, worker that held it)
        self._out: dict[str, _Held] = {}
        self._open: dict[int, _Epoch] = {}
        self.reports: list[EpochReport] = []

    def state(self) -> QueueState:
        """Which blocks are handed out, returned and done."""
        return QueueState(
            self.spec,
            self._handed_out,
            tuple([Holding(worker, number, start, start) for number, start, worker in self._returned]),
            tuple(
                [
                    Holding(worker, held.block.number, held.block.start, held.position, held.cost_sum)
                    for worker, held in self._out.items()
                ]
            ),
            tuple([OpenEpoch(n, one.done, one.cost_sum, one.cost_examples) for n, one in self._open.items()]),
            tuple(self.reports),
        )

    @classmethod
    def restored(cls, state: QueueState) -> "DataQueue":
        """A queue that continues from a `state`."""
        queue = cls(state.spec)
        queue._handed_out = state.handed_out
        queue._returned = [(one.block, one.start, one.worker) for one in state.returned]  # in the order of the heap
        for one in state.out:
            queue._out[one.worker] = _Held(queue._block(one.block, one.start), one.position, one.cost_sum)
        queue._open = {one.epoch: _Epoch(one.done, one.cost_sum, one.cost_examples) for one in state.open}
        queue.reports = list(state.reports)
        return queue

    def finish(self, worker: str, finished: Finished, result: StepResult) -> None:
        """Count a block as done. One that this worker does not hold is ignored."""
        held = self._out.get(worker)
        if held is not None and held.block.number == finished.number:
            del self._out[worker]
            self._count(held.block, held.block.stop, finished.cost_sum, result)

    def note(self, worker: str, progress: Progress) -> None:
        """Note how far the block is that a worker holds. One that it does not hold, or less than before, is ignored."""
        held = self._out.get(worker)
        if held is not None and held.block.number == progress.block and held.position <= progress.position:
            held.position, held.cost_sum = progress.position, progress.cost_sum

    def check(self, progress: Progress) -> None:
        """Raise `InvalidMessage` if there is no such block, or the position is not in it."""
        spec, number = self.spec, progress.block
        start = number % self._blocks_an_epoch * spec.block
        within = start < progress.position <= min(start + spec.block, spec.size)
        if not within or number >= self._blocks_an_epoch * spec.epochs:
            raise InvalidMessage(
                f"position {progress.position} is not in block {number} of data queue {spec.name!r}, which has "
                f"{spec.epochs} epochs of {spec.size} examples in blocks of {spec.block}"
            )

    def _count(self, block: Block, stop: int, cost_sum: float | None, result: StepResult) -> None:
        """Count the examples of a block before `stop` as done.

        Complete epochs are reported in order: one that is complete waits for the ones before it.
        """
        examples = stop - block.start
        epoch = self._open.setdefault(block.epoch, _Epoch())
        epoch.done += examples
        if cost_sum is not None:
            epoch.cost_sum += cost_sum
            epoch.cost_examples += examples
        while (one := self._open.get(len(self.reports) + 1)) is not None and one.done == self.spec.size:
            number = len(self.reports) + 1
            del self._open[number]
            cost = one.cost_sum / one.cost_examples if one.cost_examples else None
            report = EpochReport(self.spec.name, number, cost, one.done)
            self.reports.append(report)
            result.events.append(events.epoch_done(report))

    def take(self, worker: str, result: StepResult) -> Block | None:
        """The block that the worker holds, or else the next one; None when there is none to hand out now."""
        held = self._out.get(worker)
        if held is None:
            if self._returned:
                number, start, before = heapq.heappop(self._returned)
                block = self._block(number, start)
                result.events.append(events.handed_out_again(self.spec.name, block, worker, before))
            elif self._handed_out < self._blocks_an_epoch * self.spec.epochs:
                block = self._block(self._handed_out)
                self._handed_out += 1
            else:
                return None
            held = self._out[worker] = _Held(block, block.start)
        return held.block

    def give_back(self, worker: str, result: StepResult) -> Block | None:
        """Return the rest of the block that the worker holds to the queue, and to the caller; None if all is done."""
        held = self._out.pop(worker, None)
        if held is None:
            return None
        block, start = held.block, held.position
        if start > block.start:
            self._count(block, start, held.cost_sum, result)
        if start == block.stop:
            return None
        heapq.heappush(self._returned, (block.number, start, worker))
        return replace(block, start=start)

    @property
    def done(self) -> bool:
        """Whether every block of every epoch is done."""
        return self._handed_out == self._blocks_an_epoch * self.spec.epochs and not self._returned and not self._out

    def holders(self) -> dict[str, Block]:
        """The block that each worker holds, in the order of their names."""
        return {worker: held.block for worker, held in sorted(self._out.items())}

    def _block(self, number: int, start: int | None = None) -> Block:
        """A block, or the rest of it from `start`."""
        epoch, index = divmod(number, self._blocks_an_epoch)
        first = index * self.spec.block
        return Block(number, epoch + 1, first if start is None else start, min(first + self.spec.block, self.spec.size))


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

        A job that is resumed may be extended: the queue gets more epochs if no other worker reads it. Raise
        `Unavailable` while one does: it may be from before a restart, until it joins again or its lease ends.
        """
        spec = message.queue
        queue = self._queues.get(spec.name)
        if queue is None or queue.spec == spec or message.give_back:
            return
        longer = spec.epochs > queue.spec.epochs and replace(spec, epochs=queue.spec.epochs) == queue.spec
        if not longer:
            raise AlreadyRegistered(
                f"data queue {spec.name!r} is {queue.spec}, but this worker requests {spec}: "
                "do all workers run the same script with the same arguments?"
            )
        readers = {*queue.holders(), *[worker for worker, name in self._waiting if name == spec.name]}
        if others := readers - {message.sender.worker}:
            raise Unavailable(
                f"data queue {spec.name!r} has {events.pluralize(queue.spec.epochs, 'epoch')}, and gets the "
                f"{spec.epochs} that this worker requests when the others that read it have joined again or are gone: "
                f"{', '.join(sorted(others))}; do all workers run the same script with the same arguments?"
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
            queue.spec = spec  # of more epochs than before, perhaps
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
                    result.events.append(events.block_returned(queue.spec.name, block, worker))
        self._hand_out(result)

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
        """Whether nothing is left to hand out, and nothing is handed out."""
        return bool(self.stopped) or all(queue.done for queue in self._queues.values())

    def epoch_of(self, worker: str) -> int:
        """The epoch of the worker's last block; 0 before its first."""
        return self._epochs.get(worker, 0)

    def reports(self) -> list[EpochReport]:
        """The complete epochs of all queues."""
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
        unreported = self._queues[message.queue.name].reports[message.reports_received :]
        chief = self._members.chief.is_chief(message.sender.worker)
        number = self._cuts.number
        taken = Taken(block, done, waiting_for, tuple(unreported), chief, number, self.stopped)
        return Reply(request.ticket, taken)
