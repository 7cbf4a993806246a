"""Synchronous: an update is the mean of the first N gradients that were computed with the weights of now.

Source: J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Drop, Serve, Verdict, View, Waiting, listed


class Synchronous:
    """Pushes are held until those of `workers` workers have come; who comes after them is late, and dropped.

    It is exactly `workers`, but for the end of the data: once a member is through, as many are enough as are still in
    the race. One that is lost changes nothing, as it may come back. `backup` is how many more workers the job is meant
    to have; nothing depends on it, since whoever comes first counts.
    """

    def __init__(self, workers: int, backup: int = 0) -> None:
        self.workers, self.backup = workers, backup

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """Drops the late, and makes one update when enough have come; pulls wait for nobody."""
        verdicts: list[Verdict] = []
        for one in waiting:
            if one.applied:
                verdicts.append(Serve(one.ticket))
            elif one.staleness:
                verdicts.append(Drop(one.ticket, self._late(one, view)))
        timely, needed = _timely(waiting), self._needed(view)
        if len(timely) >= needed:
            verdicts.append(Apply(tuple(timely.values())[:needed]))
        return verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """Counts who has come, and names who may still come; or says that these are too few."""
        timely, needed = _timely(waiting), self._needed(view)
        come = f"{self}: {len(timely)} of {needed} gradients of step {view.global_step} have come"
        working = [one.name for one in view.members if one.state == "live" and not one.through]
        awaited = [name for name in working if name not in timely]
        missing = needed - len(timely) - len(awaited)
        if missing > 0:
            more = f"{missing} more worker" + ("s" if missing > 1 else "")
            return f"{come}; workers: {listed(working)}; start {more} or lower N"
        return f"{come}; not here yet: {listed(awaited)}"

    def __str__(self) -> str:
        return f"sync:{self.workers}" + (f",backup={self.backup}" if self.backup else "")

    def _needed(self, view: View) -> int:
        return max(1, min(self.workers, len(view.members.racers))) if view.members.ending else self.workers

    def _late(self, one: Waiting, view: View) -> str:
        changes = "1 change" if one.staleness == 1 else f"{one.staleness} changes"
        return f"{self}: late by {changes} of its weights; the gradients of step {view.global_step} are wanted now"


def _timely(waiting: Sequence[Waiting]) -> dict[str, int]:
    """The ticket of each worker that has come with a gradient of this step, in order of arrival."""
    timely: dict[str, int] = {}
    for one in waiting:
        if not one.applied and not one.staleness:
            timely.setdefault(one.worker, one.ticket)
    return timely
