"""Servers and workers that get SIGTERM at the same time, as from Slurm and Kubernetes, and go on where they stopped."""

import signal
import time

import pytest

from tests.support.combinations import few_fast
from tests.support.commands import BOUND, free_address

#: Each push adds 1 to the elements of its examples, on both shards.
COUNT = """
    import sys
    import numpy as np
    import psworker as ps

    a, b = [ps.Variable(np.zeros(EXAMPLES), name=name) for name in "ab"]
    data = ps.Dataset({"x": np.arange(EXAMPLES)})
    with ps.session() as session:
        for batch in session.batches(data, 2, 2):
            gradient = np.zeros(EXAMPLES)
            gradient[batch.x] = -1.0
            ps.GradientDescent(1.0).apply_gradients([(gradient, a), (gradient, b)])
            if session.global_step > 20:
                print("trains", flush=True)
        session.pull()
        print("trained", *sorted(set(a.value)), *sorted(set(b.value)), flush=True)
"""
EXAMPLES = 1200
LAST = f"trained {2.0} {2.0}"


@pytest.fixture
def job(commands):
    """Functions that start the servers and the workers of a job."""
    script = commands.script(COUNT.replace("EXAMPLES", str(EXAMPLES)))
    addresses = [free_address(), free_address()]

    def serve(*options):
        servers = enumerate(addresses)
        keep = "--checkpoint-dir", "kept", "--lease", "60"
        return [commands.serve("--bind", at, "--shard", f"{shard}/2", *keep, *options) for shard, at in servers]

    def train():
        run = "psworker", "run", "--servers", ",".join(addresses), "--timeout", str(BOUND), "--name"
        return [commands.start(*run, f"worker-{number}", "--progress", "off", script) for number in range(2)]

    return serve, train


def wait_for_line(command, text):
    end = time.monotonic() + BOUND
    while not any(text in line for line in command.err):
        assert time.monotonic() < end, command.err
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["async", "bounded:3"])
@pytest.mark.parametrize("first", few_fast([0, 1], fast=0))
def test_a_push_is_on_all_shards_or_none_and_each_example_counts_once_whichever_server_stops_first(
    job, first, consistency
):
    serve, train = job
    servers, workers = serve("--consistency", consistency), train()
    for worker in workers:
        worker.wait_for("trains")
    servers[first].signal(signal.SIGTERM)
    wait_for_line(servers[first], "stopping")
    for process in (*workers, servers[1 - first]):
        process.signal(signal.SIGTERM)
    assert [process.wait() for process in (*workers, *servers)] == [143, 143, 0, 0]
    stopped = [server.err[-1].partition("stopped at ")[2].partition(":")[0] for server in servers]
    assert stopped[0] == stopped[1]
    servers, workers = serve("--consistency", consistency), train()
    assert [worker.wait() for worker in workers] == [0, 0]
    assert [worker.out[-1] for worker in workers] == [LAST, LAST]
    for server in servers:
        server.end()
