"""Unchanged programs that are killed and started again, alone and in a cluster, and go on where they stopped."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests.cluster.test_examples import alone, costs_of, search

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "softmax_mnist.py"
SEED = 20261122

#: The environment of a program whose bits are compared: one thread, and the machine's choice of BLAS kernels.
SAME_BITS = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
SAME_BITS |= {"OPENBLAS_NUM_THREADS": "1"}

#: Each push adds 1 to W, whose lowest value of each 20th step is its best model.
COUNT = """
    import os, signal, sys
    import numpy as np
    import psworker as ps

    stop, epochs = map(int, sys.argv[1:])
    W = ps.Variable(np.zeros(5), name="W")
    data = ps.Dataset({"x": np.arange(60)})
    with ps.session() as session:
        began = session.global_step
        for batch in session.batches(data, 1, epochs, name="q"):
            ps.GradientDescent(1.0).apply_gradients([(-np.ones(5), W)])
            if session.global_step % 20 == 0:
                with session.generation():
                    session.save_best(W.value[0])
            if session.global_step == stop:
                os.kill(os.getpid(), signal.SIGKILL)
        session.pull()
        print(f"from {began} to {session.global_step}: {W.value[0]:g}", flush=True)
"""


def best(folder):
    found = json.loads((folder / "best.json").read_text())
    return found["value"], found["global_step"]


@pytest.mark.slow
def test_one_folder_serves_a_program_alone_and_then_the_same_program_with_a_best_model(commands):
    script = commands.script(COUNT)
    folder = {"PSWORKER_CHECKPOINT_DIR": "run", "PSWORKER_CHECKPOINT_EVERY": "1h"}
    killed = commands.python(script, "30", "1", **folder)
    assert killed.wait() == -9
    again = commands.python(script, "0", "1", **folder)
    assert (again.wait(), again.out) == (0, ["from 20 to 60: 60"]), "a generation is a checkpoint too"
    assert best(commands.folder / "run") == (20.0, 20)


@pytest.mark.slow
def test_a_job_of_two_servers_goes_on_alone(commands):
    script = commands.script(COUNT)
    options = "--progress", "off", "--workers", "1", "--shards", "2", "--run-dir", "run"
    code, out, err = commands.run("psworker", "local", *options, script, "0", "1")
    assert (code, out[-1]) == (0, "worker-0 | from 0 to 60: 60"), err
    assert best(commands.folder / "run") == (20.0, 20)
    more = commands.python(script, "0", "2", PSWORKER_CHECKPOINT_DIR="run/checkpoints")
    assert (more.wait(), more.out) == (0, ["from 60 to 120: 120"])
    assert any("goes on with 1 shard" in line for line in more.err)


@pytest.mark.exhaustive
def test_softmax_regression_that_is_killed_at_random_moments_saves_the_very_model_of_one_that_ran_through(commands):
    generator = random.Random(SEED)
    through = commands.python(str(EXAMPLE), "--epochs", "4", "--save", "through.safetensors", **SAME_BITS)
    options = str(EXAMPLE), "--epochs", "4", "--checkpoint-dir", "run", "--save", "resumed.safetensors"
    environment = {**SAME_BITS, "PSWORKER_CHECKPOINT_EVERY": "50steps"}
    assert through.wait() == 0
    lines, kills = [], 0
    while True:
        command = commands.python(*options, **environment)
        end = time.monotonic() + generator.uniform(0.7, 2.5)
        while command.popen.poll() is None and (time.monotonic() < end or kills == 4):
            time.sleep(0.02)
        if command.popen.poll() is None:
            command.popen.kill()
            kills += 1
        code = command.wait()
        lines += command.out
        if code == 0:
            break
    resumed = [(commands.folder / name).read_bytes() for name in ("through.safetensors", "resumed.safetensors")]
    assert resumed[0] == resumed[1]
    costs = dict(search(r"epoch +(\d+): mean cost ([0-9.]+)", lines))
    assert costs == dict(zip("1234", [f"{cost:.4f}" for cost in costs_of(through.out)], strict=True))
    assert (commands.folder / "run" / "best.safetensors").exists()
    [accuracy] = search(r"^test accuracy: ([0-9.]+)", alone(commands, "predict_mnist.py", "run/best.safetensors"))
    assert float(accuracy[0]) > 0.85
