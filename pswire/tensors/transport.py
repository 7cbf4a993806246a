"""The interface of the tensor transports: elements travel inside their message, after it, or in shared memory.

The codec gives every array of a message to a `TensorSender`, and asks a `TensorReceiver` for every array that a message
describes. The codec checks names, shapes and dtypes; a tensor transport only moves bytes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pswire.errors import Malformed
from pswire.tensors.values import Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Bytes in a chunk.
CHUNK = 1 << 20

#: The largest total size of the tensors that travel inside one message: the rows of a large batch fit.
MAX_INLINE_MESSAGE = 2 << 20

#: A tensor of fewer bytes than this travels inside its message on a stream too: protobuf copies it in less time.
INLINE_BELOW = 1 << 10

#: Bytes that these tensors may have together in one message.
MAX_INLINED = 64 << 10


class TensorSender(Protocol):
    """Takes the arrays of one message, in their order."""

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Sets the place of the elements of `array` in `tensor`. Borrows the array until the message is sent.

        Raises:
            TooLarge: more than this tensor transport carries.
        """


class TensorReceiver(Protocol):
    """Gives the arrays of one message, in their order."""

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """The array of `tensor`, whose checked description is `spec`.

        With `own` no other process can write into it: for row numbers, which must stay as they were when checked.

        Raises:
            Malformed: the elements are not where this tensor transport has them, or not as many as `spec` needs.
        """


def check_elements(array: Array, spec: TensorSpec) -> None:
    """Checks that bools are valid: numpy accepts any byte as a bool, but then counts and indexes wrongly.

    Raises:
        Malformed: a bool is neither 0 nor 1.
    """
    if spec.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise Malformed(f"variable {spec}: a bool is sent as the byte 0 or 1, but other bytes were received")
