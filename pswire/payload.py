"""The arrays of a message: how many bytes they have, and copies of them. Pure: numpy and messages alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pswire.messages import Answer, Assign, Pull, Pulled, Push, Pushed, Register, Registered, Request, Value
from pswire.values import Array


def tensor_bytes(message: Request | Answer) -> int:
    """Bytes of the elements of all arrays in a message."""
    match message:
        case Push():
            return sum([gradient.array.nbytes for gradient in message.gradients])
        case Registered() | Pulled() | Pushed():
            return sum([value.array.nbytes for value in message.values])
        case Register():
            return sum([one.value.nbytes for one in message.declarations if one.value is not None])
        case Assign():
            return sum([assignment.array.nbytes for assignment in message.assignments])
        case _:
            return 0


def answer_bytes(message: Request, nbytes: Callable[[tuple[str, ...]], int]) -> int:
    """Bytes of the values that the answer to `message` brings; `nbytes` knows those of variables that exist."""
    match message:
        case Push():
            return nbytes(message.pull)
        case Pull():
            return nbytes(message.names)
        case Register():
            return sum(declaration.spec.nbytes for declaration in message.declarations)
        case _:
            return 0


def owned(answer: Answer) -> Answer:
    """The answer with copies of its values, read-only: a shard lends its own until the next step only."""
    if not isinstance(answer, Registered | Pulled | Pushed):
        return answer
    return replace(answer, values=tuple([Value(one.name, one.version, _copied(one.array)) for one in answer.values]))


def _copied(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
