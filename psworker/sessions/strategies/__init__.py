"""Strategies: when gradients go to the servers, and when fresh weights come back. Each is a replica of the model.

The default, a push every step, is `Replica` itself; `downpour` sums several steps, and can compute while a push is
under way; `local_steps` runs the optimizer in the worker, and pushes the difference that a round of steps has made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pswire import optimizers
from psworker.client.client import Client
from psworker.config import StrategyConfig
from psworker.model.variables import BaseVariable
from psworker.sessions.replica import Replica
from psworker.sessions.strategies.downpour import Downpour
from psworker.sessions.strategies.local_steps import OUTER, LocalSteps

__all__ = ["OUTER", "new_replica"]


def new_replica(
    config: StrategyConfig,
    outer: optimizers.OptimizerSpec,
    client: Client,
    known: Callable[[], Mapping[str, BaseVariable]],
    prepare: Callable[[], None],
) -> Replica:
    """A replica with the strategy that is configured; `outer` is for local steps."""
    if config.local_steps:
        return LocalSteps(client, known, prepare, config.local_steps, outer)
    if config == StrategyConfig():
        return Replica(client, known, prepare)
    return Downpour(client, known, prepare, config.push_every, config.pull_every, config.overlap)
