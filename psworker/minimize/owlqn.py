"""OWL-QN: L-BFGS for a loss plus a multiple of the 1-norm of the variables, of which many become exactly 0.

Source: G. Andrew, J. Gao, *Scalable Training of L1-Regularized Log-Linear Models*, ICML 2007. Directions come from the
pseudo-gradient, and each step stays within the orthant that it begins in.
"""

import math
from collections.abc import Sequence

from pswire.specs.vectors import (
    GRADIENT,
    VARIABLES,
    Axpy,
    Copy,
    Dot,
    KeepSigns,
    MaxAbs,
    Norm1,
    Operation,
    PseudoGradient,
    Scale,
)
from psworker.minimize.descent import DIRECTION
from psworker.minimize.lbfgs import LBFGS
from psworker.minimize.line_search import LineSearch, is_above
from psworker.minimize.space import POINT, POINT_GRADIENT, Space

#: The negative pseudo-gradient, the difference of a step to its beginning, and the pseudo-gradient at its end.
DESCENT, MOVE, THERE = "descent", "move", "there"

#: Of the sufficient decrease (c1), and the smallest and the largest factor of a step that is too long.
DECREASE, SHORTEST, SHORTER = 1e-4, 0.1, 0.5


class OWLQN(LBFGS):
    """The method for a loss plus `l1` times the 1-norm of all variables."""

    def __init__(self, l1: float, memory: int = 10) -> None:
        super().__init__(memory)
        self._l1 = l1

    def evaluate(self, space: Space) -> float:
        """The loss with the 1-norm."""
        loss = space.evaluate()
        return loss + self._l1 * space.run([Norm1(VARIABLES)])[0]

    def measure(self) -> Sequence[Operation]:
        """As `Method.measure`, of the pseudo-gradient."""
        return [PseudoGradient(DESCENT, POINT, POINT_GRADIENT, self._l1), Scale(DESCENT, -1.0), MaxAbs(DESCENT)]

    def direct(self, space: Space) -> float:
        """As `Method.direct`: no element goes up where the loss with the 1-norm increases."""
        product = self.multiply(space, DESCENT)
        (slope,) = space.run([*product, KeepSigns(DIRECTION, DESCENT), Dot(DIRECTION, DESCENT)])
        return -slope

    def search(self, space: Space, loss: float, slope: float, first: float, limit: int, rounding: float) -> LineSearch:
        """Shorten the step until the loss decreases sufficiently; elements that would change their sign become 0.

        Where values differ by rounding only, the slope at the end of the step decides, as in `line_search`.
        """
        step, decrease = first, math.inf
        for evaluations in range(1, limit + 1):
            to_step = Copy(VARIABLES, POINT), Axpy(VARIABLES, step, DIRECTION), KeepSigns(VARIABLES, POINT, DESCENT)
            moved = Copy(MOVE, VARIABLES), Axpy(MOVE, -1.0, POINT), Dot(MOVE, DESCENT)
            (decrease,) = space.run([*to_step, *moved])
            value = self.evaluate(space)
            if decrease > 0 and math.isfinite(value) and self._decreases(space, loss, value, decrease, rounding):
                return LineSearch(step, value, slope, evaluations)
            step *= _shorter(value - loss, decrease)
        why = ": short ones change it by rounding only" if decrease <= rounding * abs(loss) else ""
        return LineSearch(0.0, loss, slope, limit, f"no step decreases the loss after {limit} evaluations{why}")

    def _decreases(self, space: Space, loss: float, value: float, decrease: float, rounding: float) -> bool:
        if is_above(loss, value, rounding) or is_above(value, loss, rounding):
            return value <= loss - DECREASE * decrease
        there = PseudoGradient(THERE, VARIABLES, GRADIENT, self._l1)
        (slope,) = space.run([there, Dot(THERE, MOVE)])
        return slope <= (1 - 2 * DECREASE) * decrease


def _shorter(increase: float, decrease: float) -> float:
    """The factor with which a parabola through the value before and after a step, which is too long, has its minimum.

    `decrease` is what the slope at its beginning promised.
    """
    divisor = 2 * (increase + decrease)
    return min(max(decrease / divisor, SHORTEST), SHORTER) if 0 < divisor < math.inf else SHORTEST
