"""The contract of an exchange, what a step gives it, and the plainest kind.

What a step has computed is checked here, before anything of it is sent or kept. May import the mirror and the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pswire import optimizers
from pswire.errors import ShapeMismatch
from pswire.specs.consistency import Consistency, StalenessSpec
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff import Tensor
from psworker.client.placement import Whole
from psworker.model.gradient_transforms import GradientAndVariable
from psworker.model.tables import check_no_table
from psworker.model.variables import UpdateOp, Variable
from psworker.sessions.replica import Replica, Target


@dataclass(slots=True)
class Step:
    """What one step of the program has computed, and no server has seen yet.

    Attributes:
        optimizer: what is to be done with the gradients.
        gradients: one a variable, of its shape and dtype, with the versions of the weights that it was computed with.
        updates: what was seen of variables that keep a moving average, one a variable.
        loss: None when it is not known.
        among: the variables that had been asked about, those without a gradient too.
    """

    optimizer: optimizers.UpdateSpec
    gradients: Sequence[Whole]
    updates: Sequence[UpdateOp]
    loss: float | None
    among: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The variables that get a gradient."""
        return [gradient.name for gradient in self.gradients]

    def entries(self) -> list[Whole]:
        """The gradients and what was seen, as one push has them."""
        return [*self.gradients, *map(_observed, self.updates)]


#: By variable: the loss that its next gradient is of, the versions of the weights that it was computed with, and the
#: step when they were served.
Computed: TypeAlias = dict[str, tuple[float, tuple[int, ...], int | None]]


def new_step(
    optimizer: optimizers.UpdateSpec,
    pairs: Sequence[GradientAndVariable],
    updates: Sequence[UpdateOp],
    computed: Computed,
) -> Step:
    """A step of these pairs, checked; what was `computed` for their variables is used up.

    Raises:
        ValueError: there is no gradient at all.
        ShapeMismatch: one has not the shape and dtype of its variable.
        TypeError: one of a table is not `IndexedSlices`.
    """
    noted = {v.name: computed.get(v.name, (None, v.versions, v.served_at)) for _, v in pairs}
    gradients = [_checked(array, v, *noted[v.name][1:]) for array, v in pairs if array is not None]
    if not gradients:
        raise ValueError(
            f"no gradients to push for {', '.join(noted) or 'no variables'}: does the loss depend on them?"
        )
    for name in noted:
        computed.pop(name, None)
    loss = next((loss for loss, *_ in noted.values() if loss is not None), None)
    return Step(optimizer, gradients, updates, loss, tuple(noted))


def _observed(op: UpdateOp) -> Whole:
    return Whole(op.variable.name, op.variable.versions, op.value, op.variable.served_at)


def _checked(
    array: Array | IndexedSlices | Tensor, variable: Variable, versions: tuple[int, ...], served_at: int | None
) -> Whole:
    if not isinstance(array, IndexedSlices):
        check_no_table([variable], "given a gradient")
    whole = array.summed() if isinstance(array, IndexedSlices) else np.asarray(array)
    dtype = variable.dtype
    if whole.shape != variable.shape or (whole.dtype != dtype and whole.dtype.name != dtype.name):
        raise ShapeMismatch(
            f"gradient for {variable.name!r} is {whole.dtype.name}{list(whole.shape)}, the variable is "
            f"{dtype.name}{list(variable.shape)}: what is done to a gradient must keep its shape and dtype"
        )
    return Whole(variable.name, versions, whole, served_at)


class Strategy(ABC):
    """When and how the steps of a program reach the servers.

    Args:
        mirror: the program's variables and the servers.
        prepare: something useful to do while the servers work; may raise.

    Attributes:
        mirror: what was given.
        trainer: where the program's optimizers run: the servers, unless they run in the worker.
    """

    def __init__(self, replica: Replica, prepare: Callable[[], None]) -> None:
        self.replica = self.trainer = replica
        self.prepare = prepare

    def check(self, consistency: Consistency, staleness: StalenessSpec) -> None:  # noqa: B027 - most go with any
        """Raises `ConfigurationError` when servers that were started so would refuse most of what is pushed."""

    @abstractmethod
    def step(self, step: Step) -> None:
        """Takes what a step has computed, whose arrays are borrowed until then; of a step that is refused, nothing.

        What a push carries is given up when the push fails: whether the servers have it may not be known, and nothing
        is applied twice.
        """

    @abstractmethod
    def flush(self) -> None:
        """Returns when everything that steps have computed is at the servers, and acknowledged."""

    def finish(self) -> None:
        """A `flush`, after which weights are here that have all of this worker's pushes."""
        self.flush()

    def register(self, variables: Sequence[Variable]) -> None:
        """Makes variables known to the servers, after a `flush`."""
        self.flush()
        self.replica.register(variables)

    def pull(self, names: Sequence[str]) -> None:
        """Takes fresh values of variables, after a `flush`."""
        self.flush()
        self.replica.pull(names)

    def tune(self, target: Target, changes: Mapping[str, Any]) -> None:
        """Changes hyperparameters as `Replica.tune` does, after a `flush`."""
        self.flush()
        self.replica.tune(target, changes)

    def send(self, gradients: Sequence[Whole], loss: float | None, pull: Sequence[str]) -> None:
        """One push and its answer; prepares meanwhile."""
        self.replica.start_push(gradients, loss, pull)
        try:
            self.prepare()
        finally:
            self.replica.settle()


def declare(replica: Replica, step: Step) -> None:
    """Declares the optimizer and the moving averages of a step."""
    replica.declare(step.optimizer, step.names)
    for op in step.updates:
        replica.declare(optimizers.MovingAverage(op.decay), [op.variable.name])


class EveryStep(Strategy):
    """Each step is pushed, and the answer brings fresh weights before the next one begins."""

    def step(self, step: Step) -> None:
        """One push, one answer."""
        declare(self.replica, step)
        self.send(step.entries(), step.loss, self.replica.names)

    def flush(self) -> None:
        """Nothing is ever kept."""


def mean_loss(losses: Sequence[float]) -> float | None:
    """The mean of the losses that are known."""
    return sum(losses) / len(losses) if losses else None
