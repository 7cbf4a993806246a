"""Events in the log of the executor.

The events of a shard are in `tests/scenarios/events.txt`.
"""

import asyncio
import logging

import numpy as np

from psserver.core.shard import Shard
from psserver.runtime.executor import Executor
from pswire.messages import Finished, Gradient, Join, Leave, Push, QueueSpec, Take
from pswire.optimizers import GradientDescent
from tests.gated_shard import join, register, run

QUEUE = QueueSpec("train", size=10, block=10, epochs=1)


def test_events_of_a_step_are_logged_warnings_as_such_and_a_push_is_none(caplog):
    async def scenario(executor, shard):
        first = await join(executor, "w0")
        await register(executor, first, GradientDescent(1.0), w=np.zeros(3))
        await executor.step(Push(first, 1, (Gradient("w", 0, np.ones(3)),)))
        await executor.step(Take(first, QUEUE))
        again = await join(executor, "w0")
        taken = await executor.step(Take(again, QUEUE))
        await executor.step(Take(again, QUEUE, Finished(taken.block.number, 12.3456)))
        await executor.step(Leave(again))

    with caplog.at_level(logging.INFO, "psserver"):
        run(scenario)
    assert [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "psserver.runtime.executor"
    ] == [
        ("INFO", "worker 'w0' joined (number 0, incarnation 1)"),
        ("INFO", "worker 'w0' joined (number 0, incarnation 2)"),
        ("WARNING", "block 0 of epoch 1 of queue 'train' (10 examples) will be handed out again: worker 'w0' had it"),
        ("INFO", "block 0 of epoch 1 of queue 'train' goes to worker 'w0' again"),
        ("INFO", "epoch 1 of queue 'train' is done: mean cost 1.2346 over 10 examples"),
        ("INFO", "worker 'w0' finished after 0 steps"),
    ]


def test_events_of_a_tick_are_logged_too(caplog):
    shard, now = Shard(lease=2.5), 0.0

    async def scenario():
        nonlocal now
        executor = Executor(shard, clock=lambda: now)
        await executor.step(Join("100%"))
        now = 3.0
        executor.tick()
        executor.tick()
        await executor.shutdown()

    asyncio.run(scenario())
    assert caplog.messages == ["worker '100%' was silent for 2.5 s: its lease has expired"]
