"""The hyperparameters of optimizers, and of what else a server does with what is pushed for a variable.

Each is written down once: field, default, check, formula and source. A spec is a frozen dataclass, so it can be
compared and sent; the server turns it into an update rule (`psserver.core.rules`), a worker's optimizer inherits it
(`psworker.model.optimizers`). No arithmetic here. May import the checks, the schedules and plain data.

To add one: a dataclass with `kind` and `@update` in the file of its family, its name here, then a rule on the server. A
slot is an array of the variable's shape that the rule keeps beside it, of the variable's dtype, or float32 for float16.

"Lazy" is said of a gradient by rows: rows that are not named stay as they are, in the slots too, so that a moment or a
decay of weights is no different for a row that nobody used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pswire.optimizers.base import UPDATES, OptimizerSpec, UpdateSpec
from pswire.optimizers.descent import GradientDescent, Momentum, MovingAverage
from pswire.optimizers.moments import Adam, AdamW, Lamb, MomentsSpec
from pswire.optimizers.squares import Adagrad, AdagradDecay, Ftrl, RMSProp
from pswire.specs.plain_data import built, plain_fields

__all__ = [
    "UPDATES",
    "Adagrad",
    "AdagradDecay",
    "Adam",
    "AdamW",
    "Ftrl",
    "GradientDescent",
    "Lamb",
    "MomentsSpec",
    "Momentum",
    "MovingAverage",
    "OptimizerSpec",
    "RMSProp",
    "UpdateSpec",
    "from_plain",
    "to_plain",
]


def to_plain(spec: UpdateSpec) -> dict[str, Any]:
    """The spec as plain data: its kind and its fields, numbers as floats, a schedule as such data again.

    A worker's optimizer gives what its spec would.
    """
    return plain_fields(UPDATES[spec.kind], spec)


def from_plain(plain: Mapping[str, Any]) -> UpdateSpec:
    """The spec that `to_plain` made this of; the exact inverse.

    Raises:
        ValueError: a kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    return built(UPDATES, "optimizer", plain)
