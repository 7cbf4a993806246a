"""Messages between workers and shards, and the state of a shard: frozen dataclasses; and their sizes.

Requests that change the shard carry a `Sender`; requests that must be applied once carry a sequence number. Arrays are
borrowed, never copied here. Pure: `pswire.codec` turns messages into bytes. `generated` is written by `make protos`.
"""

from pswire.messages.arrays import Assignment, Choice, Declaration, Gradient, ServedState, Value
from pswire.messages.behavior import Call
from pswire.messages.generated import *
from pswire.messages.generated import __all__ as _generated
from pswire.messages.requests import ANSWERS, Message, Reply
from pswire.messages.sizes import Allocator, array_sizes, entries, most_answer_sizes, tensor_bytes, whole_bytes

__all__ = [
    "ANSWERS",
    "Allocator",
    "Assignment",
    "Call",
    "Choice",
    "Declaration",
    "Gradient",
    "Message",
    "Reply",
    "ServedState",
    "Value",
    "array_sizes",
    "entries",
    "most_answer_sizes",
    "tensor_bytes",
    "whole_bytes",
    *_generated,
]
