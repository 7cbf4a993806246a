"""The transport contract: how a worker's messages reach the shards, over gRPC or embedded (a shard in this process).

A transport delivers one message; the client handles retries, sequence numbers and splitting. May import messages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pswire.messages import Answer, Request
from pswire.system.host import refuse_windows
from psworker.config import WorkerConfig

T = TypeVar("T")

#: The tensor transports, as `Transport.tensor_transport` names them.
SHARED_MEMORY, DIRECT, GRPC = "shared memory", "direct", "gRPC"


@dataclass(frozen=True, slots=True)
class Future(Generic[T]):
    """A started operation: a call by a transport, a push or pull by the client.

    `result` waits for its result; call it once. It raises the shard's error, or `Unavailable` or `TimedOut`, and then
    it is not known whether the shard has received the message.
    """

    result: Callable[[], T]


class BegunCall(Protocol):
    """A call whose message is sent while its arrays are filled. For one thread.

    The server applies nothing of it before `finish`: its last array is held back.
    """

    def send(self, count: int) -> None:
        """The first `count` arrays with elements are filled; returns at once."""

    def is_active(self) -> bool:
        """Whether the server has not refused it, nor the time for it passed, as far as is known."""

    def finish(self, timeout: float) -> Future[Answer]:
        """Sends the rest: all arrays are filled. From now on as a `Transport.call`."""

    def take_back(self) -> None:
        """Ends it before `finish`: nothing of it is applied."""


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

    def begin(self, shard: int, message: Request, seconds: float) -> BegunCall | None:
        """Begins a call whose arrays are filled later, within `seconds`; None if `shard` has no direct connection."""

    def tensor_transport(self, shard: int) -> str:
        """The tensor transport to a shard: "shared memory", "direct" or "gRPC"; "" if embedded, or not known yet.

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


def open_transport(config: WorkerConfig, worker: WorkerPart | None = None) -> Transport:
    """A transport to the servers of a configuration; without any, to a shard in this process.

    Servers that are given by a name are found within its timeout, or `Unavailable` is raised. A shard in this process
    has checkpoints, with the part of this `worker`, if there is a folder for them.
    """
    if not config.servers:
        from psworker.transport.embedded import EmbeddedTransport

        if not config.checkpoint_dir:
            return EmbeddedTransport()
        refuse_windows("a program with a checkpoint_dir")
        from psworker.transport.embedded_checkpoints import EmbeddedCheckpoints

        assert worker is not None
        return EmbeddedTransport(EmbeddedCheckpoints(config, worker))
    refuse_windows("a session with servers")
    from psworker.transport.network_transport import NetworkTransport

    return NetworkTransport(
        config.servers,
        config.credentials,
        shared_memory=config.shared_memory,
        transport=config.transport,
        timeout=config.timeout,
    )
