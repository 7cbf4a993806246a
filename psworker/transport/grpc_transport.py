"""The gRPC transport: a connection to each server, for unary calls, and calls with tensors on streams that stay open.

What arrives is checked before memory is allocated for it. No retries: the client handles them. Imported only where a
network is needed. May import pswire, the other modules of this folder and grpc.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import Any

import grpc
import numpy as np

from psjob.tracing.tracing import current
from pswire import messages as ms
from pswire.codec import decode, encode, framed, from_frame, to_frame
from pswire.errors import InternalError, Malformed, TimedOut, TooLarge, Unavailable
from pswire.messages import Answer, Request
from pswire.network.channel import error_from, member_metadata, open_channel, timeout_message
from pswire.network.service_stub import ServiceStub
from pswire.network.shard_addresses import ShardAddresses
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.system.interrupts import add_cancel, deferred_signals, deferred_to_next_block, remove_cancel
from pswire.tensors.frame import incoming
from pswire.tensors.shared_memory import Region, bytes_needed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import Future
from psworker.transport.deadlines import Deadline, Deadlines
from psworker.transport.shared_memory import AnswerReceiver, Segment, SegmentPool, fetch_segment

logger = logging.getLogger(__name__)

#: Bytes of the largest answer that is accepted when the size of a variable is not known.
MAX_BYTES = 16 << 30

#: Messages of every training step, which are sent on streams.
_ON_STREAMS = tuple([call.request for call in ms.CALLS if framed(call.request)])

#: Seconds that a server has to answer the first request for shared memory.
PROBE_TIMEOUT = 2.0

#: Bytes of tensors from which shared memory is faster than the frame that describes them.
MIN_SHARED_BYTES = 16 << 10

#: Threads that receive large answers of one server.
MAX_RECEIVERS = 32

#: The tensor transports, as `Transport.tensor_transport` names them.
SHARED_MEMORY, GRPC = "shared memory", "gRPC"


class GrpcTransport:
    """A `Transport` to shards at addresses, in the order of their numbers. Connects with the first call. Thread-safe.

    A shard that cannot be reached is looked up again if the servers are given by a name; when it has another address,
    its connection is replaced, and no other one.

    Args:
        servers: as `pswire.network.discovery.parse_servers` returns them.
        credentials: of each connection.
        shared_memory: whether tensors go through shared memory where a server is on this host.
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
        timeout: float = 60.0,
    ) -> None:
        self._addresses = ShardAddresses(servers, credentials, self._follow)
        addresses = self._addresses.find(timeout)
        self._credentials, self._shared_memory = self._addresses.credentials, shared_memory
        self._deadlines, self._tokens = Deadlines(), MemberTokens()
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
        kind = TransferCall if isinstance(message, _ON_STREAMS) else UnaryCall
        try:
            result = kind(connection, message, timeout).result
        except Exception as error:  # noqa: BLE001 - raised by the future
            failed: ThreadFuture[Answer] = ThreadFuture()
            failed.set_exception(connection.error_of(error).with_traceback(None))  # breaks a reference cycle
            result = failed.result
        return Future(partial(self._found_again, shard, result) if self._addresses.name else result)

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

    def _connect(self, shard: int, address: str, before: "Connection | None" = None) -> "Connection":
        channel = open_channel(address, self._credentials)
        deadlines, tokens = self._deadlines, self._tokens
        return Connection(shard, address, channel, self._credentials, deadlines, tokens, self._shared_memory, before)

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


class Connection:
    """The connection to one server, and the specs of the variables registered there. Thread-safe.

    There is one stream per concurrent call; `_lock` guards the idle streams and the status of shared memory. Only a
    member gets shared memory: `_joined` is set when one has joined over this connection, or over the one `before`, to
    the same shard at another address.
    """

    def __init__(
        self,
        shard: int,
        address: str,
        channel: grpc.Channel,
        credentials: Credentials,
        deadlines: Deadlines,
        tokens: MemberTokens,
        shared_memory: bool,
        before: "Connection | None" = None,
    ) -> None:
        self.shard, self.address, self.deadlines, self._tokens = shard, address, deadlines, tokens
        self.receivers = ThreadPoolExecutor(MAX_RECEIVERS, thread_name_prefix="psworker-stream")
        self._channel, self._credentials = channel, credentials
        stub = ServiceStub(self._channel)
        self._unary: dict[type[Request], Any] = {kind: getattr(stub, kind.__name__) for kind in ms.ANSWERS}
        self._transfer = self._channel.stream_stream("/paramserver.v1.ParameterServer/Transfer")  # of bytes
        self._specs: dict[str, TensorSpec] = {} if before is None else before._specs
        self._lock = threading.Lock()
        self._idle: list[TransferStream] = []
        self._closed, self._moved_to = False, ""
        self._tensor_transport = "" if shared_memory else GRPC
        self._probed = False
        self._joined: bool = before is not None and before._joined

    def close(self, moved_to: str = "") -> None:
        """Ends all calls; they may be made again if the shard has `moved_to` another address."""
        with self._lock:
            self._closed, self._moved_to = True, moved_to
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.end()
        self._channel.close()
        self.receivers.shutdown(wait=False)

    def tensor_transport(self) -> str:
        """As `Transport.tensor_transport`; a member's first call asks the server, later ones know it from calls."""
        with self._lock:
            if self._tensor_transport or self._closed or self._probed or not self._joined:
                return self._tensor_transport
            self._probed = True
        stream = self.stream()
        deadline = self.deadlines.set(PROBE_TIMEOUT, stream.cancel)
        try:
            if stream.pool is not None and (segment := stream.pool.take(1)) is not None:
                stream.pool.give_back(segment)
        except (grpc.RpcError, Malformed, ValueError):
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

    def note_joined(self, message: ms.Join, answer: ms.Joined) -> None:
        """Keeps the token of a worker that has joined."""
        self._tokens.note(message, answer)
        self._joined = True

    def stream(self, message: Request | None = None) -> "TransferStream":
        """An idle stream of the sender of a message, or a new one; a server may have ended an idle one."""
        token = self._tokens.of(message)
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index].token != token:
                    continue
                stream = self._idle.pop(index)
                if stream.answers.is_active():
                    return stream
                stream.end()
            share = self._joined and self._tensor_transport != GRPC
        return TransferStream(self._transfer, token, self.shard, share=share)

    def keep(self, stream: "TransferStream") -> None:
        """Takes back a stream whose call has succeeded."""
        with self._lock:
            pool = stream.pool
            if self._tensor_transport != GRPC and pool is not None:
                if pool.refused:
                    self._tensor_transport = GRPC
                    text = "no shared memory with the server at %s, so tensors go by gRPC: %s"
                    logger.info(text, self.address, pool.refused)
                elif pool.count:
                    self._tensor_transport = SHARED_MEMORY
            if not self._closed:
                self._idle.append(stream)
                return
        stream.end()

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
        if isinstance(error, grpc.RpcError | grpc.FutureCancelledError) and deadline is not None and deadline.passed:
            return TimedOut(timeout_message(self.address))
        if self._moved_to and isinstance(error, grpc.RpcError | grpc.FutureCancelledError | ValueError | RuntimeError):
            return Unavailable(f"the call to {self.address} was interrupted: the shard is at {self._moved_to} now")
        if isinstance(error, grpc.FutureCancelledError):
            return Unavailable(f"the call to {self.address} was interrupted: its connection was closed")
        if isinstance(error, grpc.RpcError):
            return error_from(error, self.address, self._credentials)
        if isinstance(error, ValueError | RuntimeError):  # of a channel, or an executor, that is closed
            return InternalError(f"no call to {self.address} is possible after close(): {error}")
        return error


class TransferStream:
    """A Transfer that stays open for consecutive calls, which halves the cost of a call. One call at a time.

    `open_stream` opens it for an iterator of request frames, with the `token` of the worker whose calls it carries
    to a shard. `send` passes the frames of a request to gRPC's thread; `answers` has those of all answers. `pool` has
    its segments; None without shared memory (not `share`).
    """

    def __init__(self, open_stream: Callable[..., Any], token: bytes, shard: int, *, share: bool) -> None:
        self.token = token
        queued: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self.send = queued.put
        requests = itertools.chain.from_iterable(iter(queued.get, None))
        self.answers = open_stream(requests, metadata=member_metadata(token, shard))
        self.pool = SegmentPool(self._attach) if share else None

    def cancel(self) -> None:
        """Ends waits for an answer with an error; frees the server, and gRPC's thread."""
        self.send(None)
        self.answers.cancel()

    def end(self) -> None:
        """Frees the thread, the server, and segments without values."""
        self.cancel()
        # Breaks reference cycles: the pool knows this stream, and gRPC's error is `answers` itself, whose traceback has
        # this stream and the call.
        self.pool = self.answers.__traceback__ = None

    def _attach(self, number: int, nbytes: int) -> Segment:
        request = pb.AttachRequest(segment=number, nbytes=nbytes)
        self.send([pb.Frame(attach=request).SerializeToString()])
        frame = next(self.answers, None)
        header = None if frame is None else incoming(frame).header
        if header is None or header.WhichOneof("piece") != "attached":
            raise Malformed("the server did not answer the request for shared memory")
        return fetch_segment(header.attached, number, nbytes)


class UnaryCall:
    """One call without a stream: sent when it is made, answered by `result`."""

    def __init__(self, connection: Connection, message: Request, timeout: float) -> None:
        self._connection, self._message = connection, message
        self._call = connection.unary(message)
        self._deadline = connection.deadlines.set(timeout, self._call.cancel)

    def result(self) -> Answer:
        """The answer; see `GrpcTransport.call` for its errors."""
        try:
            answer = _checked(self._message, decode(self._call.result(), InlineReceiver()))
            if isinstance(self._message, ms.Join) and isinstance(answer, ms.Joined):
                self._connection.note_joined(self._message, answer)
            return answer
        except (grpc.RpcError, grpc.FutureCancelledError, ValueError) as error:
            raise self._connection.error_of(error, self._deadline) from error
        finally:
            self._connection.deadlines.drop(self._deadline)


class TransferCall:
    """One call on a stream: sent when it is made, answered by `result`.

    An answer in chunks is received in another thread, because the server would otherwise have to wait; an answer in a
    single frame or in shared memory has nothing to wait for.
    """

    def __init__(self, connection: Connection, message: Request, timeout: float) -> None:
        self._connection, self._message = connection, message
        self._sizes = connection.answer_sizes(message)
        self._segments: list[Segment] = []
        self._streamed = 0  # bytes of the answer's values that do not come in shared memory
        self._ahead: ThreadFuture[Answer] | None = None
        self._span, self._sent = current.get(), 0
        begin = 0 if self._span is None else time_ns()
        self._stream = connection.stream(message)
        self._deadline = connection.deadlines.set(timeout, self._stream.cancel)
        try:
            self._stream.send(self._frames())
            if self._span is not None:
                self._sent = time_ns()
                self._span.child("send", begin, self._sent, server=connection.address)
            if self._streamed > MAX_INLINE_MESSAGE:
                self._ahead = connection.receivers.submit(self._receive)
        except BaseException as error:
            self._failed(error)
            raise

    def result(self) -> Answer:
        """The answer; see `GrpcTransport.call` for its errors."""
        try:
            answer = self._receive() if self._ahead is None else self._ahead.result()
        except BaseException as error:
            self._failed(error)
            raise
        self._connection.deadlines.drop(self._deadline)
        self._connection.keep(self._stream)
        return answer

    def _failed(self, error: BaseException) -> None:
        """Ends the stream; raises an error of gRPC as one of ours."""
        self._stream.end()
        self._ahead = None  # it has the error, whose traceback has this call
        self._connection.deadlines.drop(self._deadline)
        if isinstance(error, grpc.RpcError):
            raise self._connection.error_of(error, self._deadline) from error

    def _frames(self) -> Iterator[bytes]:
        """The frames of the request, with its tensors in shared memory if they are large enough for it."""
        pool, streamed = self._stream.pool, StreamSender()
        segment = None if pool is None else self._segment(pool, ms.array_sizes(self._message))
        sender = streamed if segment is None else Region(segment.number, segment.memory)
        header = to_frame(self._message, sender)
        if self._span is not None:
            header.traceparent = self._span.traceparent
        answer = None if pool is None else self._segment(pool, self._sizes or ())
        if answer is None:
            self._streamed = sum(self._sizes or ())
        else:
            region = header.answer_region
            region.segment, region.offset, region.nbytes = answer.number, 0, answer.nbytes
        return streamed.frames(header)

    def _segment(self, pool: SegmentPool, sizes: Sequence[int]) -> Segment | None:
        """Shared memory for arrays of these sizes; None if they are too small or too large for it, or none is left."""
        nbytes = bytes_needed(sizes)
        segment = None if nbytes < MIN_SHARED_BYTES else pool.take(nbytes)
        if segment is not None:
            self._segments.append(segment)
        return segment

    def _receive(self) -> Answer:
        """The answer. Nothing is allocated before all that it announces has been checked."""
        address, pool = self._connection.address, self._stream.pool
        frame = next(self._stream.answers, None)
        if self._span is not None:
            self._span.child("wait", self._sent, time_ns(), server=address)
        if frame is None:
            raise Malformed(f"the server at {address} ended the stream without an answer")
        shared = None if pool is None else AnswerReceiver(self._segments, pool)
        first = incoming(frame)
        receiver = StreamReceiver(first.data, shared)
        answer = _checked(self._message, from_frame(first, receiver))
        if receiver.nbytes:
            limit = MAX_BYTES if self._sizes is None else sum(self._sizes)
            if receiver.nbytes > limit:
                raise TooLarge(
                    f"the answer of {address} has {receiver.nbytes:,} bytes of tensors, but {limit:,} is all a "
                    f"{type(self._message).__name__} of these variables can bring"
                )
            receiver.allocate()
            answer = _checked(self._message, from_frame(first, receiver))
            while not receiver.complete:
                data = next(self._stream.answers, None)
                if data is None:
                    raise Malformed(f"the answer of {address} ended before its {receiver.nbytes:,} bytes had arrived")
                receiver.feed(incoming(data))
        if shared is not None:
            if 2 * ms.tensor_bytes(answer) < sum(self._sizes or ()):
                answer = _copied(answer)
            shared.close()
        return answer


def _copied(answer: Answer) -> Answer:
    """The answer with arrays of its own.

    In an answer with few of the requested values, since the others have not changed, each value would occupy the
    segment of all until it changes again, and soon there would be none left. Encoded values are decoded into new arrays
    anyway.
    """
    if not isinstance(answer, ms.Pulled | ms.Pushed):
        return answer
    values = []
    for value in answer.values:
        array = value.array
        if isinstance(array, np.ndarray):
            array = array.copy()
            array.flags.writeable = False
        values.append(replace(value, array=array))
    return replace(answer, values=tuple(values))


def _checked(message: Request, answer: Request | Answer) -> Answer:
    """The answer. Raises `Malformed` if its class does not match the message."""
    if not isinstance(answer, ms.ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
