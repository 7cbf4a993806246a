"""The exchange whose optimizer runs in the worker: what goes to the servers is how far a round of steps has come.

The worker's part is a shard of its own in this process. May import what the contract may, and the embedded transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.messages import Assignment
from pswire.tensors.values import Array, IndexedSlices
from psworker.client.client import Client
from psworker.client.placement import Whole
from psworker.model.tables import Table
from psworker.model.variables import Variable
from psworker.sessions.replica import Replica, Target
from psworker.sessions.strategies.strategy import Step, Strategy, declare, mean_loss

#: The servers' optimizer, unless told otherwise: that of DiLoCo, section 3.1 and table 5.
OUTER = optimizers.Momentum(0.7, 0.9, nesterov=True)


class LocalSteps(Strategy):
    """Rounds of `steps` steps in the worker, each of which is one gradient for the servers.

        w_0 <- the servers' weights                          a round begins
        w_i <- inner optimizer(w_(i-1), g_i)                 its steps, i = 1 ... H, in this process
        push w_0 - w_H                                       to which the servers apply the outer optimizer

    The inner optimizers are the program's, each with its slots, which live on from round to round, and with the global
    step of its own by which schedules go: the worker's steps. The outer one is the same for all variables. What the
    servers count as steps, and as staleness, is rounds; the loss of one is the mean of its steps'.

    A variable that keeps a moving average with decay d does so in the worker, and is pushed with decay D = d^H, as

        x = (w_H - D w_0) / (1 - D)

    so that one worker's round moves the servers' average from w_0 to w_H; with H observations x is a mean of them.

    Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
    (arXiv:2311.08105), algorithm 1; several workers push their differences each for itself here, and their mean is
    what `psserver serve --consistency sync:N` makes.
    """

    def __init__(
        self, replica: Replica, prepare: Callable[[], None], steps: int, outer: optimizers.OptimizerSpec
    ) -> None:
        from psworker.transport.embedded import EmbeddedTransport

        super().__init__(replica, prepare)
        self._steps, self._outer = steps, outer
        client = Client(EmbeddedTransport(), "the worker's own shard", timeout=60)
        client.join()
        self.trainer = Replica(client, replica.known)
        self._start: dict[str, Whole] = {}  # what the servers had when the round began
        self._begin_round()

    def _begin_round(self) -> None:
        self._count = 0
        self._losses: list[float] = []
        self._trained: dict[str, None] = {}  # in the order of their first gradients
        self._averaged: dict[str, float] = {}  # with the servers' decay

    def step(self, step: Step) -> None:
        """One step of the inner optimizer; the last of a round pushes."""
        averaged = {op.variable.name: op.decay**self._steps for op in step.updates}
        self.replica.declare(self._outer, step.names)
        for name, decay in averaged.items():
            self.replica.declare(optimizers.MovingAverage(decay), [name])
        declare(self.trainer, step)
        entries = step.entries()
        self.trainer.start_push(entries, step.loss, [entry.name for entry in entries])
        self.trainer.settle()
        self._trained |= dict.fromkeys(step.names)
        self._averaged |= averaged
        if step.loss is not None:
            self._losses.append(step.loss)
        self._count += 1
        if self._count == self._steps:
            self.flush()

    def flush(self) -> None:
        """Pushes what there is of a round, and begins the next one with the servers' weights.

        When the push fails the round is given up: the servers may have it or not, and if the next one went on from
        where this one came to, its difference would have this one's in it again. So that begins where this one began.
        """
        if not self._count:
            return
        known, names = self.replica.known(), self.replica.names
        entries = [_difference(self._start[name], known[name].value) for name in self._trained]
        entries += [_observation(self._start[name], known[name].value, self._averaged[name]) for name in self._averaged]
        loss = mean_loss(self._losses)
        self._put_back(names)  # until the answer is there
        self._begin_round()
        try:
            self.send(entries, loss, names)
        finally:
            self._take_over(names)

    def register(self, variables: Sequence[Variable]) -> None:
        """Makes variables known to the servers and to the worker's own shard.

        Raises:
            ConfigurationError: one is a table, whose rows are looked up on the servers.
        """
        for variable in variables:
            if isinstance(variable, Table):
                raise ConfigurationError(
                    f"{variable.name!r} is a Table, which only the servers have and update: leave out local_steps, or "
                    "make it a psworker.Variable"
                )
        super().register(variables)
        self._take_over([variable.name for variable in variables])

    def pull(self, names: Sequence[str]) -> None:
        """Takes fresh values of variables, which the next round begins with."""
        self.flush()
        self._put_back([name for name in names if name in self._start])
        super().pull(names)
        self._take_over(names)

    def tune(self, target: Target, changes: Mapping[str, Any]) -> None:
        """Changes the hyperparameters of this worker's inner optimizer; those of the outer one when that is named."""
        self.flush()
        outer = isinstance(target, optimizers.UpdateSpec) and not self.trainer.follows(target)
        (self.replica if outer else self.trainer).tune(target, changes)

    def _put_back(self, names: Sequence[str]) -> None:
        """Variables become what the servers have sent, by which the mirror knows what need not be sent again."""
        known = self.replica.known()
        for name in names:
            start, variable = self._start[name], known[name]
            assert not isinstance(start.array, IndexedSlices), "values are whole"
            variable.value, variable.versions, variable.served_at = start.array, start.versions, start.served_at

    def _take_over(self, names: Sequence[str]) -> None:
        """The values that the servers have sent become those of the worker's own shard."""
        known = self.replica.known()
        new = [known[name] for name in names if name not in self._start]
        old = [Assignment(name, known[name].value) for name in names if name in self._start]
        self._start |= {
            name: Whole(name, known[name].versions, known[name].value, known[name].served_at) for name in names
        }
        if old:
            self.trainer.client.assign(old)
            self.trainer.pull([assignment.name for assignment in old])
        if new:
            self.trainer.register(new)


def _difference(start: Whole, now: Array) -> Whole:
    return replace(start, array=np.asarray(start.array - now))


def _observation(start: Whole, now: Array, decay: float) -> Whole:
    return replace(start, array=np.asarray((now - decay * start.array) / (1 - decay)))
