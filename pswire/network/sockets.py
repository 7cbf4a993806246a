"""Sockets of the direct transport, on both sides: options, and reading in few steps. Standard library only."""

import socket
import ssl
from contextlib import suppress

#: Bytes of a large message for which a reader waits, so that it is not woken for every packet.
BYTES_OF_A_WAKE = 1 << 20

#: Bytes of the longest record of TLS, with what belongs to it.
RECORD_BYTES = 17 << 10

#: A socket in non-blocking mode has nothing to read, or takes nothing.
NOT_READY = BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError


def set_options(connection: socket.socket, *, idle: int, interval: int, count: int, unreachable: int) -> None:
    """Send small messages at once, and end a TCP connection to a machine that has gone.

    Args:
        connection: it has these options from now on.
        idle: seconds after which a silent peer is asked whether it is there.
        interval: seconds between two such questions.
        count: of questions without an answer, after which the connection ends.
        unreachable: seconds in which what was sent has to be acknowledged.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * unreachable)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)


def wake_at(connection: socket.socket, nbytes: int) -> None:
    """Have a socket be readable only when this many bytes are there, or `BYTES_OF_A_WAKE`; at its end always.

    TLS may have taken the bytes of one record already.
    """
    if isinstance(connection, ssl.SSLSocket):
        nbytes -= RECORD_BYTES
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(nbytes, BYTES_OF_A_WAKE)))


def read_records(connection: socket.socket, into: memoryview) -> int:
    """Read under TLS, which gives a record of 16 KB at a time: all that are there; 0 at the end.

    Raises one of `NOT_READY` if none is there.
    """
    got = connection.recv_into(into)
    with suppress(*NOT_READY):
        while got < len(into) and (more := connection.recv_into(into[got:])):
            got += more
    return got
