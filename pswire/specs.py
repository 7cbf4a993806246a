"""The optimizers' hyperparameters, each written down once: field, default, check, formula and source.

A spec is a frozen dataclass, so it can be compared and sent; the server turns it into an update rule
(`psserver.core.rules`), a worker's optimizer inherits it (`psworker.optimizers`). No arithmetic here.

To add one: a dataclass with `kind`, and a row in `OPTIMIZERS` by `@_optimizer`; then a rule on the server.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True)
class OptimizerSpec:
    """What every optimizer's spec has: a `kind` on the wire, and fields that are numbers or booleans."""

    kind: ClassVar[str] = ""


#: Every optimizer's spec by its kind.
OPTIMIZERS: dict[str, type[OptimizerSpec]] = {}

_Spec = TypeVar("_Spec", bound=type[OptimizerSpec])


def _optimizer(cls: _Spec) -> _Spec:
    OPTIMIZERS[cls.kind] = cls
    return cls


def _check(spec: OptimizerSpec, name: str, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Refuses a field outside [low, high), or (low, high) with `open_low`; NaN and infinity are outside always."""
    value = getattr(spec, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's numbers are welcome
        raise TypeError(f"{type(spec).__name__}: {name} must be an int or a float, got {value!r}")
    number: Any = value
    above = low < number if open_low else low <= number
    if not (above and number < high and number <= sys.float_info.max):
        bounds = f"{'more than' if open_low else 'at least'} {low:g} and "
        bounds += f"below {high:g}" if high < math.inf else "finite"
        raise ValueError(f"{type(spec).__name__}: {name} must be {bounds}, got {value!r}")


def _check_flag(spec: OptimizerSpec, name: str) -> None:
    if not isinstance(getattr(spec, name), bool):
        raise TypeError(f"{type(spec).__name__}: {name} must be True or False, got {getattr(spec, name)!r}")


@_optimizer
@dataclass(frozen=True)
class GradientDescent(OptimizerSpec):
    """Plain stochastic gradient descent.

        w <- w - learning_rate * g

    Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.
    """

    kind: ClassVar[str] = "gradient_descent"
    learning_rate: float

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        _check(self, "learning_rate", 0)


@_optimizer
@dataclass(frozen=True)
class Momentum(OptimizerSpec):
    """Gradient descent with momentum, or Nesterov's with `nesterov=True`. Slot: `momentum`, zero at first.

        m <- momentum * m + g
        w <- w - learning_rate * m                              (plain)
        w <- w - learning_rate * (g + momentum * m)             (Nesterov)

    Source: I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
    in the form of TensorFlow's MomentumOptimizer and torch.optim.SGD (the learning rate outside of m).
    """

    kind: ClassVar[str] = "momentum"
    learning_rate: float
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        _check(self, "learning_rate", 0)
        _check(self, "momentum", 0, 1)
        _check_flag(self, "nesterov")


@_optimizer
@dataclass(frozen=True)
class Adagrad(OptimizerSpec):
    """A learning rate for each element, by the squares of all its gradients. Slot: `accumulator`.

        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / (sqrt(a) + epsilon)

    Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12, 2011, figure 1 (diagonal);
    defaults as TensorFlow 1's AdagradOptimizer, which has no epsilon.
    """

    kind: ClassVar[str] = "adagrad"
    learning_rate: float
    initial_accumulator: float = 0.1
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        _check(self, "learning_rate", 0)
        _check(self, "initial_accumulator", 0)
        _check(self, "epsilon", 0)
        if self.initial_accumulator == 0 and self.epsilon == 0:
            raise ValueError("Adagrad: initial_accumulator or epsilon must be more than 0, or 0 / 0 makes a NaN")


@_optimizer
@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adaptive moments. Slots: `m` and `v`, zero at first; t counts the updates of the variable from 1.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    Source: D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
    """

    kind: ClassVar[str] = "adam"
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        _check(self, "learning_rate", 0)
        _check(self, "beta1", 0, 1)
        _check(self, "beta2", 0, 1)
        _check(self, "epsilon", 0, open_low=True)


def to_plain(spec: OptimizerSpec) -> dict[str, Any]:
    """The spec as plain data: its kind and its fields. A worker's optimizer gives what its spec would."""
    fields = [(field.name, getattr(spec, field.name)) for field in dataclasses.fields(OPTIMIZERS[spec.kind])]
    return {"kind": spec.kind} | {name: value if isinstance(value, bool) else float(value) for name, value in fields}


def from_plain(plain: Mapping[str, Any]) -> OptimizerSpec:
    """The spec that `to_plain` made this of; the exact inverse.

    Raises:
        ValueError: the kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    kind = plain.get("kind")
    base = OPTIMIZERS.get(kind) if isinstance(kind, str) else None
    if base is None:
        raise ValueError(f"unknown optimizer {kind!r}; there are {', '.join(sorted(OPTIMIZERS))}")
    wanted, given = {field.name for field in dataclasses.fields(base)}, set(plain) - {"kind"}
    if wanted != given:
        raise ValueError(f"optimizer {kind}: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}")
    return base(**{name: plain[name] for name in wanted})
