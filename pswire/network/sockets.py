"""Sockets of the direct transport, on both sides: options, and reading and writing in few steps.

Standard library only.
"""

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

#: Bytes of a large message for which a reader waits, so that it is not woken for every packet.
BYTES_OF_A_WAKE = 1 << 20

#: Bytes of the longest record of TLS, with what belongs to it.
RECORD_BYTES = 17 << 10

#: Arrays that are read or written at once.
ARRAYS_AT_ONCE = 64

#: A socket in non-blocking mode has nothing to read, or takes nothing.
NOT_READY = BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class Patience(NamedTuple):
    """When a TCP connection to a machine that has gone ends, in seconds.

    Attributes:
        idle: after which a silent peer is asked whether it is there.
        interval: between two such questions.
        questions: without an answer, after which the connection ends.
        unreachable: in which what was sent has to be acknowledged.
    """

    idle: int
    interval: int
    questions: int
    unreachable: int


#: Of workers, as `pswire.network.channel.CLIENT_OPTIONS`, and of servers.
OF_WORKERS, OF_SERVERS = Patience(30, 5, 1, unreachable=5), Patience(60, 5, 4, unreachable=20)


def set_options(connection: socket.socket, patience: Patience) -> None:
    """Send small messages at once, and end the connection as `patience` says."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * patience.unreachable)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, patience.idle)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, patience.interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, patience.questions)


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


def send_some(connection: socket.socket, pieces: Sequence[memoryview]) -> list[memoryview]:
    """Send what a socket takes of the pieces; what is left. Raises one of `NOT_READY` if it takes nothing."""
    plain = not isinstance(connection, ssl.SSLSocket)
    nbytes = connection.sendmsg(pieces[:ARRAYS_AT_ONCE]) if plain else connection.send(pieces[0])
    for index, piece in enumerate(pieces):
        if nbytes < len(piece):
            return [piece[nbytes:], *pieces[index + 1 :]]
        nbytes -= len(piece)
    return []
