"""Clients of servers in the test's process, and a check that servers log no warning."""

import logging
import re

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from tests.server_client import Client


@pytest.fixture(scope="module")
def server():
    """One that the tests of a file share."""
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield server


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
    return connect(server)


@pytest.fixture
def name(request):
    """The test's own variable, for tests that share a server."""
    return request.node.name


@pytest.fixture(autouse=True)
def quiet(caplog):
    """A server logs no warning, whatever its clients do, but of workers that are gone or have left work undone."""
    with caplog.at_level(logging.INFO):
        yield
    texts = [one.getMessage() for one in caplog.get_records("call") if one.levelno >= logging.WARNING]
    notes = re.compile("worker '.*' was silent for .* s: its lease has expired|block .* will be handed out again: .*")
    assert [text for text in texts if not notes.fullmatch(text)] == []
