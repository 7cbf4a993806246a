"""The copies of a cut's variables, handed from the event loop, which has them made, to the thread that writes them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from queue import SimpleQueue

from psserver.core.cuts.late_changes import Late
from psserver.core.cuts.shard_cut import ShardCut, VariableCopy
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import StepResult
from psserver.runtime.task_order import TaskOrder


class Aborted(Exception):
    """The server stops before the cut is complete."""


class CutCopies:
    """The parts of one cut, ready one after the other; `tasks` are those of its shard."""

    def __init__(self, cut: ShardCut, tasks: TaskOrder) -> None:
        self._cut, self._tasks = cut, tasks
        self._ready: SimpleQueue[Exception | None] = SimpleQueue()

    async def make(self, completed: Callable[[], Awaitable[None]]) -> None:
        """Have each variable copied, in order, and wait until the cut has `completed`. Called in the event loop.

        An error takes the place of the news that it prevents.
        """
        cut, ready = self._cut, self._ready
        try:
            for name, copy in cut.copies.items():
                await self._copied(name, copy)
                ready.put(None)
                await asyncio.sleep(0)  # a step may come before the next variable
            await completed()
            ready.put(None if cut.complete else Aborted())
        except asyncio.CancelledError:
            ready.put(Aborted())
            raise
        except Exception as error:  # noqa: BLE001 - raised in the thread
            ready.put(error)

    def arrays(self) -> Iterator[tuple[str, VariableArrays]]:
        """The arrays of each variable when it is copied. Called in the thread, as `late`."""
        for name, copy in self._cut.copies.items():
            self._wait()
            yield name, copy.arrays

    def late(self) -> Sequence[Late]:
        """The late changes when the cut is complete, after `arrays`."""
        self._wait()
        return self._cut.late

    def _wait(self) -> None:
        if (error := self._ready.get()) is not None:
            raise error

    async def _copied(self, name: str, copy: VariableCopy) -> None:
        """Return when a variable is copied: now, or with the change that needed it."""
        while not copy.copied:
            if (step := self._tasks.step) is not None:  # it may be about to copy the variable
                await asyncio.wait([step])
                continue
            result = StepResult()
            copy.start(result)
            ended = self._tasks.add(result.tasks) if result.tasks else self._tasks.end_of(name)
            if ended is not None:
                await asyncio.wait([ended])  # not cancelled with this coroutine
                ended.result()
            elif not copy.copied and not result.tasks:
                raise Aborted  # the cut was ended: nothing will copy it, and waiting would stop the event loop
