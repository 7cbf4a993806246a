"""The recorder of a worker: sums over its steps, of which a point is made from time to time. Pure but for the clock.

A step costs some additions. Points are rare enough to be cheap, and a run of any length has a bounded number of them
for each factor of its duration. Nothing is written here.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

#: The group in which TensorBoard shows the scalars that are written by themselves.
TRAINING = "training"

#: Seconds between two points at least, the same as a share of the time since the start, and as a multiple of the time
#: that the last point took.
SHORTEST_INTERVAL, SHARE_OF_AGE, MULTIPLE_OF_COST = 0.1, 1 / 500, 500.0


class Point(NamedTuple):
    """The steps of a worker since its last point; None where something is not known.

    `time` is in seconds since 1970, `step` the global step. `steps` and `examples` are those of the worker since its
    session was opened, `dropped` the pushes of them that servers have dropped. `cost` is the mean of the losses,
    `staleness` the mean of the updates that applied pushes had missed. `learning_rate` and `gradient_norm`, the L2 norm
    of all gradients together, are those of the last step.
    """

    time: float
    step: int
    steps: int
    examples: int
    cost: float | None = None
    staleness: float | None = None
    dropped: int = 0
    steps_per_second: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None

    def line(self, scalars: Mapping[str, float]) -> bytes:
        """The point as a line of JSON, with the program's own scalars; NaN and infinity, which JSON lacks, are null."""
        values = {name: _finite(value) for name, value in self._asdict().items()}
        return json_line(values | {"scalars": {tag: _finite(value) for tag, value in scalars.items()}})

    def charts(self) -> dict[str, float | None]:
        """The point as scalars of TensorBoard, by tag."""
        names = "staleness", "dropped", "steps_per_second", "learning_rate", "gradient_norm"
        return {f"{TRAINING}/loss": self.cost} | {f"{TRAINING}/{name}": getattr(self, name) for name in names}


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

    def point(self, step: int, dropped: int, learning_rate: float | None, gradient_norm: float | None) -> Point:
        """The point of the steps since the last one, at this global step; sums begin again."""
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
