"""Clients of servers in the test's process, and a check that servers log no warning."""

import logging
import re

import pytest

from tests.server_client import Client


@pytest.fixture
def connect():
    """A function that makes a client of a server; the clients are closed after the test."""
    clients = []

    def make(server):
        clients.append(Client(server.address))
        return clients[-1]

    yield make
    for client in clients:
        client.channel.close()


@pytest.fixture
def client(server, connect):
    """A client of the file's own `server`."""
    return connect(server)


@pytest.fixture
def name(request):
    """The test's own variable, for tests that share a server."""
    return request.node.name


@pytest.fixture(autouse=True)
def quiet(caplog):
    """A server has nothing to complain about, whatever its clients do: no log record of WARNING or above.

    But that a worker is gone, or has left work undone, which is the shard's to note.
    """
    with caplog.at_level(logging.INFO):
        yield
    loud = [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING]
    notes = re.compile("worker '.*' was silent for .* s: its lease has expired|block .* will be handed out again: .*")
    assert [text for text in (record.getMessage() for record in loud) if not notes.fullmatch(text)] == []
