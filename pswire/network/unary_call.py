"""One call to a server, for commands that ask a shard once."""

from collections.abc import Callable
from typing import Any

import grpc

from pswire.codec import decode, encode
from pswire.messages import Answer, Request
from pswire.network.channel import error_from
from pswire.security.credentials import Credentials
from pswire.tensors.transport import InlineReceiver, InlineSender


def call(
    address: str, method: Callable[..., Any], message: Request, timeout: float, credentials: Credentials
) -> Answer | Request:
    """The answer of a `method` of the stub of the server at `address`. Raises the server's error, or `Unavailable`."""
    try:
        return decode(method(encode(message, InlineSender()), timeout=timeout), InlineReceiver())
    except grpc.RpcError as error:
        raise error_from(error, address, credentials) from error
