"""A Transfer over a direct connection: a socket that is written and read in the thread that calls.

May import pswire.
"""

import select
import socket
import ssl
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from pswire.errors import FAMILY, ConfigurationError, InternalError
from pswire.messages import DirectAddress
from pswire.network.sockets import ARRAYS_AT_ONCE, NOT_READY, OF_WORKERS, read_records, send_some, set_options, wake_at
from pswire.security.credentials import Credentials
from pswire.tensors import direct
from pswire.tensors.frame import Incoming
from pswire.tensors.shared_segments import NotShared, socket_path
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import DIRECT
from psworker.transport.shared_memory import SegmentPool
from psworker.transport.streams import attached_segment

#: Seconds for a connection, its handshake and its greeting.
OPEN_SECONDS = 2.0

#: Bytes that are read at once.
READ_BYTES = 64 << 10


class NotReached(Exception):
    """No direct connection can be made, for the reason in the message."""


def open_direct(
    address: str, where: DirectAddress, credentials: Credentials, hello: pb.Hello, seconds: float, *, unix: bool
) -> socket.socket:
    """A connection to the server at `address`, over its Unix socket if there is one and `unix`; it has said `hello`.

    Raises `NotReached`.
    """
    reason = "the server has no direct port"
    for connect in (_unix, _tcp) if unix and where.socket else (_tcp,):
        if connect is _tcp and not where.port:
            continue
        try:
            return _greeted(connect(address, where, credentials, seconds), hello)
        except (OSError, NotShared, ConfigurationError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise NotReached(reason)


def _unix(address: str, where: DirectAddress, credentials: Credentials, seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error(connection):
        connection.settimeout(seconds)
        connection.connect(socket_path(where.socket))
    return connection


def _tcp(address: str, where: DirectAddress, credentials: Credentials, seconds: float) -> socket.socket:
    host = address.rpartition(":")[0].strip("[]")
    connection = socket.create_connection((host, where.port), timeout=seconds)
    with _closed_on_error(connection):
        set_options(connection, OF_WORKERS)
        if credentials.tls:
            connection = credentials.context().wrap_socket(connection, server_hostname=credentials.tls_name or host)
    return connection


def _greeted(connection: socket.socket, hello: pb.Hello) -> socket.socket:
    """The connection, when the server has greeted and the Hello is sent."""
    with _closed_on_error(connection):
        greeting = b""
        while len(greeting) < len(direct.GREETING):
            more = connection.recv(len(direct.GREETING) - len(greeting))
            greeting += more
            if not more or not direct.GREETING.startswith(greeting):
                raise OSError(f"what listens there has another protocol, or another version of it: {greeting!r}")
        connection.sendall(b"".join(direct.message(hello)))
        connection.setblocking(not isinstance(connection, ssl.SSLSocket))
    return connection


@contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Closes a socket if the block raises an error."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


class DirectStream:
    """A `TransferStream` over a socket. Its deadline is its caller's: `cancel` ends the wait.

    A plain socket blocks; one with TLS is in non-blocking mode, since its records are read and written one by one.
    """

    name = DIRECT

    def __init__(self, connection: socket.socket, token: bytes, *, share: bool) -> None:
        self.token = token
        self._socket, self._plain = connection, not isinstance(connection, ssl.SSLSocket)
        weakref.finalize(self, connection.close).atexit = False  # after a call whose result is never taken
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._rest = self._buffer[:0]  # received behind the header of a large answer
        self._ended = False  # by the server, between two calls
        self.pool = SegmentPool(partial(attached_segment, self)) if share else None

    def send(self, header: pb.Frame, sender: StreamSender) -> None:
        """As `TransferStream.send`; returns when the system has taken all."""
        self.write([memoryview(piece) for piece in direct.message(header, sender.data)])

    def write(self, pieces: Sequence[memoryview]) -> None:
        """Send bytes of a message; returns when the system has taken all."""
        try:
            self._send_all(pieces)
        except OSError:
            with suppress(OSError):
                self.receive()  # why the server does not read it
            raise

    def receive(self) -> Incoming:
        """As `TransferStream.receive`."""
        buffer, got = self._buffer, self._some(self._buffer)
        while got < direct.PREFIX_BYTES:
            got += self._some(buffer[got:])
        found = direct.lengths(buffer)
        nbytes = found.end if found.elements <= MAX_INLINE_MESSAGE else found.begin
        self._ended = found.elements <= MAX_INLINE_MESSAGE and got > nbytes  # behind an answer comes the end alone
        if got < nbytes:
            data: bytes | memoryview = memoryview(bytearray(nbytes))
            data[:got] = buffer[:got]  # type: ignore[index]
            while got < nbytes:
                got += self._some(data[got:])  # type: ignore[arg-type]
        else:
            data = bytes(buffer[:nbytes])
        self._rest = buffer[nbytes:got]
        frame = direct.header_of(data, found).parse()
        if frame.header.HasField("refusal"):
            refusal = frame.header.refusal
            raise FAMILY.get(refusal.error, InternalError)(refusal.message)
        return frame

    def fill(self, receiver: StreamReceiver) -> None:
        """As `TransferStream.fill`: straight into the arrays."""
        receiver.take(self._rest)
        left = receiver.nbytes - len(self._rest)
        while not receiver.complete:
            gaps = receiver.gaps(ARRAYS_AT_ONCE)
            if self._plain:
                nbytes = self._socket.recvmsg_into(gaps, 0, socket.MSG_WAITALL)[0]
                if not nbytes:
                    raise _closed()
            else:
                nbytes = self._some(gaps[0], left)
            receiver.filled(nbytes)
            left -= nbytes

    def is_active(self) -> bool:
        """As `TransferStream.is_active`: between calls a server sends nothing but the end."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
            return not self._ended and not poll.poll(0)
        except (OSError, ValueError):
            return False

    def cancel(self) -> None:
        """As `TransferStream.cancel`."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS is not for other threads

    def end(self) -> None:
        """As `TransferStream.end`; not while another thread receives."""
        self._socket.close()
        self.pool = None  # it knows this stream

    def _some(self, memory: memoryview, expected: int = 1) -> int:
        """Read some bytes, of as many as are expected."""
        while True:
            try:
                nbytes = self._socket.recv_into(memory) if self._plain else read_records(self._socket, memory)
                break
            except NOT_READY:
                wake_at(self._socket, expected)
                self._wait(select.POLLIN)
        if not nbytes:
            raise _closed()
        return nbytes

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll()

    def _send_all(self, pieces: Sequence[memoryview]) -> None:
        while pieces:
            try:
                pieces = send_some(self._socket, pieces)
            except NOT_READY:
                self._wait(select.POLLOUT)


def _closed() -> OSError:
    return ConnectionError("its connection was closed")
