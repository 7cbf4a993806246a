"""The gRPC transport, with one connection per shard.

Delivers a message once; the client retries. Imported only where a network is needed. May import pswire,
connections and deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pswire.channel import check_address
from pswire.errors import ConfigurationError
from pswire.messages import Answer, Request
from pswire.system.deferred_signals import add_cancel, deferred_signals, deferred_to_next_block, remove_cancel
from pswire.tensors.segments import sweep
from psworker.transport import Future
from psworker.transport.connection import Connection
from psworker.transport.deadlines import Deadlines

logger = logging.getLogger(__name__)

#: Bytes of the largest answer that is accepted when the size of a variable is not known.
MAX_BYTES = 16 << 30


class GrpcTransport:
    """A `Transport` to shards at addresses, in the order of their numbers. Connects with the first call. Thread-safe.

        with closing(GrpcTransport(["127.0.0.1:5000"])) as transport:
            joined = transport.call(0, Join("worker-0"), timeout=10.0).result()

    Args:
        addresses: as `pswire.channel.check_address` takes them.
        max_bytes: the largest answer that is accepted when the size of a variable is not known.
        shared_memory: whether tensors go through shared memory where a server is on this host.

    Raises:
        ConfigurationError: no address, an invalid one, or one twice.
    """

    def __init__(self, addresses: Sequence[str], max_bytes: int = MAX_BYTES, *, shared_memory: bool = True) -> None:
        checked = [check_address(address) for address in addresses]
        if not checked or len(set(checked)) < len(checked):
            raise ConfigurationError(
                f"a worker needs the address of each shard once, got {', '.join(checked) or 'none'}"
            )
        if shared_memory and (swept := sweep()):
            logger.info("removed %d shared memory segments of killed processes", swept)
        self._deadlines = Deadlines()
        add_cancel(self._deadlines.pass_all)
        with deferred_to_next_block:
            self._connections = [Connection(address, max_bytes, self._deadlines, shared_memory) for address in checked]

    @property
    def shards(self) -> int:
        """As `Transport.shards`."""
        return len(self._connections)

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        """As `Transport.call`; also raises `Malformed` or `TooLarge` if the answer is none to this message."""
        return self._connections[shard].call(message, timeout)

    def tensor_transport(self, shard: int) -> str:
        """As `Transport.tensor_transport`; the first time it asks the server, for `PROBE_TIMEOUT` seconds at most."""
        with deferred_to_next_block:
            return self._connections[shard].tensor_transport()

    def close(self) -> None:
        """Closes all connections; calls under way fail with `Unavailable`."""
        with deferred_signals:
            remove_cancel(self._deadlines.pass_all)
            for connection in self._connections:
                connection.close()
            self._deadlines.close()
