"""A worker's loop over examples: blocks from shard 0's data queue, which all workers share, and batches of them."""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from pswire.messages import Block, EpochReport, Finished, Progress, QueueSpec
from pswire.specs.consistency import Asynchronous
from psworker.client.client import Client
from psworker.data.batch import Batch
from psworker.sessions.block_batches import BlockBatches

logger = logging.getLogger(__name__)

#: Batches of a block: a take costs a round trip, and a block that one worker holds is not available to others.
BATCHES_PER_BLOCK = 16


def batches_per_block(steps: int) -> int:
    """`BATCHES_PER_BLOCK`, rounded up to a multiple of the `steps` that are pushed together."""
    return steps * -(-BATCHES_PER_BLOCK // steps)


@dataclass(eq=False)
class DataLoop:
    """The batches that this worker gets from a data queue that all workers share; iterated once.

    `queue` hands out `queue.block` positions at a time, of which `batches` makes batches; `on_epoch` is called with the
    report of each epoch, which is logged by default; `flush` pushes all gradients, before a block is reported as done;
    `give_back` returns the block of a loop that is left early; while it is iterated the loop is in `running`. `reports`
    has, by queue, how many reports of epochs the program has had, and is kept up to date. `count` is called with the
    number of examples of each batch.

    A push says how far the block is (`progress`): a batch counts with the first push after the program has got it. The
    next batch is prepared during a push; an error of the program's source is raised where it asks for the batch. When
    all servers went back to a checkpoint, the rest of the block is left out: the queue knows what is to be trained.
    """

    client: Client
    queue: QueueSpec
    batches: BlockBatches
    on_epoch: Callable[[EpochReport], None] | None
    flush: Callable[[], None]
    give_back: Callable[[QueueSpec], None]
    running: list["DataLoop"]
    reports: dict[str, int]
    count: Callable[[int], None]

    def __post_init__(self) -> None:
        self._prepared: Batch | None = None
        self._error: Exception | None = None  # of the source, for the next batch
        self._block: Block | None = None  # the last one
        self._in_block = False  # whether there may be more batches of it
        self._position = 0  # where the current batch ends, in the order of the epoch
        self._batch = 0  # positions of the current batch
        self._cost, self._known = 0.0, 0  # of the block's batches before it: sum of losses, number of positions
        self.losses: list[float] = []  # of the current batch, whose cost is their mean

    def progress(self, losses: Sequence[float] = ()) -> Progress | None:
        """The block's examples up to the end of the current batch; None before the first batch.

        `losses` are those of the batch that are not noted yet.
        """
        if self._block is None:
            return None
        cost = self._cost_sum([*self.losses, *losses])
        return Progress(queue=self.queue.name, block=self._block.number, position=self._position, cost_sum=cost)

    def _cost_sum(self, losses: Sequence[float]) -> float | None:
        """The sum of the losses of the block's examples so far; those without a loss have the mean of the others."""
        assert self._block is not None
        cost, known = self._costs(losses)
        examples = self._position - self._block.start
        return cost if known == examples else cost / known * examples if known else None

    def _costs(self, losses: Sequence[float]) -> tuple[float, int]:
        """The sum of the known losses of the block so far, and of how many positions they are."""
        if not losses:
            return self._cost, self._known
        return self._cost + self._batch * sum(losses) / len(losses), self._known + self._batch

    def prepare(self) -> None:
        """Prepares the next batch of the block unless it is ready; called during a push too, and raises nothing."""
        if self._in_block and self._prepared is None and self._error is None:
            try:
                self._prepared = self.batches.next()
            except Exception as error:  # noqa: BLE001 - the source is the program's; this may be called in a push
                self._error = error

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches; when the loop is left early, or fails, its block is given back to the queue."""
        self.running.append(self)
        try:
            yield from self._batches()
        except BaseException:  # GeneratorExit too: the program left its loop, by `break` or an error
            self.give_back(self.queue)
            raise
        finally:
            self.running.remove(self)

    def _batches(self) -> Iterator[Batch]:
        queue, reports = self.queue, self.reports
        finished: Finished | None = None
        while True:
            self.flush()
            taken = self.client.blocks.take(queue, finished, reports.get(queue.name, 0))
            for report in taken.reports:
                if self.on_epoch is None:
                    logger.info("epoch %d: cost %s over %d examples", report.epoch, report.cost, report.examples)
                else:
                    self.on_epoch(report)
                reports[queue.name] = report.epoch
            if taken.block is None and not isinstance(self.client.consistency, Asynchronous):
                self.client.report_idle()  # no other worker waits for this one until it has examples again
            if taken.done:
                if self._block is None and not self.client.membership.stopped:
                    shared = self.client.membership.choice.workers > 1  # a restarted worker, and others are done
                    level = logging.INFO if shared else logging.WARNING
                    logger.log(level, "no examples are left in %s: all are done", queue.name)
                return
            block = taken.block
            if self.client.membership.stopped:  # by `on_epoch`, just now
                self.give_back(queue)
                return
            if block is None:
                logger.warning("no examples are left for now, waiting for %s", taken.waiting_for)
                continue
            self.batches.begin(block)
            self._in_block = True
            self._block, self._position = block, block.start
            self._cost, self._known, self.losses = 0.0, 0, []
            yield from self._batches_of_block()
            if self.batches.ended or self.client.membership.stopped:  # the rest of the block is not trained here
                self.flush()
                self.give_back(queue)
                return
            finished = Finished(block.number, self._cost_sum(self.losses))

    def _batches_of_block(self) -> Generator[Batch, None, None]:
        while True:
            self.prepare()
            batch, self._prepared = self._prepared, None
            error, self._error = self._error, None
            if error is not None:
                raise error
            if batch is None:
                break
            if not self.client.blocks.has(self.queue.name):
                self.batches.put_back(batch)
                break
            self._cost, self._known = self._costs(self.losses)
            self.losses, self._batch = [], self.batches.positions(batch)
            self._position += self._batch
            self.count(len(batch))
            yield batch
            if self.client.membership.stopped:
                break
        self._in_block = False
