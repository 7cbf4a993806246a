"""The hyperparameters of optimizers, and of what else a server does with what is pushed for a variable.

Each is written down once: field, default, check, formula and source. A spec is a frozen dataclass, so it can be
compared and sent; the server turns it into an update rule (`psserver.core.rules`), a worker's optimizer inherits it
(`psworker.optimizers`). No arithmetic here. May import the checks and the schedules.

To add one: a dataclass with `kind`, and a row in `UPDATES` by `@_update`; then a rule on the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pswire.checks import check_flag, check_number
from pswire.schedules import SCHEDULES, LearningRate, Schedule, check_learning_rate


@dataclass(frozen=True)
class UpdateSpec:
    """What every spec has: a `kind` on the wire, a word for what is `pushed`, and fields that are plain data."""

    kind: ClassVar[str] = ""
    pushed: ClassVar[str] = "observation"


@dataclass(frozen=True)
class OptimizerSpec(UpdateSpec):
    """What every optimizer's spec has: what is pushed is a gradient g, and the variable w is to go down along it.

    `learning_rate` is a number, or a schedule (`pswire.schedules`) of the server's global step.
    """

    pushed: ClassVar[str] = "gradient"
    learning_rate: LearningRate

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_learning_rate(self, "learning_rate")


#: Every spec by its kind.
UPDATES: dict[str, type[UpdateSpec]] = {}

_Spec = TypeVar("_Spec", bound=type[UpdateSpec])


def _update(cls: _Spec) -> _Spec:
    UPDATES[cls.kind] = cls
    return cls


@_update
@dataclass(frozen=True)
class GradientDescent(OptimizerSpec):
    """Plain stochastic gradient descent.

        w <- w - learning_rate * g

    Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.
    """

    kind: ClassVar[str] = "gradient_descent"


@_update
@dataclass(frozen=True)
class Momentum(OptimizerSpec):
    """Gradient descent with momentum, or Nesterov's with `nesterov=True`. Slot: `momentum`, zero at first.

        m <- momentum * m + g
        w <- w - learning_rate * m                              (plain)
        w <- w - learning_rate * (g + momentum * m)             (Nesterov)

    Of a gradient by rows, rows that are not named keep their m as it is.

    Source: I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
    in the form of TensorFlow's MomentumOptimizer and torch.optim.SGD (the learning rate outside of m).
    """

    kind: ClassVar[str] = "momentum"
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "momentum", 0, 1)
        check_flag(self, "nesterov")


@_update
@dataclass(frozen=True)
class Adagrad(OptimizerSpec):
    """A learning rate for each element, by the squares of all its gradients. Slot: `accumulator`.

        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / (sqrt(a) + epsilon)

    Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12, 2011, figure 1 (diagonal);
    defaults as TensorFlow 1's AdagradOptimizer, which has no epsilon.
    """

    kind: ClassVar[str] = "adagrad"
    initial_accumulator: float = 0.1
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "initial_accumulator", 0)
        check_number(self, "epsilon", 0)
        if self.initial_accumulator == 0 and self.epsilon == 0:
            raise ValueError("Adagrad: initial_accumulator or epsilon must be more than 0, or 0 / 0 makes a NaN")


@_update
@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adaptive moments. Slots: `m` and `v`, zero at first; t counts the updates of the variable from 1.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    Of a gradient by rows, rows that are not named keep their m and v as they are, and t counts for all rows alike: lazy
    Adam, as TensorFlow 1's LazyAdamOptimizer.

    Source: D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
    """

    kind: ClassVar[str] = "adam"
    learning_rate: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "beta1", 0, 1)
        check_number(self, "beta2", 0, 1)
        check_number(self, "epsilon", 0, open_low=True)


@_update
@dataclass(frozen=True)
class MovingAverage(UpdateSpec):
    """No optimizer: the variable w follows what workers see, x, which is pushed in place of a gradient. No slots.

        w <- decay * w + (1 - decay) * x

    Source: S. Ioffe, C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
    Covariate Shift", ICML 2015, section 3.1 (the moving averages that inference takes in place of a batch's moments).
    """

    kind: ClassVar[str] = "moving_average"
    decay: float

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_number(self, "decay", 0, 1)


def to_plain(spec: UpdateSpec) -> dict[str, Any]:
    """The spec as plain data: its kind and its fields, numbers as floats, a schedule as such data again.

    A worker's optimizer gives what its spec would.
    """
    return _plain_fields(UPDATES[spec.kind], spec)


def from_plain(plain: Mapping[str, Any]) -> UpdateSpec:
    """The spec that `to_plain` made this of; the exact inverse.

    Raises:
        ValueError: a kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    return _built(UPDATES, "optimizer", plain)


def _plain_fields(base: type[UpdateSpec | Schedule], one: UpdateSpec | Schedule) -> dict[str, Any]:
    return {"kind": base.kind} | {field.name: _plain(getattr(one, field.name)) for field in dataclasses.fields(base)}


def _plain(value: object) -> object:
    match value:
        case Schedule():
            return _plain_fields(SCHEDULES[value.kind], value)
        case tuple():
            return [_plain(entry) for entry in value]
        case bool():
            return value
    number: Any = value
    return float(number)


_Built = TypeVar("_Built", UpdateSpec, Schedule)


def _built(table: Mapping[str, type[_Built]], what: str, plain: Mapping[str, Any]) -> _Built:
    kind = plain.get("kind")
    base = table.get(kind) if isinstance(kind, str) else None
    if base is None:
        raise ValueError(f"unknown {what} {kind!r}; there are {', '.join(sorted(table))}")
    wanted, given = {field.name for field in dataclasses.fields(base)}, set(plain) - {"kind"}
    if wanted != given:
        raise ValueError(f"{what} {kind}: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}")
    fields: dict[str, Any] = {name: _value(plain[name]) for name in wanted}
    return base(**fields)


def _value(plain: object) -> object:
    return _built(SCHEDULES, "schedule", plain) if isinstance(plain, Mapping) else plain
