"""The recorder of a worker: sums over its steps, of which a point is made from time to time. Pure but for the clock.

A step costs some additions. Points are rare enough to be cheap, and a run of any length has a bounded number of them
for each factor of its duration. Nothing is written here.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from psworker.runs.scalar_files import FIELDS, Point

#: The group in which TensorBoard shows the scalars that are written by themselves.
TRAINING = "training"

#: Seconds between two points at least, the same as a share of the time since the start, and as a multiple of the time
#: that the last point took.
SHORTEST_INTERVAL, SHARE_OF_AGE, MULTIPLE_OF_COST = 0.1, 1 / 500, 500.0


def point_line(point: Point) -> bytes:
    """A point as a line of JSON; NaN and infinity, which JSON lacks, are null."""
    values = asdict(point)
    del values["life"]
    scalars = {tag: _finite(value) for tag, value in values.pop("scalars").items()}
    return json_line({name: _finite(value) for name, value in values.items()} | {"scalars": scalars})


def charts(point: Point) -> dict[str, float | None]:
    """A point as scalars of TensorBoard, by tag: its cost is called the loss."""
    return {f"{TRAINING}/{'loss' if name == 'cost' else name}": getattr(point, name) for name in FIELDS}


def json_line(values: Mapping[str, object]) -> bytes:
    """A line of JSON."""
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


class Recorder:
    """Sums over the steps of a worker since its last point. Used by the thread of its session, which counts `examples`.

    `clock` gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.steps = self.examples = 0
        self._began = self._last = self._due = clock()
        self._before = 0  # steps at the last point
        self._cost = self._staleness = 0.0
        self._costs = self._answers = 0

    def note(self, cost: float | None, staleness: int | None) -> bool:
        """Adds a step, with its loss and the staleness of a push that was applied; whether a point is due."""
        self.steps += 1
        if cost is not None:
            self._cost += cost
            self._costs += 1
        if staleness is not None:
            self._staleness += staleness
            self._answers += 1
        return self._clock() >= self._due

    def is_due(self) -> bool:
        """Whether a point is due."""
        return self._clock() >= self._due

    @property
    def has_new_steps(self) -> bool:
        """Whether there were steps since the last point."""
        return self.steps > self._before

    def point(
        self,
        step: int,
        dropped: int,
        learning_rate: float | None,
        gradient_norm: float | None,
        scalars: dict[str, float],
    ) -> Point:
        """The point of the steps since the last one, at this global step; sums begin again.

        The L2 norm of all gradients together, and the rate, are those of the last step; `scalars` are the program's.
        """
        now = self._clock()
        steps, seconds = self.steps - self._before, now - self._last
        point = Point(
            time=time.time(),
            step=step,
            steps=self.steps,
            examples=self.examples,
            cost=self._cost / self._costs if self._costs else None,
            staleness=self._staleness / self._answers if self._answers else None,
            dropped=dropped,
            steps_per_second=steps / seconds if seconds > 0 and self._before else None,  # without the time to start
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            scalars=scalars,
        )
        self._before, self._last = self.steps, now
        self._cost = self._staleness = 0.0
        self._costs = self._answers = 0
        return point

    def postpone(self, seconds: float) -> None:
        """Determines when the next point is due: the last one took `seconds`."""
        now = self._clock()
        age = now - self._began
        self._due = now + max(SHORTEST_INTERVAL, age * SHARE_OF_AGE, seconds * MULTIPLE_OF_COST)
