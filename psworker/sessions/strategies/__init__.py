"""When what a worker computes goes to the servers, and when fresh weights come back.

`contract` says what an exchange is and has the plain one, in which each step is a push. `downpour` adds up several
steps, and computes while a push is under way. `local_steps` has an optimizer in the worker, and pushes how far it came.
"""

from __future__ import annotations

from collections.abc import Callable

from pswire import optimizers
from psworker.config import StrategyConfig
from psworker.sessions.replica import Replica
from psworker.sessions.strategies.downpour import Downpour
from psworker.sessions.strategies.local_steps import OUTER, LocalSteps
from psworker.sessions.strategies.strategy import Computed, EveryStep, Step, Strategy, new_step

__all__ = ["OUTER", "Computed", "Downpour", "EveryStep", "LocalSteps", "Step", "Strategy", "new_step", "new_strategy"]


def new_strategy(
    config: StrategyConfig, outer: optimizers.OptimizerSpec, replica: Replica, prepare: Callable[[], None]
) -> Strategy:
    """The exchange that is configured; `outer` is for local steps."""
    if config.local_steps:
        return LocalSteps(replica, prepare, config.local_steps, outer)
    if config == StrategyConfig():
        return EveryStep(replica, prepare)
    return Downpour(replica, prepare, config.push_every, config.pull_every, config.overlap)
