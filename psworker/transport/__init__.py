"""The transport contract: how a worker's messages reach the shards, over gRPC or embedded (a shard in this process).

A transport delivers one message; the client handles retries, sequence numbers and splitting. May import messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pswire.messages import Answer, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Future(Generic[T]):
    """A started operation: a call by a transport, a push or pull by the client.

    `result` waits for its result; call it once. It raises the shard's error, or `Unavailable` or `TimedOut`, and then
    it is not known whether the shard has received the message.
    """

    result: Callable[[], T]


class Transport(Protocol):
    """Calls to a fixed list of shards."""

    @property
    def shards(self) -> int:
        """Number of shards; they are numbered from 0."""

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        """Sends `message` to a shard and returns at once; the result is there within `timeout` seconds, or an error.

        Thread-safe. The message's arrays are borrowed until the result is there; the answer's arrays belong to the
        caller and are read-only. Errors are raised by the future, never here.
        """

    def tensor_transport(self, shard: int) -> str:
        """The tensor transport to a shard: "shared memory" or "gRPC"; "" if embedded, or not known yet.

        May ask the shard, for a few seconds at most. Thread-safe.
        """

    def close(self) -> None:
        """Closes all connections; calls under way fail."""


def open_transport(servers: Sequence[str], *, shared_memory: bool = True) -> Transport:
    """A transport to these addresses, in the order of their shards; without addresses, to a shard in this process.

    With `shared_memory`, tensors go through shared memory where a server is on this host.
    """
    if not servers:
        from psworker.transport.embedded import EmbeddedTransport

        return EmbeddedTransport()
    from psworker.transport.grpc_transport import GrpcTransport

    return GrpcTransport(servers, shared_memory=shared_memory)
