"""Reuse of a streamed message's arrays for the values of its answer.

A push of large gradients over gRPC and its answer then take one buffer on the server instead of two. May import
`pswire`'s pure half.
"""

from __future__ import annotations

import numpy as np

from pswire.messages import Push, Register, Request
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, TensorSpec


class ReusedArrays:
    """A `pswire.messages.Allocator` of a message's own arrays, each for a value of its variable.

    Only arrays that are read before the answer is written, element by element at the same places, are reused:

    - A gradient is read by the update of its variable, also when that is the mean of several held pushes. A copy of the
      variable for any of their answers has the version after it and comes later: array tasks of one variable run in
      order. Tasks of other variables may run at the same time, so they never get this memory.
    - Tasks run in stretches. One that has read a stretch of a gradient may find the other stretches overwritten, which
      is right for whole arrays and 16-bit encodings, but not for compressions that contain indices of elements.
    - An initial value is read when its variable is made, before it is copied.

    Args:
        message: its arrays belong to the server, and are used for nothing else from now on.
    """

    def __init__(self, message: Request) -> None:
        self._arrays: dict[str, Array] = {}
        if isinstance(message, Push):
            for gradient in message.gradients:
                array = gradient.array
                if isinstance(array, Packed) and array.form in ENCODINGS:
                    self._arrays[gradient.name] = array.parts[0]
                elif isinstance(array, np.ndarray):
                    self._arrays[gradient.name] = array
        elif isinstance(message, Register):
            self._arrays = {one.spec.name: one.value for one in message.declarations if one.value is not None}

    def take(self, spec: TensorSpec) -> Array | None:
        """The array that was received for this variable, if it has this shape and dtype and is writable."""
        array = self._arrays.get(spec.name)
        if array is None or array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
            return None
        if not (array.flags.writeable and array.flags.c_contiguous):
            return None
        return self._arrays.pop(spec.name)
