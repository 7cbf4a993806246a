"""The attacks of `under_fire.py`, each in a process of its own: python benchmarks/_attacks.py NAME ADDRESS.

Prints "ready" when the attack is under way, and what it has done when its input ends, which ends it.
"""

import base64
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import numpy as np
from _raw_http2 import ConnectionEnded, RawConnection, message

from pswire.codec import to_frame
from pswire.errors import ParamServerError
from pswire.messages import Gradient, Join, Joined, Pull, Push, Sender, Status
from pswire.tensors.stream import StreamSender
from psworker.transport.network_transport import NetworkTransport

SERVICE = "/paramserver.v1.ParameterServer"
CONNECTIONS = 1_000
STREAMS, STREAMS_OF_A_CONNECTION = 10_000, 32  # as many as the server allows
UNFINISHED, UNFINISHED_BYTES = 200, 4 << 20
SLOW_PUSHES, SECONDS_A_BYTE = 8, 3.0
PULLERS, STATUS_CALLERS, JOINERS = 100, 20, 4
RESETS, RESETS_AT_ONCE, RESETTING_CONNECTIONS = 300_000, 100, 10

#: The variable of 13.1 MB that the benchmark's worker registers, and its number of elements.
LARGE, LARGE_SIZE = "large", 3_274_634

_stop = threading.Event()


def idle_connections(address: str) -> Iterator[str]:
    """Connections on which nothing is called."""
    connections = [RawConnection(address) for _ in range(CONNECTIONS)]
    while not _stop.wait(0.5):
        open_ones = 0
        for one in connections:
            with suppress(ConnectionEnded):
                one.read(0)
                open_ones += 1
        yield f"{open_ones:,} connections open"


def idle_streams(address: str) -> Iterator[str]:
    """Calls that never send anything, and health watches; opened again as soon as the server ends them."""
    connections: list[RawConnection | None] = [None] * (STREAMS // STREAMS_OF_A_CONNECTION)
    opened = 0
    while not _stop.is_set():
        for index, one in enumerate(connections):
            with suppress(ConnectionEnded, OSError):
                if one is None:
                    one = connections[index] = RawConnection(address)
                    missing = STREAMS_OF_A_CONNECTION
                else:
                    one.read(0)
                    missing = len(one.ended)
                    one.ended.clear()
                for _ in range(missing):
                    if index % 2:
                        one.open(f"{SERVICE}/Transfer")
                    else:
                        one.open("/grpc.health.v1.Health/Watch", message(b""), end=True)
                    opened += 1
                continue
            connections[index] = None
        _stop.wait(0.1)
        yield f"{opened:,} streams opened"


def slow_unary(address: str) -> Iterator[str]:
    """Unary messages without their last byte, begun again when the server ends them."""
    whole = message(bytes(UNFINISHED_BYTES))[:-1]
    calls: list[tuple[RawConnection, int, int]] = []  # connection, stream, bytes sent
    begun = sent = 0
    while not _stop.is_set():
        for index in range(UNFINISHED):
            with suppress(ConnectionEnded, OSError):
                if index == len(calls):
                    connection = RawConnection(address)
                    calls.append((connection, connection.open(f"{SERVICE}/Push"), 0))
                    begun += 1
                connection, stream, place = calls[index]
                connection.read(0)
                if stream in connection.ended:
                    stream, place, begun = connection.open(f"{SERVICE}/Push"), 0, begun + 1
                more = connection.data(stream, whole[place:], 0.0)
                calls[index] = connection, stream, place + more
                sent += more
                continue
            del calls[index:]
            break
        yield f"{begun:,} unfinished messages, {sent / 1e6:,.0f} MB sent"
        _stop.wait(0.02)


def _joined(address: str, name: str) -> tuple[NetworkTransport, Sender, bytes]:
    """A member, and its token; b"" from a server that gives none."""
    transport = NetworkTransport([address], shared_memory=False)
    joined = transport.call(0, Join(worker=name), 10.0).result()
    assert isinstance(joined, Joined)
    return transport, Sender(name, joined.incarnation), getattr(joined, "token", b"")


def slow_pushes(address: str) -> Iterator[str]:
    """Pushes of 13.1 MB by a member, a byte every 3 s."""
    _, member, token = _joined(address, "slow")
    metadata = {"ps-member-bin": base64.b64encode(token).decode()} if token else {}
    gradient = Gradient(LARGE, 0, np.zeros(LARGE_SIZE, np.float32))
    connection, streams, ended = RawConnection(address), [], 0
    for sequence in count(1):
        while len(streams) < SLOW_PUSHES:
            sender = StreamSender()
            header = to_frame(
                Push(sender=member, sequence=sequence, gradients=(gradient,), loss=None, pull=(LARGE,)), sender
            )
            begun = message(header.SerializeToString()) + message(bytes(1 << 20))[:100]
            streams.append(connection.open(f"{SERVICE}/Transfer", begun, metadata=metadata))
        yield f"{ended} pushes ended by the server"
        if _stop.wait(SECONDS_A_BYTE):
            return
        connection.read(0)
        for stream in list(streams):
            if stream in connection.ended:
                streams.remove(stream)
                ended += 1
            else:
                connection.data(stream, b"\0", 0.0)


def join_flood(address: str) -> Iterator[str]:
    """New workers, as fast as they come."""
    numbers, done = count(), [0]

    def join() -> None:
        transport = NetworkTransport([address], shared_memory=False)
        while not _stop.is_set():
            with suppress(ParamServerError):
                transport.call(0, Join(worker=f"flood-{next(numbers)}"), 5.0).result()
                done[0] += 1

    yield from _in_threads(JOINERS, join, lambda: f"{done[0]:,} joined")


def large_pulls(address: str) -> Iterator[str]:
    """Members that pull 13.1 MB again and again, each with a connection of its own."""
    numbers, done = count(), [0]

    def pull() -> None:
        transport = member = None
        while not _stop.is_set():
            with suppress(ParamServerError):
                if transport is None or member is None:
                    transport, member, _ = _joined(address, f"puller-{next(numbers)}")
                transport.call(0, Pull(sender=member, names=(LARGE,)), 10.0).result()
                done[0] += 1

    yield from _in_threads(PULLERS, pull, lambda: f"{done[0]:,} pulls of 13.1 MB")


def status_calls(address: str) -> Iterator[str]:
    """Callers of Status, each in a loop."""
    done = [0]

    def ask() -> None:
        transport = NetworkTransport([address], shared_memory=False)
        while not _stop.is_set():
            with suppress(ParamServerError):
                transport.call(0, Status(), 5.0).result()
                done[0] += 1

    yield from _in_threads(STATUS_CALLERS, ask, lambda: f"{done[0]:,} answers")


def resets(address: str) -> Iterator[str]:
    """Calls that are reset as soon as they have begun (CVE-2023-44487)."""
    connections: list[RawConnection | None] = [None] * RESETTING_CONNECTIONS
    done = connected = 0
    while not _stop.is_set() and done < RESETS:
        for index, one in enumerate(connections):
            with suppress(ConnectionEnded, OSError):
                if one is None:
                    one = connections[index] = RawConnection(address)
                    connected += 1
                one.send(one.opened_and_reset(f"{SERVICE}/Transfer", RESETS_AT_ONCE))
                one.read(0)
                done += RESETS_AT_ONCE
                continue
            connections[index] = None
        yield f"{done:,} resets on {connected:,} connections"
    _stop.wait()
    yield f"{done:,} resets on {connected:,} connections"


def _in_threads(number: int, work: Callable[[], None], report: Callable[[], str]) -> Iterator[str]:
    for _ in range(number):
        threading.Thread(target=work, daemon=True).start()
    while not _stop.wait(0.2):
        yield report()


ATTACKS = {
    "idle-connections": idle_connections,
    "idle-streams": idle_streams,
    "slow-unary": slow_unary,
    "slow-pushes": slow_pushes,
    "join-flood": join_flood,
    "large-pulls": large_pulls,
    "status-calls": status_calls,
    "resets": resets,
}


def main() -> None:
    """Attack until the input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    socket.setdefaulttimeout(10)

    def watch() -> None:
        select.select([sys.stdin], [], [])
        _stop.set()

    threading.Thread(target=watch, daemon=True).start()
    reports, began = ATTACKS[sys.argv[1]](sys.argv[2]), time.monotonic()
    done = next(reports)
    print("ready", flush=True)
    for done in reports:  # noqa: B007 - the last one counts
        pass
    print(f"{done} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
