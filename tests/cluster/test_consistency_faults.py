"""Workers that fail, are killed or stopped, and stopped servers: the promises of the consistency policies hold.

Real processes. Every push adds 6 to the one weight, divided among its update: the weight tells how many updates there
were of how many gradients.
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

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")]

BOUND = 30.0  # seconds that no wait comes near to

#: Begins when there is a file of its name. At its fifth batch, after four pushes, it may fail or send itself a signal.
TRAINING = """
    import os, signal, sys, time
    import numpy as np
    import psworker as ps
    from psworker import ops

    at_fifth, batches, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    weight = ps.Variable(np.zeros(1), name="weight")
    with ps.session() as session:
        print("joined", flush=True)
        while not os.path.exists(session.worker):
            time.sleep(0.01)
        for number, batch in enumerate(session.batches(ps.Dataset({"x": np.arange(batches)}), 1), 1):
            if number == 5 and at_fifth == "fail":
                raise RuntimeError("out of ideas")
            if number == 5 and at_fifth != "nothing":
                os.kill(os.getpid(), getattr(signal, at_fifth))
            ps.GradientDescent(1.0).minimize(ops.sum(weight * [-6.0]))
            print("step", number, flush=True)
            time.sleep(pause)
"""


class Job:
    """A server in a process of its own, and the workers of one job."""

    def __init__(self, commands, *flags):
        self.commands, self.script = commands, commands.script(TRAINING)
        self.server = commands.serve("--log-level", "info", *flags)

    def worker(self, name, at_fifth="nothing", *, batches=48, timeout=20.0, pause=0.0):
        run = "psworker", "run", "--servers", self.server.address, "--name", name, "--timeout", str(timeout)
        return self.commands.start(*run, self.script, at_fifth, str(batches), str(pause))

    def begin(self, **workers):
        """Has them begin, when all of them have joined: none waits for one that is still being started."""
        for worker in workers.values():
            worker.wait_for("joined")
        for name in workers:
            (self.commands.folder / name).touch()

    def seen(self):
        """The global step, and the weight."""
        with closing(GrpcTransport([self.server.address], shared_memory=False)) as transport:
            step = transport.call(0, Status(), BOUND).result().global_step
            sender = Sender("reader", transport.call(0, Join("reader"), BOUND).result().incarnation)
            (weight,) = transport.call(0, Pull(sender, ("weight",)), BOUND).result().values
        return step, float(np.asarray(weight.array)[0])

    def end(self):
        """Ends the server; its log."""
        code, _, log = self.server.end()
        assert code == 0
        return log


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
    assert job.seen() == (4, 4 * 6.0)
    job.end()


# --- a worker that sleeps through the end -----------------------------------------------------------------------------


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
    workers = [job.worker(f"w{number}", batches=4800, pause=0.05) for number in range(3)]
    job.begin(w0=workers[0], w1=workers[1], w2=workers[2])
    for worker in workers:
        worker.wait_for("step 3")
    job.server.signal(signal.SIGSTOP)
    threading.Event().wait(3.4)  # the lease itself has to go by
    job.server.signal(signal.SIGCONT)
    later = [int(worker.out[-1].split()[1]) + 40 for worker in workers]  # two seconds: leases are looked at each second
    for worker, step in zip(workers, later, strict=True):
        worker.wait_for(f"step {step}")
    for worker in workers:
        worker.signal(signal.SIGTERM)
        worker.wait()
    assert [line for line in job.end() if "its lease has expired" in line] == []
