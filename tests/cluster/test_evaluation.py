"""Evaluations by several processes, one of which is killed."""

import signal

import pytest

PROGRAM = """
import os, sys, time
import numpy as np
import psworker as ps

def measure(batch):
    if os.environ["PSWORKER_NAME"] == "w0":
        print("measures", flush=True)
        time.sleep(600)
    time.sleep(0.02)
    return {"numbers": ps.metrics.Metric(np.bincount(batch.number, minlength=100).astype(float), list)}

with ps.session() as session:
    print(session.evaluate(measure, {"number": np.arange(100)}, 5, shared=True)["numbers"] == [1] * 100)
"""


@pytest.mark.slow
def test_the_block_of_a_worker_that_is_killed_in_an_evaluation_is_measured_by_the_others(commands):
    """Each example once: `measure` counts the numbers of the examples."""
    server = commands.serve("--lease", "3")
    run = ("psworker", "run", "--servers", server.address, commands.script(PROGRAM))
    workers = [commands.start(*run, PSWORKER_NAME=name) for name in ("w0", "w1", "w2")]
    workers[0].wait_for("measures")  # all three have come to the evaluation
    workers[0].end(signal.SIGKILL)
    for worker in workers[1:]:
        worker.wait_for("True")
        assert worker.wait() == 0
    server.end()
