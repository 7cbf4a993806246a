"""When what a worker computes goes to the servers, and when fresh weights come back.

`contract` says what an exchange is and has the plain one, in which each step is a push. `downpour` adds up several
steps, and computes while a push is under way. `local_steps` has an optimizer in the worker, and pushes how far it came.
"""

from __future__ import annotations

from collections.abc import Callable

from pswire import optimizers
from psworker.config import ExchangeConfig
from psworker.sessions.replica import Mirror
from psworker.sessions.strategies.downpour import Downpour
from psworker.sessions.strategies.local_steps import OUTER, LocalSteps
from psworker.sessions.strategies.strategy import Computed, EveryStep, Exchange, Step, new_step

__all__ = ["OUTER", "Computed", "Downpour", "EveryStep", "Exchange", "LocalSteps", "Step", "new_exchange", "new_step"]


def new_exchange(
    config: ExchangeConfig, outer: optimizers.OptimizerSpec, mirror: Mirror, prepare: Callable[[], None]
) -> Exchange:
    """The exchange that is configured; `outer` is for local steps."""
    if config.local_steps:
        return LocalSteps(mirror, prepare, config.local_steps, outer)
    if config == ExchangeConfig():
        return EveryStep(mirror, prepare)
    return Downpour(mirror, prepare, config.push_every, config.pull_every, config.overlap)
