"""Instability: the cost rises or stalls while pushes are stale, or the units of a model are dead."""

from __future__ import annotations

import math
from dataclasses import dataclass

from psjob.guard.finding import Finding
from psjob.guard.history import FALLEN, GREW, History, Moment, optimizers
from psjob.status.job_status import mean_staleness
from pswire.optimizers import GradientDescent, Momentum

#: Seconds, and pushes of each worker, of the time that is looked at.
SECONDS, PUSHES = 3.0, 32

#: Staleness from which it can be the cause.
LEAST_STALENESS = 1.0

#: A cost has risen again when it is at least `RISEN` times the lowest one and `RISEN_TO` times the first one.
RISEN, RISEN_TO = 2.0, 0.6

#: A cost is stuck when it is at least `STUCK` times the first one and does not fall, after a peak of at least `PEAK`
#: times the first one that exceeded it by `NOISE` times the noise of the last moments: costs of few examples are high
#: by chance. Smaller gradients are no evidence: they shrink wherever most of a cost is noise that cannot be predicted.
STUCK, PEAK, NOISE, NOISE_MOMENTS = 0.6, 1.08, 3.0, 3

#: The units of a model are dead when its cost, after a peak of `HIGH` times the first one, or of `GREW` times it and
#: with gradients that have shrunk by `COLLAPSED`, varies for `DEAD_SECONDS` by less than the part `FLAT`, and is
#: between `STUCK` and `BACK` times the first one. Costs of adversarial training, which return to it too, vary more.
HIGH, COLLAPSED, DEAD_SECONDS, FLAT, BACK = 3.0, 4.0, 10.0, 0.03, 1.1

#: A cost falls when it is below this part of what it was.
FALLS = 0.95


@dataclass(frozen=True, slots=True)
class Instability:
    """A cost that does not fall while pushes are stale: what is seen, the mean staleness, and the workers that push."""

    seen: str
    staleness: float
    workers: int
    step: int

    def finding(self, kind: str, cause: str, remedy: str) -> Finding:
        """The finding of this `kind`; the rate of one worker, divided among all, can be applied by itself."""
        text, rate = f"{self.seen}, {cause}", 1 / self.workers
        return Finding(kind, "error", "", text, remedy, step=self.step, scale_learning_rate=rate, harmed=True)


def instability(history: History) -> Instability | None:
    """What rises or stalls now; None if nothing does.

    The costs of some programs rise while they learn, such as that of Q-learning, whose targets grow. They train by
    optimizers that divide by the size of gradients, as one does where it changes. So a cost counts as risen or stuck
    only where the size of gradients is that of the steps, and with the others only as that of a dead model.
    """
    since, now, cost = history.window(SECONDS, PUSHES), history.now, history.cost()
    first, lowest, peak = history.first, history.lowest, history.peak
    if since is None or cost is None or first is None or lowest is None or peak is None or lowest <= 0:
        return None
    if not is_stale(history):
        return None
    workers, stale = len(now.training), _staleness(history)
    plain = any(isinstance(one, GradientDescent | Momentum) for one in optimizers(now.job))
    if not math.isfinite(cost):
        return Instability("the cost is not finite any more", stale, workers, history.lowest_step)
    if plain and lowest <= FALLEN * first and cost >= max(RISEN * lowest, RISEN_TO * first):
        seen = f"the cost has risen from {lowest:.3g} to {cost:.3g}"
        return Instability(seen, stale, workers, history.lowest_step)
    if plain and history.fresh and cost >= STUCK * first and peak >= PEAK * first and _stays(history, since, peak):
        step = now.job.global_step
        seen = f"the cost began at {first:.3g}, rose to {peak:.3g} and is {cost:.3g} after {step:,} updates"
        return Instability(seen, stale, workers, 0)
    if seen := dead(history):
        return Instability(seen, stale, workers, 0)
    return None


def _staleness(history: History) -> float:
    """The mean staleness of the pushes of the window."""
    since = history.window(SECONDS, PUSHES)
    if since is None:
        return 0.0
    return mean_staleness(history.now.workers.values(), since.workers.values()) or 0.0


def is_stale(history: History) -> bool:
    """True if the staleness of several workers can be the cause."""
    return len(history.now.training) > 1 and _staleness(history) >= LEAST_STALENESS


def dead(history: History) -> str:
    """What is seen of a model whose units are dead, whatever the optimizer; "" of another one."""
    since, cost = history.window(DEAD_SECONDS, PUSHES), history.cost()
    first, peak = history.first, history.peak
    if since is None or cost is None or first is None or peak is None or first <= 0 or not history.fresh:
        return ""
    collapsed = peak >= GREW * first and history.highest_gradient >= COLLAPSED * history.now.gradient
    if not (peak >= HIGH * first or collapsed) or not STUCK * first <= cost <= BACK * first:
        return ""
    costs = [one.cost for one in history.moments if one.seconds >= since.seconds and one.cost is not None]
    if max(costs) - min(costs) > FLAT * cost:
        return ""
    seconds = history.now.seconds - since.seconds
    return f"the cost began at {first:.3g}, rose to {peak:.3g} and has been {cost:.3g} for {seconds:.0f} s"


def _stays(history: History, since: Moment, peak: float) -> bool:
    """True if the cost does not fall, and its noise is much smaller than its rise above the first cost."""
    rows = [row for moment in list(history.moments)[-NOISE_MOMENTS:] for row in moment.training]
    costs = [row.cost for row in rows if row.cost is not None]
    noise = max(costs, default=0.0) - min(costs, default=0.0)
    return not _falls(history, since) and peak - (history.first or 0.0) >= NOISE * noise


def _falls(history: History, since: Moment) -> bool:
    """True if the cost is lower than it was at the beginning of the window."""
    before, cost = history.cost_until(since), history.cost()
    return before is not None and cost is not None and cost < FALLS * before
