"""All that the folder of a run has for comparisons and plots: its file, its events, and what workers recorded."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from psworker.runs.process_identity import ProcessIdentity
from psworker.runs.run_events import RunEvent, read_events
from psworker.runs.run_file import NAME, Life, Results, Run, Start, read_run
from psworker.runs.scalar_files import Point, WorkerScalars, last_scalars, read_scalars


class _ActiveLife(NamedTuple):
    """A life of a run: its begin, its `first` session's, and the seconds of training `before` it."""

    begin: float
    first: float
    before: float


@dataclass(eq=False)
class RunData:
    """A run, read from its folder at `path`; `problems` say which parts of its files were skipped."""

    path: Path
    run: Run
    events: list[RunEvent]
    workers: list[WorkerScalars]
    problems: list[str]

    @property
    def name(self) -> str:
        """Its folder, as it was named."""
        return str(self.path)

    def active_seconds(self, time: float) -> float:
        """Seconds of training up to a time since 1970: from the first session on, without pauses between lives."""
        life = max(0, bisect_right(self._lives, time, key=attrgetter("begin")) - 1)
        _, first, before = self._lives[life]
        return max(0.0, time - first) + before

    def global_step(self, time: float) -> float:
        """The global step at a time since 1970, between those of the workers' points in proportion."""
        return interpolated(self._times, [point.step for point in self.points], time) if self.points else 0.0

    def examples(self, time: float) -> float:
        """Examples that all workers had processed at a time since 1970, between the points of each in proportion."""
        return interpolated(*self._examples, time)

    def steps(self, time: float) -> float:
        """Steps of all workers, in the same way."""
        return interpolated(*self._steps, time)

    @cached_property
    def points(self) -> list[Point]:
        """The points of all workers, in the order of time."""
        return sorted((point for worker in self.workers for point in worker.points), key=lambda point: point.time)

    @cached_property
    def _times(self) -> list[float]:
        return [point.time for point in self.points]

    @cached_property
    def _lives(self) -> list[_ActiveLife]:
        lives: list[_ActiveLife] = []
        before = 0.0
        moments = sorted([*self._times, *(begin for worker in self.workers for begin in worker.begins)])
        begins = [life.begin for life in self.run.lives]
        for begin, after in zip(begins, [*begins[1:], math.inf], strict=True):
            inside = moments[bisect_left(moments, begin) : bisect_left(moments, after)] or [begin]
            lives.append(_ActiveLife(begin, inside[0], before))
            before += inside[-1] - inside[0]
        return lives

    @cached_property
    def _examples(self) -> tuple[list[float], list[float]]:
        return self._total(attrgetter("examples"))

    @cached_property
    def _steps(self) -> tuple[list[float], list[float]]:
        return self._total(attrgetter("steps"))

    def _total(self, count: Callable[[Point], int]) -> tuple[list[float], list[float]]:
        """The sum over workers of a count, at the beginning of the run and at all points, with the times of these."""
        begin = self._lives[0].first
        slopes: dict[float, float] = defaultdict(float)  # how the rate of the sum changes at a time
        for worker in self.workers:
            ends = [(begin, 0), *((point.time, count(point)) for point in worker.points if point.time > begin)]
            for (start, low), (end, high) in pairwise(ends):
                if end > start:
                    slopes[start] += (high - low) / (end - start)
                    slopes[end] -= (high - low) / (end - start)
        times, totals, rate = [begin], [0.0], 0.0
        for time in sorted(slopes):
            totals.append(totals[-1] + rate * (time - times[-1]))
            times.append(time)
            rate += slopes[time]
        return times, totals


def interpolated(times: Sequence[float], values: Sequence[float], time: float) -> float:
    """The value at a time, from those at times in order; before the first and after the last one it stays."""
    after = bisect_right(times, time)
    if after == 0 or after == len(times):
        return values[min(after, len(times) - 1)]
    share = (time - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def read_run_data(path: Path) -> RunData:
    """The run in a folder, or what a session has recorded there without `psworker local` (`summary_dir`).

    Raises `DamagedFile` if it has no `run.json` that can be read, and workers have recorded nothing; other files may be
    cut.
    """
    workers, problems = read_scalars(path)
    run = _recorded(workers) if workers and not (path / NAME).exists() else read_run(path)
    events, problem = read_events(path)
    return RunData(path, run, events, workers, [problem, *problems] if problem else problems)


def _recorded(workers: Sequence[WorkerScalars]) -> Run:
    """A run of which nothing is known but what its workers have recorded."""
    begin = min(begin for worker in workers for begin in (*worker.begins, worker.points[0].time))
    end = max(worker.points[-1].time for worker in workers)
    step = max(point.step for worker in workers for point in worker.points)
    start = Start((), "", "", (), {}, {}, "", 0, ProcessIdentity("", 0))
    results = Results(0, step, scalars=last_scalars(workers))
    return Run(id="", lives=(Life(start, begin, "unknown", end, end - begin, None, None, "", results),))
