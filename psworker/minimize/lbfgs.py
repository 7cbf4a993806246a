"""L-BFGS: the direction of a quasi-Newton method, from the last steps and the changes of the gradient along them.

Source: J. Nocedal, S. J. Wright, *Numerical Optimization*, 2nd edition, 2006: algorithms 7.4 (the two-loop recursion)
and 7.5; equation 7.20 for the scale of the first matrix.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from pswire.specs.vectors import GRADIENT, VARIABLES, Axpy, Copy, Dot, Operation, Scale
from psworker.minimize.descent import DIRECTION, Method, quotient
from psworker.minimize.space import POINT, POINT_GRADIENT, Space

#: Of the slope along a step: one along which the slope changed less than that tells nothing. The comparison does not
#: depend on the scale of variables and loss. Source: C. Zhu, R. H. Byrd, P. Lu, J. Nocedal, *Algorithm 778: L-BFGS-B*,
#: ACM TOMS 23, 1997.
MIN_CURVATURE = 2.2e-16


class LBFGS(Method):
    """The method, with a history of `memory` pairs, which are the vectors `step-N` and `change-N`."""

    def __init__(self, memory: int = 10, curvature: float = 0.9) -> None:
        super().__init__(curvature)
        self._memory = memory
        self._pairs: deque[tuple[int, float]] = deque(maxlen=memory)  # the number of each, and s . y, oldest first
        self._scale = 1.0

    def direct(self, space: Space) -> float:
        """As `Method.direct`."""
        product = self.multiply(space, POINT_GRADIENT)
        (slope,) = space.run([*product, Scale(DIRECTION, -1.0), Dot(DIRECTION, POINT_GRADIENT)])
        return slope

    def multiply(self, space: Space, vector: str) -> list[Operation]:
        """Make `DIRECTION` from a vector by the inverse Hessian: two loops over the pairs, with a message for each.

        Returns the operations that are left to do, which go with the caller's own.
        """
        factors: list[float] = []
        pending: list[Operation] = [Copy(DIRECTION, vector)]
        for number, product in reversed(self._pairs):
            (dot,) = space.run([*pending, Dot(f"step-{number}", DIRECTION)])
            factors.append(quotient(dot, product))
            pending = [Axpy(DIRECTION, -factors[-1], f"change-{number}")]
        pending.append(Scale(DIRECTION, self._scale))
        for number, product in self._pairs:
            (dot,) = space.run([*pending, Dot(f"change-{number}", DIRECTION)])
            pending = [Axpy(DIRECTION, factors.pop() - quotient(dot, product), f"step-{number}")]
        return pending

    def learn(self, space: Space) -> None:
        """As `Method.learn`; a step along which the slope hardly changed is left out."""
        number = (self._pairs[-1][0] + 1) % (self._memory + 1) if self._pairs else 0
        step, change = f"step-{number}", f"change-{number}"
        product, square, slope = space.run(
            [
                *(Copy(step, VARIABLES), Axpy(step, -1.0, POINT)),
                *(Copy(change, GRADIENT), Axpy(change, -1.0, POINT_GRADIENT)),
                *(Dot(step, change), Dot(change, change), Dot(step, POINT_GRADIENT)),
            ]
        )
        if product > MIN_CURVATURE * abs(slope):
            self._add(number, product, square)

    def _add(self, number: int, product: float, square: float) -> None:
        """Add a pair, by its number, the product of step and change, and the square of the latter."""
        self._scale = quotient(product, square)
        self._pairs.append((number, product))

    def state(self) -> dict[str, Any]:
        """The numbers of the pairs, oldest first."""
        return {"pairs": [number for number, _ in self._pairs]}

    def restore(self, state: Mapping[str, Any], space: Space) -> None:
        """As `Method.restore`: the products are computed again."""
        for number in state["pairs"]:
            step, change = f"step-{number}", f"change-{number}"
            product, square = space.run([Dot(step, change), Dot(change, change)])
            self._add(number, product, square)

    def forget(self) -> bool:
        """As `Method.forget`: the next direction is steepest descent."""
        known = bool(self._pairs)
        self._pairs.clear()
        self._scale = 1.0
        return known

    def first_step(self, slope: float, before: tuple[float, float] | None) -> float | None:
        """1, which is the step of Newton's method."""
        return 1.0 if self._pairs else None
