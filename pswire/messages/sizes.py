"""Sizes of the arrays of a message and of its answer, in bytes. Pure: numpy and messages alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pswire.messages import (
    Answer,
    Assign,
    Choice,
    Message,
    Pull,
    Pulled,
    Push,
    Pushed,
    Register,
    Registered,
    Request,
)
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, TensorSpec


class Allocator(Protocol):
    """Memory that belongs to one call, for the values of its answer."""

    def take(self, spec: TensorSpec) -> Array | None:
        """An array of this shape and dtype, writable, C-contiguous, uninitialized; None: none is left, make one.

        Called once for each value of the answer, in order. The array is written before the answer is returned.
        """


def tensor_bytes(message: Message | Answer) -> int:
    """Bytes of the elements of all arrays in a message."""
    if type(message) not in _TENSORS:
        return 0
    entries, field = _TENSORS[type(message)]
    total = 0
    for entry in getattr(message, entries):
        tensor = getattr(entry, field)
        if tensor is not None:
            total += tensor.nbytes
    return total


#: The fields of the entries of each class of messages that are arrays or None; other classes have none.
_TENSORS: dict[type, tuple[str, str]] = {
    Push: ("gradients", "array"),
    Registered: ("values", "array"),
    Pulled: ("values", "array"),
    Pushed: ("values", "array"),
    Pull: ("choices", "rows"),
    Register: ("declarations", "value"),
    Assign: ("assignments", "array"),
}


def arrays(message: Message | Answer) -> list[Array]:
    """The arrays of a message as they travel, in their order."""
    plain: list[Array] = []
    if type(message) not in _TENSORS:
        return plain
    entries, field = _TENSORS[type(message)]
    for entry in getattr(message, entries):
        array = getattr(entry, field)
        if isinstance(array, IndexedSlices):
            plain += _parts(array.values)
            plain.append(array.indices)
        elif array is not None:
            plain += _parts(array)
    return plain


def _parts(array: Array | Packed) -> Sequence[Array]:
    return array.parts if isinstance(array, Packed) else [array]


def most_answer_sizes(message: Request, spec_of: Callable[[str], TensorSpec]) -> list[int]:
    """The largest size of each value in the answer to `message`, in bytes, as far as a worker can know.

    `spec_of` returns the spec of a variable on the shard.
    """
    match message:
        case Push():
            return [whole_bytes(spec_of(name), message.encoding) for name in message.pull]
        case Pull():
            whole = [whole_bytes(spec_of(name), message.encoding) for name in message.names]
            return whole + [_most_chosen(choice, spec_of(choice.name)) for choice in message.choices]
        case Register():
            return [one.spec.nbytes for one in message.declarations if one.initial is None]
        case _:
            return []


def whole_bytes(spec: TensorSpec, encoding: str) -> int:
    """Bytes of a whole value, with the 16-bit `encoding` if it is float32; "": without."""
    return spec.nbytes // 2 if encoding and spec.dtype == "float32" else spec.nbytes


def _most_chosen(choice: Choice, spec: TensorSpec) -> int:
    itemsize = DTYPES[spec.dtype].itemsize
    if choice.slot:
        itemsize = max(itemsize, 8)  # the widest that a slot can be
    rows = spec.shape[0] if choice.rows is None and spec.shape else 1 if choice.rows is None else len(choice.rows)
    width = spec.size // max(1, spec.shape[0]) if spec.shape else 1
    return rows * width * itemsize
