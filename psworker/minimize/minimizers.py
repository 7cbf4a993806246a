"""The arguments of `Session.minimize`, the method and its limits, and its result."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from psworker.familiar_names import hint_arguments
from psworker.minimize import conjugate_gradient, lbfgs, owlqn
from psworker.minimize.descent import Limits, Method

__all__ = ["LBFGS", "OWLQN", "ConjugateGradient", "Minimum"]


@dataclass(frozen=True)
class Minimizer(Limits, ABC):
    """A method of batch optimization, with the limits at which it stops: whichever comes first."""

    def __post_init__(self) -> None:
        """Raises ValueError for limits that are not positive."""
        small = self.gradient, self.least_decrease, self.rounding
        if not (all(one >= 0 for one in small) and self.evaluations >= 1 and self.iterations >= 1):
            raise ValueError(f"limits are 0 or more, and those of evaluations and iterations 1 or more: {self}")

    @abstractmethod
    def method(self) -> Method:
        """A method at its beginning."""


@dataclass(frozen=True, kw_only=True)
class LBFGS(Minimizer):
    """L-BFGS, for smooth losses: quasi-Newton directions from the last `memory` steps, and a line search.

        result = session.minimize(loss, dataset, ps.LBFGS(memory=10))

    The shards hold 2 `memory` + 8 vectors of the model's shape meanwhile. Source: D. Liu, J. Nocedal, "On the Limited
    Memory BFGS Method for Large Scale Optimization", Mathematical Programming 45, 1989; with the formulas of
    J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd edition, 2006, algorithm 7.4; conditions 3.7 for steps.
    """

    memory: int = 10

    def __post_init__(self) -> None:
        """Raises ValueError for a memory below 1 or above 50."""
        super().__post_init__()
        if not 1 <= self.memory <= 50:
            raise ValueError(f"L-BFGS remembers 1 to 50 steps, got memory={self.memory}")

    def method(self) -> Method:
        """As `Minimizer.method`."""
        return lbfgs.LBFGS(self.memory)


@dataclass(frozen=True, kw_only=True)
class OWLQN(LBFGS):
    """OWL-QN, for a smooth loss plus `l1` times the sum of the magnitudes of all variables, which makes many of them 0.

    Leave the sum out of the loss function: the method adds it. Source: G. Andrew, J. Gao, "Scalable Training of
    L1-Regularized Log-Linear Models", ICML 2007.
    """

    l1: float

    def __post_init__(self) -> None:
        """Raises ValueError for an `l1` that is not positive."""
        super().__post_init__()
        if not 0 < self.l1 < float("inf"):
            raise ValueError(f"l1 is a positive number, got {self.l1}")

    def method(self) -> Method:
        """As `Minimizer.method`."""
        return owlqn.OWLQN(self.l1, self.memory)


@dataclass(frozen=True, kw_only=True)
class ConjugateGradient(Minimizer):
    """Nonlinear conjugate gradients, for smooth losses: less memory than `LBFGS`, and as a rule more evaluations.

    The method of Polak and Ribiere that begins again where its factor would be negative: J. Nocedal, S. J. Wright,
    "Numerical Optimization", 2nd edition, 2006, equation 5.45.
    """

    def method(self) -> Method:
        """As `Minimizer.method`."""
        return conjugate_gradient.ConjugateGradient()


hint_arguments((LBFGS, OWLQN, ConjugateGradient))


@dataclass(frozen=True)
class Minimum:
    """The result of a minimization: the variables have these values in all workers.

    Attributes:
        loss: the mean over all examples, with what the method has added.
        gradient: the largest magnitude in the gradient there.
        iterations: accepted points.
        evaluations: of the loss over all examples.
        reason: why it ended.
        converged: whether the limits say that it is a minimum.
    """

    loss: float
    gradient: float
    iterations: int
    evaluations: int
    reason: str
    converged: bool
