"""Curves of a run for plots and comparisons: the mean over its workers, each worker, and moments of events. Pure.

A position on the horizontal axis is of the whole job: the global step, the seconds in which it ran, or the examples
that all workers had processed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from psworker.runs.event_file import RunEvent
from psworker.runs.run_data import RunData
from psworker.runs.scalar_files import FIELDS, Point

AXES = ("step", "time", "examples")
#: Points of the mean over workers, at most; of the rate of the whole job, which is a difference, fewer.
MEAN_POINTS, RATE_POINTS = 400, 100
#: Kinds of events that are marked, in the order of a legend.
MARKS = ("lost", "joined", "restored")
#: Seconds within which several shards report the same event.
_SAME = 10.0


class Curve(NamedTuple):
    """Points of a line, in the order of `x`."""

    x: tuple[float, ...]
    y: tuple[float, ...]


class Mark(NamedTuple):
    """An event at a position: of a worker, or of all ("")."""

    x: float
    kind: str
    worker: str


@dataclass(frozen=True)
class RunCurves:
    """The curve of the whole job, those of its workers by name, and events in the range of these curves."""

    name: str
    job: Curve
    workers: dict[str, Curve]
    marks: tuple[Mark, ...]


def run_curves(run: RunData, by: str, value: str) -> RunCurves:
    """The curves of a value of the points ("cost", or a tag) by "step", "time" or "examples".

    The curve of a job with one worker is that of the worker. With several it is the mean over all pushes in equal
    ranges of the axis; for "steps_per_second" it is the rate of the global step.
    """
    position = positions(run, by)
    workers: dict[str, Curve] = {}
    weighted: list[tuple[float, float, float]] = []
    for worker in run.workers:
        points = _kept(worker.points) if by == "step" else worker.points
        located = [(position(one), one.value(value), one) for one in points]
        shown = [(x, y) for x, y, _ in located if y is not None]
        if not shown:
            continue
        workers[worker.name] = Curve(*map(tuple, zip(*sorted(shown), strict=True)))
        steps = [points[0].steps, *(max(0, after.steps - before.steps) for before, after in pairwise(points))]
        weighted += [(x, y, float(max(1, n))) for (x, y, _), n in zip(located, steps, strict=True) if y is not None]
    if len(workers) == 1:
        job = next(iter(workers.values()))
    elif value == "steps_per_second":
        job = _rate(run.points, position)
    else:
        job = _mean(weighted, max((len(one.x) for one in workers.values()), default=0))
    return RunCurves(run.name, job, workers, tuple(_marks(run, by, [job, *workers.values()])))


def positions(run: RunData, by: str) -> Callable[[Point | RunEvent], float]:
    """The position of a point or an event on an axis."""
    if by == "step":
        return lambda one: float(one.step or 0)
    if by == "time":
        return lambda one: run.active_seconds(one.time)
    return lambda one: run.examples(one.time)


def tags(run: RunData) -> list[str]:
    """What can be plotted: fields that have values, then the tags of the program."""
    points = run.points
    own = sorted({tag for point in points for tag in point.scalars})
    return [*(name for name in FIELDS if any(one.value(name) is not None for one in points)), *own]


def _kept(points: Sequence[Point]) -> Sequence[Point]:
    """Those before which no later one is: after a return to a checkpoint, steps are done again."""
    kept: list[Point] = []
    for point in reversed(points):
        if not kept or point.step <= kept[-1].step:
            kept.append(point)
    return kept[::-1]


def _mean(points: Iterable[tuple[float, float, float]], most: int) -> Curve:
    """The weighted means of x and y of points (x, y, weight) in equal ranges of x, `most` at most."""
    points = sorted(points)
    if not points:
        return Curve((), ())
    low, high = points[0][0], points[-1][0]
    count = max(1, min(most, MEAN_POINTS))
    ranges: dict[int, list[tuple[float, float, float]]] = {}
    for point in points:
        number = int((point[0] - low) / (high - low) * count) if high > low else 0
        ranges.setdefault(min(number, count - 1), []).append(point)
    x, y = [], []
    for inside in ranges.values():
        weight = math.fsum(one[2] for one in inside)
        x.append(math.fsum(one[0] * one[2] for one in inside) / weight)
        y.append(math.fsum(one[1] * one[2] for one in inside) / weight)
    return Curve(tuple(x), tuple(y))


def _rate(points: Sequence[Point], position: Callable[[Point], float]) -> Curve:
    """The global steps per second between moments that are evenly spread over the time of the points."""
    if len(points) < 2 or points[-1].time <= points[0].time:
        return Curve((), ())
    count = min(RATE_POINTS, max(1, len(points) // 4))
    width = (points[-1].time - points[0].time) / count
    moments, due = [points[0]], points[0].time + width
    for point in points:
        if point.time >= due or point is points[-1]:
            moments.append(point)
            due = max(due, point.time) + width
    x, y = [], []
    for before, after in pairwise(moments):
        seconds, steps = after.time - before.time, after.step - before.step
        if seconds > 0 and steps >= 0:  # steps are fewer after a return to a checkpoint
            x.append((position(before) + position(after)) / 2)
            y.append(steps / seconds)
    return Curve(tuple(x), tuple(y))


def _marks(run: RunData, by: str, curves: Sequence[Curve]) -> Iterable[Mark]:
    """Events of the kinds of `MARKS` within the curves; not the first joins of the workers that the launcher starts."""
    position = positions(run, by)
    high = max((curve.x[-1] for curve in curves if curve.x), default=-math.inf)
    new = {f"worker-{number}" for number in range(_workers(run))}  # of those, who have not joined yet
    last: dict[tuple[str, str], RunEvent] = {}
    for event in run.events:
        before = last.setdefault((event.kind, event.worker), event)
        again = before.source != event.source and event.time - before.time < _SAME
        if not again:
            last[event.kind, event.worker] = event
        first = event.kind == "joined" and event.worker in new
        if event.kind in ("joined", "lost"):
            new.discard(event.worker)
        if event.kind in MARKS and not again and not first and (x := position(event)) <= high:
            yield Mark(x, event.kind, event.worker)


def _workers(run: RunData) -> int:
    """The number of workers that the launcher starts at first."""
    number = run.run.lives[0].start.options.get("workers", 0)
    return number if isinstance(number, int) else 0


def smoothed(curve: Curve, weight: float) -> Curve:
    """The exponential moving average of a curve, each point with `weight` of those before; 0 leaves it as it is.

    Without the bias to the first points: the average is divided by the sum of its weights, as TensorBoard does.
    """
    y, average, total = [], 0.0, 0.0
    for value in curve.y:
        average = weight * average + (1 - weight) * value
        total = weight * total + (1 - weight)
        y.append(average / total)
    return Curve(curve.x, tuple(y))
