"""The inline tensor transport: elements inside their message. May import transport, values, errors, v1."""

from __future__ import annotations

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors.transport import MAX_INLINE_MESSAGE, check_elements
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb


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
    """Reads elements from their message, without copying. Stateless: one instance serves all messages."""

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A read-only view of `tensor.inline`, which has exactly `spec.nbytes` bytes."""
        data = tensor.inline
        if not data and tensor.WhichOneof("place") != "inline":
            raise Malformed(f"variable {spec}: its elements are not in the message")
        if len(data) != spec.nbytes:
            raise Malformed(f"variable {spec}: {spec.nbytes} bytes expected, there are {len(data)}")
        array: Array = np.ndarray(spec.shape, DTYPES[spec.dtype], data)
        check_elements(array, spec)
        return array
