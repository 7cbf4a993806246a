"""What a member could let grow without bound, over real sockets: refused, forgotten or given back; others train on."""

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.members import membership
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.messages import Gradient, Leave, Push, Renew, Sender
from tests.server_client import Client

W = np.zeros(2, np.float32)


def served(**options):
    """A server, and a client of it."""
    return ServerThread(ServerConfig(lease=60.0, **options))


def push(client, sender, sequence=1):
    return client.unary(Push(sender, sequence, (Gradient("W", 0, np.ones(2, np.float32)),)))


def test_workers_that_joined_and_left_are_forgotten_and_what_they_sent_late_is_refused(monkeypatch):
    monkeypatch.setattr(membership, "MAX_GONE", 10)
    with served() as server:
        client = Client(server.address)
        worker = client.join("worker")
        client.register(worker, W=W)
        gone = [client.join(f"w{number}") for number in range(30)]
        assert push(client, gone[0]).global_step == 1
        for sender in gone:
            client.unary(Leave(sender))
        assert [one.name for one in client.status().workers] == ["worker", *[f"w{number}" for number in range(20, 30)]]
        with pytest.raises(errors.Zombie, match="has forgotten it"):
            push(client, gone[0])
        assert client.join("w0").incarnation > gone[0].incarnation, "as a new worker it may take part"
        assert push(client, worker).global_step == 2, "the late push was not applied"
        client.channel.close()


def test_a_flood_of_joins_is_refused_at_the_limit_and_members_train_on():
    with served(max_workers=5) as server:
        client = Client(server.address)
        worker = client.join("worker")
        client.register(worker, W=W)
        for number in range(4):
            client.join(f"w{number}")
        for number in range(4, 50):
            with pytest.raises(errors.Unavailable, match="5 workers are live"):
                client.join(f"w{number}")
        assert push(client, worker).global_step == 1
        client.unary(Leave(Sender("w0", 1)))
        assert client.unary(Renew(client.join("last"))).global_step == 1
        client.channel.close()
