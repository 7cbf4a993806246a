"""Values of answers: copies of variables, slots or rows of them, in the encoding and memory asked for.

May import variables, tasks, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psserver.core.array_tasks import ArrayTask, StepResult
from psserver.core.variables.variable import Variable
from pswire.messages import Value
from pswire.messages.sizes import Allocator
from pswire.tensors.compression import BITS, Packed, narrow
from pswire.tensors.values import DTYPES, Array, TensorSpec


def copied(
    variable: Variable,
    spec: TensorSpec,
    result: StepResult,
    encoding: str = "",
    allocator: Allocator | None = None,
    rows: Array | None = None,
    slot: str = "",
) -> Value:
    """A read-only copy of a value, a slot, or rows of them; complete when the task that is added to `result` has run.

    Args:
        variable: is copied.
        spec: shape and dtype of the copy.
        result: gets the task.
        encoding: of `pswire.specs.encodings.ENCODINGS`, for what is float32; "": as it is.
        allocator: memory for the copy, if it has any left.
        rows: the rows to copy; None: all.
        slot: the slot to copy; "": the value.
    """
    if spec.dtype != "float32":
        encoding = ""
    layout = TensorSpec(spec.name, spec.shape, BITS.name) if encoding else spec
    out = None if allocator is None else allocator.take(layout)
    if out is None:
        out = np.empty(layout.shape, DTYPES[layout.dtype])
    copy = Copy(variable, slot, rows, encoding, out)
    cost = out.nbytes // 4  # beside a rule that processes as many bytes
    if rows is None:
        result.tasks.append(ArrayTask(spec.name, cost, copy.run, copy.part, out.size))
    else:
        result.tasks.append(ArrayTask(spec.name, cost, copy.run))
    view = out.view()
    view.flags.writeable = False
    return Value(spec.name, variable.version, Packed(encoding, spec.shape, (view,)) if encoding else view)


@dataclass(slots=True, eq=False)
class Copy:
    """A copy of a value, a slot or rows into `out`, whole with `run` or in stretches with `part`.

    `encoding` is that of `out`; "": that of the variable.
    """

    variable: Variable
    slot: str
    rows: Array | None
    encoding: str
    out: Array

    def run(self) -> None:
        """Copy all elements."""
        source = self.variable.slots[self.slot] if self.slot else self.variable.value
        if self.encoding:
            rows = source if self.rows is None else source.take(self.rows, axis=0, mode="clip")
            narrow(rows.reshape(-1), self.out.reshape(-1), self.encoding)
        elif self.rows is None:
            np.copyto(self.out, source)
        else:  # rows were checked before; "raise", the default mode, would make another copy
            np.take(source, self.rows, axis=0, out=self.out, mode="clip")

    def part(self, start: int, stop: int) -> None:
        """Copy the elements from `start` to `stop`, of a copy without rows."""
        source = self.variable.slots[self.slot] if self.slot else self.variable.value
        source, out = source.reshape(-1)[start:stop], self.out.reshape(-1)[start:stop]
        if self.encoding:
            narrow(source, out, self.encoding)
        else:
            np.copyto(out, source)
