"""Messages as protobuf, and back. May import messages, optimizers, specs, tensors, errors and the generated code."""

from pswire.codec.messages import (
    check_size,
    count_entries,
    decode,
    encode,
    fill,
    framed,
    from_frame,
    is_of,
    parse,
    proto_of,
    request_of,
    sender_of,
    to_frame,
)

__all__ = [
    "check_size",
    "count_entries",
    "decode",
    "encode",
    "fill",
    "framed",
    "from_frame",
    "is_of",
    "parse",
    "proto_of",
    "request_of",
    "sender_of",
    "to_frame",
]
