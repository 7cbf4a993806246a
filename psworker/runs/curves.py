"""Curves of a run for plots and comparisons: the mean over its workers, each worker, and moments of events. Pure.

A position on the horizontal axis is of the whole job: the global step, the seconds in which it ran, or the examples
that all workers had processed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from psworker.runs.run_data import RunData
from psworker.runs.run_events import RunEvent
from psworker.runs.scalar_files import FIELDS, Point

AXES = ("step", "time", "examples")
#: Points of the mean over workers, at most; of the rate of the whole job, which is a difference, fewer.
MEAN_POINTS, RATE_POINTS = 200, 100
#: Kinds of events that are marked, in the order of a legend.
MARKS = ("lost", "joined", "restored")
#: Seconds within which several shards are restored together.
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
    """The curve of the whole job, one for each life of its workers by name, and events in the range of these."""

    name: str
    job: Curve
    workers: dict[str, tuple[Curve, ...]]
    marks: tuple[Mark, ...]


class _Moment(NamedTuple):
    """A value with a position on an axis."""

    time: float
    step: float | None


class _Weighted(NamedTuple):
    """A value of a worker at a position, the mean over `weight` pushes, in one of its lives."""

    x: float
    y: float
    weight: int
    life: int


def run_curves(run: RunData, by: str, value: str) -> RunCurves:
    """The curves of a value of the points ("cost", or a tag) by "step", "time" or "examples".

    The curve of a job with one worker is the worker's. With several it is the mean over all pushes in equal
    ranges of the axis; for "steps_per_second" it is the rate of all workers together.
    """
    position = positions(run, by)
    workers: dict[str, tuple[Curve, ...]] = {}
    shown: list[_Weighted] = []
    for worker in run.workers:
        points = _kept(worker.points) if by == "step" else worker.points
        steps = [points[0].steps, *(after.steps - before.steps for before, after in pairwise(points))]
        weighted = [
            _Weighted(position(one), y, max(1, count), one.life)
            for one, count in zip(points, steps, strict=True)
            if (y := one.value(value)) is not None
        ]
        if weighted:
            lives = groupby(weighted, attrgetter("life"))
            workers[worker.name] = tuple(_curve(life) for _, life in lives)
            shown += weighted
    if len(workers) == 1:
        job = _curve(shown)
    elif value == "steps_per_second":
        job = _rate(run, position)
    else:
        job = _mean(shown, max((sum(len(life.x) for life in lives) for lives in workers.values()), default=0))
    last = max((one.x for one in shown), default=-math.inf)
    return RunCurves(run.name, job, workers, tuple(_marks(run, by, last)))


def _curve(points: Iterable[_Weighted]) -> Curve:
    ordered = sorted(points, key=attrgetter("x"))
    return Curve(tuple([one.x for one in ordered]), tuple([one.y for one in ordered]))


def positions(run: RunData, by: str) -> Callable[[Point | RunEvent | _Moment], float]:
    """The position of a point, an event or another moment on an axis."""
    if by == "step":
        return lambda one: float(one.step or 0)
    if by == "time":
        return lambda one: run.active_seconds(one.time)
    return lambda one: run.examples(one.time)


def tags(run: RunData) -> list[str]:
    """The values that can be plotted: fields that have values, then the tags of the program."""
    points = run.points
    own = sorted({tag for point in points for tag in point.scalars})
    return [*(name for name in FIELDS if any(one.value(name) is not None for one in points)), *own]


def _kept(points: Sequence[Point]) -> Sequence[Point]:
    """The points with no later step before them: after a return to a checkpoint, steps are repeated."""
    kept: list[Point] = []
    for point in reversed(points):
        if not kept or point.step <= kept[-1].step:
            kept.append(point)
    return kept[::-1]


def _mean(points: Sequence[_Weighted], most: int) -> Curve:
    """The weighted means of x and y of points in equal ranges of x, `most` at most."""
    if not points:
        return Curve((), ())
    low, high = min(one.x for one in points), max(one.x for one in points)
    count = max(1, min(most, MEAN_POINTS))
    ranges: dict[int, list[_Weighted]] = {}
    for point in sorted(points):
        number = int((point.x - low) / (high - low) * count) if high > low else 0
        ranges.setdefault(min(number, count - 1), []).append(point)
    x, y = [], []
    for inside in ranges.values():
        weight = sum(one.weight for one in inside)
        x.append(math.fsum(one.x * one.weight for one in inside) / weight)
        y.append(math.fsum(one.y * one.weight for one in inside) / weight)
    return Curve(tuple(x), tuple(y))


def _rate(run: RunData, position: Callable[[_Moment], float]) -> Curve:
    """The steps of all workers per second of activity, in equal parts of the time of their points."""
    times = [point.time for point in run.points]
    if len(times) < 2 or times[-1] <= times[0]:
        return Curve((), ())
    count = min(RATE_POINTS, max(1, len(times) // 4))
    x, y = [], []
    edges = [times[0] + (times[-1] - times[0]) * number / count for number in range(count + 1)]
    for before, after in pairwise(edges):
        seconds = run.active_seconds(after) - run.active_seconds(before)
        if seconds > 0:
            middle = (before + after) / 2
            x.append(position(_Moment(middle, run.global_step(middle))))
            y.append((run.steps(after) - run.steps(before)) / seconds)
    return Curve(tuple(x), tuple(y))


def _marks(run: RunData, by: str, high: float) -> Iterable[Mark]:
    """Events of the kinds of `MARKS` at positions up to `high`; not the joins with which a run begins.

    A worker is lost when its process has failed or its lease has expired, whichever is known first. Of joins and leases
    shard 0 is asked, which each worker joins first.
    """
    position = positions(run, by)
    launched = {f"worker-{number}" for number in range(_workers(run))}
    states = dict.fromkeys(launched, "new")
    restored = -math.inf
    for event in run.events:
        kind, worker = event.kind, event.worker
        if kind == "ended" and event.level != "info" and worker in launched:
            kind = "lost"
        elif kind in ("joined", "lost") and event.source != "shard 0":
            continue
        if kind == "restored":
            marked, restored = event.time - restored >= _SAME, event.time
        elif kind in ("joined", "lost"):
            before = states.get(worker, "" if event.step else "new")
            marked = before != {"joined": "new", "lost": "lost"}[kind]
            states[worker] = kind
        else:
            continue
        if marked and (x := position(event)) <= high:
            yield Mark(x, kind, worker)


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
