"""All that the folder of a run has for comparisons and plots: its file, its events, and what workers recorded."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from psworker.runs.event_file import RunEvent, read_events
from psworker.runs.run_file import Run, read_run
from psworker.runs.scalar_files import Point, WorkerScalars, read_scalars


class _Counts(NamedTuple):
    """What a worker had done at its points, and nothing at the beginning of the run."""

    times: list[float]
    steps: list[int]
    examples: list[int]


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
        """Seconds from the beginning of the run to a time since 1970, without the pauses between its lives."""
        begins, before = self._lives
        life = max(0, bisect_right(begins, time) - 1)
        return max(0.0, time - begins[life]) + before[life]

    def examples(self, time: float) -> float:
        """Examples that all workers had processed at a time since 1970, between the points of each in proportion."""
        return sum(_interpolated(counts.times, counts.examples, time) for counts in self._counts)

    def steps(self, time: float) -> float:
        """Steps of all workers, in the same way."""
        return sum(_interpolated(counts.times, counts.steps, time) for counts in self._counts)

    def global_step(self, time: float) -> float:
        """The global step at a time since 1970, between those of the workers' points in proportion."""
        return _interpolated(self._times, [point.step for point in self.points], time) if self.points else 0.0

    @cached_property
    def points(self) -> list[Point]:
        """The points of all workers, in the order of time."""
        return sorted((point for worker in self.workers for point in worker.points), key=lambda point: point.time)

    @cached_property
    def _times(self) -> list[float]:
        return [point.time for point in self.points]

    @cached_property
    def _lives(self) -> tuple[list[float], list[float]]:
        """When each life began, and the seconds of all lives before it."""
        lives = self.run.lives
        return [one.begin for one in lives], [0.0, *accumulate(one.seconds for one in lives[:-1])]

    @cached_property
    def _counts(self) -> list[_Counts]:
        begin = self.run.lives[0].begin
        return [
            _Counts(
                [begin, *(one.time for one in worker.points)],
                [0, *(one.steps for one in worker.points)],
                [0, *(one.examples for one in worker.points)],
            )
            for worker in self.workers
        ]


def _interpolated(times: list[float], counts: list[int], time: float) -> float:
    """The count at a time, from those at times in order; before the first and after the last one it stays."""
    after = bisect_right(times, time)
    if after == 0:
        return counts[0]
    if after == len(times):
        return counts[-1]
    share = (time - times[after - 1]) / (times[after] - times[after - 1])
    return counts[after - 1] + share * (counts[after] - counts[after - 1])


def read_run_data(path: Path) -> RunData:
    """The run in a folder. Raises `DamagedFile` if it has no `run.json` that can be read; other files may be cut."""
    run = read_run(path)
    events, problem = read_events(path)
    workers, problems = read_scalars(path)
    return RunData(path, run, events, workers, [problem, *problems] if problem else problems)
