"""The transport contract: how a worker's messages reach the shards, over gRPC or embedded (a shard in this process).

A transport delivers one message; the client handles retries, sequence numbers and splitting. May import messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pswire.messages import Answer, Request
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.system.host import refuse_windows
from psworker.config import CheckpointConfig

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


class WorkerPart(Protocol):
    """The part of a checkpoint that belongs to the worker, as plain data that JSON can hold. For an embedded shard."""

    def note_push(self) -> None:
        """Notes the state that belongs to a push; called in the worker's thread right after each."""

    def data(self) -> dict[str, Any]:
        """The worker's part of a checkpoint that is written now."""

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continues from a checkpoint's `data`. Raises `StorageError` if it does not have this form."""


def open_transport(
    servers: Sequence[str],
    *,
    credentials: Credentials = NO_CREDENTIALS,
    shared_memory: bool = True,
    timeout: float = 60.0,
    checkpoints: CheckpointConfig | None = None,
    worker: WorkerPart | None = None,
) -> Transport:
    """A transport to these servers (`pswire.network.discovery.parse_servers`); without any, to a shard in this process.

    Servers that are given by a name are found within `timeout` seconds, or `Unavailable` is raised. `credentials` are
    for connections to servers. With `shared_memory`, tensors go through shared memory where a server is on this host. A
    shard in this process has `checkpoints` if they have a folder, with the part of this `worker`.
    """
    if not servers:
        from psworker.transport.embedded import EmbeddedTransport

        if checkpoints is None or not checkpoints.checkpoint_dir:
            return EmbeddedTransport()
        refuse_windows("a program with a checkpoint_dir")
        from psworker.transport.embedded_checkpoints import EmbeddedCheckpoints

        assert worker is not None
        return EmbeddedTransport(EmbeddedCheckpoints(checkpoints, worker))
    refuse_windows("a session with servers")
    from psworker.transport.grpc_transport import GrpcTransport

    return GrpcTransport(servers, credentials, shared_memory=shared_memory, timeout=timeout)
