"""The memory of a message that is of no more use: its answer's values are put where its own arrays were.

For messages that were received into memory of the server's own: so a push of large gradients and its answer take one
buffer, and not two. May import `pswire`'s pure half.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pswire.messages import Push, Register, Request
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, TensorSpec


class Spent:
    """A `pswire.messages.sizes.Allocator`: hands out each array of a message at most once, for a value of the same
    variable.

    Only what is read before the answer is written, and element by element at the same places, may be written over:

    - A gradient is read by the update of its variable, also when that is the mean of several pushes that were held; a
      copy of the variable for any of their answers comes after it, for it has the version of it, and the tasks of one
      variable are done in their order. Those of other variables may be done at the same time, so none of them gets it.
    - Stretch by stretch, a task that has read a stretch of a gradient may find the others still as they are: so it does
      for arrays and 16-bit forms, whose elements lie where the variable's do, but not for forms of which some elements
      say where the others belong.
    - An initial value is read when its variable is made, and that comes before it is copied.

    Args:
        message: nobody else may use its arrays from now on, nor hold the same memory by another name.
    """

    def __init__(self, message: Request) -> None:
        self._arrays = dict(_of_use(message))

    def take(self, spec: TensorSpec) -> Array | None:
        """The array that came for the variable of this name, if it has this shape and dtype and can be written."""
        array = self._arrays.get(spec.name)
        if array is None or array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
            return None
        if not (array.flags.writeable and array.flags.c_contiguous):
            return None
        return self._arrays.pop(spec.name)


def _of_use(message: Request) -> Iterator[tuple[str, Array]]:
    match message:
        case Push():
            for gradient in message.gradients:
                match gradient.array:
                    case Packed() as packed if packed.form in ENCODINGS:
                        yield gradient.name, packed.parts[0]
                    case np.ndarray():
                        yield gradient.name, gradient.array
        case Register():
            for declaration in message.declarations:
                if declaration.value is not None:
                    yield declaration.spec.name, declaration.value
