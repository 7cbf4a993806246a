"""The plain client as a job of real processes: each example exactly once, also if one is killed; stopped servers."""

import os
import signal
from contextlib import closing

import pytest

from pswire import messages as ms
from pswire.errors import TimedOut, Unavailable
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND, wait_until

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


def test_calls_to_a_server_that_is_stopped_time_out_and_go_on_with_it(commands):
    server = commands.serve("--lease", "60")
    with closing(NetworkTransport([server.address], shared_memory=False, transport="direct")) as transport:

        def ask(message, timeout=BOUND):
            return transport.call(0, message, timeout).result()

        sender = ms.Sender("w0", ask(ms.Join(worker="w0")).incarnation)
        assert ask(ms.Pull(sender=sender)).global_step == 0
        server.signal(signal.SIGSTOP)
        with pytest.raises(TimedOut):
            ask(ms.Pull(sender=sender), 0.3)
        with pytest.raises(Unavailable, match=r"the direct port of the server at .* was not reached: timed out"):
            ask(ms.Pull(sender=sender), 0.3)
        server.signal(signal.SIGCONT)
        transport._connections[0]._direct_from = 0.0  # as after the pause
        assert ask(ms.Pull(sender=sender)).global_step == 0
        assert transport.tensor_transport(0) == "direct"
    server.end()
