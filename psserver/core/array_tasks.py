"""What a step of the shard leaves to be done once it is decided: arithmetic on one variable, and nothing else.

A step itself takes microseconds and decides everything: versions, answers, who is next. What takes long it gives out
as tasks. The tasks of one variable must be run one after the other, in the order in which they were given out; those of
different variables may be run at the same time, in any threads. A task may be divisible: then it may be run stretch by
stretch of the variable's elements, and who runs several of them may take them all to one stretch before the next, for
no element depends on another. So every order in which they may be run gives the same bits as running each at once. May
import nothing of the shard but its notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from psserver.core.events import Event
from pswire.messages import Reply


@dataclass(slots=True, eq=False)
class ArrayTask:
    """What is to be done to a variable, or copied of it. Cannot fail.

    Attributes:
        variable: its name.
        nbytes: how long `run` takes, as the bytes of a gradient that a rule would go through meanwhile.
        run: does it.
        part: does it to the elements from start to stop of all in their order; None: it can only be done as a whole.
        elements: how many there are, if it is divisible.
    """

    variable: str
    nbytes: int
    run: Callable[[], None]
    part: Callable[[int, int], None] | None = None
    elements: int = 0


class TasksPending(Exception):
    """A step needs arrays as they are now, before all tasks that were given out have been run; nothing was done."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step has decided: answers, whose arrays are there when all its tasks have been run.

    `events` are for a person to read, in the order of what happened.
    """

    replies: list[Reply]
    tasks: list[ArrayTask]
    events: tuple[Event, ...] = ()


def run(tasks: Iterable[ArrayTask]) -> None:
    """Runs them, one after the other. If one fails, which none can, the others are done before it is told."""
    faults: list[Exception] = []
    for task in tasks:
        try:
            task.run()
        except Exception as fault:  # noqa: BLE001 - told below
            faults.append(fault)
    if faults:
        raise faults[0]


def stages(tasks: Iterable[ArrayTask]) -> list[list[ArrayTask]]:
    """The tasks of one variable, in their order: divisible ones that follow each other together."""
    found: list[list[ArrayTask]] = []
    for task in tasks:
        if task.elements and found and found[-1][0].elements == task.elements:
            found[-1].append(task)
        else:
            found.append([task])
    return found


def run_parts(tasks: Iterable[ArrayTask], stretches: Iterator[tuple[int, int]]) -> None:
    """Runs divisible tasks of one variable on each stretch (start, stop) that is left, as `run` does.

    Several threads may share one iterator of stretches, if its `next` is atomic.
    """
    parts = [task.part for task in tasks]
    faults: list[Exception] = []
    for start, stop in stretches:
        for part in parts:
            assert part is not None, "not divisible"
            try:
                part(start, stop)
            except Exception as fault:  # noqa: BLE001 - told below
                faults.append(fault)
    if faults:
        raise faults[0]
