"""Sizes of the arrays of a message and of its answer, in bytes. Pure: numpy and messages alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pswire import messages as ms
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, TensorSpec


class Allocator(Protocol):
    """Memory that belongs to one call, for the values of its answer."""

    def take(self, spec: TensorSpec) -> Array | None:
        """An array of this shape and dtype, writable, C-contiguous, uninitialized; None: none is left, allocate one.

        Called once for each value of the answer, in order. The array is written before the answer is returned.
        """


#: The fields of each message class whose entries hold arrays or None; other classes have no arrays.
_TENSORS: dict[type, tuple[str, str]] = {
    ms.Push: ("gradients", "array"),
    ms.Registered: ("values", "array"),
    ms.Pulled: ("values", "array"),
    ms.Pushed: ("values", "array"),
    ms.Pull: ("choices", "rows"),
    ms.Register: ("declarations", "value"),
    ms.Assign: ("assignments", "array"),
}


def _tensors(message: ms.Message | ms.Answer) -> list[Any]:
    if type(message) not in _TENSORS:
        return []
    entries, field = _TENSORS[type(message)]
    return [tensor for entry in getattr(message, entries) if (tensor := getattr(entry, field)) is not None]


def tensor_bytes(message: ms.Message | ms.Answer) -> int:
    """Bytes of the elements of all arrays in a message."""
    return sum([tensor.nbytes for tensor in _tensors(message)])


def arrays(message: ms.Message | ms.Answer) -> list[Array]:
    """The arrays of a message as they travel, in their order."""
    plain: list[Array] = []
    for tensor in _tensors(message):
        values = tensor.values if isinstance(tensor, IndexedSlices) else tensor
        plain += values.parts if isinstance(values, Packed) else [values]
        if isinstance(tensor, IndexedSlices):
            plain.append(tensor.indices)
    return plain


def most_answer_sizes(message: ms.Request, spec_of: Callable[[str], TensorSpec]) -> list[int]:
    """The upper bound of the size of each value in the answer to `message`, in bytes, as far as the worker can know it.

    `spec_of` returns the spec of a variable on the shard.
    """
    match message:
        case ms.Push():
            return [whole_bytes(spec_of(name), message.encoding) for name in message.pull]
        case ms.Pull():
            whole = [whole_bytes(spec_of(name), message.encoding) for name in message.names]
            return whole + [_most_chosen(choice, spec_of(choice.name)) for choice in message.choices]
        case ms.Register():
            return [one.spec.nbytes for one in message.declarations if one.initial is None]
        case _:
            return []


def whole_bytes(spec: TensorSpec, encoding: str) -> int:
    """Bytes of a whole value, with the 16-bit `encoding` if it is float32; "": without."""
    return spec.nbytes // 2 if encoding and spec.dtype == "float32" else spec.nbytes


def _most_chosen(choice: ms.Choice, spec: TensorSpec) -> int:
    itemsize = DTYPES[spec.dtype].itemsize
    if choice.slot:
        itemsize = max(itemsize, 8)  # the widest that a slot can be
    rows = spec.shape[0] if choice.rows is None and spec.shape else 1 if choice.rows is None else len(choice.rows)
    width = spec.size // max(1, spec.shape[0]) if spec.shape else 1
    return rows * width * itemsize
