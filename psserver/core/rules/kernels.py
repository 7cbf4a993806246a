"""What update rules share: the loop over a block of elements at a time, in place, and how rows are updated.

Knows no formula and no optimizer. May import numpy, the contract, the limits and `pswire`'s pure half.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.limits import Limits, within
from pswire.errors import InvalidMessage
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import Array, IndexedSlices

#: Elements in a block. What a rule works on should stay in the cache from one numpy call to the next; but at every call
#: threads that share an update hand the interpreter's lock to each other, so a call must be worth it: with 64 Ki
#: elements two threads need 3.9 ms for what takes one 5.6, with 256 Ki 3.1 ms.
BLOCK = 1 << 18

#: Elements of rows that are copied together, to be updated and put back.
ROWS_BLOCK = 1 << 16

_PAGE = 4096

#: Whether rules made from now on have a fused loop, if there is one and numba can be imported. It changes no bit of a
#: result, only speed.
USE_FUSED = True

#: A fused loop updates the rows `index` of the matrix w and of matrices like it, with row r of g for row index[r]:
#: (index, w, g, slots, numbers).
Loop: TypeAlias = Callable[[Array, Array, Array, tuple[Array, ...], tuple[float, ...]], None]

#: The dtypes that a rule can update, each with the dtype that it computes in and its slots have: in a float16 slot
#: the square of a small gradient would be zero.
COMPUTE_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(stored): np.dtype(computed)
    for stored, computed in (("float16", "float32"), ("float32", "float32"), ("float64", "float64"))
}

# "no_broadcast": an array of another shape is an error, not one more way to fill the blocks.
_Access = list[Literal["readonly", "readwrite", "no_broadcast"]]
_READ: _Access = ["readonly", "no_broadcast"]
_CHANGED: _Access = ["readwrite", "no_broadcast"]


def fused_loop(name: str) -> Loop | None:
    """The loop of this name in `fused`, compiled; None where numba is not installed or not wanted.

    The first time it takes seconds, for numba is imported and the loop compiled; any thread may call.
    """
    if not USE_FUSED:
        return None
    try:
        from psserver.core.rules import fused  # here, for numba takes a while to import and rules can do without
    except ImportError:
        return None
    return fused.compiled(name)


def check_dtype(value: Array) -> None:
    """Refuses a variable that cannot follow a gradient.

    Raises:
        InvalidMessage: its dtype is none of float16, float32 and float64.
    """
    if value.dtype not in COMPUTE_DTYPES:
        raise InvalidMessage(
            f"an optimizer can update a variable of {', '.join(dtype.name for dtype in COMPUTE_DTYPES)}, "
            f"not of {value.dtype.name}: register it with one of them, or without an optimizer"
        )


@np.errstate(all="ignore")
def slots_like(value: Array, first: Mapping[str, float]) -> dict[str, Array]:
    """New slots of the shape of `value` by name, each element as `first` says, in the dtype that the rule computes in.

    Each begins at a cache line, and a quarter of a page further into a page than the one before it. Where they lie by
    chance, half of the vectors cross a line: Adam in a fused loop takes 2.6 in place of 1.4 ms for 3.27 M float32; and
    1.7 where all lie alike in their pages, for then they share sets of the cache.

    Raises as `check_dtype` does.
    """
    check_dtype(value)
    dtype = COMPUTE_DTYPES[value.dtype]
    nbytes = value.size * dtype.itemsize
    slots = {}
    for place, (name, fill) in enumerate(first.items(), 1):
        room = np.zeros(nbytes + _PAGE, np.uint8)  # zeros: rows that are never touched take no memory
        start = (place * _PAGE // 4 - room.ctypes.data) % _PAGE
        slots[name] = room[start : start + nbytes].view(dtype).reshape(value.shape)
        if fill:
            slots[name].fill(fill)
    return slots


def positive(epsilon: float, value: Array) -> float:
    """`epsilon`, or if that rounds to zero where `value` is computed, the least normal number: 0 / 0 would be NaN."""
    return max(epsilon, float(np.finfo(COMPUTE_DTYPES[value.dtype]).tiny))


def all_within(value: Array, slots: dict[str, Array], squares: Collection[str], limits: Limits) -> bool:
    """Whether the value and the slots are within the limits, of which those named `squares` have a wider one."""
    return within(value, limits.state) and all(
        within(slot, limits.squares if name in squares else limits.state) for name, slot in slots.items()
    )


def blocks(value: Array, gradient: Array, *slots: Array) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
    """Walks through an update: yields flat blocks of (value, gradient, scratch, slots), all of one length.

    What is written into the blocks of value and slots is in the arrays once the loop has asked for the next one.
    The block of the gradient is for reading; the scratch holds whatever was there. float16 is handed out as
    float32, and rounded once a block. No array is ever copied as a whole, whatever its strides.

    Args:
        value: of float16, float32 or float64, any shape.
        gradient: of the same shape and dtype; may be read-only.
        slots: of the shape of `value`, as `slots_like` made them.
    """
    compute = COMPUTE_DTYPES[value.dtype]
    scratch = np.empty(min(value.size, BLOCK), compute)
    with np.nditer(
        (value, gradient, *slots),
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_CHANGED, _READ, *[_CHANGED] * len(slots)],
        op_dtypes=[compute] * (2 + len(slots)),
        casting="same_kind",
        order="C",
        buffersize=BLOCK,
    ) as walk:
        for w, g, *parts in walk:
            yield w, g, scratch[: g.size], parts


def check_bounds(value: Array, rows: IndexedSlices) -> None:
    """Refuses rows that are not of `value`, by the first and the last: `IndexedSlices` checks each, if it was told to.

    What comes after writes without looking, and outside of an array that is worse than any error.
    """
    if rows.dense_shape != value.shape:
        raise ValueError(f"rows of an array of shape {rows.dense_shape} cannot update one of {value.shape}")
    if len(rows.indices):
        first, last = int(rows.indices[0]), int(rows.indices[-1])
        if first < 0 or last >= len(value):
            raise IndexError(f"rows {first} to {last} of {len(value)}: indices must be checked before an update")


def row_parts(
    value: Array, slots: dict[str, Array], rows: IndexedSlices
) -> Iterator[tuple[Array, dict[str, Array], Array]]:
    """Walks through the rows of a gradient, a block or so at a time: yields (value, slots, gradient) of some rows.

    What is written into those of value and slots is in the arrays once the loop has asked for the next ones: rows that
    lie side by side are handed out where they are, others in a copy of them that stays in the cache.
    """
    check_bounds(value, rows)
    at_once = min(len(rows.indices), max(1, ROWS_BLOCK // max(1, math.prod(value.shape[1:]))))
    wholes = {"": value, **slots}
    copies: dict[str, Array] = {}
    for start in range(0, len(rows.indices), max(1, at_once)):
        index = rows.indices[start : start + at_once].astype(np.intp)
        side_by_side = index[-1] - index[0] == len(index) - 1
        if side_by_side:
            parts = {name: whole[index[0] : index[-1] + 1] for name, whole in wholes.items()}
        else:
            if not copies:
                copies = {name: np.empty((at_once, *whole.shape[1:]), whole.dtype) for name, whole in wholes.items()}
            parts = {name: copy[: len(index)] for name, copy in copies.items()}
            for name, whole in wholes.items():
                whole.take(index, axis=0, out=parts[name], mode="clip")  # "raise", the default, takes another copy
        part = parts.pop("")
        yield part, parts, rows.values[start : start + at_once]
        if not side_by_side:
            value[index] = part
            for name, slot in slots.items():
                slot[index] = parts[name]


class ElementWise(ABC):
    """What every rule shares in which an element of value and slots depends on nothing but itself.

    Such a rule writes down its update in numpy, for a block of elements (`block`). A hot one has it once more, with the
    same operations in the same order, as a fused loop (`psserver.core.rules.fused`), whose bits are the same.

    Attributes:
        loop_name: that of its fused loop, None if it has none.
        squares: names of slots that sum squares.
    """

    squares: ClassVar[Collection[str]] = ()

    def __init__(self, spec: UpdateSpec, *, loop: str | None = None, first: Mapping[str, float] | None = None) -> None:
        """A rule for `spec`, with the name of its fused loop, and the first value of each slot that is not zero."""
        self._names = spec.slot_names()
        self._first = dict.fromkeys(self._names, 0.0) | dict(first or {})
        self.loop_name = loop if USE_FUSED else None

    @functools.cached_property
    def loop(self) -> Loop | None:
        """The fused loop, compiled when it is first asked for; None if there is none."""
        return None if self.loop_name is None else fused_loop(self.loop_name)

    def slots(self, value: Array) -> dict[str, Array]:
        """The slots that the spec names; raises `InvalidMessage` when the variable's dtype is not floating."""
        return slots_like(value, self._first)

    @abstractmethod
    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """What `block` takes at this step: hyperparameters, and what follows from them for all elements alike."""

    @abstractmethod
    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Updates a flat block of the value and its slots (in the order of the spec's names), as `blocks` yields it."""

    @abstractmethod
    def growth(self, rate: float, limits: Limits) -> float:
        """As in `Rule`."""

    def settled(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """As in `Rule`."""
        return all_within(value, slots, self.squares, limits)

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """As in `Rule`."""
        parts = [slots[name] for name in self._names]
        if self.loop is not None and gradient.shape == value.shape and _fits_a_loop(value, parts, gradient):
            whole = (1, value.size)
            self.loop(
                _FIRST_ROW,
                value.reshape(whole),
                gradient.reshape(whole),
                tuple([slot.reshape(whole) for slot in parts]),
                self.numbers(step, value),
            )
            return
        with np.errstate(all="ignore"):
            numbers = self.numbers(step, value)
            for w, g, scratch, flat in blocks(value, gradient, *parts):
                self.block(w, g, scratch, flat, *numbers)

    @np.errstate(all="ignore")
    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As in `Rule`: updates the rows as `dense` would if there were no others."""
        parts = [slots[name] for name in self._names]
        if self.loop is not None and len(rows.indices) and _fits_a_loop(value, parts, rows.values):
            check_bounds(value, rows)
            width = math.prod(value.shape[1:])
            self.loop(
                rows.indices.astype(np.intp, copy=False),
                value.reshape(len(value), width),
                rows.values.reshape(len(rows.values), width),
                tuple(slot.reshape(len(value), width) for slot in parts),
                self.numbers(step, value),
            )
            return
        for part, part_slots, gradient in row_parts(value, slots, rows):
            self.dense(part, part_slots, gradient, step)


_FIRST_ROW = np.zeros(1, np.intp)


def _fits_a_loop(value: Array, slots: Sequence[Array], gradient: Array) -> bool:
    """Whether fused loops know arrays of this kind: float32 or float64 throughout, rows one after the other."""
    dtype = value.dtype
    if dtype.char not in "fd":
        return False
    for array in (value, gradient, *slots):
        flags = array.flags
        if array.dtype != dtype or not flags.c_contiguous or not flags.aligned:
            return False
    return True
