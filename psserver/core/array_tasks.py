"""Array tasks: deferred array work of one shard step, and the result of a step.

The tasks of one variable must run one after the other, in the order in which they were made; those of different
variables may run at the same time, in any threads. A divisible task may be run in stretches of the variable's elements,
and several divisible tasks one stretch after the other, for no element depends on another. So every allowed order gives
the same bits as running each at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from psserver.core.events import Event
from pswire.messages import Reply


@dataclass(slots=True, eq=False)
class ArrayTask:
    """Work on the arrays of the variable of this name. Cannot fail.

    `nbytes`: the cost of `run`, as bytes of a gradient that an update rule would process in the same time. `part` does
    the work for the flat elements from start to stop, of `elements`; None and 0: the task is indivisible.
    """

    variable: str
    nbytes: int
    run: Callable[[], None]
    part: Callable[[int, int], None] | None = None
    elements: int = 0


class TasksPending(Exception):
    """A step needs the arrays as all earlier tasks leave them, and these have not all run; nothing has changed."""


@dataclass(slots=True, eq=False)
class StepResult:
    """Replies, array tasks and events of one step, each in order. Mutable while the step is under way.

    `settled`: all tasks of earlier steps have run, so this step may compute guarded changes immediately. The arrays in
    the replies, of `bytes_out`, are complete when all tasks have run.
    """

    settled: bool = True
    replies: list[Reply] = field(default_factory=list)
    tasks: list[ArrayTask] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    bytes_out: int = 0


def run(tasks: Iterable[ArrayTask]) -> None:
    """Run tasks one after the other. If one fails, which is a bug, the others run before its error is raised."""
    _run_all(task.run for task in tasks)


def run_parts(tasks: Iterable[ArrayTask], stretches: Iterator[tuple[int, int]]) -> None:
    """Run divisible tasks of one variable on each remaining stretch (start, stop); errors as in `run`.

    Several threads may share one iterator of stretches, if its `next` is atomic.
    """
    parts = [task.part for task in tasks if task.part is not None]
    _run_all(partial(part, start, stop) for start, stop in stretches for part in parts)


def _run_all(jobs: Iterable[Callable[[], None]]) -> None:
    faults: list[Exception] = []
    for job in jobs:
        try:
            job()
        except Exception as fault:  # noqa: BLE001 - raised below
            faults.append(fault)
    if faults:
        raise faults[0]


def stages(tasks: Iterable[ArrayTask]) -> list[list[ArrayTask]]:
    """The tasks of one variable in their order, with successive divisible ones together."""
    found: list[list[ArrayTask]] = []
    for task in tasks:
        if task.elements and found and found[-1][0].elements == task.elements:
            found[-1].append(task)
        else:
            found.append([task])
    return found
