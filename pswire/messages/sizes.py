"""The sizes of messages: the entries of their lists, and the bytes of their arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

from pswire.messages.arrays import Choice
from pswire.messages.generated import (
    CALLS,
    Answer,
    Assign,
    Pull,
    Pulled,
    Push,
    Pushed,
    Register,
    Registered,
    Request,
    Tick,
)
from pswire.messages.requests import Message
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, TensorSpec


class Allocator(Protocol):
    """Memory that belongs to one call, for the values of its answer."""

    def take(self, spec: TensorSpec) -> Array | None:
        """An uninitialized array, C-contiguous, for the next value of the answer; None: none is left, allocate one."""


#: The field of each message class whose entries have arrays or None, and the field of these; others have no arrays.
_ARRAYS: dict[type, tuple[str, str]] = {
    Push: ("gradients", "array"),
    Registered: ("values", "array"),
    Pulled: ("values", "array"),
    Pushed: ("values", "array"),
    Pull: ("choices", "rows"),
    Register: ("declarations", "value"),
    Assign: ("assignments", "array"),
}


def _lists_of(kind: type) -> list[str]:
    return [one.name for one in fields(kind) if str(one.type).startswith("tuple[") and one.type != "tuple[int, ...]"]


#: The lists of each message class, without those of numbers.
_LISTS = {kind: _lists_of(kind) for kind in (*[kind for call in CALLS for kind in (call.request, call.answer)], Tick)}


def entries(message: Message | Answer) -> int:
    """The number of entries of all lists of a message: each costs some microseconds of decoding and bookkeeping."""
    count = 0
    for name in _LISTS[type(message)]:
        count += len(getattr(message, name))
    return count


def array_sizes(message: Message | Answer) -> list[int]:
    """The size of each array of a message as it travels, in order."""
    if type(message) not in _ARRAYS:
        return []
    entries, field = _ARRAYS[type(message)]
    sizes: list[int] = []
    for entry in getattr(message, entries):
        tensor = getattr(entry, field)
        values = tensor.values if isinstance(tensor, IndexedSlices) else tensor
        if values is not None:
            sizes += [part.nbytes for part in values.parts] if isinstance(values, Packed) else [values.nbytes]
        if values is not tensor:
            sizes.append(tensor.indices.nbytes)
    return sizes


def tensor_bytes(message: Message | Answer) -> int:
    """The size of all arrays of a message together."""
    return sum(array_sizes(message))


def most_answer_sizes(message: Request, spec_of: Callable[[str], TensorSpec]) -> list[int]:
    """The upper bound of the size of each value in the answer; `spec_of` returns the spec of a variable there."""
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
    """The size of a whole value, with the 16-bit `encoding` if it is float32; "": without."""
    return spec.nbytes // 2 if encoding and spec.dtype == "float32" else spec.nbytes


def _most_chosen(choice: Choice, spec: TensorSpec) -> int:
    itemsize = max(DTYPES[spec.dtype].itemsize, 8 if choice.slot else 0)  # 8: the widest that a slot can be
    whole = spec.shape[0] if spec.shape else 1
    rows = whole if choice.rows is None else len(choice.rows)
    return rows * (spec.size // max(1, whole)) * itemsize
