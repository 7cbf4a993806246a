"""Specs of gradient descent, with momentum and without, and of the moving average, which is no optimizer.

May import what specs have in common and the checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pswire.optimizers.base import OptimizerSpec, UpdateSpec, update
from pswire.specs.field_checks import check_flag, check_number


@update
@dataclass(frozen=True)
class GradientDescent(OptimizerSpec):
    """Plain stochastic gradient descent.

        w <- w - learning_rate * g

    Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.
    """

    kind: ClassVar[str] = "gradient_descent"


@update
@dataclass(frozen=True)
class Momentum(OptimizerSpec):
    """Gradient descent with momentum, or Nesterov's with `nesterov=True`. Slot: `momentum`, zero at first.

        m <- momentum * m + g
        w <- w - learning_rate * m                              (plain)
        w <- w - learning_rate * (g + momentum * m)             (Nesterov)

    Lazy: rows that are not named keep their m as it is.

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

    def slot_names(self) -> tuple[str, ...]:
        """`momentum`."""
        return ("momentum",)


@update
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
