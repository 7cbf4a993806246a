"""The order of array tasks: tasks of one variable run in sequence, tasks of different variables in parallel.

Small tasks run immediately in the event loop, larger ones in threads; a very large variable is divided among threads.
No lock is held over the variables: nothing but the tasks touches their arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from psserver.core.variables.array_tasks import ArrayTask, run, run_parts, stages
from pswire.system.host import cores

#: Bytes that tasks in the event loop may go through: some 100 us with the costliest update rule.
MAX_INLINE_BYTES = 256 << 10

#: Bundles of small tasks of one step, at most: each costs the event loop some 100 us.
MAX_SMALL_BUNDLES = 32

#: The cost of a task besides its bytes, in bytes: the calls of an update rule on a few elements.
TASK_OVERHEAD = 4 << 10

#: Threads for larger tasks; numpy runs in them without the interpreter's lock. More threads than cores would only
#: compete for that lock and the cache.
THREADS = min(max(2, cores()), 4)

#: Bytes of one variable's tasks from which all threads divide them: some 2 ms of an update rule.
MIN_DIVIDED_BYTES = 4 << 20

#: Elements a thread takes at a time, for all tasks in turn, so that they stay in the cache.
ELEMENTS_PER_STRETCH = 1 << 18

#: The least elements, where each one is costly, as in a table of random numbers.
MIN_ELEMENTS_PER_STRETCH = 1 << 15

#: Bytes that a thread goes through in a stretch, unless that is fewer elements.
BYTES_PER_STRETCH = 4 << 20

#: Bytes of one variable before other variables have their turn: some milliseconds.
BYTES_PER_ROUND = 16 << 20


class Bundle(NamedTuple):
    """Tasks that run one after the other, and the names of their variables; `initial`: some are initial tasks."""

    tasks: Sequence[ArrayTask]
    names: set[str]
    initial: bool


class TaskOrder:
    """The tasks in progress. Its methods are called in the event loop.

    `_last` maps a variable to the end of its chain. A bundle of tasks waits for the ends of its variables' chains when
    it is added, and becomes their new end: so it waits for earlier bundles only, and there is no deadlock.

    Initial tasks, which one message may announce for all memory there is, give way: as many of their jobs are in the
    threads' queue as there are threads, and one that is long and cannot be divided. So another task waits for some
    milliseconds. `_initial` has their variables.

    Attributes:
        step: the step that is taken in a thread, if one is: its tasks are yet to be added (`Executor`).
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="psserver-shard")
        self._last: dict[str, asyncio.Task[None]] = {}
        self.step: asyncio.Task[Any] | None = None
        self._initial: dict[str, asyncio.Task[None]] = {}
        self._some, self._one = asyncio.Semaphore(THREADS), asyncio.Semaphore(1)

    def add(self, tasks: Sequence[ArrayTask]) -> asyncio.Future[Any] | None:
        """Run small tasks that need not wait, and start the others; their future; None if there are none."""
        if _effort(tasks) <= MAX_INLINE_BYTES and not (self._last and any(one.variable in self._last for one in tasks)):
            run(tasks)
            return None
        return self.add_bundles(self.bundles(tasks))

    def add_bundles(self, bundles: Sequence[Bundle]) -> asyncio.Future[Any]:
        """As `add`, of the bundles of all tasks of a step."""
        at_once, *others = bundles
        started = [self._start(bundle) for bundle in others]
        run(at_once.tasks)
        return asyncio.gather(*started)

    @property
    def idle(self) -> bool:
        """True if no task is in progress."""
        return not self._last

    def has_run(self, variables: Collection[str] | None) -> bool:
        """True if no task of these variables is in progress; None: of any."""
        return not self._last if variables is None else self._last.keys().isdisjoint(variables)

    @property
    def initializes(self) -> bool:
        """True if an initial task is in progress."""
        return bool(self._initial)

    async def initialized(self, variables: Iterable[str]) -> None:
        """Return when no initial task of these variables is in progress."""
        await _all_ended([self._initial[name] for name in variables if name in self._initial])

    def end_of(self, variable: str) -> asyncio.Future[Any] | None:
        """The end of the tasks of a variable that are in progress; None if there are none."""
        return self._last.get(variable)

    async def wait(self, variables: Collection[str] | None = None) -> None:
        """Return when no task of these variables is in progress; None: of any."""
        await _all_ended([end for name, end in self._last.items() if variables is None or name in variables])

    async def shutdown(self) -> None:
        """Wait for all tasks, and end the threads."""
        await self.wait()
        self._threads.shutdown()

    def bundles(self, tasks: Sequence[ArrayTask]) -> list[Bundle]:
        """Bundles of these tasks: small ones of many variables are together, first those that may run at once.

        Small tasks that have to wait are grouped by the task for which they wait. May be called in a thread
        while nothing is added: a variable whose tasks end meanwhile counts as one that waits.
        """
        by_variable: dict[str, list[ArrayTask]] = {}
        for task in tasks:
            by_variable.setdefault(task.variable, []).append(task)
        at_once: list[ArrayTask] = []
        large: list[list[ArrayTask]] = []
        small: dict[asyncio.Task[None] | None, list[list[ArrayTask]]] = {}
        left: dict[asyncio.Task[None] | None, int] = {None: MAX_INLINE_BYTES}
        most = max(MAX_INLINE_BYTES, _effort(tasks) // MAX_SMALL_BUNDLES)
        for name, mine in by_variable.items():
            effort, last = _effort(mine), self._last.get(name)
            if effort > MAX_INLINE_BYTES:
                large.append(mine)
                continue
            bundles = small.setdefault(last, [at_once] if last is None else [])
            if effort > left.get(last, 0):
                bundles.append([])
                left[last] = most
            bundles[-1] += mine
            left[last] -= effort
        others = [bundle for bundles in small.values() for bundle in bundles if bundle is not at_once]
        return [
            Bundle(bundle, {task.variable for task in bundle}, any(task.initial for task in bundle))
            for bundle in (at_once, *large, *others)
        ]

    def _start(self, bundle: Bundle) -> asyncio.Task[None]:
        names = bundle.names
        before = {self._last[name] for name in self._last.keys() & names} if self._last else set()
        end = asyncio.get_running_loop().create_task(self._run(bundle.tasks, before, initial=bundle.initial))
        started = dict.fromkeys(names, end)
        self._last.update(started)
        if bundle.initial:
            self._initial.update(started)

        def forget(end: asyncio.Task[None]) -> None:
            for ends in (self._last, self._initial) if bundle.initial else (self._last,):
                for name in names:
                    if ends.get(name) is end:
                        del ends[name]

        end.add_done_callback(forget)
        return end

    async def _run(self, bundle: Sequence[ArrayTask], before: Iterable[asyncio.Task[None]], *, initial: bool) -> None:
        """Return when all tasks are done; raise the first error of one."""
        await _all_ended(before)
        loop, ends = asyncio.get_running_loop(), []
        for jobs in _rounds(bundle):
            if not initial:
                started: list[Awaitable[None]] = [loop.run_in_executor(self._threads, job) for job in jobs]
            else:
                long = len(jobs) == 1 and _effort(bundle) >= MIN_DIVIDED_BYTES
                started = [self._run_initial(job, self._one if long else self._some) for job in jobs]
            ends += await asyncio.gather(*started, return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _run_initial(self, job: Callable[[], None], turn: asyncio.Semaphore) -> None:
        async with turn:
            await asyncio.get_running_loop().run_in_executor(self._threads, job)


def _rounds(bundle: Sequence[ArrayTask]) -> Iterator[list[Callable[[], None]]]:
    """Rounds of jobs, one round after the other; the jobs of a round run at the same time."""
    if _effort(bundle) < MIN_DIVIDED_BYTES:
        yield [partial(run, bundle)]
        return
    for stage in stages(bundle):
        elements = stage[0].elements
        cost = max(1, sum([task.nbytes for task in stage]) // max(1, elements))  # of an element
        step = min(max(BYTES_PER_STRETCH // cost, MIN_ELEMENTS_PER_STRETCH), ELEMENTS_PER_STRETCH)
        if elements <= step:
            yield [partial(run, stage)]
            continue
        count = max(THREADS, BYTES_PER_ROUND // (step * cost))
        stretches = [(start, min(start + step, elements)) for start in range(0, elements, step)]
        for first in range(0, len(stretches), count):
            shared = iter(stretches[first : first + count])
            yield [partial(run_parts, stage, shared) for _ in range(THREADS)]


def _effort(tasks: Sequence[ArrayTask]) -> int:
    nbytes: int = sum(map(attrgetter("nbytes"), tasks))
    return nbytes + TASK_OVERHEAD * len(tasks)


async def _all_ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for all; errors are reported to each task's own caller."""
    if pending := set(tasks):
        await asyncio.wait(pending)
