"""The plain client as a job of real processes: each example exactly once, although a worker is killed."""

import os
import signal

import pytest

from tests.support.commands import wait_until

pytestmark = pytest.mark.slow

#: Counts on the servers how often each example was trained: a gradient of -1 at a learning rate of 1.
COUNT = """
    import time
    import numpy as np
    import psworker as ps

    with ps.connect() as model:
        model.declare({"counts": np.zeros(400, "f")}, ps.GradientDescent(1.0))
        for number, batch in enumerate(model.session.batches({"id": np.arange(400)}, batch_size=5, epochs=2)):
            gradient = np.zeros(400, "f")
            gradient[batch.id] = -1
            model.push({"counts": gradient})
            if number == 3:
                print("trains", flush=True)
            time.sleep(0.01)
        model.session.barrier()
        print("counts", np.unique(model.pull()["counts"]), flush=True)
"""


def test_each_example_is_trained_once_an_epoch_although_a_worker_is_killed(commands):
    flags = "--workers", "2", "--shards", "2", "--progress", "off"
    command = commands.start("psworker", "local", *flags, commands.script(COUNT))
    wait_until(lambda: sum("trains" in line for line in command.out) == 2)
    [pid] = [pid for pid, line in commands.alive().items() if "--name worker-1 " in line]
    os.kill(pid, signal.SIGKILL)
    assert command.wait() == 0, command.err
    assert any("killed by SIGKILL" in line for line in command.err), command.err
    found = [line.partition("counts ")[2] for line in command.out if "counts" in line]
    assert found == ["[2.]", "[2.]"]
