"""The batches of the blocks that a data queue hands out: of the rows of a dataset, or of this worker's own iterable.

A position of the queue is an example of the dataset, or a batch of the iterable.
"""

import itertools
from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple, Protocol

import numpy as np

from pswire.messages import Block, QueueSpec
from pswire.tensors.values import Array
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.epoch_order import epoch_order
from psworker.data.sources import FunctionDataset, Stream


class BlockBatches(Protocol):
    """The batches of one block after the other. `ended`: there will be none for any further block."""

    ended: bool

    def begin(self, block: Block) -> None:
        """Goes to a block, whose batches come next."""

    def next(self) -> Batch | None:
        """The next batch of the block, or None after the last one."""

    def put_back(self, batch: Batch) -> None:
        """Takes back a batch that the program has not got, as the block is no longer this worker's."""

    def positions(self, batch: Batch) -> int:
        """The number of positions of the queue that a batch takes."""


class DatasetBatches:
    """The rows of a dataset, in the order of each epoch."""

    ended = False

    def __init__(self, dataset: Dataset | FunctionDataset, batch_size: int, queue: QueueSpec) -> None:
        self._dataset, self._batch_size, self._queue = dataset, batch_size, queue
        self._epoch = self._position = self._stop = 0
        self._order: Array | None = None  # of `_epoch`; None: the order of the rows

    def begin(self, block: Block) -> None:
        """Goes to a block; computes the order of an epoch that begins."""
        if block.epoch != self._epoch and not self._queue.in_order:
            self._order = self._order_of(block.epoch)
        self._epoch, self._position, self._stop = block.epoch, block.start, block.stop
        if isinstance(self._dataset, FunctionDataset):
            self._dataset.expect(self._rows(block.start, block.stop))

    def _order_of(self, epoch: int) -> Array:
        if isinstance(self._dataset, FunctionDataset):
            return self._dataset.order(self._queue.seed, epoch)
        return epoch_order(self._queue.size, self._queue.seed, epoch)

    def _rows(self, first: int, stop: int) -> Array:
        return np.arange(first, stop) if self._order is None else self._order[first:stop]

    def next(self) -> Batch | None:
        """The next rows."""
        first, stop = self._position, min(self._position + self._batch_size, self._stop)
        if first == stop:
            return None
        batch = self._dataset.take(self._rows(first, stop), self._epoch)
        self._position = stop
        return batch

    def put_back(self, batch: Batch) -> None:
        """The queue hands out its rows again."""

    def positions(self, batch: Batch) -> int:
        """The number of its rows."""
        return len(batch)


class StreamBatches:
    """The batches of an iterable, in its order; blocks say how many may be read."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._left = batches, 0
        self.ended = False

    def begin(self, block: Block) -> None:
        """Allows as many batches as the block has positions."""
        self._left = block.stop - block.start

    def next(self) -> Batch | None:
        """The next batch of the iterable."""
        if not self._left:
            return None
        batch = next(self._batches, None)
        self._left, self.ended = self._left - 1, batch is None
        return batch

    def put_back(self, batch: Batch) -> None:
        """It is the first one of the next block."""
        self._batches = itertools.chain([batch], self._batches)

    def positions(self, batch: Batch) -> int:
        """One, of any size."""
        return 1


class Reading(NamedTuple):
    """The examples that a program reads, their order and passes. `Session.batches` describes the arguments."""

    source: Dataset | FunctionDataset | Stream
    batch_size: int | None
    epochs: int | None = 1
    seed: int = 0
    steps: int | None = None
    shuffle: bool = True

    def check(self) -> None:
        """Raises `ValueError` for numbers that are out of range, or a batch size that does not fit the source.

        `TypeError` for what are no numbers.
        """
        sizes = [size for size in (self.batch_size, self.epochs, self.steps) if size is not None]
        for size in sizes:
            if not isinstance(size, Integral):
                raise TypeError(
                    f"batch_size, epochs and steps are integers, got {size!r:.80}; labels are a column of the data, as "
                    'in {"x": x, "y": y}'
                )
        if min(sizes, default=1) < 1 or self.seed < 0:
            raise ValueError(
                "batch_size and epochs are 1 or more, seed 0 or more, steps 1 or more if given: got "
                f"{self.batch_size}, {self.epochs}, {self.seed}, {self.steps}"
            )
        if self.batch_size is None and not isinstance(self.source, Stream):
            raise ValueError(
                "batch_size=None is for iterables whose items are batches; give the number of examples in a batch"
            )

    def queue(self, name: str, batches_per_block: int, *, evaluates: bool = False) -> QueueSpec:
        """The data queue that hands out the blocks."""
        if self.batch_size is None or isinstance(self.source, Stream):
            return QueueSpec(name=name, size=0, block=batches_per_block, epochs=0, limit=self.steps or 0)
        size, limit = len(self.source), 0
        if self.steps is not None:  # batches do not go beyond the end of an epoch
            epochs, batches = divmod(self.steps, -(-size // self.batch_size))
            limit = epochs * size + batches * self.batch_size
        block = self.batch_size * batches_per_block
        return QueueSpec(
            name=name,
            size=size,
            block=block,
            epochs=self.epochs or 0,
            seed=self.seed,
            limit=limit,
            in_order=not self.shuffle,
            evaluates=evaluates,
        )

    def batches(self, queue: QueueSpec) -> BlockBatches:
        """The batches of the blocks of the queue."""
        if self.batch_size is None or isinstance(self.source, Stream):
            assert isinstance(self.source, Stream), "checked"
            return StreamBatches(self.source.batches(self.batch_size, self.epochs))
        return DatasetBatches(self.source, self.batch_size, queue)

    def in_order(self) -> Iterator[Batch]:
        """The batches of all examples once, in the order of the source, all for this worker."""
        if self.batch_size is None or isinstance(self.source, Stream):
            assert isinstance(self.source, Stream), "checked"
            yield from self.source.batches(self.batch_size, 1)
            return
        for start in range(0, len(self.source), self.batch_size):
            yield self.source.take(np.arange(start, min(start + self.batch_size, len(self.source))))
