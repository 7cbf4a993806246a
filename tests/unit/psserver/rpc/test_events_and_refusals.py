"""Events and refused calls in the status of a server, over real sockets."""

import time

import numpy as np
import pytest

from psjob.status.status_client import StatusClient
from psserver.config import ServerConfig
from psserver.core.events import Event
from psserver.rpc.server import ServerThread
from psserver.runtime.event_log import MAX_EVENTS, EventLog
from pswire.errors import ShapeMismatch
from pswire.messages import Gradient, Join, Leave, Push, Sender, Status, StatusDetail, StatusReport
from tests.support.servers import Client

ONES = np.ones(2, np.float32)


@pytest.fixture
def client():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        client = Client(server.address)
        yield client
        client.channel.close()


def test_the_detail_of_a_status_has_the_events_with_numbers_kinds_and_times(client):
    before = time.time()
    joined = client.unary(Join(worker="w"))
    client.unary(Leave(Sender("w", joined.incarnation)))
    with StatusClient([client.address]) as statuses:
        [answer] = statuses.ask(10, detail=True).answers
        assert statuses.ask(10).answers[0].report.detail is None
    events = answer.report.detail.events
    assert [(one.number, one.kind, one.worker) for one in events] == [(1, "joined", "w"), (2, "left", "w")]
    assert before <= events[0].time <= events[1].time <= time.time()


def test_the_newest_events_are_kept_and_their_numbers_have_no_gap():
    log = EventLog()
    for number in range(MAX_EVENTS + 5):
        log.keep(Event("joined", f"{number}"), number)
    [kept] = [
        log.filled_in(StatusReport(shard=0, shards=1, global_step=0, repeated=0, detail=StatusDetail())).detail.events
    ]
    assert [(one.number, one.text) for one in kept] == [(n + 1, str(n)) for n in range(5, MAX_EVENTS + 5)]


def test_the_last_refused_call_of_a_worker_is_in_its_row(client):
    joined = client.unary(Join(worker="w"))
    sender = Sender("w", joined.incarnation)
    client.register(sender, W=ONES)
    with pytest.raises(ShapeMismatch):
        client.unary(Push(sender=sender, sequence=1, gradients=(Gradient("W", 0, np.ones(5, np.float32)),)))
    [row] = client.unary(Status()).workers
    assert row.error.startswith("ShapeMismatch: gradient for 'W'")
    assert abs(row.error_time - time.time()) < 60
