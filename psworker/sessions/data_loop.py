"""One pass of a worker over a dataset that all workers share: blocks from the server's queue, batches out of them.

What a loop has to know of the losses of its batches is told to it; it knows no optimizer and no session. May import
the client and the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

import numpy as np

from pswire.messages import Block, EpochReport, Finished, QueueSpec
from pswire.specs.consistency import Asynchronous
from pswire.tensors.values import Array
from psworker.client.client import Client
from psworker.data.dataset import Batch, Dataset
from psworker.data.shuffle import permutation

logger = logging.getLogger(__name__)

#: Batches that a worker takes at once: asking costs a round trip, and what a worker has taken no other can do.
BATCHES_A_BLOCK = 16


def batches_a_block(steps: int) -> int:
    """As many, or more: a whole number of times the `steps` that go to the servers together."""
    return steps * -(-BATCHES_A_BLOCK // steps)


def log_epoch(report: EpochReport) -> None:
    """What is done with an epoch's report when the program has no use for it."""
    logger.info("epoch %d: cost %s over %d examples", report.epoch, report.cost, report.examples)


class DataLoop:
    """The batches that this worker gets of a queue, to be iterated over once.

    Args:
        client: asks for blocks.
        queue: what is shared out; `block` positions at a time.
        dataset: the examples, `queue.size` of them.
        batch_size: examples in a batch.
        on_epoch: hears of each epoch that is complete.
        flush: called before a block is given back as done; has all that was computed with it at the servers.
    """

    def __init__(
        self,
        client: Client,
        queue: QueueSpec,
        dataset: Dataset,
        batch_size: int,
        on_epoch: Callable[[EpochReport], None],
        flush: Callable[[], None],
    ) -> None:
        self._client, self._queue, self._dataset = client, queue, dataset
        self._batch_size, self._on_epoch, self._flush = batch_size, on_epoch, flush
        self._ahead: _Ahead | None = None
        self._losses: list[float] = []  # of the batch that is being worked on

    def note_loss(self, loss: float) -> None:
        """A loss of the batch that is being worked on; the batch counts with the mean of them."""
        self._losses.append(loss)

    def prepare(self) -> None:
        """Has the next batch ready, while something else is under way."""
        if self._ahead is not None:
            self._ahead.prepare()

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches; when the loop is left early, or fails, its block is given back, for others to do."""
        try:
            yield from self._batches()
        except BaseException:  # GeneratorExit too: the program has left its loop, by `break` or by an error
            self._client.give_back(self._queue)
            if not isinstance(self._client.consistency, Asynchronous):
                self._client.idle_soon()
            raise

    def _batches(self) -> Iterator[Batch]:
        order: Array = np.empty(0, np.int64)
        epoch = heard = 0
        finished: Finished | None = None
        while True:
            self._flush()
            taken = self._client.take(self._queue, finished, heard)
            heard += len(taken.reports)
            for report in taken.reports:
                self._on_epoch(report)
            if taken.block is None:
                self._idle()
            if taken.done:
                if not epoch:
                    logger.warning(
                        "there is nothing left in %s: all %d epochs are done", self._queue.name, self._queue.epochs
                    )
                return
            block = taken.block
            if block is None:
                logger.warning("no examples are left for now, waiting for %s", taken.waiting_for)
                continue
            if block.epoch != epoch:
                epoch, order = block.epoch, permutation(self._queue.size, self._queue.seed, block.epoch)
            finished = yield from self._block(block, order[block.start : block.stop])

    def _idle(self) -> None:
        """Where workers wait for each other's pushes, nobody shall wait for this one's until it has examples again."""
        if not isinstance(self._client.consistency, Asynchronous):
            self._client.idle()

    def _block(self, block: Block, rows: Array) -> Generator[Batch, None, Finished]:
        cost, costed = 0.0, 0
        self._ahead = _Ahead(self._dataset, rows, self._batch_size, block.epoch)
        try:
            while (batch := self._ahead.take()) is not None:
                self._losses = []
                yield batch
                if self._losses:
                    cost += len(batch) * sum(self._losses) / len(self._losses)
                    costed += len(batch)
        finally:
            self._ahead = None
        return Finished(block.number, cost / costed * len(rows) if costed else None)


class _Ahead:
    """The batches of a block, each of which may be prepared before it is asked for."""

    def __init__(self, dataset: Dataset, rows: Array, batch_size: int, epoch: int) -> None:
        self._dataset, self._rows, self._batch_size, self._epoch = dataset, rows, batch_size, epoch
        self._start = 0
        self._next: Batch | None = None

    def prepare(self) -> None:
        """Has the next batch ready."""
        if self._next is None and self._start < len(self._rows):
            rows = self._rows[self._start : self._start + self._batch_size]
            self._next = self._dataset.take(rows, self._epoch)
            self._start += self._batch_size

    def take(self) -> Batch | None:
        """The next batch; None after the last."""
        self.prepare()
        batch, self._next = self._next, None
        return batch
