"""The connection to one server: its channel of gRPC, its streams, direct or over gRPC, and what is known of it."""

import logging
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from psjob.tracing.tracing import current
from pswire import messages as ms
from pswire.codec import encode
from pswire.errors import InternalError, ParamServerError, TimedOut, Unavailable
from pswire.messages import Answer, Request
from pswire.network.channel import error_from, member_metadata, timeout_message
from pswire.network.service_stub import ServiceStub
from pswire.security.credentials import Credentials
from pswire.tensors.transport import InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import DIRECT, GRPC, SHARED_MEMORY
from psworker.transport.deadlines import Deadline, Deadlines
from psworker.transport.direct_stream import OPEN_SECONDS, DirectStream, NotReached, open_direct
from psworker.transport.grpc_stream import GrpcStream
from psworker.transport.streams import TransferStream

logger = logging.getLogger(__name__)

#: Seconds that a server has to answer the first request for shared memory.
PROBE_TIMEOUT = 2.0

#: Threads that receive large answers of one server.
MAX_RECEIVERS = 32

_BROKEN = grpc.RpcError, grpc.FutureCancelledError, OSError
_OF_CONNECTIONS = (*_BROKEN, ValueError, RuntimeError)

#: Seconds to wait before a direct port that was not reached is tried again: at first, and at most if gRPC goes on.
DIRECT_PAUSE, LONGEST_PAUSE = 10.0, 600.0


class MemberTokens:
    """The tokens by which servers know the workers of this transport (`Joined.token`), from their answers. Thread-safe.

    A token is valid on all servers of a job.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[int, bytes]] = {}  # by worker, of its newest incarnation
        self._last = b""

    def note(self, message: ms.Join, joined: ms.Joined) -> None:
        """Keep the token of an answer."""
        self._tokens[message.worker] = joined.incarnation, joined.token
        self._last = joined.token

    def of(self, message: Request | None = None) -> bytes:
        """The token of a message's sender; for a message without a sender, the last worker's; b"": none."""
        sender: ms.Sender | None = getattr(message, "sender", None) or getattr(message, "holder", None)
        if isinstance(message, ms.Join):
            sender = ms.Sender(message.worker, message.incarnation)
        if sender is None:
            return self._last
        incarnation, token = self._tokens.get(sender.worker, (0, b""))
        return token if incarnation == sender.incarnation else b""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What all connections of a transport have in common; see `NetworkTransport`."""

    credentials: Credentials
    deadlines: Deadlines
    tokens: MemberTokens
    shared_memory: bool
    transport: str


class Connection:
    """The connection to one server, and the specs of the variables registered there. Thread-safe.

    There is one stream per concurrent call; `_lock` guards the idle streams, the status of shared memory, and where the
    direct transport is. Only a member gets shared memory: `_joined` is set when one has joined over this connection, or
    over the one `before`, to the same shard at another address.
    """

    def __init__(
        self,
        shard: int,
        address: str,
        channel: grpc.Channel,
        options: ConnectionOptions,
        before: "Connection | None" = None,
    ) -> None:
        self.shard, self.address, self.deadlines, self._tokens = shard, address, options.deadlines, options.tokens
        self.receivers = ThreadPoolExecutor(MAX_RECEIVERS, thread_name_prefix="psworker-stream")
        self._channel, self._options = channel, options
        stub = ServiceStub(self._channel)
        self._unary: dict[type[Request], Any] = {kind: getattr(stub, kind.__name__) for kind in ms.ANSWERS}
        self._transfer = self._channel.stream_stream("/paramserver.v1.ParameterServer/Transfer")  # of bytes
        self._specs: dict[str, TensorSpec] = {} if before is None else before._specs
        self._lock = threading.Lock()
        self._idle: list[TransferStream] = []
        self._direct_streams: weakref.WeakSet[DirectStream] = weakref.WeakSet()
        self._closed, self._moved_to = False, ""
        self._tensor_transport, self._shares = "", options.shared_memory
        self._direct = ms.DirectAddress()
        self._direct_from, self._pause = 0.0, DIRECT_PAUSE  # when it may be tried, and the pause after that
        self._not_reached, self._logged = "", False  # why it was not
        self._probed = False
        self._joined: bool = before is not None and before._joined

    def close(self, moved_to: str = "") -> None:
        """Ends all calls; they may be made again if the shard has `moved_to` another address."""
        with self._lock:
            self._closed, self._moved_to = True, moved_to
            idle, self._idle = self._idle, []
            direct = list(self._direct_streams)
        for stream in idle:
            stream.end()
        for one in direct:
            one.cancel()
        self._channel.close()
        self.receivers.shutdown(wait=False)

    def tensor_transport(self) -> str:
        """As `Transport.tensor_transport`; a member's first call asks the server, later ones know it from calls."""
        with self._lock:
            if self._tensor_transport or self._closed or self._probed or not self._joined:
                return self._tensor_transport
            self._probed = True
        try:
            stream = self.stream(None, PROBE_TIMEOUT)
        except Unavailable:
            return ""
        deadline = self.deadlines.set(PROBE_TIMEOUT, stream.cancel)
        try:
            if stream.pool is not None and (segment := stream.pool.take(1)) is not None:
                stream.pool.give_back(segment)
        except (grpc.RpcError, ParamServerError, OSError, ValueError):
            stream.end()
            return ""
        finally:
            self.deadlines.drop(deadline)
        self.keep(stream)
        return self._tensor_transport

    # --- for its calls --------------------------------------------------------------------------------------------

    def unary(self, message: Request) -> Any:  # noqa: ANN401 - gRPC's future, which has no type
        """Sends a message on its own; gRPC's future of the answer."""
        metadata = member_metadata(self._tokens.of(message), self.shard if self._joined else None)
        if (span := current.get()) is not None:
            metadata += (("traceparent", span.traceparent),)
        return self._unary[type(message)].future(encode(message, InlineSender()), metadata=metadata)

    def note(self, message: Request, answer: Answer) -> None:
        """Keeps the token of a worker that has joined, and where the direct transport is."""
        if isinstance(message, ms.Join) and isinstance(answer, ms.Joined):
            self._tokens.note(message, answer)
            self._joined = True
        if isinstance(answer, ms.Joined | ms.Renewed):
            where = answer.direct or ms.DirectAddress()
            with self._lock:
                if where != self._direct:
                    self._direct, self._direct_from = where, 0.0
                    self._pause, self._logged = DIRECT_PAUSE, False

    def stream(self, message: Request | None, seconds: float) -> TransferStream:
        """An idle stream of the sender of a message, or a new one, direct if possible.

        Raises `Unavailable` if it has to be direct.
        """
        token = self._tokens.of(message)
        found = self._idle_stream(token, (DIRECT, GRPC)) or self._open_direct(token, seconds)
        if found is not None:
            return found
        if self._options.transport == "direct" and not self._closed:
            raise Unavailable(
                f"the direct port of the server at {self.address} was not reached: "
                f"{self._not_reached or 'it has announced none'}; see --direct-port of psserver serve, or use "
                "--transport auto"
            )
        return GrpcStream(self._transfer, token, self.shard, share=self._joined and self._shares)

    def direct_stream(self, message: Request, seconds: float) -> TransferStream | None:
        """A stream as `stream` returns it if it is direct; else None."""
        token = self._tokens.of(message)
        return self._idle_stream(token, (DIRECT,)) or self._open_direct(token, seconds)

    def keep(self, stream: TransferStream) -> None:
        """Takes back a stream whose call has succeeded."""
        with self._lock:
            pool = stream.pool
            if self._shares and pool is not None and pool.refused:
                self._shares = False
                text = "no shared memory with the server at %s, so tensors go by %s: %s"
                how = "direct connections" if stream.name == DIRECT else GRPC
                logger.info(text, self.address, how, pool.refused)
            if not self._shares:
                self._tensor_transport = stream.name
            elif pool is not None and pool.count:
                self._tensor_transport = SHARED_MEMORY
            if stream.name == GRPC and self._not_reached:
                if not self._logged:
                    text = "the direct port %d of the server at %s was not reached, so tensors go by gRPC: %s"
                    logger.info(text, self._direct.port, self.address, self._not_reached)
                self._not_reached, self._logged = "", True
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
            if not self._closed:
                self._idle.append(stream)
                return
        stream.end()

    def _idle_stream(self, token: bytes, names: tuple[str, ...]) -> TransferStream | None:
        """A stream that is not in use; a server may have ended it, and one over gRPC makes way for a direct one."""
        with self._lock:
            direct = self._direct_is_due()
            for index in reversed(range(len(self._idle))):
                stream = self._idle[index]
                if stream.token != token or stream.name not in names:
                    continue
                del self._idle[index]
                if stream.is_active() and not (direct and stream.name == GRPC):
                    return stream
                stream.end()
        return None

    def _direct_is_due(self) -> bool:
        if self._closed or self._options.transport == "grpc" or not (self._direct.port or self._direct.socket):
            return False
        return time.monotonic() >= self._direct_from

    def _open_direct(self, token: bytes, seconds: float) -> DirectStream | None:
        """A new direct stream; None if it is not to be used, or is not reached: that takes `OPEN_SECONDS` at most."""
        with self._lock:
            if not self._direct_is_due():
                return None
            where, share = self._direct, self._joined and self._shares
        credentials = self._options.credentials
        secret = credentials.token(self.address)
        hello = pb.Hello(member=token, shard=self.shard, authorization=secret and f"Bearer {secret}")
        seconds = min(seconds, OPEN_SECONDS)
        try:
            found = open_direct(self.address, where, credentials, hello, seconds, unix=self._options.shared_memory)
        except NotReached as error:
            with self._lock:
                self._direct_from, self._not_reached = time.monotonic() + self._pause, str(error)
            return None
        stream = DirectStream(found, token, share=share)
        with self._lock:
            self._pause, self._logged = DIRECT_PAUSE, False
            self._direct_streams.add(stream)
            if self._closed:
                stream.cancel()
        return stream

    def answer_sizes(self, message: Request) -> list[int] | None:
        """The largest size of each value of the answer, in bytes; None if a variable was not registered here."""
        if isinstance(message, ms.Register):
            self._specs.update({one.spec.name: one.spec for one in message.declarations})
        try:
            return ms.most_answer_sizes(message, self._specs.__getitem__)
        except KeyError:
            return None

    def error_of(self, error: BaseException, deadline: Deadline | None = None) -> BaseException:
        """An error of a call, as one of ours where it is gRPC's."""
        if isinstance(error, _BROKEN) and deadline is not None and deadline.passed:
            return TimedOut(timeout_message(self.address))
        if isinstance(error, ParamServerError):
            return error
        if self._moved_to and isinstance(error, _OF_CONNECTIONS):
            return Unavailable(f"the call to {self.address} was interrupted: the shard is at {self._moved_to} now")
        if isinstance(error, grpc.FutureCancelledError):
            return Unavailable(f"the call to {self.address} was interrupted: its connection was closed")
        if isinstance(error, grpc.RpcError):
            return error_from(error, self.address, self._options.credentials)
        if isinstance(error, OSError):
            return Unavailable(f"the call to {self.address} was interrupted: {error.strerror or error}")
        if isinstance(error, ValueError | RuntimeError):  # of a channel, or an executor, that is closed
            return InternalError(f"no call to {self.address} is possible after close(): {error}")
        return error
