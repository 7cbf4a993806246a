"""Messages as bytes and back, and whether two are the same, for tests of what travels."""

import dataclasses

import numpy as np
from google.protobuf.message import DecodeError

from pswire.codec import decode, encode
from pswire.tensors.inline import InlineReceiver, InlineSender


def same(left, right):
    """Equality that looks into arrays, bit by bit, and knows that NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    return left == right or (left != left and right != right)


def inline(message):
    """The message's bytes, and its protobuf's class."""
    proto = encode(message, InlineSender())
    return proto.SerializeToString(), type(proto)


def read(kind, data):
    """The message in `data`, None if protobuf itself refuses it, or what `decode` raises."""
    try:
        proto = kind.FromString(data)
    except DecodeError:
        return None
    return decode(proto, InlineReceiver())
