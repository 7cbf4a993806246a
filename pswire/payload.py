"""The arrays of a message: how many bytes they have, and those of its answer. Pure: numpy and messages alone."""

from __future__ import annotations

from collections.abc import Callable
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
from pswire.values import DTYPES, Array, TensorSpec


class Room(Protocol):
    """Memory of whoever asks, for the values of an answer."""

    def take(self, spec: TensorSpec) -> Array | None:
        """The next array of this shape and dtype: writable, C-contiguous, of any content; None: make one.

        Arrays are asked for once, in the order of the answer's values, and written before the answer is given.
        """


def tensor_bytes(message: Message | Answer) -> int:
    """Bytes of the elements of all arrays in a message."""
    match message:
        case Push():
            return sum([gradient.array.nbytes for gradient in message.gradients])
        case Registered() | Pulled() | Pushed():
            return sum([value.array.nbytes for value in message.values if value.array is not None])
        case Pull():
            return sum([choice.rows.nbytes for choice in message.choices if choice.rows is not None])
        case Register():
            return sum([one.value.nbytes for one in message.declarations if one.value is not None])
        case Assign():
            return sum([assignment.array.nbytes for assignment in message.assignments])
        case _:
            return 0


def most_answer_bytes(message: Request, spec_of: Callable[[str], TensorSpec]) -> int:
    """The most bytes of values that the answer to `message` can bring, as far as a worker can know.

    `spec_of` gives the spec of a variable on the shard that is asked.
    """
    match message:
        case Push():
            return sum([spec_of(name).nbytes for name in message.pull])
        case Pull():
            whole = sum([spec_of(name).nbytes for name in message.names])
            return whole + sum([_most_chosen(choice, spec_of(choice.name)) for choice in message.choices])
        case Register():
            return sum([one.spec.nbytes for one in message.declarations if one.initial is None])
        case _:
            return 0


def _most_chosen(choice: Choice, spec: TensorSpec) -> int:
    itemsize = DTYPES[spec.dtype].itemsize
    if choice.slot:
        itemsize = max(itemsize, 8)  # the widest that a slot can be
    rows = spec.shape[0] if choice.rows is None and spec.shape else 1 if choice.rows is None else len(choice.rows)
    width = spec.size // max(1, spec.shape[0]) if spec.shape else 1
    return rows * width * itemsize
