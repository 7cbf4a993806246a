"""Update ops: observations for variables that keep moving averages, which a push sends with its gradients."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pswire.tensors.sums import widened
from pswire.tensors.values import Array
from psworker.model.base_variable import BaseVariable, in_scope

__all__ = ["UpdateOp"]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOp:
    """An observation, such as the mean of a batch, for a variable that keeps a moving average.

    Attributes:
        variable: keeps the average; TypeError unless it is of floating point, ValueError if it is trainable.
        value: the observation; ValueError unless it has the shape of the variable; cast to its dtype.
        decay: the server does `variable <- decay * variable + (1 - decay) * value`; ValueError unless it is from 0 up
            and below 1.
    """

    variable: BaseVariable
    value: Array
    decay: float

    def __post_init__(self) -> None:
        variable = self.variable
        if variable.dtype.kind != "f":
            raise TypeError(f"UpdateOp: an average is of floating point, but {variable.name!r} is {variable.dtype}")
        if variable.trainable:
            raise ValueError(
                f"UpdateOp: {variable.name!r} is trainable, and a variable has an optimizer or an average: make it "
                "with trainable=False"
            )
        if np.shape(self.value) != variable.shape:
            raise ValueError(
                f"UpdateOp: value must have the shape of {variable.name!r}, {variable.shape}, "
                f"but its shape is {np.shape(self.value)}"
            )
        if not 0 <= self.decay < 1:
            raise ValueError(f"UpdateOp: decay must be from 0 up and below 1, got {self.decay}")
        object.__setattr__(self, "value", np.asarray(self.value, variable.dtype))
        object.__setattr__(self, "decay", float(self.decay))


class UpdateMeans(dict[str, tuple[UpdateOp, Array, int]]):
    """By name a variable's last op, and the mean, of float16 in float32, and number of its observations."""

    def add(self, update: UpdateOp) -> None:
        """Adds an observation."""
        name, mean, count = update.variable.name, widened(update.value), 1
        if name in self:
            op, earlier, number = self[name]
            if op.variable is update.variable:  # and not an earlier one of its name
                count = number + 1
                mean = earlier * (1 - 1 / count) + mean / count  # without a difference: inf - inf is nan
        self[name] = update, mean, count

    def ops(self, scope: str | None = None) -> list[UpdateOp]:
        """One update op per variable named `scope/...`."""
        means = self.values()
        return [UpdateOp(op.variable, mean, op.decay) for op, mean, _ in means if in_scope(op.variable, scope)]

    def take(self, chosen: Iterable[UpdateOp] | None = None) -> list[UpdateOp]:
        """The update ops to be sent, by default all; removes what is kept for their variables."""
        taken = self.ops() if chosen is None else list(chosen)
        for update in taken:
            self.pop(update.variable.name, None)
        return taken
