"""Workers that fail, are killed or stopped, and stopped servers: no example is lost, and consistency policies hold.

Real processes. A push adds 6 to the element of each of its examples, divided among its update: their sum tells how many
updates there were, and one element how often its example was trained on.
"""

import re
import signal
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from pswire.messages import Join, Pull, Sender, Status
from psworker.transport.grpc_transport import GrpcTransport
from tests.commands import BOUND

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")]

#: Begins when there is a file of its name. At its fifth batch, after four pushes, it may fail or send itself a signal.
TRAINING = """
    import os, signal, sys, time
    import numpy as np
    import psworker as ps

    at_fifth, examples, batch_size, epochs, pause = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
    seen = ps.Variable(np.zeros(examples), name="seen")
    data = ps.Dataset({"x": np.arange(examples)})

    def report(epoch):
        print("epoch with", epoch.examples, flush=True)

    with ps.session() as session:
        print("joined", flush=True)
        while not os.path.exists(session.worker):
            time.sleep(0.01)
        for number, batch in enumerate(session.batches(data, batch_size, epochs, on_epoch=report), 1):
            if number == 5 and at_fifth == "fail":
                raise RuntimeError("out of ideas")
            if number == 5 and at_fifth != "nothing":
                os.kill(os.getpid(), getattr(signal, at_fifth))
            gradient = np.zeros(examples)
            gradient[batch.x] = -6.0
            ps.GradientDescent(1.0).apply_gradients([(gradient, seen)])
            print("step", number, flush=True)
            time.sleep(pause)
"""


class Job:
    """A server in a process of its own, and the workers of one job."""

    def __init__(self, commands, *flags):
        self.commands, self.script = commands, commands.script(TRAINING)
        self.server = commands.serve("--log-level", "info", *flags)

    def worker(self, name, at_fifth="nothing", *, examples=48, batch=1, epochs=1, timeout=20.0, pause=0.0):
        run = "psworker", "run", "--servers", self.server.address, "--name", name, "--timeout", str(timeout)
        return self.commands.start(*run, self.script, at_fifth, *map(str, (examples, batch, epochs, pause)))

    def begin(self, **workers):
        """Lets them begin when all of them have joined: none waits for one that is still being started."""
        for worker in workers.values():
            worker.wait_for("joined")
        for name in workers:
            (self.commands.folder / name).touch()

    def seen(self):
        """The global step; the sum of the elements; and the number of examples by how often they were trained on."""
        with closing(GrpcTransport([self.server.address], shared_memory=False)) as transport:
            step = transport.call(0, Status(), BOUND).result().global_step
            sender = Sender("reader", transport.call(0, Join("reader"), BOUND).result().incarnation)
            (value,) = transport.call(0, Pull(sender, ("seen",)), BOUND).result().values
        seen = np.asarray(value.array)
        return step, seen.sum(), np.bincount((seen / 6).astype(int)).tolist()

    def end(self):
        """Ends the server; its log."""
        code, _, log = self.server.end()
        assert code == 0
        return log


# --- killed processes -------------------------------------------------------------------------------------------------

SIZES = {"examples": 1000, "batch": 10, "epochs": 2}


def test_the_examples_of_a_killed_worker_are_handed_out_again(commands):
    job = Job(commands, "--lease", "1")
    killed = job.worker("killed", "SIGKILL", **SIZES)
    job.begin(killed=killed)
    assert killed.wait() == -signal.SIGKILL
    other = job.worker("other", **SIZES)
    job.begin(other=other)
    assert other.wait() == 0, other.err
    assert [line for line in other.out if line.startswith("epoch")] == ["epoch with 1000"] * 2
    # Twice each; three times what the killed worker had pushed of the block that it did not finish: 4 batches of 10.
    assert job.seen()[2] == [0, 0, 960, 40]
    job.end()


def test_a_worker_whose_server_is_killed_retries_for_its_timeout_and_ends_with_an_error(commands):
    job = Job(commands)
    worker = job.worker("w0", timeout=2.0, **{**SIZES, "epochs": 1_000_000})
    job.begin(w0=worker)
    worker.wait_for("epoch with 1000")
    job.server.end(signal.SIGKILL)
    assert worker.wait() == 1
    [line] = worker.err
    assert line.startswith("Error: gave up after 2.")
    assert f"no server answers at {job.server.address}" in line


# --- a synchronous update has exactly N gradients ---------------------------------------------------------------------


@pytest.mark.parametrize(("at_fifth", "code"), [("fail", 1), ("SIGKILL", -signal.SIGKILL)])
def test_when_one_of_three_fails_the_others_make_no_update_of_two_gradients_or_one_but_end_with_an_error(
    commands, at_fifth, code
):
    job = Job(commands, "--consistency", "sync:3", "--lease", "3")
    first, second = job.worker("w0", timeout=4.0), job.worker("w1", timeout=6.0)  # one gives up while the other waits
    third = job.worker("w2", at_fifth)
    job.begin(w0=first, w1=second, w2=third)
    assert third.wait() == code
    for waiting in (first, second):
        assert waiting.wait() == 1, waiting.err
        assert re.search("gave up after .* of 3 gradients of step 4 have arrived", waiting.err[-1])
        assert re.search("not arrived yet: .*w2|start [12] more worker", waiting.err[-1])
    assert job.seen()[:2] == (4, 4 * 6.0)
    job.end()


@pytest.mark.parametrize("flags", [(), ("--linger", "60")], ids=["server that stays", "server of one job"])
def test_a_worker_that_sleeps_through_the_end_of_a_synchronous_job_comes_to_its_end(commands, flags):
    job = Job(commands, "--consistency", "sync:2,backup=1", "--lease", "2", *flags)
    sleeper, first, second = job.worker("sleeper", "SIGSTOP", timeout=6.0), job.worker("w0"), job.worker("w1")
    job.begin(sleeper=sleeper, w0=first)
    sleeper.wait_for("step 1")  # it has a block of examples, for these two need each other
    job.begin(w1=second)
    for other in (first, second):
        assert other.wait() == 0, other.err
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait() == 0, sleeper.err
    job.end()


# --- time in which the server did not run -----------------------------------------------------------------------------


def test_no_healthy_worker_is_lost_when_its_server_was_stopped_for_longer_than_a_lease(commands):
    job = Job(commands, "--lease", "3")
    workers = {name: job.worker(name, examples=4800, pause=0.05) for name in ("w0", "w1", "w2")}
    job.begin(**workers)
    for worker in workers.values():
        worker.wait_for("step 3")
    job.server.signal(signal.SIGSTOP)
    threading.Event().wait(3.4)  # the lease itself has to go by
    job.server.signal(signal.SIGCONT)
    later = {name: int(worker.out[-1].split()[1]) + 40 for name, worker in workers.items()}
    for name, worker in workers.items():
        worker.wait_for(f"step {later[name]}")  # two seconds: leases are looked at each second
    for worker in workers.values():
        worker.end()
    assert [line for line in job.end() if "its lease has expired" in line] == []
