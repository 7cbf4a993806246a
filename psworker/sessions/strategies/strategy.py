"""The contract of a strategy, and a step as a program gives it to one. May import the replica and the variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pswire import optimizers
from pswire.specs.consistency import Consistency, StalenessSpec
from pswire.tensors.values import Array
from psworker.model.variables import BaseVariable, UpdateOp
from psworker.sessions.hyperparameters import Target
from psworker.sessions.replica import Replica
from psworker.versions import VersionedArray


@dataclass(slots=True)
class Step:
    """The results of one step of the program, checked; no server has them yet.

    Attributes:
        optimizer: of the variables that get a gradient.
        names: these variables.
        entries: their gradients, of their shape and dtype, with the version of the weights that they were computed
            with; then the observations of `updates`. One a variable.
        updates: the update ops of variables that keep a moving average.
        loss: None when it is not known.
        among: the variables of all pairs, also of those without a gradient.
    """

    optimizer: optimizers.UpdateSpec
    names: list[str]
    entries: list[VersionedArray]
    updates: Sequence[UpdateOp]
    loss: float | None
    among: tuple[str, ...]

    def declare(self, replica: Replica) -> None:
        """Declares the optimizer and the moving averages to the servers."""
        replica.declare(self.optimizer, self.names)
        for op in self.updates:
            replica.declare(optimizers.MovingAverage(op.decay), [op.variable.name])


class Strategy(ABC):
    """When and how the steps of a program reach the servers, and fresh weights the program.

    Args:
        replica: the program's variables.
        prepare: useful work for the time in which the servers apply a push; may raise.

    Attributes:
        replica, prepare: as given.
    """

    def __init__(self, replica: Replica, prepare: Callable[[], None]) -> None:
        self.replica = replica
        self.prepare = prepare

    def check(self, consistency: Consistency, staleness: StalenessSpec) -> None:  # noqa: B027 - most go with any
        """Raises `ConfigurationError` if servers with these policies would drop most of the pushes."""

    @abstractmethod
    def step(self, step: Step) -> None:
        """Takes a step, whose arrays are borrowed meanwhile; of a step that raises nothing is kept.

        The gradients of a push that fails are lost: it may not be known whether the servers have applied it, and
        nothing is applied twice.
        """

    @abstractmethod
    def flush(self) -> None:
        """Pushes everything that steps have computed; returns when the servers have acknowledged it."""

    def finish(self) -> None:
        """Flushes, and takes weights that include all pushes of this worker."""
        self.flush()

    def register(self, variables: Sequence[BaseVariable]) -> None:
        """Registers variables with the servers, after a `flush`."""
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

    def slot(self, variable: BaseVariable, name: str) -> Array:
        """A slot of a variable, after a `flush`."""
        self.flush()
        return self.replica.slot(variable, name)


def mean_loss(losses: Sequence[float]) -> float | None:
    """The mean of the losses that are known."""
    return sum(losses) / len(losses) if losses else None
