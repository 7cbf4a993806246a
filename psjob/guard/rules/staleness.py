"""The cost rises or stalls while pushes are stale: n workers make steps that add up to those of a larger learning rate.

A gradient that has missed t updates still makes its step; until it sees what these have done, n workers step the same
way. Gradient descent with a delay of t steps is stable for learning rates below (2 / L) sin(pi / (4 t + 2)), where L is
the curvature: about 1 / (t + 1) of what it is without delay. So a rate at the edge for four workers is beyond it for
five, and the cost of networks with rectifiers stays where it began, for their units are dead.

Sources: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012 (Adagrad, warm start and fewer workers
against it); W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", 2015 (the learning rate divided
by the staleness); N. Giladi et al., "At Stability's Edge", ICLR 2020 (the limit, with and without momentum).
"""

from __future__ import annotations

from collections.abc import Iterator

from psjob.guard.finding import Finding, smaller_rate
from psjob.guard.history import History, learning_rate, optimizers
from psjob.guard.instability import Instability, instability
from pswire.optimizers import Momentum

#: Staleness for each worker from which some must be far behind the others.
UNEVEN = 1.5


def findings(history: History) -> Iterator[Finding]:
    """The finding, where momentum is not the larger cause (`psjob.guard.rules.momentum`)."""
    found = instability(history)
    job = history.now.job
    if found is None or any(isinstance(one, Momentum) and one.momentum for one in optimizers(job)):
        return
    rate = learning_rate(job)
    yield found.finding(
        "staleness",
        f"while each push misses {found.staleness:.1f} updates of others: {found.workers} workers step with old "
        f"weights, which together is like a learning rate of up to {rate:.4g} x {found.workers} = "
        f"{rate * found.workers:.4g}",
        f"try {smaller_rate(rate, found.workers)}{policies(history, found)}",
    )


def policies(history: History, found: Instability) -> str:
    """The options of servers that this job does not use yet.

    Workers that are equally fast miss one update of each other, which a bound of the difference does not change.
    """
    job, others = history.now.job, []
    if "scale" not in job.handling:
        others.append("`--staleness scale`")
    if job.consistency == "async" and found.staleness > UNEVEN * found.workers:
        others.append("`--consistency bounded:1`, since some workers are far behind")
    elif job.consistency == "async":
        others.append(f"`--consistency sync:{found.workers}`")
    return "".join([f", or {one}" for one in others])
