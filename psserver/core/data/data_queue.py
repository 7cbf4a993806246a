"""A data queue: which blocks of positions are handed out, to which workers, and done. On shard 0; without the data.

The positions 0 to size of every epoch are cut into blocks, numbered through the epochs, so a `DataQueue` is a counter,
the blocks that are out, and those that were returned. A worker holds one block at a time, which makes taking
idempotent: a repeated request gets the same block. Its pushes say how far it is (`Progress`), so that only the rest of
a returned block is handed out again. `psserver.core.data.data_queues` has the queues of a job, and calls that wait.
"""

import heapq
import math
from dataclasses import dataclass, replace

from psserver.core import events
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import InvalidMessage
from pswire.messages import (
    Block,
    EpochReport,
    Finished,
    Holding,
    OpenEpoch,
    Progress,
    QueueSpec,
    QueueState,
    QueueStatus,
)

#: Reports of complete epochs that a queue keeps, the newest: a queue without end would fill memory and messages.
MAX_REPORTS = 1000
#: Epochs of which some blocks may be out, or done, before an earlier one is complete: further blocks wait for that.
MAX_OPEN_EPOCHS = 10_000
#: Positions of the only epoch of a queue of unknown size: more than anyone will ever read.
_UNKNOWN_SIZE = 2**62


@dataclass(slots=True)
class _Epoch:
    done: int = 0
    cost_sum: float = 0.0
    cost_examples: int = 0
    sums: tuple[float, ...] = ()


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
        self._size = spec.size or _UNKNOWN_SIZE
        self._blocks_an_epoch = -(-self._size // spec.block)
        self._end = self._blocks()
        self._handed_out = 0
        self._returned: list[tuple[int, int, str]] = []  # a heap of (number, start of the rest, worker that held it)
        self._out: dict[str, _Held] = {}
        self._open: dict[int, _Epoch] = {}
        self.reports: list[EpochReport] = []

    def state(self) -> QueueState:
        """Which blocks are handed out, returned and done."""
        return QueueState(
            spec=self.spec,
            handed_out=self._handed_out,
            returned=tuple(
                [
                    Holding(worker=worker, block=number, start=start, position=start)
                    for number, start, worker in self._returned
                ]
            ),
            out=tuple(
                [
                    Holding(
                        worker=worker,
                        block=held.block.number,
                        start=held.block.start,
                        position=held.position,
                        cost_sum=held.cost_sum,
                    )
                    for worker, held in self._out.items()
                ]
            ),
            open=tuple(
                [
                    OpenEpoch(
                        epoch=n,
                        done=one.done,
                        cost_sum=one.cost_sum,
                        cost_examples=one.cost_examples,
                        sums=one.sums,
                    )
                    for n, one in self._open.items()
                ]
            ),
            reports=tuple(self.reports),
        )

    @classmethod
    def restored(cls, state: QueueState) -> "DataQueue":
        """A queue that continues from a `state`."""
        queue = cls(state.spec)
        queue._handed_out = state.handed_out
        queue._returned = [(one.block, one.start, one.worker) for one in state.returned]  # in the order of the heap
        for held in state.out:
            queue._out[held.worker] = _Held(queue._block(held.block, held.start), held.position, held.cost_sum)
        queue._open = {
            one.epoch: _Epoch(one.done, one.cost_sum, one.cost_examples, tuple(one.sums)) for one in state.open
        }
        queue.reports = list(state.reports)
        return queue

    def finish(self, worker: str, finished: Finished, result: StepResult) -> None:
        """Count a block as done. One that this worker does not hold is ignored."""
        held = self._out.get(worker)
        if held is not None and held.block.number == finished.number:
            del self._out[worker]
            if finished.sums:
                epoch = self._open.setdefault(held.block.epoch, _Epoch())
                before = epoch.sums or (0.0,) * len(finished.sums)
                epoch.sums = tuple([one + other for one, other in zip(before, finished.sums, strict=True)])
            self._count(held.block, held.block.stop, finished.cost_sum, result)

    def note(self, worker: str, progress: Progress) -> None:
        """Note how far the block is that a worker holds. One that it does not hold, or less than before, is ignored."""
        held = self._out.get(worker)
        if held is not None and held.block.number == progress.block and held.position <= progress.position:
            held.position, held.cost_sum = progress.position, progress.cost_sum

    def check(self, progress: Progress) -> None:
        """Raise `InvalidMessage` if there is no such block, or the position is not in it."""
        name, number, position = self.spec.name, progress.block, progress.position
        if number >= self._end:
            raise InvalidMessage(f"there is no block {number} in data queue {name!r}: it has {self._end} blocks")
        block = self._block(number)
        if not block.start < position <= block.stop:
            raise InvalidMessage(
                f"position {position} is not in block {number} of data queue {name!r}: {block.start} to {block.stop}"
            )

    def check_finished(self, finished: Finished) -> None:
        """Raise `InvalidMessage` for sums of another evaluation, or more or fewer than those of other blocks."""
        known = [len(one.sums) for one in self._open.values() if one.sums]
        if finished.sums and (not self.spec.evaluates or any(one != len(finished.sums) for one in known)):
            raise InvalidMessage(
                f"a block of data queue {self.spec.name!r} with {len(finished.sums)} sums, where other blocks have "
                f"{known[0] if known else 'none'}: do all workers evaluate the same metrics?"
            )

    def forget_sums(self) -> None:
        """Forget what metrics have added up."""
        self.reports = [replace(one, sums=()) for one in self.reports]
        for epoch in self._open.values():
            epoch.sums = ()

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
        while (one := self._open.get(self.complete + 1)) is not None and one.done == self._size:
            number = self.complete + 1
            del self._open[number]
            cost = one.cost_sum / one.cost_examples if one.cost_examples else None
            report = EpochReport(queue=self.spec.name, epoch=number, cost=cost, examples=one.done, sums=one.sums)
            self.reports.append(report)
            if not self.spec.evaluates:
                result.events.append(events.epoch_done(report))
        del self.reports[:-MAX_REPORTS]

    def take(self, worker: str, result: StepResult) -> Block | None:
        """The block that the worker holds, or else the next one; None when there is none to hand out now."""
        held = self._out.get(worker)
        if held is None:
            if self._returned:
                number, start, before = heapq.heappop(self._returned)
                block = self._block(number, start)
                if before:
                    result.events.append(events.handed_out_again(self.spec.name, block, worker, before))
            elif self._handed_out < min(self._end, (self.complete + MAX_OPEN_EPOCHS) * self._blocks_an_epoch):
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
    def complete(self) -> int:
        """The number of complete epochs."""
        return self.reports[-1].epoch if self.reports else 0

    def reports_after(self, epoch: int) -> tuple[EpochReport, ...]:
        """The reports of later epochs than this one, of those that are kept."""
        first = self.reports[0].epoch if self.reports else 1
        return tuple(self.reports[max(0, epoch + 1 - first) :])

    @property
    def done(self) -> bool:
        """Whether every block of every epoch is done."""
        return self._handed_out == self._end and not self._returned and not self._out

    def holds(self, worker: str) -> bool:
        """Whether a worker holds a block."""
        return worker in self._out

    def begun(self) -> list[str]:
        """The workers that hold a block and have pushed something of it."""
        return [worker for worker, held in self._out.items() if held.position > held.block.start]

    def holders(self) -> dict[str, Block]:
        """The block that each worker holds, in the order of their names."""
        return {worker: held.block for worker, held in sorted(self._out.items())}

    def status(self) -> QueueStatus:
        """How far the queue is."""
        done = self._size * self.complete + sum(epoch.done for epoch in self._open.values())
        done += sum(held.position - held.block.start for held in self._out.values())
        epochs = math.inf if self.spec.total is None else -(-self.spec.total // self._size)
        return QueueStatus(
            spec=self.spec, epoch=int(min(self.complete + 1, epochs)), done=done, blocks_out=len(self._out)
        )

    def extend(self, spec: QueueSpec) -> None:
        """Give the queue a later end. Where the former end has cut off a block, the rest of it is to be handed out."""
        if spec == self.spec:
            return
        last = self._block(self._handed_out - 1) if self._handed_out == self._end else None
        self.spec = spec
        self._end = self._blocks()
        if last is None:
            return
        whole = self._block(last.number)
        for held in self._out.values():
            if held.block.number == last.number:
                held.block = replace(held.block, stop=whole.stop)
                return
        if whole.stop > last.stop and last.number not in [number for number, *_ in self._returned]:
            heapq.heappush(self._returned, (last.number, last.stop, ""))

    def _blocks(self) -> float:
        """The number of blocks of all epochs, infinite without an end."""
        if self.spec.total is None:
            return math.inf
        epochs, rest = divmod(self.spec.total, self._size)
        return epochs * self._blocks_an_epoch + -(-rest // self.spec.block)

    def _block(self, number: int, start: int | None = None) -> Block:
        """A block, or the rest of it from `start`."""
        epoch, index = divmod(number, self._blocks_an_epoch)
        first = index * self.spec.block
        stop = min(first + self.spec.block, self._size)
        if self.spec.total is not None:
            stop = min(stop, self.spec.total - epoch * self._size)
        return Block(number=number, epoch=epoch + 1, start=first if start is None else start, stop=stop)
