"""The network transport: a connection to each server, with streams for calls that have tensors and unary calls.

What arrives is checked before memory is allocated for it. No retries: the client handles them. Imported only where a
network is needed. May import pswire, the other modules of this folder and grpc.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from functools import partial

from pswire.codec import framed
from pswire.errors import ParamServerError, TimedOut, Unavailable
from pswire.messages import CALLS, Answer, Assign, Pull, Push, Register, Request, Take
from pswire.network.channel import open_channel
from pswire.network.shard_addresses import ShardAddresses
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.system.interrupts import add_cancel, deferred_signals, deferred_to_next_block, remove_cancel
from psworker.transport import Future
from psworker.transport.begun_transfer import BegunTransfer
from psworker.transport.calls import TransferCall, UnaryCall
from psworker.transport.connection import Connection, ConnectionOptions, MemberTokens
from psworker.transport.deadlines import Deadlines
from psworker.transport.direct_stream import DirectStream

#: Messages that go on streams, whatever carries these; and others that do on direct connections.
_ON_STREAMS = Register, Pull, Push, Assign, Take
_ON_DIRECT = tuple([call.request for call in CALLS if framed(call.request)])


class NetworkTransport:
    """A `Transport` to shards at addresses, in the order of their numbers. Connects with the first call. Thread-safe.

    A shard that cannot be reached is looked up again if the servers are given by a name; when it has another address,
    its connection is replaced, and no other one.

    Args:
        servers: as `pswire.network.discovery.parse_servers` returns them.
        credentials: of each connection.
        shared_memory: whether tensors go through shared memory where a server is on this host.
        transport: what carries streams: "direct", connections beside gRPC; "grpc"; or "auto", the first where it can.
        timeout: seconds to find the servers' addresses, if they are given by a name.

    Raises:
        ConfigurationError: no address, an invalid one, or one twice; or the files of the credentials cannot be used.
        Unavailable: the servers' addresses were not found in time.
    """

    def __init__(
        self,
        servers: Sequence[str],
        credentials: Credentials = NO_CREDENTIALS,
        *,
        shared_memory: bool = True,
        transport: str = "auto",
        timeout: float = 60.0,
    ) -> None:
        self._addresses = ShardAddresses(servers, credentials, self._follow)
        addresses = self._addresses.find(timeout)
        self._deadlines = Deadlines()
        self._options = ConnectionOptions(
            self._addresses.credentials, self._deadlines, MemberTokens(), shared_memory, transport
        )
        self._lock, self._closed = threading.Lock(), False
        add_cancel(self._deadlines.pass_all)
        with deferred_to_next_block:
            self._connections = [self._connect(shard, address) for shard, address in enumerate(addresses)]

    @property
    def shards(self) -> int:
        """As `Transport.shards`."""
        return len(self._connections)

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        """As `Transport.call`; also raises `Malformed` or `TooLarge` if the answer does not fit the message."""
        connection = self._connections[shard]
        try:
            result = self._begin(connection, message, timeout).result
        except Exception as error:  # noqa: BLE001 - raised by the future
            failed: ThreadFuture[Answer] = ThreadFuture()
            failed.set_exception(connection.error_of(error).with_traceback(None))  # breaks a reference cycle
            result = failed.result
        return Future(partial(self._found_again, shard, result) if self._addresses.name else result)

    def begin(self, shard: int, message: Request, seconds: float) -> BegunTransfer | None:
        """As `Transport.begin`."""
        connection = self._connections[shard]
        try:
            stream = connection.direct_stream(message, seconds)
            return BegunTransfer(connection, stream, message, seconds) if isinstance(stream, DirectStream) else None
        except (ParamServerError, OSError):
            return None

    def tensor_transport(self, shard: int) -> str:
        """As `Transport.tensor_transport`; the first time it asks the server, for `PROBE_TIMEOUT` seconds at most."""
        with deferred_to_next_block:
            return self._connections[shard].tensor_transport()

    def close(self) -> None:
        """Closes all connections; calls under way fail with `Unavailable`."""
        with deferred_signals:
            self._addresses.close()
            remove_cancel(self._deadlines.pass_all)
            with self._lock:
                self._closed = True
                for connection in self._connections:
                    connection.close()
            self._deadlines.close()

    def _begin(self, connection: Connection, message: Request, timeout: float) -> TransferCall | UnaryCall:
        if isinstance(message, _ON_STREAMS):
            return TransferCall(connection, connection.stream(message, timeout), message, timeout)
        if isinstance(message, _ON_DIRECT) and (stream := connection.direct_stream(message, timeout)) is not None:
            return TransferCall(connection, stream, message, timeout)
        return UnaryCall(connection, message, timeout)

    def _connect(self, shard: int, address: str, before: Connection | None = None) -> Connection:
        channel = open_channel(address, self._options.credentials)
        return Connection(shard, address, channel, self._options, before)

    def _found_again(self, shard: int, result: Callable[[], Answer]) -> Answer:
        """The answer; after an error of the network the shard's address is looked up, for the next call."""
        try:
            return result()
        except (Unavailable, TimedOut) as error:
            self._addresses.look_again(shard)
            where = f"shard {shard} of {self._addresses.name}, which is looked up again"
            raise type(error)(f"{error} ({where})") from error

    def _follow(self) -> None:
        """Replaces the connections of shards whose address has changed."""
        with self._lock:
            if self._closed:
                return
            for shard, address in enumerate(self._addresses.current):
                before = self._connections[shard]
                if address != before.address:
                    self._connections[shard] = self._connect(shard, address, before)
                    before.close(moved_to=address)
