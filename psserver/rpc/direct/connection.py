"""A connection of the direct transport: a Transfer over a socket, read and written in the event loop.

The socket is in non-blocking mode, plain or with TLS. What arrives is read into memory that all connections share, so
that an idle one has none, and a message that is not complete gets its own when there is room for it. Elements of a
large message go straight into their arrays.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from psserver.rpc.channels import Aside
from psserver.rpc.deadline import Deadline
from pswire.errors import Malformed, TimedOut
from pswire.network.channel import CALLED_SHARD, MEMBER_TOKEN
from pswire.network.sockets import ARRAYS_AT_ONCE, NOT_READY, read_records, send_some, wake_at
from pswire.tensors import direct
from pswire.tensors.frame import SplitFrame
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.v1 import paramserver_pb2 as pb

#: Bytes that are read at once.
READ_BYTES = 256 << 10

#: Bytes of a large message between two turns of other calls.
BYTES_OF_A_TURN = 1 << 20

#: Seconds for the error of a refused call to be read.
REFUSAL_SECONDS = 1.0


class DirectConnection:
    """One connection, a `TransferChannel`, in the task that made it. `buffer` belongs to all connections.

    A lost connection is a cancellation, as that of a call over gRPC: of a message that was not complete nothing is
    applied, and no refusal is counted. `seconds` are for a message that has begun.
    `on_member` is called before each call: the Hello was a member's.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        buffer: memoryview,
        seconds: float,
        on_member: Callable[[], object] = lambda: None,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._socket, self._peer, self._buffer, self._seconds, self._task = connection, peer, buffer, seconds, task
        self._on_member = on_member
        self._loop = asyncio.get_running_loop()
        self._plain = not isinstance(connection, ssl.SSLSocket)
        self._metadata: list[tuple[str, Any]] = []
        self._early = b""  # received before it was asked for
        self._waiting: asyncio.Future[None] | None = None
        self._waited = True  # since the last call
        self._watched = False
        self._cut = False  # a message has not been written to its end
        self._in_call = True  # from the first byte of a message to the wait for the next; the worker may send

    def invocation_metadata(self) -> Iterable[tuple[str, Any]]:
        """As `TransferChannel`, of the Hello."""
        return self._metadata

    def peer(self) -> str:
        """As `TransferChannel`."""
        return self._peer

    async def handshake(self) -> None:
        """Do the handshake of TLS, if there is one; then greet, and take the Hello. Raises `Malformed`.

        A thread computes its keys, or strangers could keep the event loop busy.
        """
        while isinstance(self._socket, ssl.SSLSocket):
            try:
                await self._in_thread(self._socket.do_handshake)
                break
            except ssl.SSLWantReadError:
                await self._readable()
                self._unwatch()
            except OSError as error:
                raise Malformed(f"no handshake: {getattr(error, 'reason', None) or error.strerror or error}") from None
        await self._write([direct.GREETING], Deadline(self._seconds))
        data = await self._at_least(direct.PREFIX_BYTES, b"")
        found = direct.lengths(data, direct.MAX_HELLO)
        data = await self._at_least(found.begin, data)
        self._early = data[found.begin :]
        try:
            hello = pb.Hello.FromString(data[direct.PREFIX_BYTES : found.header_end])
        except DecodeError:
            raise Malformed("the first message of a direct connection is a Hello") from None
        self._metadata = [(MEMBER_TOKEN, hello.member)] if hello.member else []
        self._metadata += [(CALLED_SHARD, str(hello.shard))]
        self._metadata += [("authorization", hello.authorization)] if hello.authorization else []

    async def _in_thread(self, step: Callable[[], None]) -> None:
        """Run a short step on the socket in a thread; a cancelled one ends first, before the socket is closed."""
        running = self._loop.run_in_executor(None, step)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            running.exception()  # or asyncio would log it
            raise

    async def receive(self, hold: Callable[[int], None], release: Callable[[int], None]) -> SplitFrame | None:
        """As `TransferChannel.receive`."""
        self._on_member()
        if not self._waited:  # others have their turns between calls that are there already
            await asyncio.sleep(0)
        self._waited = self._in_call = False
        data: bytes | memoryview = self._early
        if not data:
            if self._plain:  # between its calls a worker computes: there is nothing yet
                await self._readable()
            data = self._buffer[: await self._read([self._buffer])]
            if not data:
                return None
        self._early, self._in_call = b"", True
        if len(data) >= direct.PREFIX_BYTES:
            found = direct.lengths(data)
            if found.end <= len(data):
                self._early = bytes(data[found.end :])
                frame = direct.header_of(bytes(data[: found.end]), found)
                hold(found.end)
                return frame
        return await Deadline(self._seconds).wait(self._rest_of(bytes(data), hold, release))

    async def fill(self, receiver: StreamReceiver, deadline: Deadline, aside: Aside | None) -> None:
        """As `TransferChannel.fill`."""
        try:
            await deadline.wait(self._fill(receiver, deadline))
        finally:
            wake_at(self._socket, 1)
        if not self._early:
            self._watch()  # whether the worker goes while its call is held

    async def _fill(self, receiver: StreamReceiver, deadline: Deadline) -> None:
        turn, left = 0, receiver.nbytes
        while True:
            early, self._early = self._early[:left], self._early[left:]  # of other turns
            receiver.take(memoryview(early))
            left -= len(early)
            if receiver.complete:
                return
            gaps = receiver.gaps(ARRAYS_AT_ONCE)
            while (nbytes := self._read_now(gaps)) is None:
                wake_at(self._socket, left)
                await self._readable()
            if not nbytes:
                raise asyncio.CancelledError  # the worker has taken its message back, or has gone
            receiver.filled(nbytes)
            deadline.passed(nbytes)
            left -= nbytes
            turn += nbytes
            if turn >= BYTES_OF_A_TURN:
                turn = 0
                await asyncio.sleep(0)

    async def send(self, header: pb.Frame, sender: StreamSender, deadline: Deadline) -> None:
        """As `TransferChannel.send`."""
        await self._write(direct.message(header, sender.data), deadline)

    async def refuse(self, refusal: tuple[Any, str, Iterable[tuple[str, str]]]) -> None:
        """Send what `status_of` returns, and within a call wait until the worker has gone; `REFUSAL_SECONDS` at most.

        Its bytes are read meanwhile: the system would reset the connection, and the worker not read why. Behind a part
        of an answer nothing is sent: it would be taken for the rest.
        """
        if self._cut:
            return
        _, text, ((_, name),) = refusal
        frame = pb.Frame(refusal=pb.Refusal(error=name, message=text))
        with suppress(TimeoutError, TimedOut, OSError, asyncio.CancelledError):
            async with asyncio.timeout(REFUSAL_SECONDS):
                await self._write(direct.message(frame), Deadline(REFUSAL_SECONDS))
                self._socket.shutdown(socket.SHUT_WR)
                while self._in_call and await self._read([self._buffer]):
                    await asyncio.sleep(0)  # it may send as fast as this reads

    def close(self) -> None:
        """Close the socket."""
        self._unwatch()
        self._socket.close()

    # --- reading --------------------------------------------------------------------------------------------------

    async def _rest_of(self, data: bytes, hold: Callable[[int], None], release: Callable[[int], None]) -> SplitFrame:
        """The frame that begins with these bytes; without its elements if they are many."""
        data = await self._at_least(direct.PREFIX_BYTES, data)
        found = direct.lengths(data)
        nbytes = found.end if found.elements <= MAX_INLINE_MESSAGE else found.begin
        hold(nbytes)
        try:
            self._early = data[nbytes:]
            if len(data) >= nbytes:
                return direct.header_of(data[:nbytes], found)
            memory = memoryview(bytearray(nbytes))
            memory[: len(data)] = data
            await self._read_all(memory[len(data) :])
            return direct.header_of(memory, found)
        except BaseException:
            release(nbytes)
            raise

    async def _at_least(self, nbytes: int, data: bytes) -> bytes:
        """These bytes with more, `nbytes` at least."""
        while len(data) < nbytes:
            more = await self._read([self._buffer])
            if not more:
                raise asyncio.CancelledError  # the worker has taken its message back, or has gone
            data += self._buffer[:more]
        return data

    async def _read_all(self, memory: memoryview) -> None:
        while memory:
            nbytes = await self._read([memory])
            if not nbytes:
                raise asyncio.CancelledError  # the worker has taken its message back, or has gone
            memory = memory[nbytes:]

    async def _read(self, into: Sequence[memoryview]) -> int:
        """Read some bytes; their number, 0 at the end."""
        while (nbytes := self._read_now(into)) is None:
            await self._readable()
        return nbytes

    def _read_now(self, into: Sequence[memoryview]) -> int | None:
        """Read what is there; None if that is nothing."""
        try:
            if not self._plain:
                return read_records(self._socket, into[0][:BYTES_OF_A_TURN])
            return self._socket.recvmsg_into(into)[0] if len(into) > 1 else self._socket.recv_into(into[0])
        except NOT_READY:
            return None
        except OSError:
            raise asyncio.CancelledError from None

    def _watch(self) -> None:
        if not self._watched:
            self._loop.add_reader(self._socket, self._notice)
            self._watched = True

    async def _readable(self) -> None:
        self._watch()
        self._waiting, self._waited = self._loop.create_future(), True
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _unwatch(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._socket)
            self._watched = False

    def _notice(self) -> None:
        """The socket is readable: wake who waits for it, or find out whether the worker has gone during its call."""
        if self._waiting is not None:
            if not self._waiting.done():
                self._waiting.set_result(None)
            return
        try:
            nbytes = self._read_now([self._buffer])
        except asyncio.CancelledError:
            nbytes = 0
        if nbytes is None:
            return
        self._unwatch()
        self._early += self._buffer[:nbytes]
        if not nbytes:
            self._task.cancel()

    # --- writing --------------------------------------------------------------------------------------------------

    async def _write(self, pieces: Sequence[bytes | memoryview], deadline: Deadline) -> None:
        """Write all of these; other calls have their turns while the socket takes no more."""
        self._cut = True
        left = self._write_some([memoryview(piece) for piece in pieces])
        if left:
            await deadline.wait(self._write_rest(left, deadline))
        self._cut = False

    async def _write_rest(self, left: list[memoryview], deadline: Deadline) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(self._socket, writable.set)
        try:
            while left:
                await writable.wait()
                writable.clear()
                before = sum(map(len, left))
                left = self._write_some(left)
                deadline.passed(before - sum(map(len, left)))
        finally:
            self._loop.remove_writer(self._socket)

    def _write_some(self, left: list[memoryview]) -> list[memoryview]:
        """Write what the socket takes now; what is left."""
        try:
            while left:
                left = send_some(self._socket, left)
        except NOT_READY:
            pass
        except OSError:
            raise asyncio.CancelledError from None
        return left
