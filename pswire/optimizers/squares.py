"""Specs of optimizers with a learning rate for each element, by its squared gradients.

May import what specs have in common and the checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pswire.optimizers.base import OptimizerSpec, update
from pswire.specs.field_checks import check_count, check_flag, check_number
from pswire.specs.schedules import LearningRate


@update
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

    def slot_names(self) -> tuple[str, ...]:
        """`accumulator`."""
        return ("accumulator",)


@update
@dataclass(frozen=True)
class AdagradDecay(OptimizerSpec):
    """Adagrad that forgets: old squares count less, so that the steps of a long job do not become ever shorter.

    Slots: `accumulator`, and `accumulator_decay_power`, the number of decays that it has had, zero at first. With
    period = global_step // decay_steps, of the pushes that the shard had applied before this one:

        a <- max(initial_accumulator, a * decay_rate^(period - power))
        power <- period
        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / sqrt(a)

    Lazy: a row that was not named for some periods catches up with all of them when it is. A variable that is made late
    has a power of zero too; its accumulator cannot fall below where it starts, so what it catches up with is nothing.

    Source: Adagrad as above; the decay, its floor and the slots as DeepRec's AdagradDecayOptimizer
    (github.com/DeepRec-AI/DeepRec), which catches up with one period at a time, however many were missed.
    """

    kind: ClassVar[str] = "adagrad_decay"
    initial_accumulator: float = 0.1
    decay_steps: int = 100_000
    decay_rate: float = 0.9

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "initial_accumulator", 0, open_low=True)
        check_count(self, "decay_steps")
        check_number(self, "decay_rate", 0, 1, closed_high=True)

    def slot_names(self) -> tuple[str, ...]:
        """`accumulator` and `accumulator_decay_power`."""
        return ("accumulator", "accumulator_decay_power")


@update
@dataclass(frozen=True)
class RMSProp(OptimizerSpec):
    """A learning rate for each element, by a moving average of squared gradients.

        s <- decay * s + (1 - decay) * g^2
        c <- decay * c + (1 - decay) * g                        (centered; otherwise c = 0)
        d = g / (sqrt(max(0, s - c^2)) + epsilon)
        b <- momentum * b + d                                   (without momentum b = d)
        w <- w - learning_rate * b

    Slots, zero at first: `mean_square` s; `mean_gradient` c if centered; `momentum` b if momentum is more than 0.
    Lazy: rows that are not named keep theirs as they are.

    Source: T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", Coursera: Neural Networks for Machine Learning, 2012;
    centered and with momentum: A. Graves, "Generating Sequences with Recurrent Neural Networks", 2013, equations 38 to
    41. In the form of torch.optim.RMSprop: epsilon outside of the root and the learning rate outside of b, where
    TensorFlow 1's RMSPropOptimizer has both inside, and s starts at one.
    """

    kind: ClassVar[str] = "rmsprop"
    learning_rate: LearningRate = 0.001
    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-8
    centered: bool = False

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "decay", 0, 1)
        check_number(self, "momentum", 0, 1)
        check_number(self, "epsilon", 0, open_low=True)
        check_flag(self, "centered")

    def slot_names(self) -> tuple[str, ...]:
        """`mean_square`; `mean_gradient` if centered; `momentum` if that is more than 0."""
        return ("mean_square", *["mean_gradient"] * self.centered, *["momentum"] * (self.momentum > 0))


@update
@dataclass(frozen=True)
class Ftrl(OptimizerSpec):
    """Follow the regularized leader: Adagrad's steps, and weights that are exactly zero where l1 outweighs them.

        n_new = n + g^2
        z <- z + learning_rate * g - (n_new^p - n^p) * w        (p is learning_rate_power)
        w <- (clip(z, -learning_rate * l1, learning_rate * l1) - z) / (n_new^p + learning_rate * l2)
        n <- n_new

    Slots: `accumulator` n, which starts at initial_accumulator, and `linear` z, which starts at -n^p * w, so that the
    first weights are where the regularization is centered. z is the paper's times the learning rate: for a constant one
    that is the same, and one that a schedule changes does not rescale what was learned before. Without l1 and l2, and
    with p of 0.5, this is Adagrad. The value follows from the slots: what is assigned to it is undone by the next
    update. Lazy: rows that are not named keep everything as it is.

    Source: H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1, with beta of
    0. TensorFlow's FtrlOptimizer writes the power with a minus, has twice l2 in the denominator, and starts z at zero.
    """

    kind: ClassVar[str] = "ftrl"
    l1: float = 0.0
    l2: float = 0.0
    learning_rate_power: float = 0.5
    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "l1", 0)
        check_number(self, "l2", 0)
        check_number(self, "learning_rate_power", 0, 1, closed_high=True)
        check_number(self, "initial_accumulator", 0, open_low=True)

    def slot_names(self) -> tuple[str, ...]:
        """`accumulator` and `linear`."""
        return ("accumulator", "linear")
