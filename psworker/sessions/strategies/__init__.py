"""Strategies: when gradients go to the servers, and when fresh weights come back.

`strategy` has the contract. `every_step` pushes each step; `downpour` sums several steps, and can compute while a push
is under way; `local_steps` runs the optimizer in the worker, and pushes the difference that a round of steps has made.
"""

from __future__ import annotations

from collections.abc import Callable

from pswire import optimizers
from psworker.config import StrategyConfig
from psworker.sessions.replica import Replica
from psworker.sessions.strategies.downpour import Downpour
from psworker.sessions.strategies.every_step import EveryStep
from psworker.sessions.strategies.local_steps import OUTER, LocalSteps
from psworker.sessions.strategies.strategy import Step, Strategy

__all__ = ["OUTER", "Step", "Strategy", "new_strategy"]


def new_strategy(
    config: StrategyConfig, outer: optimizers.OptimizerSpec, replica: Replica, prepare: Callable[[], None]
) -> Strategy:
    """The strategy that is configured; `outer` is for local steps."""
    if config.local_steps:
        return LocalSteps(replica, prepare, config.local_steps, outer)
    if config == StrategyConfig():
        return EveryStep(replica, prepare)
    return Downpour(replica, prepare, config.push_every, config.pull_every, config.overlap)
