"""A direct connection leaves turns to others, whatever its peer sends, and is read when there is something to read."""

import asyncio
import socket

import pytest

from psserver.rpc.deadline import Deadline
from psserver.rpc.direct import connection
from psserver.rpc.direct.connection import DirectConnection
from pswire import messages as ms
from pswire.errors import Unauthenticated
from pswire.network.channel import status_of
from tests.support.direct_connection import bytes_of

CALL = bytes_of(ms.Pull(sender=ms.Sender("w0", 1), names=()))


@pytest.fixture
def pair():
    """Both ends of a connection; that of the server does not block."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def of(theirs):
    return DirectConnection(theirs, "unix:", memoryview(bytearray(connection.READ_BYTES)), 60.0)


def test_between_calls_that_are_there_already_others_have_their_turns(pair):
    ours, theirs = pair
    turns = []

    async def other():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def scenario():
        one, task = of(theirs), asyncio.create_task(other())
        ours.sendall(CALL * 50)
        for _ in range(50):
            frame = await one.receive(lambda _: None, lambda _: None)
            assert frame.parse().header.HasField("pull")
        task.cancel()
        one.close()

    asyncio.run(scenario())
    assert len(turns) >= 49


def test_a_refused_connection_that_sends_without_an_end_is_closed_in_time(pair, monkeypatch):
    """As fast as it is read, so that there is never nothing to read."""
    reads, ours = [], pair[0]
    monkeypatch.setattr(connection, "REFUSAL_SECONDS", 0.01)

    def more(self, into):
        reads.append(None)
        assert len(reads) < 1_000_000, "no end"
        return len(into[0])

    monkeypatch.setattr(DirectConnection, "_read_now", more)

    async def scenario():
        await of(pair[1]).refuse(status_of(Unauthenticated("who are you?")))

    asyncio.run(scenario())
    assert b"who are you?" in ours.recv(1000)


def test_a_refusal_of_a_worker_that_has_gone_is_no_error():
    """Over TCP, where its end is known as soon as something is written."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs = server.accept()[0]
    theirs.setblocking(False)
    ours.close()

    async def scenario():
        one = of(theirs)
        await one.refuse(status_of(Unauthenticated("who are you?")))
        one.close()

    asyncio.run(scenario())


def test_behind_a_part_of_a_message_there_is_no_refusal(pair):
    ours, theirs = pair
    found = []

    async def scenario():
        one = of(theirs)
        writing = asyncio.create_task(one._write([bytes(64 << 20)], Deadline(60.0)))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        found.append(ours.recv(64 << 20))  # so that there is room for more
        await one.refuse(status_of(Unauthenticated("who are you?")))

    asyncio.run(scenario())
    theirs.close()
    while more := ours.recv(1 << 20):
        found.append(more)
    assert b"".join(found).strip(b"\0") == b""
