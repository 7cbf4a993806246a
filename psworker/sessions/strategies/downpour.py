"""Downpour SGD's exchange: pushes and pulls at intervals of their own, and computing in the meantime.

May import what the contract may, and the sums of the transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.specs.consistency import Consistency, DropStalePushes, StalenessSpec, Synchronous
from pswire.tensors.sums import widened
from pswire.tensors.values import Array, IndexedSlices
from psworker.client.placement import Whole
from psworker.model.gradient_transforms import Total
from psworker.sessions.replica import Replica, check_finite
from psworker.sessions.strategies.strategy import Step, Strategy, declare, mean_loss


class Downpour(Strategy):
    """Gradients are added up and pushed every `push_every` steps, weights are refreshed every `pull_every` steps.

        accrued <- accrued + g                          every step
        push accrued, accrued <- 0                      every push_every steps
        w <- the servers' weights                       every pull_every steps, by a push if there is one

    Between two pulls the weights here stay as they are: it is the servers' optimizer that moves them, and no descent of
    the worker's own. What is seen for moving averages, and the losses, go as their means over the steps of a push. The
    versions that go with a sum, and when they were served, are those of the first of its gradients, the stalest.

    The steps of each optimizer are counted for themselves, by the variables that they are about, so that the two of a
    GAN push in turn as they would with `push_every` 1.

    With `overlap` computing goes on while a push or pull is under way: its answer is taken right before the next one is
    sent, for a worker has one of them open at a time (rows are looked up meanwhile). So the weights of a step are those
    of the exchange before the last.

    Pushes of its own that the weights have not seen make the worker's gradients stale, as those of others do:
    `own_staleness` of them at most, for one optimizer.

    Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1 and the appendix's algorithm
    1, whose n_push and n_fetch these are; its client also descends by itself, with a fixed learning rate.
    """

    def __init__(
        self, replica: Replica, prepare: Callable[[], None], push_every: int, pull_every: int, overlap: bool
    ) -> None:
        super().__init__(replica, prepare)
        self._push_every, self._pull_every, self._overlap = push_every, pull_every, overlap
        self._accrued: dict[tuple[optimizers.UpdateSpec, tuple[str, ...]], _Accrued] = {}
        self._behind = False  # whether something was pushed that no pull has brought back

    @property
    def own_staleness(self) -> int:
        """The most pushes of its own that a worker's gradient has missed, if it is alone and has one optimizer.

        A sum that is pushed at step k N begins with the weights of the last pull before it, at step j M, and misses the
        pushes from there to step (k - 1) N. With overlap that pull has come when there was an exchange after it.
        """
        longest = self._pull_every if self._overlap else self._pull_every - math.gcd(self._push_every, self._pull_every)
        return -(-longest // self._push_every)

    def check(self, consistency: Consistency, staleness: StalenessSpec) -> None:
        """Raises `ConfigurationError` where the worker's own pushes would make the servers drop others of its own."""
        own = self.own_staleness
        so = f"with push_every={self._push_every}, pull_every={self._pull_every}, overlap={self._overlap}"
        if isinstance(consistency, Synchronous) and own:
            raise ConfigurationError(
                f"the servers were started with --consistency {consistency}, and drop what is computed with weights "
                f"before the last update, as it is {so}: leave out overlap, and let pull_every divide push_every"
            )
        if isinstance(staleness, DropStalePushes) and staleness.above < own:
            raise ConfigurationError(
                f"the servers were started with --staleness {staleness}, and {so} a worker's weights have missed up to "
                f"{own} of its own pushes: pull more often, leave out overlap, or start the servers with drop:{own} or "
                "more"
            )

    def step(self, step: Step) -> None:
        """Adds it up, pushes the sum, and pulls: whatever it is time for."""
        check_finite(step.entries())  # here, for a sum with a NaN in it would be refused as a whole
        declare(self.replica, step)
        accrued = self._accrued.setdefault((step.optimizer, step.among), _Accrued())
        push, pull = ((accrued.steps + 1) % every == 0 for every in (self._push_every, self._pull_every))
        if push or pull:
            self.replica.settle()
            self._behind = not pull
        accrued.add(step)
        names = self.replica.names if pull else []
        if push and self._overlap:
            self.replica.start_push(*accrued.taken(), names)
        elif push:
            self.send(*accrued.taken(), names)
        elif pull and self._overlap:
            self.replica.start_pull(names)
        elif pull:
            self.replica.pull(names)

    def flush(self) -> None:
        """Pushes what there is of each sum, the last with fresh weights back; its steps are counted from 1 again."""
        self.replica.settle()
        unfinished = [key for key, accrued in self._accrued.items() if accrued]
        for key in unfinished:
            self.send(*self._accrued.pop(key).taken(), self.replica.names if key == unfinished[-1] else [])
            self._behind = False

    def finish(self) -> None:
        """A `flush`, and a pull if that brought no weights and something was pushed since the last that came.

        A `flush` alone, after each block of examples, leaves it to `pull_every`.
        """
        self.flush()
        if self._behind:
            self.replica.pull(self.replica.names)


class _Accrued:
    """The sums of several steps; `steps` counts all that were ever added."""

    def __init__(self) -> None:
        self.steps = 0
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, Total] = {}
        self._means: dict[str, tuple[Array, int]] = {}  # those of float16 in float32
        self._dtypes: dict[str, np.dtype[Any]] = {}  # that the means shall have
        self._served: dict[str, tuple[tuple[int, ...], int | None]] = {}
        self._losses: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, step: Step) -> None:
        """Adds a step, to arrays of its own."""
        self.steps += 1
        for gradient in step.gradients:
            self._sums.setdefault(gradient.name, Total()).add(gradient.array)
        for op in step.updates:
            value = widened(op.value)
            mean, count = self._means.get(op.variable.name, (value, 0))
            mean = mean * (count / (count + 1)) + value / (count + 1)
            self._means[op.variable.name] = np.asarray(mean, value.dtype), count + 1
            self._dtypes[op.variable.name] = op.value.dtype
        for entry in step.entries():
            self._served.setdefault(entry.name, (entry.versions, entry.served_at))
        if step.loss is not None:
            self._losses.append(step.loss)

    def taken(self) -> tuple[list[Whole], float | None]:
        """The sums, the means, and the mean loss, which are given away: the next ones get arrays of their own."""
        arrays: dict[str, Array | IndexedSlices] = {
            name: mean.astype(self._dtypes[name], copy=False) for name, (mean, _) in self._means.items()
        }
        for name, total in self._sums.items():
            gradient = total.gradient()
            assert gradient is not None
            arrays[name] = gradient
        entries = [
            Whole(name, versions, arrays[name], served_at) for name, (versions, served_at) in self._served.items()
        ]
        loss = mean_loss(self._losses)
        self._clear()
        return entries, loss
