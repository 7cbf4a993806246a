"""Messages that a shard has taken as bytes, for the journal and for the late messages of a cut.

A record is the protobuf `Record` (`protos/pswire/v1/state.proto`) and the elements of its larger tensors:

    bytes of the protobuf (uint32, little-endian), the protobuf, zeros up to a multiple of 16; elements end to end

So arrays are neither copied when a record is written, nor when it is read. Nothing here detects damage: whoever keeps
records keeps their checksums.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from pswire import codec
from pswire import messages as ms
from pswire.codec import request_of
from pswire.codec.generated import get_tick, put_tick
from pswire.errors import Malformed
from pswire.tensors.frame import Incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import TensorReceiver
from pswire.tensors.wire import varint
from pswire.v1 import state_pb2 as spb

#: Elements begin at a multiple of this in a record, as Python's bytes objects do: arrays are aligned.
ALIGNMENT = 16

_LENGTH = struct.Struct("<I")


#: The field of a message in a `Record`, by its protobuf.
_FIELDS = {field.message_type: field.name for field in spb.Record.DESCRIPTOR.fields}
_NUMBERS = {field.name: field.number for field in spb.Record.DESCRIPTOR.fields}


Record: TypeAlias = list[bytes | memoryview]


def received(frame: Incoming) -> Record | None:
    """The record of a message that has come in one frame, without shared memory: the bytes that came, borrowed.

    None if the message is in several pieces of the frame. It is what `encode` returns for a message that was sent by
    `pswire.codec.to_frame`, and decodes as the frame does for any other.
    """
    field, message = _FIELDS.get(type(request_of(frame)).DESCRIPTOR), frame.message
    if message is None or field is None:
        return None
    begin = varint(_NUMBERS[field] << 3 | 2) + varint(len(message))
    nbytes = _LENGTH.size + len(begin) + len(message)
    parts: Record = [_LENGTH.pack(nbytes - _LENGTH.size) + begin, message, bytes(-nbytes % ALIGNMENT)]
    if frame.data is not None:
        parts.append(frame.data)
    return parts


def encode(message: ms.Message) -> Record:
    """The record of any message but `Status`, as contiguous buffers of bytes in order.

    Arrays are borrowed until the buffers are used; small ones, and ones not in C order, are copied.

    Raises `InvalidMessage` for a value that the protocol does not have.
    """
    record, sender = spb.Record(), StreamSender()
    kind = spb.Tick if isinstance(message, ms.Tick) else codec.proto_of(message)
    proto: Any = getattr(record, _FIELDS[kind.DESCRIPTOR])
    proto.SetInParent()
    if isinstance(message, ms.Tick):
        put_tick(message, proto, sender)
    else:
        codec.fill(proto, message, sender)
    head = record.SerializeToString()
    head = _LENGTH.pack(len(head)) + head
    parts: Record = [head + bytes(-len(head) % ALIGNMENT)]
    for pieces in sender.chunks():
        parts += pieces
    return parts


def decode(buffer: bytes | bytearray | memoryview) -> ms.Message:
    """The message of a record, with read-only arrays in `buffer`, or copies of unaligned ones.

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
    get: Callable[[Any, TensorReceiver], Any] = get_tick if field == "tick" else codec.decode
    message: ms.Message = get(proto, receiver)
    receiver.check_data()
    return message
