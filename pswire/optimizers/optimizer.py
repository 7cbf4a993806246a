"""The interface of optimizers: hyperparameters, which programs choose and send, and their update rules.

To add an optimizer, follow the table in CONTRIBUTING.md. Rules are used by the server, in embedded mode, and by a
worker's local steps.

An update runs after its step has decided on it, so a result that is not finite would be found too late to refuse the
push. Therefore one bound for all rules says how far an ordinary update, one within `LIMITS`, can bring a variable
(`ordinary_growth`); any other update is computed in the step, on copies (`psserver.core.variables.array_tasks`).
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import numpy as np

from pswire.errors import InvalidMessage, NotFinite
from pswire.optimizers.numba_compiler import Loop
from pswire.specs.schedules import LearningRate, Schedule, largest_rate
from pswire.specs.spec import Share, Spec
from pswire.tensors.values import Array, IndexedSlices, magnitude, not_finite

#: The dtypes that a rule can update, each with the dtype that it computes in and its slots have: in a float16 slot
#: the square of a small gradient would be zero.
COMPUTE_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(dtype): np.dtype("float64" if dtype == "float64" else "float32")
    for dtype in ("float16", "float32", "float64")
}

_PAGE = 4096


@dataclass(frozen=True)
class UpdateSpec(Spec, family="optimizer"):
    """Hyperparameters of an update rule.

    `pushed_noun` names what workers push, in messages. A slot is an array of the variable's shape beside it, of the
    variable's dtype, or float32 for float16; those of `_squares` sum squares. A field `initial_NAME` is the first value
    of the slot NAME; others start at zero. `_rule` is the class of the rule; most are `ElementWise`.
    """

    nested: ClassVar[type[Spec]] = Schedule
    pushed_noun: ClassVar[str] = "observation"
    _slots: ClassVar[tuple[str, ...]] = ()
    _squares: ClassVar[tuple[str, ...]] = ()
    _rule: ClassVar[type["Rule"] | None] = None
    _is_bounded: ClassVar[bool] = True  # whether `ordinary_growth` holds for its rule

    def slot_names(self) -> tuple[str, ...]:
        """The names of a variable's slots, in order."""
        return self._slots


@dataclass(frozen=True)
class OptimizerSpec(UpdateSpec):
    """Hyperparameters of an optimizer: a worker pushes a gradient g, and the variable w moves against it.

    `learning_rate` is a number, or a schedule (`pswire.specs.schedules`) of the server's global step.
    """

    pushed_noun: ClassVar[str] = "gradient"
    learning_rate: LearningRate


@dataclass(frozen=True, slots=True)
class Limits:
    """Magnitudes of ordinary updates for a dtype.

    No element of a variable within them exceeds `maximum` by ordinary updates whose growths add up to less than 1. That
    is far enough below the dtype's largest number for what rounding adds, and for sums of a few such elements.
    """

    gradient: float  # of an ordinary update, after compensation for delay, which may add half of it
    state: float  # of the elements of a variable and its slots; not below `gradient`
    squares: float  # of the elements of a slot that sums squares; not below the square of `gradient`
    maximum: float
    tiny: float  # the least normal number


#: By dtype. float16 has none: its range is too small, so all its updates are checked.
LIMITS = {
    "float32": Limits(1e10, 1e16, 1e30, 1e37, float(np.finfo(np.float32).tiny)),
    "float64": Limits(1e80, 1e120, 1e240, 1e306, float(np.finfo(np.float64).tiny)),
}

#: The largest growth of an ordinary update. A variable is checked from a sum of 1/2 on; a step may make as many updates
#: of it before that is seen as there are workers with a push that is held.
MAX_ORDINARY_GROWTH, CHECKED_FROM = 1e-3, 0.5

#: The largest share that may remain at an ordinary update: a larger one could round to 1 in float32.
MAX_SHARE = 1 - 1e-6


def within(array: Array, limit: float) -> bool:
    """True if no element has a larger magnitude; False if one is NaN."""
    return magnitude(array) <= limit or bool(array.max() <= limit and array.min() >= -limit)


def check_result(name: str, value: Array, slots: Mapping[str, Array]) -> None:
    """Raises `NotFinite` if an update of the variable `name` has a result with an element that is not finite."""
    for slot, array in (("", value), *slots.items()):
        if bad := not_finite(array):
            where = f"{bad:,} of {array.size:,} elements" + (f" of its slot {slot!r}" if slot else "")
            raise NotFinite(
                f"the update of {name!r} would make NaN or infinity of {where}: nothing was changed; "
                "lower the learning rate, or clip gradients"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """When an update takes place."""

    number: int  # of this update of this variable, from 1, whichever rows the updates before have touched
    global_step: int  # updates that the shard has made before this one, of any variables
    learning_rate: float


class Rule(ABC):
    """The arithmetic of an update for given hyperparameters. Stateless: its state is in the slots.

    The same calls give bit-identical arrays. Arithmetic never raises: overflow silently becomes infinity, and
    `ordinary_growth` tells when it is impossible.
    """

    spec: UpdateSpec
    loop: Loop | None = None  # compiled and used where numba is installed
    element_wise: ClassVar[bool] = False  # no element of value and slots depends on another: an update can be divided

    def __init__(self, spec: UpdateSpec) -> None:
        self.spec = spec
        self._names = spec.slot_names()

    @np.errstate(all="ignore")
    def slots(self, value: Array) -> dict[str, Array]:
        """New slots for a variable, by name; `InvalidMessage` unless its dtype is float16, float32 or float64.

        Each begins at a cache line, and a quarter of a page further into a page than the one before it. Without
        alignment, half of the vectors cross a cache line: compiled Adam takes 2.6 ms instead of 1.4 for 3.27 M float32.
        With the same offset within a page it takes 1.7 ms, because the arrays share cache sets.
        """
        if value.dtype not in COMPUTE_DTYPES:
            raise InvalidMessage(
                f"an optimizer can update a variable of {', '.join(dtype.name for dtype in COMPUTE_DTYPES)}, "
                f"not of {value.dtype.name}: register it with one of them, or without an optimizer"
            )
        dtype = COMPUTE_DTYPES[value.dtype]
        nbytes = value.size * dtype.itemsize
        slots = {}
        for place, name in enumerate(self._names, 1):
            memory = np.zeros(nbytes + _PAGE, np.uint8)  # zeros: rows that are never touched take no memory
            start = (place * _PAGE // 4 - memory.ctypes.data) % _PAGE
            slots[name] = memory[start : start + nbytes].view(dtype).reshape(value.shape)
            first = getattr(self.spec, f"initial_{name}", 0.0)
            if first:
                slots[name].fill(first)
        return slots

    @abstractmethod
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """Applies a gradient to `value`, which is C-contiguous, and its slots, in place.

        The gradient has the shape and dtype of `value` and any strides. It is borrowed: never written, never kept.
        """

    @abstractmethod
    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As `dense` for some rows of a gradient; lazy: other rows stay as they are, in the slots too.

        `value` is of rank 1 at least; the indices of `rows` are of any integer dtype, each once, rising and within
        `value`, its values of the dtype of `value`. Borrowed.
        """

    def within_limits(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """True if all elements of these arrays (which may be some rows) are within the limits."""
        return within(value, limits.state) and all(
            within(slot, limits.squares if name in self.spec._squares else limits.state) for name, slot in slots.items()
        )


def rule_for(spec: UpdateSpec) -> Rule:
    """The update rule for these hyperparameters; a subclass has that of its kind. `InvalidMessage` if there is none."""
    if spec._rule is None:
        raise InvalidMessage(
            f"no update rule for optimizer {spec.kind!r}; known kinds: {', '.join(sorted(spec.kinds))}. For the class "
            "of a custom optimizer give its file to each server, and to commands that read its checkpoints: "
            "--optimizers FILE; in one process import it"
        )
    return spec._rule(spec)


def ordinary_growth(spec: UpdateSpec, limits: Limits | None) -> float:
    """An upper bound of the growth of one ordinary update, by the rule of a `spec`, at any step; infinite: no bound.

    Growth is the share of the way from `limits.state` to `limits.maximum` that an update covers. If a settled variable
    has had only ordinary updates since, and their growths add up to less than 1, no element of value and slots and no
    intermediate result is infinite or NaN. For in every rule an update changes an element of the value by

        w <- c * w - rate * d            |c| <= 1 while rate * weight_decay <= 2

    where d is a gradient, or a slot that sums or averages such and of which a share s remains at each update, so it is
    at most state + gradient / (1 - s); several shares multiply, as in Adam's correction of m and v. It may be divided
    by the root of squares, and epsilon. With 2 * gradient <= state that gives

        |d| <= 2 * state / (product of 1 - s) / min(epsilon, 1)

    `reach` bounds two other lengths of d. Lamb's is the norm of the weights while the square of no weight overflows:
    at most 1e6 * sqrt(maximum) for 2^34 weights. An epsilon of 0 is allowed where the squares include the gradient's,
    so d is at most 1; 2 / sqrt(tiny) where that underflows.

    A sum of squares grows by gradient^2, and stays below 2 * squares. Ftrl, with p for its `learning_rate_power`, has
    |w| <= y and |z| <= y * n^p for a y that grows by rate * |g| / n^p, at most by the rate or rate * |g| if p <= 1/2,
    because n includes g^2. So y may go as far as y * (2 * squares)^p stays below `maximum`.
    """
    rate = largest_rate(spec.learning_rate) if isinstance(spec, OptimizerSpec) else 1.0
    hyperparameters = vars(spec)
    first = max([number for name, number in hyperparameters.items() if name.startswith("initial_")], default=0.0)
    decay, power = hyperparameters.get("weight_decay", 0.0), hyperparameters.get("learning_rate_power", 0.0)
    shares = [hyperparameters[name] for name in _shares(type(spec))]  # type: ignore[arg-type]  # a class is hashable
    grows = decay > 10 or rate * decay > 2 or max(shares, default=0.0) > MAX_SHARE
    if limits is None or not spec._is_bounded or first > limits.squares or power > 0.5 or grows:
        return math.inf
    divisor = max(min(hyperparameters.get("epsilon") or 1.0, 1.0), limits.tiny)
    direction = 2 * limits.state / divisor / math.prod([1 - share for share in shares])
    reach = 1e6 * math.sqrt(limits.maximum)
    if direction > limits.maximum:
        return math.inf
    step = direction * (2 * limits.squares) ** power + reach
    growth = limits.gradient**2 / limits.squares + rate * step / limits.maximum
    return growth if growth <= MAX_ORDINARY_GROWTH else math.inf  # not if it is NaN


@functools.cache
def _shares(cls: type[UpdateSpec]) -> tuple[str, ...]:
    """The fields that say which share of something remains at each update."""
    return tuple([name for name, hint in get_type_hints(cls, include_extras=True).items() if hint == Share])
