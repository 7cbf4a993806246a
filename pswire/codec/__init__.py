"""Messages as protobuf, and back. May import messages, optimizers, specs, tensors, errors and the generated code."""

from pswire.codec.messages import decode, encode, fill, from_frame, to_frame

__all__ = ["decode", "encode", "fill", "from_frame", "to_frame"]
