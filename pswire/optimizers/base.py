"""What specs of updates have in common, and the table of all of them by kind. May import the schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from pswire.specs.schedules import LearningRate, check_learning_rate


@dataclass(frozen=True)
class UpdateSpec:
    """What every spec has: a `kind` on the wire, a word for what is `pushed`, and fields that are plain data."""

    kind: ClassVar[str] = ""
    pushed: ClassVar[str] = "observation"

    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots that a variable has beside it for these hyperparameters."""
        return ()


@dataclass(frozen=True)
class OptimizerSpec(UpdateSpec):
    """What every optimizer's spec has: what is pushed is a gradient g, and the variable w is to go down along it.

    `learning_rate` is a number, or a schedule (`pswire.specs.schedules`) of the server's global step.
    """

    pushed: ClassVar[str] = "gradient"
    learning_rate: LearningRate

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_learning_rate(self, "learning_rate")


#: Every spec by its kind.
UPDATES: dict[str, type[UpdateSpec]] = {}

_Spec = TypeVar("_Spec", bound=type[UpdateSpec])


def update(cls: _Spec) -> _Spec:
    """Puts a spec into the table."""
    UPDATES[cls.kind] = cls
    return cls
