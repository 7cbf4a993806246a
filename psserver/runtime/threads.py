"""The threads of an executor, for what would keep the event loop from receiving: which work goes on beside steps, and
which excludes them. The threads of array tasks are in `task_order`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from psserver.runtime.interpreter import Turns
from psserver.runtime.task_order import TaskOrder

_Result = TypeVar("_Result")


class Threads:
    """Calls of functions in threads. All methods are called in the event loop.

    Beside steps: `inspect`, and `aside`. Excluding steps: `between_steps`, and `in_step` for the task of a step. Who
    holds the lock `exclusive` is the only one who may step the shard.
    """

    def __init__(self, tasks: TaskOrder) -> None:
        self.exclusive = asyncio.Lock()
        self._tasks, self._turns = tasks, Turns()
        self._inspectors = ThreadPoolExecutor(max_workers=2, thread_name_prefix="psserver-inspect")
        self._converter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="psserver-convert")
        self._stepper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="psserver-step")

    async def inspect(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function that reads or compiles without the interpreter's lock."""
        return await asyncio.get_running_loop().run_in_executor(self._inspectors, function, *arguments)

    async def aside(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function that goes through the many entries of a message.

        There is one such thread: several would only compete for the interpreter's lock.
        """
        with self._turns.short():
            return await asyncio.get_running_loop().run_in_executor(self._converter, function, *arguments)

    async def between_steps(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function of the shard while no step is taken; goes on to its end if the caller is cancelled."""

        async def call() -> _Result:
            async with self.exclusive:
                return await self.in_step(function, *arguments)

        return await asyncio.shield(asyncio.create_task(call()))

    async def in_step(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function of the shard; for the task that holds `exclusive`, whose array tasks are yet to be added."""
        self._tasks.step = asyncio.current_task()
        try:
            with self._turns.short():
                return await asyncio.get_running_loop().run_in_executor(self._stepper, function, *arguments)
        finally:
            self._tasks.step = None

    def shutdown(self) -> None:
        """Wait for what is called, and end the threads."""
        for pool in (self._inspectors, self._stepper, self._converter):
            pool.shutdown()
