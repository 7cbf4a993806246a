"""Killed processes: no example is lost with a worker, and a worker whose server is killed ends with an error."""

import json
import signal

import pytest

pytestmark = pytest.mark.slow

COUNT = """
    import argparse, json, threading
    import numpy as np
    import psworker as ps

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hang-after", type=int, help="batches")
    options = parser.parse_args()

    data = ps.Dataset({"x": np.arange(1000)})
    seen = ps.Variable(np.zeros(1000, np.float32), name="seen")
    count = ps.GradientDescent(learning_rate=1.0)

    def report(epoch):
        print(epoch.examples, flush=True)

    with ps.session() as session:
        for number, batch in enumerate(session.batches(data, 10, options.epochs, on_epoch=report), 1):
            one = np.zeros(1000, np.float32)
            one[batch.x] = -1
            count.apply_gradients([(one, seen)])
            if number == options.hang_after:
                print("hangs", flush=True)
                threading.Event().wait()
        print(json.dumps(np.bincount(seen.value.astype(int)).tolist()))
"""


def test_the_examples_of_a_killed_worker_are_handed_out_again(commands):
    server = commands.serve("--lease", "1")
    script = commands.script(COUNT)
    killed = commands.start("psworker", "run", "--servers", server.address, script, "--hang-after", "4")
    killed.wait_for("hangs")
    killed.signal(signal.SIGKILL)
    killed.wait()
    other = commands.start("psworker", "run", "--servers", server.address, script)
    assert other.wait() == 0, other.err
    *epochs, times = map(json.loads, other.out)
    assert epochs == [1000, 1000]
    # Twice each; three times what the killed worker had pushed of the block that it did not finish: 4 batches of 10.
    assert times == [0, 0, 960, 40]
    assert server.end()[0] == 0


def test_a_worker_whose_server_is_killed_goes_on_trying_for_its_timeout_and_then_says_so(commands):
    server = commands.serve()
    worker = commands.start(
        "psworker", "run", "--servers", server.address, "--timeout", "1", commands.script(COUNT), "--epochs", "1000000"
    )
    worker.wait_for("1000")  # an epoch is over
    server.signal(signal.SIGKILL)
    server.wait()
    assert worker.wait() == 1
    assert len(worker.err) == 1, worker.err
    [line] = worker.err
    assert line.startswith("Error: gave up after 1.")
    assert f"no server answers at {server.address}" in line
