"""The shards behind gRPC: one channel for each, unary calls, and open streams for the messages with tensors.

Delivers a message once and says what went wrong; trying again is the client's. May import pswire, transfer, deadlines
and grpc, and is imported only by who needs a network.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import grpc

from pswire.channel import check_address, error_from, late, open_channel
from pswire.codec import decode, encode
from pswire.errors import ConfigurationError, InternalError, ParamServerError, TimedOut, Unavailable
from pswire.messages import ANSWERS, Answer, Assign, Pull, Push, Register, Request, Take
from pswire.messages.sizes import most_answer_sizes
from pswire.system.deferred_signals import add_cancel, deferred_signals, deferred_to_next_block, remove_cancel
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.segments import sweep
from pswire.tensors.values import TensorSpec
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub
from psworker.transport import Future
from psworker.transport.deadlines import Deadlines
from psworker.transport.transfer_stream import Transfer, TransferCall, checked

logger = logging.getLogger(__name__)

#: What is said in training's every round; the rest by unary calls.
_ON_STREAMS = (Register, Pull, Push, Assign, Take)

#: Bytes that an answer may have when it is not known how large the variables are that were asked for.
MAX_BYTES = 16 << 30

#: Seconds that a server has to say whether there is shared memory with it.
LANE_KNOWN = 2.0

#: How tensors travel, in words.
SHARED_MEMORY, GRPC = "shared memory", "gRPC"


class GrpcTransport:
    """Calls to shards at addresses, in the order of their numbers.

        with closing(GrpcTransport(["127.0.0.1:5000"])) as transport:
            joined = transport.call(0, Join("worker-0"), timeout=10.0).result()

    Connects with the first call. Any thread may call.

    Args:
        addresses: as `pswire.channel.check_address` takes them.
        max_bytes: the most that is accepted as an answer whose size is not known beforehand.
        shared_memory: whether tensors go through shared memory where a server is on this host.

    Raises:
        ConfigurationError: there is no address, one that is none, or one twice.
    """

    def __init__(self, addresses: Sequence[str], max_bytes: int = MAX_BYTES, *, shared_memory: bool = True) -> None:
        checked = [check_address(address) for address in addresses]
        if not checked or len(set(checked)) < len(checked):
            raise ConfigurationError(
                f"a worker needs the address of each shard once, got {', '.join(checked) or 'none'}"
            )
        if shared_memory and (swept := sweep()):
            logger.info("removed %d segments of shared memory, whose processes were killed", swept)
        self._deadlines = Deadlines()
        add_cancel(self._deadlines.pass_all)
        with deferred_to_next_block:
            self._links = [_Link(address, max_bytes, self._deadlines, shared_memory) for address in checked]

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._links)

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        """Sends `message` to a shard; the result has its answer, within `timeout` seconds.

        The result raises:
            Unavailable, TimedOut: no server there, or no answer in time; it may have taken the message or not.
            Malformed, TooLarge: the answer is not what was asked for.
            ParamServerError: what else the shard says.
        """
        return self._links[shard].call(message, timeout)

    def tensor_transport(self, shard: int) -> str:
        """How tensors travel to this shard: `SHARED_MEMORY` or `GRPC`; "" while that is not known.

        The first time it asks the server, which has `LANE_KNOWN` seconds; afterwards it is known from calls.
        """
        with deferred_to_next_block:
            return self._links[shard].tensor_transport()

    def close(self) -> None:
        """Ends the connections; calls under way fail with `Unavailable`."""
        with deferred_signals:
            remove_cancel(self._deadlines.pass_all)
            for link in self._links:
                link.close()
            self._deadlines.close()


class _Link:
    """The connection to one server, and what is known of the sizes of its variables.

    `_lock` guards the streams: those that are idle serve the next calls, so there are as many as calls at a time; and
    what is known of the lane.
    """

    def __init__(self, address: str, max_bytes: int, deadlines: Deadlines, shared_memory: bool) -> None:
        self.address = address
        self.max_bytes = max_bytes
        self.deadlines = deadlines
        self._channel = open_channel(address)
        self._stub = ParameterServerStub(self._channel)  # type: ignore[no-untyped-call]
        self._unary: dict[type[Request], Any] = {kind: getattr(self._stub, kind.__name__) for kind in ANSWERS}
        self._transfer = self._channel.stream_stream("/paramserver.v1.ParameterServer/Transfer")  # of bytes
        self._specs: dict[str, TensorSpec] = {}  # of the variables that were registered here
        self._lock = threading.Lock()
        self._idle: list[Transfer] = []
        self._closed = False
        self._share = shared_memory
        self._lane = "" if shared_memory else GRPC
        self._asked = False

    def call(self, message: Request, timeout: float) -> Future[Answer]:
        if not isinstance(message, _ON_STREAMS):
            return Future(lambda: self._unary_call(message, timeout))
        try:
            return Future(TransferCall(self, message, timeout).result)
        except (ParamServerError, ValueError) as error:
            failure = error.with_traceback(None)  # which has this frame, and so itself
            return Future(lambda: self._fail(failure))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.end()
        self._channel.close()

    def tensor_transport(self) -> str:
        with self._lock:
            asked, self._asked = self._asked, True
            if self._lane or self._closed or asked:
                return self._lane
        stream = self.stream()
        deadline = self.deadlines.set(LANE_KNOWN, stream.cancel)
        try:
            stream.probe()
        except (grpc.RpcError, ParamServerError, ValueError):
            stream.end()
            return ""
        finally:
            self.deadlines.drop(deadline)
        self.keep(stream)
        return self._lane

    def _unary_call(self, message: Request, timeout: float) -> Answer:
        deadline = None
        try:
            call = self._unary[type(message)].future(encode(message, InlineSender()), timeout=timeout)
            deadline = self.deadlines.set(timeout, call.cancel)
            return checked(message, decode(call.result(), InlineReceiver()))
        except grpc.FutureCancelledError:
            if deadline is not None and deadline.passed:
                raise TimedOut(late(self.address)) from None
            raise Unavailable(f"the call to {self.address} was broken off: its connection was closed") from None
        except (grpc.RpcError, ValueError) as error:
            self._fail(error)
        finally:
            if deadline is not None:
                self.deadlines.drop(deadline)

    def _fail(self, error: Exception) -> NoReturn:
        """Raises what an error on this link means."""
        if isinstance(error, grpc.RpcError):
            raise error_from(error, self.address) from error
        if isinstance(error, ValueError):  # gRPC's answer to a call on a closed channel
            raise InternalError(f"no call to {self.address} is possible after close(): {error}") from error
        raise error

    def stream(self) -> Transfer:
        """One that is idle, or a new one."""
        with self._lock:
            while self._idle:
                stream = self._idle.pop()
                if stream.alive:
                    return stream
                stream.end()
            share = self._share and self._lane != GRPC
        return Transfer(self._transfer, share=share)

    def keep(self, stream: Transfer) -> None:
        """Takes back a stream whose call has ended well."""
        with self._lock:
            if self._lane != GRPC:
                self._note_lane(stream)
            if not self._closed:
                self._idle.append(stream)
                return
        stream.end()

    def answer_sizes(self, message: Request, without: Collection[str] = ()) -> list[int] | None:
        """Bytes of each value that the answer brings at most; None if a variable was not registered by this link."""
        if isinstance(message, Register):
            self._specs.update({one.spec.name: one.spec for one in message.declarations})
        try:
            return most_answer_sizes(message, self._specs.__getitem__, without)
        except KeyError:
            return None

    def _note_lane(self, stream: Transfer) -> None:
        segments = stream.segments
        if segments is None or segments.refused:
            self._lane = GRPC
        elif segments.count:
            self._lane = SHARED_MEMORY
        if segments is not None and segments.refused:
            logger.info(
                "no shared memory with the server at %s, so tensors go by gRPC: %s", self.address, segments.refused
            )
