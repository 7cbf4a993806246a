"""A line search for the strong Wolfe conditions: how far to go along a direction. Pure; knows no variables.

Source: J. Nocedal, S. J. Wright, *Numerical Optimization*, 2nd edition, 2006: conditions 3.7, algorithms 3.5 and 3.6,
interpolation 3.59. Near a minimum, where values differ by rounding only, the condition of sufficient decrease is
replaced by that on the slope (W. W. Hager, H. Zhang, *A New Conjugate Gradient Method with Guaranteed Descent and an
Efficient Line Search*, 2005, equation 4.1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LineSearch", "line_search"]

#: Relative difference of two values in float64 that may be rounding.
ROUNDING = 1e-12

#: The share of an interval at each of its ends in which no step is tried, and the factor of two steps in a row.
MARGIN, GROWTH = 0.1, 10.0

#: The same at an end that is the beginning of the search: the first step may be far too long.
MARGIN_AT_START = 1e-4


class LineSearch(NamedTuple):
    """The end of a line search: a step, and the function's value and slope there.

    `evaluations` is how often the function was called. `problem` is "" if the step satisfies the conditions; otherwise
    it is the reason why none was found, and the step is the one with the smallest value, which may be 0.
    """

    step: float
    value: float
    slope: float
    evaluations: int
    problem: str = ""


class _Point(NamedTuple):
    step: float
    value: float
    slope: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


def line_search(
    function: Callable[[float], tuple[float, float]],
    value: float,
    slope: float,
    *,
    first: float = 1.0,
    decrease: float = 1e-4,
    curvature: float = 0.9,
    longest: float = 1e10,
    limit: int = 20,
    rounding: float = ROUNDING,
) -> LineSearch:
    """Find a step along a direction with which a function decreases sufficiently, and its slope becomes flat.

    That is f(a) <= f(0) + `decrease` a f'(0) and |f'(a)| <= `curvature` |f'(0)|. Where the function is infinite or not
    a number, the step counts as too long.

        def along(step):  # the same batch, again and again
            loss, gradient = loss_and_gradient(weights + step * direction)
            return loss, gradient @ direction

        found = ps.line_search(along, loss, gradient @ direction)

    Args:
        function: the value and the slope at a step.
        value: f(0).
        slope: f'(0), which is negative.
        first: the first step that is tried.
        decrease: c1 of the conditions, above 0.
        curvature: c2 of the conditions, between c1 and 1: 0.9 for quasi-Newton methods, below 0.5 for conjugate
            gradients.
        longest: the longest step.
        limit: calls of the function at most.
        rounding: the relative difference of two values that may be rounding: some 1e-7 for values of float32. Slopes
            are compared then.

    Raises:
        ValueError: a slope that is not negative, a value that is not finite, or impossible settings.
    """
    if not (math.isfinite(value) and math.isfinite(slope)):
        raise ValueError(f"a line search begins at a finite value and slope, not {value} and {slope}")
    if slope >= 0:
        raise ValueError(f"the function does not decrease along the direction: its slope is {slope:.6g}, not below 0")
    if not 0 < decrease < curvature < 1:
        raise ValueError(f"needs 0 < decrease < curvature < 1, not {decrease:g} and {curvature:g}")
    if not 0 < first <= longest:
        raise ValueError(f"needs a first step above 0 and up to the longest, {longest:g}, not {first:g}")
    start = _Point(0.0, value, slope)
    return _Search(function, start, decrease, curvature, longest, limit, rounding).run(first)


def is_above(one: float, other: float, rounding: float) -> bool:
    """True if a finite value is larger than another by more than rounding."""
    return one > other + rounding * max(abs(one), abs(other))


@dataclass
class _Search:
    """One search. `_best` is the point with the smallest value so far."""

    _function: Callable[[float], tuple[float, float]]
    _start: _Point
    _decrease: float
    _curvature: float
    _longest: float
    _limit: int
    _rounding: float
    _evaluations: int = 0

    def __post_init__(self) -> None:
        self._best = self._start

    def run(self, first: float) -> LineSearch:
        """Lengthen the step until an interval contains a good one (algorithm 3.5)."""
        before, step = self._start, first
        while self._evaluations < self._limit:
            point = self._evaluate(step)
            if not self._decreases(point) or (before.step and self._is_above(point, before)):
                return self._zoom(before, point)
            if self._is_flat(point):
                return self._found(point)
            if point.slope >= 0:
                return self._zoom(point, before)
            if step >= self._longest:
                return self._failed(f"the function decreases up to the longest step, {self._longest:g}")
            before, step = point, min(self._longest, self._longer(before, point))
        return self._failed(self._limit_reached())

    def _zoom(self, low: _Point, high: _Point) -> LineSearch:
        """Shrink an interval that contains a good step (algorithm 3.6); `low` is its end with the smaller value."""
        widths = [math.inf, math.inf]
        while self._evaluations < self._limit:
            width = abs(high.step - low.step)
            if width <= ROUNDING * max(abs(low.step), abs(high.step)):
                return self._failed("the interval has become too small: values there differ by rounding only")
            slow = width > widths[-2] * 2 / 3  # two steps have not made it much smaller
            widths.append(width)
            point = self._evaluate((low.step + high.step) / 2 if slow else _between(low, high))
            if not self._decreases(point) or self._is_above(point, low):
                high = point
                continue
            if self._is_flat(point):
                return self._found(point)
            if point.slope * (high.step - low.step) >= 0:
                high = low
            low = point
        return self._failed(self._limit_reached())

    def _evaluate(self, step: float) -> _Point:
        self._evaluations += 1
        point = _Point(step, *map(float, self._function(step)))
        if point.is_finite and point.value < self._best.value:
            self._best = point
        return point

    def _decreases(self, point: _Point) -> bool:
        """True if the value is low enough; where it differs from the first one by rounding, whether the slope is."""
        start = self._start
        if not point.is_finite:
            return False
        if self._is_above(point, start) or self._is_above(start, point):
            return point.value <= start.value + self._decrease * point.step * start.slope
        return point.slope <= (2 * self._decrease - 1) * start.slope

    def _is_above(self, one: _Point, other: _Point) -> bool:
        return is_above(one.value, other.value, self._rounding)

    def _is_flat(self, point: _Point) -> bool:
        return abs(point.slope) <= -self._curvature * self._start.slope

    def _longer(self, before: _Point, point: _Point) -> float:
        """The next step: where a cubic has its minimum, if that is not much farther than the last one."""
        guess = _cubic_minimum(before, point)
        nearest, farthest = point.step + (point.step - before.step), GROWTH * point.step
        return farthest if guess is None else min(max(guess, nearest), farthest)

    def _limit_reached(self) -> str:
        return f"no step satisfies the conditions after {self._evaluations} evaluations"

    def _found(self, point: _Point) -> LineSearch:
        return LineSearch(*point, self._evaluations)

    def _failed(self, problem: str) -> LineSearch:
        return LineSearch(*self._best, self._evaluations, problem)


def _between(low: _Point, high: _Point) -> float:
    """A step inside the interval, not close to its ends: where a cubic has its minimum, or else the middle."""
    first, last = sorted((low.step, high.step))
    width = last - first
    guess = _cubic_minimum(low, high) if high.is_finite else None
    if guess is None:
        return first + width / 2
    return min(max(guess, first + width * (MARGIN if first else MARGIN_AT_START)), last - width * MARGIN)


def _cubic_minimum(one: _Point, other: _Point) -> float | None:
    """The minimum of the cubic through two values with their slopes (equation 3.59); None if it has none.

    None as well if its coefficients are too large.
    """
    width = other.step - one.step
    first = one.slope + other.slope - 3 * (one.value - other.value) / (one.step - other.step)
    scale = max(abs(first), abs(one.slope), abs(other.slope))  # whose square may be too large
    if not 0 < scale < math.inf:
        return None
    radicand = (first / scale) ** 2 - (one.slope / scale) * (other.slope / scale)
    if radicand < 0:
        return None
    second = math.copysign(scale * math.sqrt(radicand), width)
    divisor = other.slope - one.slope + 2 * second
    guess = other.step - width * (other.slope + second - first) / divisor if divisor else math.nan
    return guess if math.isfinite(guess) else None
