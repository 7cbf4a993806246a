"""The interface of the tensor transports (inline, stream, shared memory), and the inline one.

The codec gives every array of a message to a `TensorSender`, and asks a `TensorReceiver` for every array that a message
describes. The codec checks names, shapes and dtypes; a tensor transport only moves bytes.
"""

from typing import Protocol

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Bytes in a chunk of a stream.
CHUNK = 1 << 20

#: The largest total size of the tensors that travel inside one message: the rows of a large batch fit.
MAX_INLINE_MESSAGE = 2 << 20


class TensorSender(Protocol):
    """Takes the arrays of one message, in their order."""

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Sets the place of the elements of `array`, borrowed until the message is sent, or raises `TooLarge`."""


class TensorReceiver(Protocol):
    """Gives the arrays of one message, in their order."""

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """The array of `tensor`, whose checked description is `spec`, or `Malformed`.

        With `own` no other process can write into it: for row numbers, which must stay as they were when checked.
        """


def check_elements(array: Array, spec: TensorSpec) -> None:
    """Raises `Malformed` for a bool that is neither 0 nor 1, with which numpy would count and index wrongly."""
    if spec.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise Malformed(f"variable {spec}: a bool is sent as the byte 0 or 1, but other bytes were received")


class InlineSender:
    """Copies the elements of one message's tensors into it, `MAX_INLINE_MESSAGE` bytes at most."""

    def __init__(self) -> None:
        self._used = 0

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Copies the elements into `tensor.inline`; `tensor.dtype` is already set."""
        self._used += array.nbytes
        if self._used > MAX_INLINE_MESSAGE:
            raise TooLarge(
                f"a single message carries {MAX_INLINE_MESSAGE} bytes of tensors, and with {tensor.name!r} there are "
                f"{self._used}: send it by Transfer"
            )
        tensor.inline = array.astype(DTYPES[tensor.dtype], copy=False).tobytes()


class InlineReceiver:
    """Reads elements from their message, without copying."""

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A read-only view of `tensor.inline`, which has exactly `spec.nbytes` bytes."""
        data = tensor.inline
        if not data and tensor.WhichOneof("place") != "inline":
            raise Malformed(f"variable {spec}: its elements are not in the message")
        if len(data) != spec.nbytes:
            raise Malformed(f"variable {spec}: {spec.nbytes} bytes expected, there are {len(data)}")
        array: Array = np.ndarray(spec.shape, DTYPES[spec.dtype], data)
        if spec.dtype == "bool":
            check_elements(array, spec)
        return array
