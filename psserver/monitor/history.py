"""The history of a job, for its curves: points with bounded memory, merged in pairs as they become too many. Pure.

A point is the merge of the samples of one period, which begins with the period of the samples and doubles whenever the
history is full. So the curves of a long job have as many points as those of a short one. Points are kept as JSON, which
takes a tenth of the memory of the same numbers as Python's objects, and no time when they are asked for.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from psjob.status.new_events import NewEvents
from psserver.monitor.json_text import encode
from psserver.monitor.samples import percentiles
from pswire.messages import EventReport, StatusReport

#: Points of a history, and numbers in all of them: with very many workers and variables there are fewer points.
MAX_POINTS, MAX_NUMBERS = 1_000, 200_000

#: Workers and variables in a point, the first ones; and events, the newest ones.
MAX_WORKERS, MAX_VARIABLES, MAX_EVENTS = 256, 256, 1_000

Json = dict[str, Any]


class History:
    """The points of a job, the oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._points: list[str] = []  # JSON
        self._merged = 1  # samples of a complete point
        self._parts: list[Json] = []  # of the last point, which is not complete

    def add(self, sample: Mapping[str, Any], seconds: float) -> None:
        """Add a sample that stands for the last `seconds`."""
        self._parts.append(point_of(sample, seconds))
        if len(self._parts) < self._merged:
            return
        point = reduce(merged, self._parts)
        self._points.append(encode(point))
        self._parts = []
        if len(self._points) >= MAX_POINTS or len(self._points) * _numbers(point) > MAX_NUMBERS:
            self._thin()

    def points(self) -> list[str]:
        """All points, each as JSON. The last one may still change."""
        return [*self._points, *([encode(reduce(merged, self._parts))] if self._parts else [])]

    def _thin(self) -> None:
        """Merge points in pairs; an odd last one becomes part of the next."""
        whole = len(self._points) // 2 * 2
        pairs = zip(self._points[:whole:2], self._points[1:whole:2], strict=True)
        self._parts = [json.loads(point) for point in self._points[whole:]]
        self._points = [encode(merged(json.loads(first), json.loads(second))) for first, second in pairs]
        self._merged *= 2


def _numbers(point: Json) -> int:
    return 4 * len(point["workers"]) + len(point["variables"]) + 2 * len(point["stalenesses"])


def point_of(sample: Mapping[str, Any], seconds: float) -> Json:
    """The point of a single sample.

    Each push is counted once: by the shard that got the most of them. `workers` has, by name, steps, cost, mean
    staleness and steps per second; `variables` the mean staleness.
    """
    stalenesses: list[tuple[int, int]] = max(
        [shard["stalenesses"] for shard in sample["shards"]], key=_pushes, default=[]
    )
    here = [worker for worker in sample["workers"] if worker["state"] == "live"][:MAX_WORKERS]
    return {
        "time": sample["time"],
        "seconds": seconds,
        "step": sample["step"],
        "rate": sample["steps_per_second"],
        **percentiles(stalenesses),
        "stalenesses": stalenesses,
        "workers": {
            one["name"]: [one["steps"], one["cost"], one["staleness"], one["steps_per_second"]] for one in here
        },
        "variables": {
            one["name"]: one["staleness"] for one in sample["variables"][:MAX_VARIABLES] if one["staleness"] is not None
        },
    }


def _pushes(stalenesses: Iterable[tuple[int, int]]) -> int:
    return sum([count for _, count in stalenesses])


def merged(first: Json, second: Json) -> Json:
    """One point of two that follow each other: rates and means over both, and the state at the end."""
    weights = first["seconds"], second["seconds"]
    counts = dict(map(tuple, first["stalenesses"]))
    for bound, count in second["stalenesses"]:
        counts[bound] = counts.get(bound, 0) + count
    stalenesses = sorted(counts.items())
    return {
        "time": second["time"],
        "seconds": sum(weights),
        "step": second["step"],
        "rate": _mean(first["rate"], second["rate"], weights),
        **percentiles(stalenesses),
        "stalenesses": stalenesses,
        "workers": {
            name: _merged_worker(first["workers"].get(name), row, weights) for name, row in second["workers"].items()
        },
        "variables": {
            name: _mean(first["variables"].get(name), second["variables"].get(name), weights)
            for name in first["variables"] | second["variables"]
        },
    }


def _merged_worker(first: list[Any] | None, second: list[Any], weights: tuple[float, float]) -> list[Any]:
    if first is None:
        return second
    steps, cost, staleness, rate = second
    return [
        steps,
        first[1] if cost is None else cost,
        _mean(first[2], staleness, weights),
        _mean(first[3], rate, weights),
    ]


def _mean(first: float | None, second: float | None, weights: tuple[float, float]) -> float | None:
    """The weighted mean of the known ones."""
    if first is None or second is None:
        return second if first is None else first
    total = sum(weights)
    return (first * weights[0] + second * weights[1]) / total if total else second


class Events:
    """The newest events of all shards, each once, numbered from 1 in the order in which they were seen.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._newest: deque[Json] = deque(maxlen=MAX_EVENTS)
        self._number = 0
        self._new = NewEvents()

    def all(self) -> list[Json]:
        """The newest events, the oldest first."""
        return list(self._newest)

    def add(self, reports: Iterable[StatusReport]) -> list[Json]:
        """The events of these reports that are new, in the order of their times."""
        found = [
            (event, report.shard)
            for report in reports
            if report.detail is not None
            for event in self._new.of(report.shard, report.detail.events)
        ]
        return [self._add(event, shard) for event, shard in sorted(found, key=lambda one: one[0].time)]

    def _add(self, event: EventReport, shard: int) -> Json:
        self._number += 1
        row = {
            "number": self._number,
            "time": event.time,
            "shard": shard,
            "kind": event.kind,
            "text": event.text,
            "warning": event.warning,
            "worker": event.worker,
            "step": event.global_step,
        }
        self._newest.append(row)
        return row
