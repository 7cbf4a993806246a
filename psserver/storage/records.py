"""Messages that a shard has taken as bytes, for the journal and for the late messages of a cut.

A record is the protobuf `Record` (`protos/pswire/v1/state.proto`) and the elements of its larger tensors:

    bytes of the protobuf (uint32, little-endian), the protobuf, zeros up to a multiple of 16; elements end to end

So arrays are neither copied when a record is written, nor when it is read. Nothing here detects damage: whoever keeps
records keeps their checksums.
"""

import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from pswire import codec
from pswire import messages as ms
from pswire.codec.fields import KINDS, Part, Row, check_name, many
from pswire.errors import Malformed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.v1 import state_pb2 as spb

#: Elements begin at a multiple of this in a record, as Python's bytes objects do: arrays are aligned.
ALIGNMENT = 16

_LENGTH = struct.Struct("<I")


class _Overdue:
    def put(self, message: tuple[str, str], proto: spb.Overdue, sender: TensorSender) -> None:
        proto.worker, proto.queue = message

    def get(self, proto: spb.Overdue, receiver: TensorReceiver) -> tuple[str, str]:
        return check_name(proto.worker), check_name(proto.queue)


KINDS[spb.Overdue] = many(_Overdue())
_TICK: Part = Row(ms.Tick, spb.Tick, file=True)

#: The field of each message in a `Record`.
_FIELDS: dict[type, str] = {kind: kind.__name__.lower() for kind in (*ms.ANSWERS, ms.Tick) if kind is not ms.Status}


def encode(message: ms.Message) -> list[bytes | memoryview]:
    """The record of any message but `Status`, as contiguous buffers of bytes in order.

    Arrays are borrowed until the buffers are used; small ones, and those that are not in C order, are copied.

    Raises `InvalidMessage` for a value that the protocol does not have.
    """
    record, sender = spb.Record(), StreamSender()
    proto: Any = getattr(record, _FIELDS[type(message)])
    proto.SetInParent()
    if isinstance(message, ms.Tick):
        _TICK.put(message, proto, sender)
    else:
        codec.fill(proto, message, sender)
    head = record.SerializeToString()
    head = _LENGTH.pack(len(head)) + head
    parts: list[bytes | memoryview] = [head + bytes(-len(head) % ALIGNMENT)]
    for pieces in sender.chunks():
        parts += pieces
    return parts


def decode(buffer: bytes | bytearray | memoryview) -> ms.Message:
    """The message of a record, with read-only arrays in `buffer`, or copies of those that are not aligned there.

    Raises `Malformed` and nothing else.
    """
    view = memoryview(buffer).toreadonly()
    if len(view) < _LENGTH.size:
        raise Malformed(f"a record of {len(view)} bytes")
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    elements = end + -end % ALIGNMENT
    if elements > len(view):
        raise Malformed(f"a record of {len(view)} bytes, of which {elements} should come before its elements")
    try:
        record = spb.Record.FromString(bytes(view[_LENGTH.size : end]))
    except DecodeError as error:
        raise Malformed(f"not a record: {error}") from error
    field = record.WhichOneof("message")
    if field is None:
        raise Malformed("a record without a message")
    proto, receiver = getattr(record, field), StreamReceiver(view[elements:])
    get: Callable[[Any, TensorReceiver], Any] = _TICK.get if field == "tick" else codec.decode
    message: ms.Message = get(proto, receiver)
    receiver.check_data()
    return message
