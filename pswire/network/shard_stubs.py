"""Stubs of a job's shards, for what asks servers from outside of the job; each follows its shard to another address."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeVar

import grpc

from pswire.codec import decode, encode
from pswire.errors import TimedOut, Unavailable
from pswire.messages import Answer, Request
from pswire.network.channel import error_from, open_channel
from pswire.network.service_stub import ServiceStub
from pswire.network.shard_addresses import ShardAddresses
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.system.interrupts import cut_short_by_signals, deferred_signals
from pswire.tensors.transport import InlineReceiver, InlineSender

A = TypeVar("A", bound=Answer)


class ShardStubs(ExitStack):
    """Connections to the servers of a job. A context manager, whose end cancels calls under way.

    Args:
        servers: as `pswire.network.discovery.parse_servers` returns them.
        credentials: for the connections.

    Attributes:
        addresses: of the shards, as far as they are known.

    Raises `ConfigurationError` for invalid servers, and files of credentials that cannot be used.
    """

    def __init__(self, servers: Sequence[str], credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__()
        self.addresses = ShardAddresses(servers, credentials)
        self.callback(self.addresses.close)
        self._open: dict[str, tuple[ServiceStub, ExitStack]] = {}
        with deferred_signals:
            for address in self.addresses.current:
                self.at(address)

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        with deferred_signals:
            super().__exit__(None, None, None)

    @property
    def credentials(self) -> Credentials:
        """For connections to these servers."""
        return self.addresses.credentials

    def at(self, address: str) -> ServiceStub:
        """The stub of the server at an address. Connections to addresses that no shard has now are closed."""
        for other in self._open.keys() - {address, *self.addresses.current}:
            self._open.pop(other)[1].close()
        if address not in self._open:
            own = self.enter_context(ExitStack())
            channel = own.enter_context(open_channel(address, self.credentials))
            self._open[address] = ServiceStub(channel), own
        return self._open[address][0]

    def call(self, shard: int, message: Request, kind: type[A], timeout: float) -> A:
        """The answer of a shard, of a `kind`; its error, or `Unavailable`. `ShardAddresses.find` has found all."""
        address = self.addresses.current[shard]
        try:
            with deferred_signals:
                method = getattr(self.at(address), type(message).__name__)
                call = method.future(encode(message, InlineSender()), timeout=timeout)
                with cut_short_by_signals(call):
                    answer = decode(call.result(), InlineReceiver())
        except grpc.RpcError as refusal:
            error = error_from(refusal, address, self.credentials)
            if isinstance(error, Unavailable | TimedOut):
                self.addresses.look_again(shard)
            raise error from refusal
        assert isinstance(answer, kind)
        return answer
