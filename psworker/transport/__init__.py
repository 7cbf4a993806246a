"""How a worker's messages reach the shards: one contract, `network` (gRPC) and `embedded` (the shard in this process).

A transport delivers; it does not retry, number or split messages: that is the client's. May import messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pswire.messages import Answer, Request


@dataclass(frozen=True, slots=True)
class Call:
    """A message that is on its way.

    Attributes:
        result: waits for the answer; call it once. Raises the shard's error, or `Unavailable` or `TimedOut`, and then
            it is not known whether the shard took the message.
    """

    result: Callable[[], Answer]


class Transport(Protocol):
    """Calls to a fixed list of shards."""

    @property
    def shards(self) -> int:
        """How many shards there are; they have the numbers 0 to `shards` - 1."""

    def call(self, shard: int, message: Request, timeout: float) -> Call:
        """Sends `message` to a shard and returns at once; its answer comes within `timeout` seconds, or an error.

        Any thread may call. The message's arrays are borrowed until the result is there; the answer's arrays
        belong to the caller, and are read-only. Raises nothing: the result does.
        """

    def tensor_transport(self, shard: int) -> str:
        """How tensors travel to a shard by now: "shared memory" or "gRPC"; "" where there is no network.

        And "" as long as the shard cannot be reached. May ask the shard, for some seconds at most; any thread may call.
        """

    def close(self) -> None:
        """Ends every connection; calls that still wait fail."""


def open_transport(servers: Sequence[str], *, shared_memory: bool = True) -> Transport:
    """The way to these addresses, in the order of their shards; when there are none, a shard in this process.

    `shared_memory` says whether tensors go through shared memory where a server is on this host.
    """
    if not servers:
        from psworker.transport.embedded import EmbeddedTransport

        return EmbeddedTransport()
    from psworker.transport.grpc_transport import GrpcTransport

    return GrpcTransport(servers, shared_memory=shared_memory)
