"""The values of an answer: copies of variables and slots, or of rows of them, in the form and the memory asked for.

What an answer brings, and when, is the affair of others. May import variables, tasks, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psserver.core.array_tasks import ArrayTask
from psserver.core.variables.variable import Variable
from pswire.messages import Value
from pswire.messages.sizes import Allocator
from pswire.tensors.compression import BITS, Packed, narrow
from pswire.tensors.values import DTYPES, Array, TensorSpec


def copied(
    variable: Variable,
    spec: TensorSpec,
    tasks: list[ArrayTask],
    *,
    slot: str = "",
    rows: Array | None = None,
    encoding: str = "",
    allocator: Allocator | None = None,
) -> Value:
    """A copy of the value, a slot, or rows of them, read-only; it is there when the task that is appended is done.

    Args:
        variable: what is copied.
        spec: shape and dtype of the copy.
        tasks: gets what is to be done.
        slot: copies this slot, and not the value.
        rows: copies these, and not all.
        encoding: a form of `pswire.specs.encodings.ENCODINGS` for what is float32; "": as it is.
        allocator: memory for the copy, if it has any left.
    """
    form = encoding if encoding and spec.dtype == "float32" else ""
    laid_out = TensorSpec(spec.name, spec.shape, BITS.name) if form else spec
    out = None if allocator is None else allocator.take(laid_out)
    if out is None:
        out = np.empty(laid_out.shape, DTYPES[laid_out.dtype])
    copy = Copy(variable, slot, rows, form, out)
    effort = out.nbytes // 4  # of a rule's that goes through as much
    if rows is None:
        tasks.append(ArrayTask(spec.name, effort, copy.run, copy.part, out.size))
    else:
        tasks.append(ArrayTask(spec.name, effort, copy.run))
    lent = out.view()
    lent.flags.writeable = False
    return Value(spec.name, variable.version, Packed(form, spec.shape, (lent,)) if form else lent)


@dataclass(slots=True, eq=False)
class Copy:
    """A copy that is to be taken into `out`, whole with `run` or stretch by stretch with `part`.

    `form` is that of `out`; "": as the variable is.
    """

    variable: Variable
    slot: str
    rows: Array | None
    form: str
    out: Array

    def run(self) -> None:
        """Takes all of it."""
        source = self._source()
        if self.rows is None:
            self._put(source, self.out)
        elif self.form:
            self._put(source.take(self.rows, axis=0, mode="clip"), self.out)
        else:  # rows were checked before; "raise", the default, would take a copy of `out`
            np.take(source, self.rows, axis=0, out=self.out, mode="clip")

    def part(self, start: int, stop: int) -> None:
        """Takes the elements from `start` to `stop`, if it is not one of rows."""
        self._put(self._source().reshape(-1)[start:stop], self.out.reshape(-1)[start:stop])

    def _source(self) -> Array:
        return self.variable.slots[self.slot] if self.slot else self.variable.value

    def _put(self, source: Array, out: Array) -> None:
        if self.form:
            narrow(source.reshape(-1), out.reshape(-1), self.form)
        else:
            np.copyto(out, source)
