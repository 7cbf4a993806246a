"""Summaries of a real run, of which a worker is killed: job and workers are runs of TensorBoard, which is asked."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress

import pytest

from tests.support import event_files
from tests.support.commands import BOUND, environment, free_address, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: Workers train until there is a file `go`; worker-1 then ends by itself or is killed.
TRAIN = """
    import os
    import numpy as np
    import psworker as ps
    from psworker import nn, ops

    layer = nn.Dense(20, 10, name="fc")
    optimizer = ps.GradientDescent(0.01)
    x, label = np.random.default_rng(0).normal(size=(50, 20)).astype("f"), np.arange(50) % 10
    with ps.session() as session:
        session.summary.hyperparameters({"units": 10})
        while not os.path.exists("go"):
            loss = optimizer.minimize(ops.softmax_cross_entropy(layer(x), label))
            if session.is_chief and session.global_step % 50 < 3:
                session.summary.scalar("accuracy", ops.accuracy(layer(x), label))
        session.summary.scalar("steps", session.global_step)
"""


def lines(folder, worker):
    """The lines of a worker's scalars; the last one may be unfinished."""
    path = folder / "scalars" / f"{worker}.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@contextmanager
def tensorboard(folder):
    """TensorBoard itself; a function that returns its answer as soon as it fits: it loads one file after another."""
    host, port = free_address().split(":")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host, "--port", port]

    def ask(path, fits):
        answers = []

        def is_there():
            with suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/data/{path}", timeout=BOUND) as got:
                answers[:] = [got.read().decode()]
            return bool(answers) and fits(answers[0])

        wait_until(is_there, lambda: answers)
        return answers[0]

    with subprocess.Popen([*command, "--load_fast=false"], stderr=subprocess.DEVNULL, env=environment()) as server:
        try:
            yield ask
        finally:
            server.kill()


@pytest.mark.slow
def test_a_run_has_the_job_and_its_workers_in_tensorboard_and_a_killed_worker_keeps_what_it_had_written(commands):
    run = commands.folder / "run"
    command = commands.start(
        *("psworker", "local", "--progress", "off", "--run-dir", "run", "--restarts", "1", "--workers", "3"),
        *("--shards", "2", commands.script(TRAIN)),
    )
    wait_until(lambda: all(len(lines(run, f"worker-{number}")) > 4 for number in range(3)))
    [pid] = [pid for pid, line in commands.alive().items() if "--name worker-1 " in line]
    os.kill(pid, signal.SIGKILL)
    before = lines(run, "worker-1")
    files = run / "tensorboard" / "worker-1"
    assert len(event_files.events(files)) > 3, "the file of a process that was killed is read whole"
    wait_until(lambda: len([one for one in lines(run, "worker-1") if "incarnation" in one]) == 2)
    wait_until(lambda: "steps" in lines(run, "worker-1")[-1])
    wait_until(lambda: "training/steps_per_second" in event_files.values(run / "tensorboard" / "cluster"))
    (commands.folder / "go").touch()
    assert command.wait() == 0, command.err

    after = lines(run, "worker-1")
    assert after[: len(before)] == before
    assert [one["incarnation"] for one in after if "incarnation" in one] == [1, 2]
    last = []
    for number in range(3):
        life, *points = lines(run, f"worker-{number}")
        points = [one for one in points if "step" in one]
        assert (life["worker"], life["process"] > 1) == (f"worker-{number}", True)
        assert [one["step"] for one in points] == sorted(one["step"] for one in points)
        assert all(one["cost"] is None or 0 < one["cost"] < 10 for one in points)
        assert max(one["staleness"] or 0 for one in points) > 0, "workers train beside each other"
        shown = event_files.shown_scalars(run / "tensorboard" / f"worker-{number}")
        with_cost = [(one["step"], one["cost"]) for one in points if one["cost"] is not None]
        assert shown["training/loss"] == [(step, pytest.approx(cost, rel=1e-6)) for step, cost in with_cost]
        [(step, value)] = shown["steps"]
        last.append(step)
        assert step == value == points[-1]["step"]

    cluster = event_files.shown_scalars(run / "tensorboard" / "cluster")
    assert {value for _, value in cluster["training/live_workers"]} <= {1.0, 2.0, 3.0}
    steps = [step for step, _ in cluster["training/steps_per_second"]]
    assert steps == sorted(steps)
    assert 0 < steps[-1] <= max(last) + 1, "a push of the killed worker may have reached one shard only"
    found = event_files.nodes(run / "tensorboard" / "cluster")
    assert {found["fc/kernel"][-1], found["fc/bias"][-1]} == {"/shard:0", "/shard:1"}

    with tensorboard(run / "tensorboard") as ask:
        ask("runs", lambda answer: sorted(json.loads(answer)) == ["cluster", "worker-0", "worker-1", "worker-2"])
        kernel = re.compile(r'name: "fc/kernel"\s+op: "variable"\s+device: "/shard:0"')
        ask("plugin/graphs/graph?run=cluster&conceptual=false", kernel.search)
        answer = ask(f"plugin/hparams/session_groups?request={SESSION_GROUPS}", lambda answer: "SUCCESS" in answer)
        [group] = json.loads(answer)["sessionGroups"]
        assert group["hparams"] | {"units": 10.0, "shards": 2.0, "optimizer": "GradientDescent"} == group["hparams"]
        metrics = {one["name"]["tag"] for one in group["metricValues"]}
        assert {"accuracy", "training/loss", "training/steps_per_second"} <= metrics


SESSION_GROUPS = urllib.request.quote(
    json.dumps({"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "sliceSize": 10})
)
