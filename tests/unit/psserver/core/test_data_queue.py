"""Blocks of a data queue; workers that take them, wait and are lost are in `tests/scenarios/data_queue*.txt`."""

import itertools

from psserver.core.array_tasks import StepResult
from psserver.core.data_queue import DataQueue
from pswire.messages import Finished, QueueSpec


def test_the_blocks_of_an_epoch_are_its_positions_in_order():
    for size, block, epochs in itertools.product((1, 4, 5), (1, 2, 4, 5, 100), (1, 3)):
        queue, blocks = DataQueue(QueueSpec("q", size, block, epochs)), []
        while (one := queue.take("w", StepResult())) is not None:
            blocks.append(one)
            queue.finish("w", Finished(one.number), StepResult())
        assert [one.number for one in blocks] == list(range(len(blocks)))
        positions = [(one.epoch, position) for one in blocks for position in range(one.start, one.stop)]
        assert positions == list(itertools.product(range(1, epochs + 1), range(size)))
        assert all(0 < one.stop - one.start <= block for one in blocks)
        assert queue.done
        assert [(report.epoch, report.examples) for report in queue.reports] == [(e + 1, size) for e in range(epochs)]
