"""Counts and norms of the pushes of a replay, by worker; and when it should stop."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from psserver.core.updates.staleness import EXACT, percentile, rounded
from psserver.replay.pushes import Fate, PushReport


@dataclass(slots=True, eq=False)
class PushCounts:
    """Pushes by outcome; staleness and norms of gradients and updates of the applied ones."""

    fates: Counter[Fate] = field(default_factory=Counter)
    stalenesses: Counter[int] = field(default_factory=Counter)
    gradient_sum: float = 0.0
    gradient_max: float = 0.0
    update_max: float = 0.0

    def add(self, push: PushReport) -> None:
        """Count a push."""
        self.fates[push.fate] += 1
        if push.fate is Fate.APPLIED and push.staleness is not None:
            self.stalenesses[push.staleness if push.staleness < EXACT else rounded(push.staleness)] += 1
            self.gradient_sum += push.gradient
            self.gradient_max = max(self.gradient_max, push.gradient)
            self.update_max = max(self.update_max, push.update or 0.0)

    def staleness(self, percent: float) -> int:
        """A percentile of the staleness of applied pushes."""
        return percentile(self.stalenesses, percent)

    @property
    def gradient_mean(self) -> float:
        """The mean norm of the gradients of applied pushes; 0 without any."""
        applied = self.fates[Fate.APPLIED]
        return self.gradient_sum / applied if applied else 0.0


class Summary:
    """All pushes of a replay: together, and by worker in the order of their first push."""

    def __init__(self) -> None:
        self.total = PushCounts()
        self.workers: defaultdict[str, PushCounts] = defaultdict(PushCounts)

    def add(self, push: PushReport) -> None:
        """Count a push."""
        self.total.add(push)
        self.workers[push.worker].add(push)


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a push ends the replay: its loss or a norm is NaN or infinite (`at_nan`), or `above` a bound."""

    at_nan: bool = True
    above: float = math.inf

    def reason(self, push: PushReport) -> str:
        """Why the replay should stop after this push; "" if it should not."""
        who = f"push {push.sequence} of worker {push.worker!r}"
        if self.at_nan and push.fate is Fate.REFUSED:
            return f"{who} was refused: {push.reason}"
        for name, value in push.values:
            if self.at_nan and not math.isfinite(value):
                return f"the {name} of {who} is {value}"
            if value > self.above:
                return f"the {name} of {who} is {value:.6g}, above {self.above:g}"
        return ""
