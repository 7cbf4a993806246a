"""Which examples of an epoch are handed out, to whom, and done. Kept on shard 0; positions only, no data.

The positions 0 to size of every epoch are cut into blocks, numbered through the epochs, so a block is an
integer and a `DataQueue` is a counter, what is out, and what came back. A worker holds one block at a time, which makes
taking idempotent: who asks twice gets the same block twice. `DataQueues` keeps those who wait for a block.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psserver.core import events
from pswire.errors import AlreadyRegistered, ParamServerError, Unavailable
from pswire.messages import Block, EpochReport, Finished, QueueSpec, Reply, Sender, Take, Taken

#: Seconds after which a Take that waits for other workers is told for whom, so that its worker can say so.
PATIENCE = 2.0


@dataclass(slots=True)
class _Epoch:
    done: int = 0
    cost_sum: float = 0.0
    cost_examples: int = 0


class DataQueue:
    """Hands out the blocks of all epochs, lowest number first; those of a worker that is gone again.

    Args:
        spec: what is handed out.
        told: gets a note of each epoch that is done, and of each block that is handed out again.
    """

    def __init__(self, spec: QueueSpec, told: list[events.Event]) -> None:
        self.spec, self._told = spec, told
        self._blocks_an_epoch = math.ceil(spec.size / spec.block)
        self._handed_out = 0
        self._returned: list[tuple[int, str]] = []  # a heap; with who had it
        self._out: dict[str, int] = {}
        self._open: dict[int, _Epoch] = {}
        self.reports: list[EpochReport] = []

    def finish(self, worker: str, finished: Finished) -> None:
        """Takes a block back as done.

        One that this worker does not hold (any more) changes nothing: it was counted, or is another's now.
        """
        if self._out.get(worker) != finished.number:
            return
        del self._out[worker]
        block = self._block(finished.number)
        examples = block.stop - block.start
        epoch = self._open.setdefault(block.epoch, _Epoch())
        epoch.done += examples
        if finished.cost_sum is not None:
            epoch.cost_sum += finished.cost_sum
            epoch.cost_examples += examples
        self._report()

    def take(self, worker: str) -> Block | None:
        """The block that the worker holds, or else the next one; None when there is none to hand out now."""
        number = self._out.get(worker)
        if number is None:
            if self._returned:
                number, before = heapq.heappop(self._returned)
                self._told.append(events.handed_out_again(self.spec.name, self._block(number), worker, before))
            elif self._handed_out < self._blocks_an_epoch * self.spec.epochs:
                number = self._handed_out
                self._handed_out += 1
            else:
                return None
            self._out[worker] = number
        return self._block(number)

    def give_back(self, worker: str) -> Block | None:
        """What the worker holds will be handed out again; returns it."""
        number = self._out.pop(worker, None)
        if number is None:
            return None
        heapq.heappush(self._returned, (number, worker))
        return self._block(number)

    @property
    def done(self) -> bool:
        """Whether every block of every epoch is done."""
        return self._handed_out == self._blocks_an_epoch * self.spec.epochs and not self._returned and not self._out

    def holders(self) -> list[tuple[str, Block]]:
        """Who holds which block."""
        return [(worker, self._block(number)) for worker, number in sorted(self._out.items())]

    def _block(self, number: int) -> Block:
        epoch, index = divmod(number, self._blocks_an_epoch)
        start = index * self.spec.block
        return Block(number, epoch + 1, start, min(start + self.spec.block, self.spec.size))

    def _report(self) -> None:
        """Epochs are reported in order: one that is complete waits for the ones before it."""
        while (epoch := self._open.get(len(self.reports) + 1)) is not None and epoch.done == self.spec.size:
            number = len(self.reports) + 1
            del self._open[number]
            cost = epoch.cost_sum / epoch.cost_examples if epoch.cost_examples else None
            report = EpochReport(self.spec.name, number, cost, epoch.done)
            self.reports.append(report)
            self._told.append(events.epoch_done(report))


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: int
    message: Take
    since: float


def _given_up(sender: Sender) -> ParamServerError:
    return Unavailable("another call of this worker has taken the place of this one")


class DataQueues:
    """The queues by name, and the workers that wait for a block of one because others hold all that is left.

    Args:
        told: gets a note of whatever a person should hear.
        is_chief: says of a worker by its name whether it is the chief, whenever it is given an answer.
    """

    def __init__(self, told: list[events.Event], is_chief: Callable[[str], bool]) -> None:
        self._told, self._is_chief = told, is_chief
        self._queues: dict[str, DataQueue] = {}
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._epochs: dict[str, int] = {}

    def check(self, spec: QueueSpec) -> None:
        """Raises `AlreadyRegistered` when another worker reads the queue of this name otherwise."""
        known = self._queues.get(spec.name)
        if known is not None and known.spec != spec:
            raise AlreadyRegistered(
                f"data queue {spec.name!r} is {known.spec}, this worker asks for {spec}: "
                "do all workers run the same script with the same arguments?"
            )

    def take(self, ticket: int, message: Take, now: float) -> list[Reply]:
        """Takes a finished block back and gives the next; also answers those whom this sets free."""
        worker, spec = message.sender.worker, message.queue
        queue = self._queues.setdefault(spec.name, DataQueue(spec, self._told))
        if message.finished is not None:
            queue.finish(worker, message.finished)
        key, waiting = (worker, spec.name), _Waiting(ticket, message, now)
        if message.give_back:
            queue.give_back(worker)
            given_up = self._end([key], _given_up)
            return [*given_up, self._answer(waiting, None, done=queue.done), *self._hand_out()]
        earlier = self._waiting.get(key)
        self._waiting[key] = waiting  # in the place of a call that was given up
        given_up = [] if earlier is None else [Reply(earlier.ticket, _given_up(message.sender))]
        return [*given_up, *self._hand_out()]

    def forget(self, workers: Collection[str], refusal: Callable[[Sender], ParamServerError]) -> list[Reply]:
        """What these had taken is handed out again; their calls end with what `refusal` says to them.

        All are forgotten before anybody is answered: nothing may go to one who is gone as well.
        """
        ended = self._end([key for key in self._waiting if key[0] in workers], refusal)
        for queue in self._queues.values():
            for worker in workers:
                if (block := queue.give_back(worker)) is not None:
                    self._told.append(events.to_be_handed_out_again(queue.spec.name, block, worker))
        return [*ended, *self._hand_out()]

    def holders(self) -> set[str]:
        """Who holds a block of any queue."""
        return {worker for queue in self._queues.values() for worker, _ in queue.holders()}

    def _end(self, keys: Iterable[tuple[str, str]], refusal: Callable[[Sender], ParamServerError]) -> list[Reply]:
        ended = [self._waiting.pop(key) for key in keys if key in self._waiting]
        return [Reply(waiting.ticket, refusal(waiting.message.sender)) for waiting in ended]

    def explain(self, now: float) -> list[Reply]:
        """Answers those who have waited for `PATIENCE` with whom they wait for; their workers ask again."""
        late = [(key, waiting) for key, waiting in self._waiting.items() if now - waiting.since >= PATIENCE]
        replies = []
        for key, waiting in late:
            del self._waiting[key]
            holders = self._queues[key[1]].holders()
            reason = ", ".join(f"{worker} (block {block.number} of epoch {block.epoch})" for worker, block in holders)
            replies.append(self._answer(waiting, None, waiting_for=reason))
        return replies

    def epoch_of(self, worker: str) -> int:
        """The epoch of the worker's last block; 0 before its first."""
        return self._epochs.get(worker, 0)

    def reports(self) -> list[EpochReport]:
        """The complete epochs of all queues."""
        return [report for queue in self._queues.values() for report in queue.reports]

    def _hand_out(self) -> list[Reply]:
        """Answers everyone for whom there is a block, or no more to come."""
        replies = []
        for key, waiting in list(self._waiting.items()):
            worker, queue = key[0], self._queues[key[1]]
            block = queue.take(worker)
            if block is None and not queue.done:
                continue
            if block is not None:
                self._epochs[worker] = block.epoch
            del self._waiting[key]
            replies.append(self._answer(waiting, block, done=block is None))
        return replies

    def _answer(self, waiting: _Waiting, block: Block | None, done: bool = False, waiting_for: str = "") -> Reply:
        message = waiting.message
        unheard = self._queues[message.queue.name].reports[message.heard :]
        chief = self._is_chief(message.sender.worker)
        return Reply(waiting.ticket, Taken(block, done, waiting_for, tuple(unheard), chief))
