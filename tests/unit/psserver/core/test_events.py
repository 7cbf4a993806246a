"""Events in the log of the executor; the events of a shard are in `tests/scenarios/events.txt`."""

import asyncio
import logging

from psserver.core.shard import Shard
from psserver.runtime.executor import Executor
from pswire.messages import Join, Leave, Sender, Status


def test_events_of_steps_and_ticks_are_logged_warnings_as_such(caplog):
    now = 0.0

    async def scenario():
        nonlocal now
        executor = Executor(Shard(lease=2.5), clock=lambda: now)
        for message in (Join("100%"), Status(), Join("b"), Leave(Sender("b", 1))):
            await executor.step(message)
        now = 3.0
        executor.tick()
        executor.tick()
        await executor.shutdown()

    with caplog.at_level(logging.INFO, "psserver.runtime.executor"):
        asyncio.run(scenario())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "worker '100%' joined (number 0, incarnation 1)"),
        ("INFO", "worker 'b' joined (number 1, incarnation 1)"),
        ("INFO", "worker 'b' finished after 0 steps"),
        ("WARNING", "worker '100%' was silent for 2.5 s: its lease has expired"),
    ]
