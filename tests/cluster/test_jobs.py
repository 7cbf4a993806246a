"""Jobs of standing servers, by real processes: workers and servers that are killed or suspended between two jobs."""

import json
import signal

import pytest

from tests.support.commands import free_address

pytestmark = pytest.mark.slow

#: Counts its examples on the servers; a worker named "suspended" stops itself after three steps.
PROGRAM = """
    import os, signal, sys
    import numpy as np
    import psworker as ps
    from psworker import ops

    epochs, size = int(sys.argv[1]), int(sys.argv[2])
    data = ps.Dataset({"x": np.arange(200)})
    count = ps.Variable(np.zeros(size), name="count")

    def report(epoch):
        print("epoch", epoch.epoch, flush=True)

    with ps.session() as session:
        print("in", session.job, flush=True)
        for number, batch in enumerate(session.batches(data, 1, epochs=epochs, on_epoch=report), 1):
            ps.GradientDescent(1.0).minimize(-ops.sum(count))
            if number == 3 and session.worker == "suspended":
                print("suspended", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
        session.pull()
        print("counted", int(count.value[0]), session.stopped, flush=True)
"""


JOURNAL = "--checkpoint-dir", "kept", "--journal", "--journal-sync", "off"


class Servers:
    """Two servers, with journals or with nothing on disk, and what is run on them."""

    def __init__(self, commands, *storage):
        self.commands, self.script, self.storage = commands, commands.script(PROGRAM), storage
        self.addresses = [free_address() for _ in range(2)]
        self.processes = [self.serve(shard) for shard in range(2)]

    def serve(self, shard):
        options = "--bind", self.addresses[shard], "--shard", f"{shard}/2", "--lease", "2"
        return self.commands.serve(*options, *self.storage)

    def worker(self, *options, epochs=1, size=4):
        run = "psworker", "run", "--servers", ",".join(self.addresses), "--timeout", "25", *options
        return self.commands.start(*run, self.script, str(epochs), str(size))

    def done(self, *options, **program):
        """The lines of a worker that ends well."""
        worker = self.worker(*options, **program)
        assert worker.wait() == 0, worker.err
        return worker.out

    def jobs(self):
        code, out, err = self.commands.run("psserver", "jobs", ",".join(self.addresses), "--json")
        assert (code, err) == (0, [])
        return [(one["number"], one["name"], one["state"], one["global_step"]) for one in json.loads("\n".join(out))]

    def end(self):
        assert [server.end()[0] for server in self.processes] == [0, 0]


def test_a_worker_that_was_suspended_through_the_end_of_its_job_ends_and_leaves_the_next_job_alone(commands):
    servers = Servers(commands, *JOURNAL)
    suspended = servers.worker("--name", "suspended")
    suspended.wait_for("suspended")
    assert servers.done("--name", "other")[-1] == "counted 200 "
    following = servers.worker("--job", "next", epochs=1_000_000)
    following.wait_for("in next", "epoch 2")
    suspended.signal(signal.SIGCONT)
    assert suspended.wait() == 1
    [error] = [line for line in suspended.err if line.startswith("Error: ")]
    assert "job 1 (train-1), in which worker 'suspended' took part, is over: the servers have job 2 (next) now" in error
    code, out, err = commands.run("psserver", "reset", ",".join(servers.addresses))
    assert (code, out) == (1, [])
    assert "job 2 (next) is running with" in err[0]
    code, out, err = commands.run("psserver", "reset", ",".join(servers.addresses), "--force")
    assert (code, err) == (0, [])
    assert out[0].startswith("job 2 (next) was running at step ")
    assert following.wait() == 1
    assert "job 2 (next), in which worker" in following.err[-1]
    assert [one[1:3] for one in servers.jobs()] == [("train-1", "done"), ("next", "ended"), ("", "empty")]
    assert servers.done(size=9)[-1] == "counted 200 "
    servers.end()


@pytest.mark.exhaustive
def test_servers_that_are_killed_in_the_second_job_go_on_with_it_and_the_third_one_begins_after_it(commands):
    servers = Servers(commands, *JOURNAL)
    assert servers.done()[0] == "in train-1"
    worker = servers.worker(epochs=12)
    worker.wait_for("epoch 2")
    for server in servers.processes:
        server.end(signal.SIGKILL)
    servers.processes = [servers.serve(shard) for shard in range(2)]
    assert worker.wait() == 0, worker.err
    assert worker.out[0] == "in train-2"
    assert worker.out[-1] == "counted 2400 ", "nothing is lost, and nothing of the first job is left"
    assert servers.jobs() == [(1, "train-1", "done", 200), (2, "train-2", "done", 2400)]
    for server in servers.processes:
        server.end(signal.SIGKILL)
    servers.processes = [servers.serve(shard) for shard in range(2)]
    assert servers.done("--resume", epochs=13)[-1] == "counted 2600 "
    assert servers.done(size=7) == ["in train-3", "epoch 1", "counted 200 "]
    servers.end()


def test_a_job_whose_only_worker_is_killed_goes_on_with_the_next_one_and_is_then_done(commands):
    servers = Servers(commands)
    killed = servers.worker(epochs=3)
    killed.wait_for("epoch 1")
    killed.end(signal.SIGKILL)
    out = servers.done(epochs=3)  # it may come while the lease of the other has not ended
    assert out[0] == "in train-1"
    assert out[-1] == "counted 600 "
    assert servers.done()[0] == "in train-2"
    servers.end()


def test_a_server_that_was_restarted_without_its_state_is_named_and_a_reset_helps(commands):
    servers = Servers(commands)
    for _ in range(2):
        servers.done()
    servers.processes[0].end(signal.SIGKILL)
    servers.processes[0] = servers.serve(0)
    worker = servers.worker()
    assert worker.wait() == 1
    assert "shard 0 has begun job 1 (train-1), but shard 1 has job 2 (train-2): shard 0 was restarted" in worker.err[-1]
    assert commands.run("psserver", "reset", ",".join(servers.addresses))[0] == 0
    assert servers.done()[-1] == "counted 200 "
    servers.end()


def test_psworker_local_has_one_job_also_for_a_worker_that_comes_late(commands):
    """The late one finds the job done; on servers of its own choice it would begin another."""
    script = commands.script(
        """
        import time, psworker as ps, numpy as np
        from psworker import ops
        w = ps.Variable(np.zeros(1), name="w")
        import os
        if os.environ["PSWORKER_NAME"] == "worker-1":
            while not os.path.exists("over"):
                time.sleep(0.01)
        with ps.session() as session:
            for _ in session.batches(ps.Dataset({"x": np.arange(6)}), 1):
                ps.GradientDescent(1.0).minimize(-ops.sum(w))
            session.pull()
            print(session.job, w.value, flush=True)
        open("over", "w").close()
        """
    )
    code, out, _ = commands.run("psworker", "local", "--progress", "off", "--workers", "2", script)
    assert code == 0
    assert sorted(out) == ["worker-0 | train-1 [6.]", "worker-1 | train-1 [6.]"]
