"""Momentum times staleness: asynchrony begets momentum, and adds to the momentum that the program asks for.

With n workers a gradient is applied after others', so an update still moves with gradients of earlier weights: on
average as if there were a momentum of 1 - 1/n. With the program's own momentum m, a gradient acts for 1 / (1 - m)
updates, each of them late by the staleness t, which is like a momentum of 1 - (1 - m) / (t + 1).

Sources: I. Mitliagkas, C. Zhang, S. Hadjis and C. Re, "Asynchrony begets Momentum, with an Application to Deep
Learning", Allerton 2016 (theorem 3; less explicit momentum with more workers); N. Giladi et al., "At Stability's Edge:
How to Adjust Hyperparameters to Preserve Minima Selection in Asynchronous Training of Neural Networks?", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Iterator

from psjob.guard.finding import Finding, smaller_rate
from psjob.guard.history import History, learning_rate, optimizers
from psjob.guard.instability import instability
from psjob.guard.rules.staleness import policies
from pswire.optimizers import Momentum


def effective_momentum(momentum: float, staleness: float) -> float:
    """What the momentum of the program and that of asynchrony are together like."""
    return 1 - (1 - momentum) / (staleness + 1)


def lower_momentum(momentum: float, staleness: float) -> float:
    """The momentum that together with this staleness is like `momentum`; 0 if there is none."""
    return max(0.0, 1 - (1 - momentum) * (staleness + 1))


def findings(history: History) -> Iterator[Finding]:
    """The finding, where the cost rises or stalls and an optimizer has momentum."""
    job, found = history.now.job, instability(history)
    momentum = max([one.momentum for one in optimizers(job) if isinstance(one, Momentum)], default=0.0)
    if found is None or not momentum:
        return
    together, lower = effective_momentum(momentum, found.staleness), lower_momentum(momentum, found.staleness)
    smaller = smaller_rate(learning_rate(job), found.workers)
    yield found.finding(
        "momentum",
        f"with a momentum of {momentum:.3g} while each push misses {found.staleness:.1f} updates of others: together "
        f"they are like a momentum of 1 - (1 - {momentum:.3g}) / {found.staleness + 1:.1f} = {together:.3g}",
        f"try a momentum of {lower:.2g}, or {smaller}{policies(history, found)}",
    )
