"""Update rules element by element: blocks of elements, blocks of rows, and the choice between numpy and machine code.

Contains no formulas and no optimizers.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from pswire.optimizers import numba_compiler
from pswire.optimizers.numba_compiler import Loop, LoopFunction
from pswire.optimizers.optimizer import COMPUTE_DTYPES, Rule, Step, UpdateSpec
from pswire.tensors.values import Array, IndexedSlices

#: Elements in a block. What a rule works on should stay in the cache from one numpy call to the next; but at every call
#: threads that share an update hand the interpreter's lock to each other, so a call must do enough work: an update that
#: takes one thread 5.6 ms takes two threads 3.9 ms with 64 Ki elements and 3.1 ms with 256 Ki.
BLOCK = 1 << 18

#: Elements of rows that are copied together, to be updated and put back.
ROWS_BLOCK = 1 << 16

#: The least normal number of the dtype that a rule computes in: an epsilon that rounds to zero would make 0 / 0 NaN.
TINY = {stored: float(np.finfo(computed).tiny) for stored, computed in COMPUTE_DTYPES.items()}

# "no_broadcast": an array with a different shape is an error and is not broadcast.
_Access: TypeAlias = list[Literal["readonly", "readwrite", "no_broadcast"]]
_READ: _Access = ["readonly", "no_broadcast"]
_CHANGED: _Access = ["readwrite", "no_broadcast"]

_FIRST_ROW = np.zeros(1, np.intp)


def blocks(value: Array, gradient: Array, slots: Sequence[Array]) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
    """Iterates over flat blocks of (value, gradient, scratch, slots), all of one length; arguments as in `Rule.dense`.

    Changes of value and slots are in the arrays once the next block is asked for. The gradient is read-only, the
    scratch has arbitrary content. float16 comes as float32, and is rounded once a block; no array is copied as a whole.
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
    """Refuses rows that are not of `value`, by the first and the last: `IndexedSlices` can check each.

    Compiled code does not check bounds, and a write outside the array corrupts memory.
    """
    if rows.dense_shape != value.shape:
        raise ValueError(f"rows of an array of shape {rows.dense_shape} cannot update one of {value.shape}")
    if len(rows.indices):
        first, last = int(rows.indices[0]), int(rows.indices[-1])
        if first < 0 or last >= len(value):
            raise IndexError(f"rows {first} to {last} of {len(value)}: indices must be checked before an update")


def row_blocks(
    value: Array, slots: dict[str, Array], rows: IndexedSlices
) -> Iterator[tuple[Array, dict[str, Array], Array]]:
    """Iterates over the rows of a gradient, about a block at a time: (value, slots, gradient) of some rows.

    Changes of value and slots are in the arrays once the next rows are asked for: adjacent rows are views, others a
    copy that stays in the cache. `check_bounds` comes before.
    """
    at_once = max(1, min(len(rows.indices), ROWS_BLOCK // max(1, math.prod(value.shape[1:]))))
    arrays = [value, *slots.values()]
    copies: list[Array] = []
    for start in range(0, len(rows.indices), at_once):
        index = rows.indices[start : start + at_once].astype(np.intp)
        adjacent = index[-1] - index[0] == len(index) - 1
        if adjacent:
            parts = [array[index[0] : index[-1] + 1] for array in arrays]
        else:
            copies = copies or [np.empty((at_once, *array.shape[1:]), array.dtype) for array in arrays]
            parts = [copy[: len(index)] for copy in copies]
            for array, part in zip(arrays, parts, strict=True):
                array.take(index, axis=0, out=part, mode="clip")  # "raise", the default, takes another copy
        yield parts[0], dict(zip(slots, parts[1:], strict=True)), rows.values[start : start + at_once]
        if not adjacent:
            for array, part in zip(arrays, parts, strict=True):
                array[index] = part


class ElementWiseRule(Rule):
    """Update rule of `ElementWise` hyperparameters."""

    spec: "ElementWise"
    element_wise: ClassVar[bool] = True

    def __init__(self, spec: "ElementWise") -> None:
        super().__init__(spec)
        self.loop = spec._loop() if numba_compiler.USE_NUMBA else None

    @functools.cached_property
    def _code(self) -> LoopFunction | None:
        """The loop's machine code, compiled at first use; None if there is none."""
        return None if self.loop is None else numba_compiler.machine_code(self.loop)

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """As in `Rule`."""
        parts = tuple(map(slots.__getitem__, self._names))
        if gradient.shape == value.shape and self._run_code(_FIRST_ROW, value.size, (value, gradient, *parts), step):
            return
        with np.errstate(all="ignore"):
            numbers = self.spec._numbers(step, TINY[value.dtype])
            for w, g, scratch, flat in blocks(value, gradient, parts):
                self.spec._block(w, g, scratch, flat, *numbers)

    @np.errstate(all="ignore")
    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As in `Rule`."""
        check_bounds(value, rows)
        arrays = value, rows.values, *map(slots.__getitem__, self._names)
        if self._run_code(rows.indices.astype(np.intp, copy=False), math.prod(value.shape[1:]), arrays, step):
            return
        for part, part_slots, gradient in row_blocks(value, slots, rows):
            self.dense(part, part_slots, gradient, step)

    def _run_code(self, index: Array, width: int, arrays: Sequence[Array], step: Step) -> bool:
        """Updates rows of this width by machine code; False, without a change, if there is none for these arrays.

        It takes float32 or float64 throughout, rows one after the other, and no empty value.
        """
        dtype = arrays[0].dtype
        if self._code is None or dtype.char not in "fd" or not width:
            return False
        matrices = []
        for array in arrays:
            flags = array.flags
            if array.dtype != dtype or not flags.c_contiguous or not flags.aligned:
                return False
            matrices.append(array.reshape(-1, width))
        w, g, *slots = matrices
        self._code(index, w, g, tuple(slots), self.spec._numbers(step, TINY[dtype]))
        return True


class ElementWise(UpdateSpec):
    """Hyperparameters of a rule in which each element of value and slots is updated independently of the others.

    A subclass implements the update in numpy, for a block of elements (`_block`), and, if it is performance-critical,
    also as a loop to be compiled (`pswire.optimizers.numba_compiler`), with the same operations in the same order and
    bit-identical results.
    """

    _rule = ElementWiseRule

    def _loop(self) -> Loop | None:
        """The compiled loop, if there is one."""
        return None

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        """The arguments of `_block` at this step: hyperparameters, and values derived from them for all elements.

        `tiny` is the smallest normal number of the dtype of the computation.
        """
        raise NotImplementedError

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Updates a flat block of the value and its slots (in the order of their names), as `blocks` yields it."""
        raise NotImplementedError
