"""Descent: a direction, a line search along it, and again, until there is a reason to stop. Sees scalars alone."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from pswire.messages import AcceptedPoint
from pswire.specs.vectors import GRADIENT, VARIABLES, Axpy, Copy, Dot, MaxAbs, Operation
from psworker.minimize.line_search import ROUNDING, LineSearch, line_search
from psworker.minimize.space import POINT, POINT_GRADIENT, Space

#: The direction of the present search.
DIRECTION = "direction"

#: Evaluations of one line search, at most.
SEARCH_LIMIT = 20

#: How much longer than its first step a line search may go.
LONGER = 1e10

#: The share of the loss by which it decreases at least, unless the program gives another, or rounding is more.
DECREASE = 1e-9


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        gradient: a point is a minimum if no element of the gradient is larger. `decrease` may end the search before:
            with `decrease=0` it goes on until here.
        decrease: a point is a minimum if the loss decreased by less than this share of it (of 1, if that is more); 0:
            never for this reason. None: 1e-9, or `rounding` if that is more.
        evaluations: of the loss, at most; each one of a line search counts.
        iterations: accepted points, at most.
        rounding: the share of the loss by which two values of it may differ by rounding; at least the rounding of the
            coarsest dtype of the variables, 1.2e-7 for float32. Line searches compare slopes then.
    """

    gradient: float = 1e-5
    decrease: float | None = None
    evaluations: int = 15_000
    iterations: int = 15_000
    rounding: float = ROUNDING

    @property
    def least_decrease(self) -> float:
        """The limit `decrease` as a number."""
        return max(DECREASE, self.rounding) if self.decrease is None else self.decrease

    def for_dtypes(self, dtypes: Iterable[np.dtype[Any]]) -> Self:
        """With the `rounding` of a loss that is computed in these dtypes of floating point."""
        return replace(self, rounding=max([self.rounding, *[float(np.finfo(one).eps) for one in dtypes]]))


@dataclass(frozen=True)
class Result:
    """The last accepted point, and why the descent ended there. `converged`: it is a minimum, by the limits."""

    progress: AcceptedPoint
    reason: str
    converged: bool = False


class Method(ABC):
    """A method of descent, which chooses directions. Its other methods are those for a smooth loss.

    `curvature` is Wolfe's c2 for line searches.
    """

    def __init__(self, curvature: float) -> None:
        self.curvature = curvature

    @abstractmethod
    def direct(self, space: Space) -> float:
        """Make `DIRECTION` from `POINT_GRADIENT` and what is known; the slope along it."""

    @abstractmethod
    def learn(self, space: Space) -> None:
        """Learn from the step from `POINT` and `POINT_GRADIENT` to `VARIABLES` and `GRADIENT`.

        May raise `ArithmeticError`, as `direct` may: what was learnt is forgotten then.
        """

    @abstractmethod
    def forget(self) -> bool:
        """Forget the history; return whether this changes the next direction."""

    @abstractmethod
    def first_step(self, slope: float, before: tuple[float, float] | None) -> float | None:
        """The first step of a line search, from what was learnt; None: nothing was, see `plain_step`.

        `before`: step and slope of the last search that found a step.
        """

    def state(self) -> dict[str, Any]:
        """The history, except for vectors, as plain data."""
        return {}

    def restore(self, state: Mapping[str, Any], space: Space) -> None:  # noqa: B027 - most learn nothing
        """Continue from a `state`, whose vectors are in the space."""

    def evaluate(self, space: Space) -> float:
        """The loss at `VARIABLES`."""
        return space.evaluate()

    def measure(self) -> Sequence[Operation]:
        """Operations at an accepted point, of which the last one has the largest magnitude in the gradient."""
        return [MaxAbs(POINT_GRADIENT)]

    def search(self, space: Space, loss: float, slope: float, first: float, limit: int, rounding: float) -> LineSearch:
        """Search along `DIRECTION`; without a problem, `VARIABLES` and `GRADIENT` are then at the end of the step."""

        def along(step: float) -> tuple[float, float]:
            space.run([Copy(VARIABLES, POINT), Axpy(VARIABLES, step, DIRECTION)])
            value = self.evaluate(space)
            return value, space.run([Dot(GRADIENT, DIRECTION)])[0]

        return line_search(
            along,
            loss,
            slope,
            first=first,
            curvature=self.curvature,
            longest=min(LONGER * first, sys.float_info.max),
            limit=limit,
            rounding=rounding,
        )


def quotient(dividend: float, divisor: float) -> float:
    """The quotient of two results of a space; raises `ArithmeticError` if they are too large or too small for one."""
    found = dividend / divisor  # may raise ZeroDivisionError, which is one
    if not (math.isfinite(found) and math.isfinite(divisor)):
        raise OverflowError(f"no finite quotient of {dividend:g} and {divisor:g}")
    return found


def plain_step(space: Space, loss: float, slope: float) -> float:
    """The first step along the plain gradient, of every method: in proportion to the variables and to the loss.

    With it the loss would become 0 if its slope stayed the same; it is shorter if a variable would change by more than
    the largest one is. Where the loss and the variables are 0, it has the length 1. Source: Hager and Zhang as in
    `line_search`, rule I0, which takes one of the two.
    """
    largest, change = space.run([MaxAbs(POINT), MaxAbs(DIRECTION)])
    steps = abs(loss) / -slope, largest / change
    return min([one for one in steps if 0 < one < math.inf], default=1 / math.sqrt(-slope))


def descend(
    method: Method,
    space: Space,
    limits: Limits,
    report: Callable[[AcceptedPoint], bool] = lambda progress: False,
    saved: Mapping[str, Any] | None = None,
) -> Result:
    """Minimize the loss; `report` is called with each accepted point, and stops the descent if it returns True.

    With the data that a descent in this space has `saved`, continue from its last accepted point.
    """
    before: tuple[float, float] | None
    if saved is None:
        loss, decrease, before = method.evaluate(space), math.inf, None
        progress = AcceptedPoint(iterations=0, evaluations=1, loss=loss, gradient=_accept(method, space))
        if not (math.isfinite(loss) and math.isfinite(progress.gradient)):
            at_start = f"the loss at the start is {loss:g}, the gradient there has up to {progress.gradient:g}"
            return Result(progress, at_start)
        _save(space, progress, decrease, before, method)
    else:
        progress, decrease = AcceptedPoint(**saved["progress"]), saved["decrease"]
        before = None if saved["before"] is None else tuple(saved["before"])
        space.run([Copy(VARIABLES, POINT), Copy(GRADIENT, POINT_GRADIENT), *method.measure()])
        method.restore(saved["method"], space)
    stopped = report(progress)
    while (end := _end(progress, limits, decrease, stopped)) is None:
        slope = _direct(method, space)
        found = _search(method, space, progress, slope, before, limits)
        evaluations = progress.evaluations + found.evaluations
        if found.problem:
            progress = replace(progress, evaluations=evaluations, step=0.0)
            space.run([Copy(VARIABLES, POINT), Copy(GRADIENT, POINT_GRADIENT)])
            if not method.forget() and evaluations < limits.evaluations:
                return Result(progress, f"the line search has failed: {found.problem}")
            before = None
            continue
        try:
            method.learn(space)
        except ArithmeticError:
            method.forget()
        decrease, before = progress.loss - found.value, (found.step, slope)
        progress = AcceptedPoint(
            iterations=progress.iterations + 1,
            evaluations=evaluations,
            loss=found.value,
            gradient=_accept(method, space),
            step=found.step,
        )
        _save(space, progress, decrease, before, method)
        stopped = report(progress)
    return end


def _direct(method: Method, space: Space) -> float:
    try:
        return method.direct(space)
    except ArithmeticError:
        return math.nan


def _accept(method: Method, space: Space) -> float:
    return space.accept(method.measure())[-1]


def _save(
    space: Space, progress: AcceptedPoint, decrease: float, before: tuple[float, float] | None, method: Method
) -> None:
    state = {"progress": asdict(progress), "decrease": decrease, "before": before, "method": method.state()}
    space.save(state)


def _search(
    method: Method,
    space: Space,
    progress: AcceptedPoint,
    slope: float,
    before: tuple[float, float] | None,
    limits: Limits,
) -> LineSearch:
    if not -math.inf < slope < 0:
        what = "the loss does not decrease along its direction"
        if not math.isfinite(slope):
            what = (
                f"the gradient has up to {progress.gradient:g}, and products of its elements are too large for float64"
            )
        return LineSearch(0.0, progress.loss, slope, 0, f"{what}: the slope is {slope or 0:g}")
    first = method.first_step(slope, before)
    if first is None or not 0 < first < math.inf:
        first = plain_step(space, progress.loss, slope)
    limit = min(SEARCH_LIMIT, limits.evaluations - progress.evaluations)
    return method.search(space, progress.loss, slope, first, limit, limits.rounding)


def _end(progress: AcceptedPoint, limits: Limits, decrease: float, stopped: bool) -> Result | None:
    """The result at this point; None: continue."""
    if progress.gradient <= limits.gradient:
        return Result(progress, f"no element of the gradient is above {limits.gradient:g}", converged=True)
    least = limits.least_decrease
    if least and decrease < least * max(abs(progress.loss), 1.0):
        how = f"decreased by {decrease:.3g}, which is less than {least:.3g} of it"
        rounded = f"increased by {-decrease:.3g}, which is rounding"
        above = f"; the gradient has up to {progress.gradient:.1g}, above {limits.gradient:g} (decrease=0 goes on)"
        reason = f"the loss {how if decrease >= 0 else rounded}{above if limits.gradient else ''}"
        return Result(progress, reason, converged=True)
    if stopped:
        return Result(progress, "it was stopped")
    if progress.evaluations >= limits.evaluations:
        return Result(progress, f"the limit of {limits.evaluations:,} evaluations is reached")
    if progress.iterations >= limits.iterations:
        return Result(progress, f"the limit of {limits.iterations:,} iterations is reached")
    return None
