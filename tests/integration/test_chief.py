"""Who does what is to be done once, over gRPC: the role goes from worker to worker, and from job to job."""

import numpy as np
import pytest

import psserver.rpc.server
import psserver.runtime.clock
import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psworker.config import WorkerConfig
from psworker.sessions.session import Session

LEASE = 60.0  # seconds; a third of it is more than a test takes, so no heartbeat comes


class Told:
    """A clock that stands where a test puts it."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The server's clock; it is looked at a hundred times a second."""
    told = Told()
    monkeypatch.setattr(psserver.rpc.server, "Clock", lambda now, tick: told)
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    return told


@pytest.fixture
def open_session(clock):
    """A function that makes the session of a worker; all of them have one server."""
    with ServerThread(ServerConfig(lease=LEASE)) as server:
        yield lambda worker: Session(WorkerConfig((server.address,), worker, timeout=30))


def test_when_the_chief_is_lost_another_is_told_with_its_next_block_and_the_old_one_when_it_is_back(
    open_session, clock, caplog
):
    data = ps.Dataset({"x": np.arange(64)})  # two blocks of sixteen batches
    chiefs, at_the_end = [], []
    with ps.collection(), open_session("w0") as first, ps.collection(), open_session("w1") as second:
        ps.Variable(np.zeros(1, np.float32), name="x")
        lost = first.batches(data, 2)
        next(lost)
        for _ in second.batches(data, 2, on_epoch=lambda _: at_the_end.append(second.is_chief)):
            chiefs.append(second.is_chief)
            if len(chiefs) <= 2:
                clock.now += 0.6 * LEASE
                second.pull()  # it lives
        assert chiefs == [False] * 16 + [True] * 16, "what the lost one had comes when it is known to be lost"
        assert at_the_end == [True]
        assert first.is_chief, "it has heard of nothing"
        assert len(list(lost)) == 15
        assert (first.is_chief, second.is_chief) == (False, True)
    said = [record.getMessage() for record in caplog.records if record.name == "psworker.client.chief"]
    assert said == ["w1 is now the chief: the previous one is gone"]


def test_a_second_job_on_a_standing_server_has_a_chief_of_its_own(open_session):
    for number in range(2):
        names = f"{number}a", f"{number}b"
        with ps.collection(), open_session(names[0]) as first, ps.collection(), open_session(names[1]) as second:
            assert (first.number, second.number) == (2 * number, 2 * number + 1)
            assert (first.is_chief, second.is_chief) == (True, False)
