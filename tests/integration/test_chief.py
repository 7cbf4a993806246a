"""The chief: the role moves from worker to worker, and from job to job."""

import numpy as np

import psworker as ps
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess

LEASE = 60.0  # seconds; a third of it is more than a test takes, so no heartbeat comes


def test_when_the_chief_is_lost_another_is_told_with_its_next_block_and_the_old_one_when_it_is_back(caplog):
    transport = ShardsInProcess(1, lease=LEASE)
    data = ps.Dataset({"x": np.arange(64)})  # two blocks of sixteen batches
    chiefs, at_the_end = [], []
    first, second = (Session(WorkerConfig(name=name, timeout=30), transport) for name in ("w0", "w1"))
    with ps.collection(), first, ps.collection(), second:
        ps.Variable(np.zeros(1, np.float32), name="x")
        lost = first.batches(data, 2)
        next(lost)
        for _ in second.batches(data, 2, on_epoch=lambda _: at_the_end.append(second.is_chief)):
            chiefs.append(second.is_chief)
            if len(chiefs) <= 2:
                transport.sleep(0.6 * LEASE)
                second.pull()  # renews its lease
        assert chiefs == [False] * 16 + [True] * 16, "the block of the lost worker comes when it is known to be lost"
        assert at_the_end == [True]
        assert first.is_chief, "it knows of nothing yet"
        assert len(list(lost)) == 15
        assert (first.is_chief, second.is_chief) == (False, True)
    logged = [record.getMessage() for record in caplog.records if record.name == "psworker.client.chief"]
    assert logged == ["w1 is now the chief: the previous one is gone"]
