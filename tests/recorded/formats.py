"""Recorded bytes read and written again: messages alone, in frames of a Transfer, and as records of a journal.

Protobuf does not promise an order of the entries of a map, which optimizers have; so bytes are compared as `canonical`.
Fields that the protocol has no longer (`REMOVED`) are ignored when they are read, and so left out of what is compared,
as is the growth of variables: a bound, which is another one when the rule for it changes.
"""

import base64
import json
import struct
from pathlib import Path

from psserver.storage import records
from pswire import codec
from pswire import messages as ms
from pswire.tensors.frame import chunk, incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1 import state_pb2 as spb

#: Fields that messages had when they were recorded, and that readers ignore.
REMOVED = {"proof", "proofs", "after_proof"}
_LEFT_OUT = REMOVED | {"growth"}

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def read_json(*path):
    """A file of JSON data in `tests/fixtures/`, without fields that are left out."""
    data = FIXTURES.joinpath(*path).read_text()
    return json.loads(data, object_pairs_hook=lambda pairs: {name: one for name, one in pairs if name not in _LEFT_OUT})


def in_text(data):
    """Bytes as text, for JSON."""
    return base64.b64encode(data).decode()


def from_text(text):
    """Bytes from `in_text`."""
    return base64.b64decode(text)


def messages():
    """The names of all requests and answers, as the protocol has them."""
    methods = pb.DESCRIPTOR.services_by_name["ParameterServer"].methods
    return {kind.name for method in methods for kind in (method.input_type, method.output_type)} - {"Frame"}


def journaled():
    """The names of the messages that a record can have."""
    return {field.message_type.name for field in spb.Record.DESCRIPTOR.fields}


def transferred():
    """The names of the messages that a frame can have, and that are no part of attaching shared memory."""
    names = {
        piece.message_type.name for piece in pb.Frame.DESCRIPTOR.oneofs_by_name["piece"].fields if piece.message_type
    }
    return names - {"AttachRequest", "AttachReply", "Refusal"}


def name_of(message):
    """The name of a message in the protocol."""
    return "Tick" if isinstance(message, ms.Tick) else codec.encode(message, InlineSender()).DESCRIPTOR.name


# --- alone ------------------------------------------------------------------------------------------------------------


def encode(message):
    """The bytes of a message with all elements in it."""
    return codec.encode(message, InlineSender()).SerializeToString(deterministic=True)


def decode(name, data):
    """The message of these bytes."""
    return codec.decode(getattr(pb, name).FromString(data), InlineReceiver())


def canonical(name, data):
    """The bytes of a message, with maps in order."""
    return _canonical(getattr(pb, name).FromString(data))


def _canonical(message):
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)


# --- in frames --------------------------------------------------------------------------------------------------------


def to_frames(message, *, chunks):
    """The frames of a message: elements in chunks that follow it, or in the `data` of its frame."""
    sender = StreamSender(few=0) if chunks else StreamSender()
    header = codec.to_frame(message, sender)
    if not chunks:
        return list(sender.frames(header))
    return [header.SerializeToString(), *map(chunk, sender.chunks())]


def from_frames(frames):
    """The message of recorded frames."""
    first, *rest = map(incoming, frames)
    receiver = StreamReceiver(first.data if first.data or not rest else None)
    message = codec.from_frame(first, receiver)
    if rest:
        receiver.allocate()
        message = codec.from_frame(first, receiver)
        for one in rest:
            receiver.feed(one)
        assert receiver.complete
    return message


def canonical_frame(frame):
    """The frame, with maps in order."""
    return _canonical(pb.Frame.FromString(frame))


# --- in records -------------------------------------------------------------------------------------------------------


def to_record(message):
    """The record of a message in one piece."""
    return b"".join(map(bytes, records.encode(message)))


def from_record(data):
    """The message of a record."""
    return records.decode(data)


def canonical_record(data):
    """The protobuf of a record, with maps in order, and the elements behind it."""
    (length,) = struct.unpack_from("<I", data)
    end = 4 + length
    head = _canonical(spb.Record.FromString(data[4:end]))
    return len(head), head, data[end + -end % records.ALIGNMENT :]
