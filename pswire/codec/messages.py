"""Messages as protobuf and back: `encode` and `decode`, on whole messages and in the frames of a Transfer.

Everything from the network that can be checked without the shard is checked here: fields (`pswire.codec.checks`) and
tensors by their description (`pswire.codec.tensors`); a tensor transport moves the elements.
"""

from typing import Any

from google.protobuf.message import Message as Proto

from pswire import messages as ms
from pswire.codec.generated import ROWS, get_sender
from pswire.errors import InvalidMessage, Malformed, TooLarge
from pswire.limits import MAX_SMALL_REQUEST
from pswire.tensors import wire
from pswire.tensors.frame import Incoming
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.transport import InlineReceiver, TensorReceiver, TensorSender
from pswire.v1 import paramserver_pb2 as pb

_BY_MESSAGE = {row.message: row for row in ROWS}
_BY_PROTO = {row.proto: row for row in ROWS}
_SMALL = {
    kind
    for kind in _BY_PROTO
    if not any(one.is_repeated and one.type not in (one.TYPE_INT64, one.TYPE_BYTES) for one in kind.DESCRIPTOR.fields)
}
_OF_MEMBERS = {
    row.proto for row in ROWS if row.message in ms.ANSWERS and "sender" in row.proto.DESCRIPTOR.fields_by_name
}
_NO_TENSORS = InlineReceiver()
_PIECES = {piece.message_type: piece.name for piece in pb.Frame.DESCRIPTOR.fields}


def encode(message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """The protobuf of `message`, whose arrays go to `sender`.

    Raises:
        InvalidMessage: a field has a value, or an array a dtype, that the protocol does not have.
        TooLarge: more than the sender's tensor transport carries.
    """
    return fill(_BY_MESSAGE[type(message)].proto(), message, sender)


def proto_of(message: ms.Request | ms.Answer) -> type[Proto]:
    """The class of a message's protobuf."""
    return _BY_MESSAGE[type(message)].proto


def fill(proto: Proto, message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """Writes `message` into an empty protobuf of its kind, and returns that; raises as `encode` does."""
    try:
        _BY_MESSAGE[type(message)].put(message, proto, sender)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(f"this {type(message).__name__} cannot be sent: {error}") from error
    return proto


def decode(proto: Proto, receiver: TensorReceiver) -> ms.Request | ms.Answer:
    """The message of `proto`, with arrays from `receiver`. Raises `Malformed` and nothing else."""
    row = _BY_PROTO.get(type(proto))
    if row is None:
        raise Malformed(f"{type(proto).__name__} is neither a request nor an answer")
    message: ms.Request | ms.Answer = row.get(proto, receiver)
    return message


def check_size(kind: type[Proto], nbytes: int) -> None:
    """Raises `TooLarge` for a request of `nbytes` that is too large for its kind, before it is parsed."""
    if nbytes > MAX_SMALL_REQUEST and kind in _SMALL:
        raise TooLarge(f"{kind.__name__} has {MAX_SMALL_REQUEST:,} bytes at most, got {nbytes:,}")


def parse(proto: Proto, data: bytes) -> None:
    """Parses a request or answer into an empty `proto`; call it in a thread if it is large (`pswire.tensors.wire`).

    Raises `Malformed` for bytes that are no such message, and for a large one with a list that exceeds its limit.
    """
    row = _BY_PROTO.get(type(proto))
    wire.parse(proto, data, {} if row is None else row.limits)


def sender_of(proto: Any) -> ms.Sender | None:  # noqa: ANN401 - a request
    """The member that sends a request; None if its kind needs no membership. Raises `Malformed` if it is no request."""
    if type(proto) in _OF_MEMBERS:
        sender: ms.Sender = get_sender(proto.sender, _NO_TENSORS)
        return sender
    row = _BY_PROTO.get(type(proto))
    if row is None or row.message not in ms.ANSWERS:
        name = type(proto).__name__ if row is None else row.message.__name__
        raise Malformed(f"{name} is an answer, not a request")
    return None


def count_entries(proto: Proto) -> int:
    """The number of entries of all lists of a request or answer."""
    return sum([len(getattr(proto, name)) for name in _BY_PROTO[type(proto)].limits])


def is_of(proto: Any, sender: ms.Sender) -> bool:  # noqa: ANN401 - a request
    """True if this member sent the request; decodes nothing, since it is called for each push."""
    if type(proto) not in _OF_MEMBERS:
        return False
    named = proto.sender
    return bool(named.incarnation == sender.incarnation and named.worker == sender.worker)


def framed(kind: type) -> bool:
    """True if messages of a class may be in the frames of a Transfer."""
    return _BY_MESSAGE[kind].proto.DESCRIPTOR in _PIECES


def to_frame(message: ms.Request | ms.Answer, sender: TensorSender) -> pb.Frame:
    """The first frame of a call, or of its answer, on a Transfer; raises as `encode` does."""
    frame = pb.Frame()
    proto: Proto = getattr(frame, _PIECES[_BY_MESSAGE[type(message)].proto.DESCRIPTOR])
    proto.SetInParent()
    fill(proto, message, sender)
    return frame


def from_frame(frame: Incoming, receiver: StreamReceiver) -> ms.Request | ms.Answer:
    """The message in the first frame of a call or its answer, or `Malformed`; arrays in chunks have no memory yet."""
    message = decode(request_of(frame), receiver)
    receiver.check_data()
    return message


def request_of(frame: Incoming) -> Proto:
    """The protobuf in the first frame of a call or its answer. Raises `Malformed`."""
    piece = frame.header.WhichOneof("piece")
    if piece is None:
        what = "nothing" if frame.chunk is None else "a chunk"
        raise Malformed(f"a call on a Transfer begins with a message, this one with {what}")
    proto: Proto = getattr(frame.header, piece)
    return proto
