"""How the elements of tensors travel: inside of the message that describes them, or in chunks that follow it.

A lane is a `Sender`, to whom the codec gives every array of a message, and a `Receiver`, whom it asks for every
array that a message describes. The codec checks names, shapes and dtypes; a lane knows nothing but bytes.
May import values, errors and the generated code.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pswire.errors import Malformed
from pswire.tensors.values import Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Bytes in a chunk.
CHUNK = 1 << 20

#: The most that the tensors of a message may have together to travel inside of it: the rows of a large batch fit.
INLINE = 2 << 20


#: A tensor of fewer bytes than this travels inside of its message in frames too: to put its elements behind the message
#: by hand would take longer than protobuf takes to copy them.
FEW = 1 << 10

#: Bytes that all these tensors of a message may have together.
MOST_OF_FEW = 64 << 10


class Sender(Protocol):
    """Takes the arrays of one message, in their order."""

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Sets the place of the elements of `array` in `tensor`. Borrows the array until the message is sent.

        Raises:
            TooLarge: the lane does not carry so much.
        """


class Receiver(Protocol):
    """Gives the arrays of one message, in their order."""

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """The array that `spec` describes, which is what `tensor` says of itself, checked.

        With `own` nobody else can write into it: for numbers of rows, which must stay what they were when checked.

        Raises:
            Malformed: the elements are not where this lane has them, or not as many as `spec` says.
        """


def check_elements(array: Array, spec: TensorSpec) -> None:
    """Refuses what numpy would not survive: it takes any byte for a bool, but counts and indexes wrongly with it.

    Raises:
        Malformed: a bool is neither 0 nor 1.
    """
    if spec.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise Malformed(f"variable {spec}: a bool travels as the byte 0 or 1, and there are others")
