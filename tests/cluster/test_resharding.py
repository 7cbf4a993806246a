"""Servers of another number of shards in a folder of checkpoints: never beside those whose state they read."""

import signal

import pytest

pytestmark = pytest.mark.slow

#: Each push adds 1 to two variables, which are on two shards if there are two. The job goes on when it ends.
PROGRAM = """
    import os, signal, sys
    import numpy as np
    import psworker as ps

    first, second = [ps.Variable(np.zeros(8), name=name) for name in ("first", "second")]
    with ps.session() as session:
        for _ in range(int(sys.argv[1])):
            ps.GradientDescent(1.0).apply_gradients([(np.full(8, -1.0), one) for one in (first, second)])
        session.pull()
        print("counted", *sorted({*first.value.tolist(), *second.value.tolist()}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""

STORAGE = "--checkpoint-dir", "kept", "--journal"


class Job:
    """Workers and servers of a job whose state is in the folder `kept`."""

    def __init__(self, commands):
        self.commands, self.script = commands, commands.script(PROGRAM)

    def serve(self, shard):
        return self.commands.serve(*STORAGE, "--shard", shard)

    def refused(self, shard):
        """The error of a server that does not start."""
        code, out, err = self.commands.run("psserver", "serve", *STORAGE, "--shard", shard)
        assert (code, out) == (1, [])
        return err[-1]

    def train(self, pushes, *servers):
        """The last line of a worker."""
        addresses = ",".join([server.address for server in servers])
        run = "psworker", "run", "--servers", addresses, "--resume", "--timeout", "60"
        worker = self.commands.start(*run, self.script, str(pushes))
        assert worker.wait() == -signal.SIGKILL, worker.err
        return worker.out[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_new_shard_is_refused_beside_a_living_server_and_has_all_pushes_when_that_has_ended(commands, number):
    job = Job(commands)
    old = job.serve("0/1")
    assert job.train(3, old) == "counted 3.0"
    error = job.refused("1/2")
    assert "shard 0 of 1, is in use by another process" in error
    assert "stop all servers of 1 shard" in error
    assert job.train(5, old) == "counted 8.0"
    old.end(number)
    servers = [job.serve(shard) for shard in ("0/2", "1/2")]
    assert job.train(1, *servers) == "counted 9.0"
    for server in servers:
        server.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_new_shard_that_was_started_by_mistake_and_stopped_again_is_as_if_it_had_not_been_there(commands, number):
    job = Job(commands)
    old = job.serve("0/1")
    job.train(3, old)
    old.end(signal.SIGKILL)
    mistaken = job.serve("1/2")
    assert "shard 0 of 1, is in use by another process" in job.refused("0/1")
    mistaken.end(number)
    old = job.serve("0/1")
    assert job.train(5, old) == "counted 8.0"
    old.end(signal.SIGKILL)
    servers = [job.serve(shard) for shard in ("1/2", "0/2")]
    assert job.train(1, *reversed(servers)) == "counted 9.0"
    for server in servers:
        server.end(number)
    servers = [job.serve(shard) for shard in ("0/2", "1/2")]
    assert job.train(1, *servers) == "counted 10.0"
    for server in servers:
        assert server.end()[0] == 0
