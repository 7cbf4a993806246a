"""The files `scalars/WORKER.jsonl` in the folder of a run, read: what each worker has recorded while it trained.

A worker writes a line about itself at the beginning of each life, then points (`psworker.summaries`). Fields that this
module does not know are ignored; missing ones are None.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psworker.runs.json_lines import JsonLines
from psworker.runs.typed_json import is_number, is_text

FOLDER = "scalars"


@dataclass(frozen=True, slots=True)
class Point:
    """The record of a worker at a moment.

    Attributes:
        time: seconds since 1970.
        step: the global step; `steps`: those of this worker, and `examples`, both cumulative over all its lives.
        cost, staleness: the means over its pushes since its last point; None if there were none.
        dropped: pushes that servers have dropped, cumulative too.
        scalars: of the program, by tag.
        life: of the worker, from 1: a worker that is started again begins another one.
    """

    time: float
    step: int
    steps: int = 0
    examples: int = 0
    cost: float | None = None
    staleness: float | None = None
    dropped: int | None = None
    steps_per_second: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    scalars: dict[str, float] = field(default_factory=dict)
    life: int = 1

    def value(self, name: str) -> float | None:
        """The value of a field, such as "cost", or else of a tag; None where there is none, or it is not finite."""
        value = getattr(self, name) if name in FIELDS else self.scalars.get(name)
        return value if value is not None and math.isfinite(value) else None


#: Fields of a point that can be plotted.
FIELDS = ("cost", "staleness", "steps_per_second", "learning_rate", "gradient_norm", "dropped")


@dataclass(frozen=True, slots=True)
class WorkerScalars:
    """The points of a worker, in the order of time; `begins`: when it opened its session, in each of its lives."""

    name: str
    points: tuple[Point, ...]
    begins: tuple[float, ...]


def read_scalars(folder: Path) -> tuple[list[WorkerScalars], list[str]]:
    """The points of all workers of a run, by name, 9 before 10; and what of them could not be read."""
    workers, problems = [], []
    for path in sorted((folder / FOLDER).glob("*.jsonl"), key=lambda path: (len(path.stem), path.stem)):
        lines = JsonLines(path)
        if (worker := _read(path.stem, lines)) is not None:
            workers.append(worker)
        if lines.problem:
            problems.append(lines.problem)
    return workers, problems


def last_scalars(workers: Iterable[WorkerScalars]) -> dict[str, float]:
    """The last finite value that any worker has recorded of each tag of the program, in the order of the tags."""
    points = sorted((point for worker in workers for point in worker.points), key=lambda point: point.time)
    found = {tag: value for point in points for tag in point.scalars if (value := point.value(tag)) is not None}
    return dict(sorted(found.items()))


def _read(name: str, lines: JsonLines) -> WorkerScalars | None:
    begins: list[float] = []
    points: list[Point] = []
    before, life = Point(0.0, 0), 0  # the last one of the lives before
    for number, data in lines:
        if "worker" in data:
            name, life = data["worker"] if is_text(data["worker"]) else name, life + 1
            if (begin := _number(data.get("time"))) is not None:
                begins.append(begin)
            before = points[-1] if points else before
            continue
        point = _point(data, before, life)
        if point is None:
            lines.bad(number)
        else:
            points.append(point)
    points.sort(key=lambda point: point.time)
    return WorkerScalars(name, tuple(points), tuple(begins)) if points else None


def _point(data: dict[str, Any], before: Point, life: int) -> Point | None:
    """A point, whose counts are added to the counts of earlier lives; None if it has no time."""
    time, step = _number(data.get("time")), _number(data.get("step"))
    if time is None or step is None:
        return None
    tags = data.get("scalars")
    drops = _number(data.get("dropped"))
    return Point(
        time=time,
        step=int(step),
        steps=before.steps + int(_number(data.get("steps")) or 0),
        examples=before.examples + int(_number(data.get("examples")) or 0),
        dropped=None if drops is None else (before.dropped or 0) + int(drops),
        life=life,
        **{name: _number(data.get(name)) for name in FIELDS if name != "dropped"},
        scalars={tag: float(value) for tag, value in tags.items() if is_text(tag) and is_number(value)}
        if isinstance(tags, dict)
        else {},
    )


def _number(value: object) -> float | None:
    """A number within bounds; None for anything else."""
    return value if is_number(value) else None  # type: ignore[return-value]  # checked
