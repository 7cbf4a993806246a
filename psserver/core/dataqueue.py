"""Which examples of an epoch are handed out, to whom, and done. Kept on shard 0; positions only, no data.

The positions 0 to size of every epoch are cut into blocks, numbered through the epochs, so a block is an
integer and the queue is a counter, what is out, and what came back. A worker holds one block at a time, which makes
taking idempotent: who asks twice gets the same block twice.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from pswire.messages import Block, EpochReport, Finished, QueueSpec


@dataclass(slots=True)
class _Epoch:
    done: int = 0
    cost_sum: float = 0.0
    cost_examples: int = 0


class DataQueue:
    """Hands out the blocks of all epochs, lowest number first; those of a worker that is gone again."""

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self._blocks_an_epoch = math.ceil(spec.size / spec.block)
        self._handed_out = 0
        self._returned: list[int] = []
        self._out: dict[str, int] = {}
        self._open: dict[int, _Epoch] = {}
        self._reported = 0
        self._finished: dict[str, tuple[int, list[EpochReport]]] = {}
        self.reports: list[EpochReport] = []

    def finish(self, worker: str, finished: Finished) -> list[EpochReport]:
        """Takes a block back as done; returns the epochs that are complete by this, in order.

        A block that this worker does not hold (any more) changes nothing: it was counted, or is another's now. Who
        says the same twice, because no answer came, hears the same twice.
        """
        if self._out.get(worker) != finished.number:
            last, reports = self._finished.get(worker, (None, []))
            return reports if last == finished.number else []
        del self._out[worker]
        block = self._block(finished.number)
        examples = block.stop - block.start
        epoch = self._open.setdefault(block.epoch, _Epoch())
        epoch.done += examples
        if finished.cost_sum is not None:
            epoch.cost_sum += finished.cost_sum
            epoch.cost_examples += examples
        reports = self._report()
        self._finished[worker] = finished.number, reports
        return reports

    def take(self, worker: str) -> Block | None:
        """The block that the worker holds, or else the next one; None when there is none to hand out now."""
        number = self._out.get(worker)
        if number is None:
            if self._returned:
                number = heapq.heappop(self._returned)
            elif self._handed_out < self._blocks_an_epoch * self.spec.epochs:
                number = self._handed_out
                self._handed_out += 1
            else:
                return None
            self._out[worker] = number
        return self._block(number)

    def give_back(self, worker: str) -> bool:
        """What the worker holds will be handed out again; returns whether it held anything."""
        number = self._out.pop(worker, None)
        if number is None:
            return False
        heapq.heappush(self._returned, number)
        return True

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

    def _report(self) -> list[EpochReport]:
        """Epochs are reported in order: one that is complete waits for the ones before it."""
        fresh = []
        while (epoch := self._open.get(self._reported + 1)) is not None and epoch.done == self.spec.size:
            self._reported += 1
            del self._open[self._reported]
            cost = epoch.cost_sum / epoch.cost_examples if epoch.cost_examples else None
            fresh.append(EpochReport(self.spec.name, self._reported, cost, epoch.done))
        self.reports += fresh
        return fresh
