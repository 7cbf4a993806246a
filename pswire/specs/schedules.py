"""Learning rates as functions of the server's global step.

A schedule takes the place of a number in an optimizer: `GradientDescent(learning_rate=CosineDecay(0.1, 10_000))`. The
server evaluates it at its global step, the number of updates that it had made before the one at hand, from 0, so that
all workers agree. (Shards that do not receive every push use shard 0's count, which the worker passes on.) A schedule
is a pure function of the step, and gives a finite rate from 0 up at every step.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

from pswire.specs.spec import Count, Flag, NotNegative, Positive, PositiveShare, ShareOrOne, Spec, check_number

__all__ = ["CosineDecay", "ExponentialDecay", "PiecewiseConstant", "PolynomialDecay", "Schedule", "WarmUp"]


@dataclass(frozen=True)
class Schedule(Spec, family="schedule"):
    """A learning rate that changes with the global step."""

    def at(self, step: int) -> float:
        """The learning rate after `step` updates."""
        raise NotImplementedError

    @property
    def largest(self) -> float:
        """The largest rate; if rates only fall, the first."""
        return self.at(0)

    def scaled(self, factor: float) -> "Schedule":
        """The schedule whose rates are these, times `factor`."""
        raise NotImplementedError


def check_learning_rate(label: str, value: object) -> float | Schedule:
    """The value; refused unless it is a known schedule or a finite number from 0 up."""
    if not isinstance(value, Schedule):
        return check_number(label, value, 0, expected="an int, a float or a schedule")
    if not value.is_known():
        known = ", ".join(schedule.__name__ for schedule in Schedule.kinds.values())
        raise TypeError(f"{label} must be a schedule that servers know, {known}; got {value!r}")
    return value


def check_rates(label: str, value: object) -> tuple[float, ...]:
    """The finite numbers from 0 up as a tuple; refused unless they are in a sequence."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"{label} must be a list or a tuple, got {value!r}")
    return tuple(check_number(label, entry, 0) for entry in value)


#: A finite number from 0 up, or a schedule.
LearningRate: TypeAlias = Annotated[float | Schedule, check_learning_rate]

#: Each variable's schedule is part of every status, which must fit into a message.
MAX_BOUNDARIES = 100


def rate(learning_rate: LearningRate, step: int) -> float:
    """The learning rate at a step; a number is constant."""
    return learning_rate.at(step) if isinstance(learning_rate, Schedule) else float(learning_rate)


def scaled_rate(learning_rate: LearningRate, factor: float) -> LearningRate:
    """The learning rate times `factor`, at all steps."""
    return learning_rate.scaled(factor) if isinstance(learning_rate, Schedule) else float(learning_rate) * factor


def largest_rate(learning_rate: LearningRate) -> float:
    """The largest learning rate of all steps."""
    return learning_rate.largest if isinstance(learning_rate, Schedule) else float(learning_rate)


@dataclass(frozen=True)
class ExponentialDecay(Schedule, kind="exponential_decay"):
    """Multiplied by `decay_rate` every `decay_steps` steps, evenly or, with `staircase=True`, at once.

        rate = initial * decay_rate^(step / decay_steps)            (staircase: the quotient rounded down)

    Source: TensorFlow 1's tf.train.exponential_decay.
    """

    initial: NotNegative
    decay_steps: Count
    decay_rate: PositiveShare
    staircase: Flag = False

    def at(self, step: int) -> float:
        """See the formula of the class."""
        exponent = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.initial * self.decay_rate**exponent)

    def scaled(self, factor: float) -> "ExponentialDecay":
        """From another rate."""
        return replace(self, initial=self.initial * factor)


@dataclass(frozen=True)
class PolynomialDecay(Schedule, kind="polynomial_decay"):
    """From `initial` to `end` in `decay_steps` steps, linearly or by another power; then `end`.

        rate = (initial - end) * (1 - min(step / decay_steps, 1))^power + end

    With `end` above `initial` it grows. Source: TensorFlow 1's tf.train.polynomial_decay.
    """

    initial: NotNegative
    decay_steps: Count
    end: NotNegative = 0.0001
    power: Positive = 1.0

    def at(self, step: int) -> float:
        """See the formula of the class."""
        left = 1 - min(step / self.decay_steps, 1)
        return float((self.initial - self.end) * left**self.power + self.end)

    @property
    def largest(self) -> float:
        """The first or the last."""
        return max(self.initial, self.end)

    def scaled(self, factor: float) -> "PolynomialDecay":
        """Between other rates."""
        return replace(self, initial=self.initial * factor, end=self.end * factor)


@dataclass(frozen=True)
class CosineDecay(Schedule, kind="cosine_decay"):
    """Half a cosine period from `initial` down to `alpha * initial` in `decay_steps` steps; constant afterwards.

        rate = initial * ((1 - alpha) * (1 + cos(pi * min(step / decay_steps, 1))) / 2 + alpha)

    Source: I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, equation 5,
    without restarts; in the form of TensorFlow 1's tf.train.cosine_decay.
    """

    initial: NotNegative
    decay_steps: Count
    alpha: ShareOrOne = 0.0

    def at(self, step: int) -> float:
        """See the formula of the class."""
        wave = (1 + math.cos(math.pi * min(step / self.decay_steps, 1))) / 2
        return self.initial * ((1 - self.alpha) * wave + self.alpha)

    def scaled(self, factor: float) -> "CosineDecay":
        """From another rate."""
        return replace(self, initial=self.initial * factor)


@dataclass(frozen=True)
class PiecewiseConstant(Schedule, kind="piecewise_constant"):
    """Piecewise constant: `values[i]` up to and including step `boundaries[i]`, the last value afterwards.

    Source: TensorFlow 1's tf.train.piecewise_constant.
    """

    boundaries: Annotated[Sequence[float], check_rates]
    values: Annotated[Sequence[float], check_rates]

    def __post_init__(self) -> None:
        super().__post_init__()
        for earlier, later in itertools.pairwise(self.boundaries):
            if later <= earlier:
                raise ValueError(f"PiecewiseConstant: boundaries must increase, but {later} follows {earlier}")
        values, boundaries = len(self.values), len(self.boundaries)
        if boundaries > MAX_BOUNDARIES:
            raise ValueError(f"PiecewiseConstant: boundaries must be {MAX_BOUNDARIES} at most, got {boundaries}")
        if values != boundaries + 1:
            raise ValueError(
                "PiecewiseConstant: there must be one more value than boundaries, "
                f"got {values} values for {boundaries} boundaries"
            )

    def at(self, step: int) -> float:
        """See the class."""
        return self.values[bisect.bisect_left(self.boundaries, step)]

    @property
    def largest(self) -> float:
        """The largest of the values."""
        return max(self.values)

    def scaled(self, factor: float) -> "PiecewiseConstant":
        """Other values."""
        return replace(self, values=tuple([value * factor for value in self.values]))


@dataclass(frozen=True)
class WarmUp(Schedule, kind="warm_up"):
    """Linear warm-up from 0 to the first rate of `then` in `steps` steps; afterwards `then`, starting at its step 0.

        rate = then(0) * step / steps           for step < steps
        rate = then(step - steps)               afterwards

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 2.2 (gradual
    warmup), from 0.
    """

    steps: Count
    then: LearningRate

    def at(self, step: int) -> float:
        """See the formula of the class."""
        if step < self.steps:
            return rate(self.then, 0) * (step / self.steps)
        return rate(self.then, step - self.steps)

    @property
    def largest(self) -> float:
        """As `then`."""
        return largest_rate(self.then)

    def scaled(self, factor: float) -> "WarmUp":
        """As `then`."""
        return replace(self, then=scaled_rate(self.then, factor))


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
