"""Records folders of runs, as `psworker local --run-dir` writes them, and what is read there: `tests/fixtures/runs/`.

Names of hosts, processes, folders and versions are replaced by others. Checkpoints and output are left out.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.recorded.formats import FIXTURES
from tests.recorded.runs import outputs

PROGRAM = """
import os, time
import numpy as np
import psworker as ps
from psworker import ops
W = ps.Variable(np.zeros(3), name="W")
rng = np.random.default_rng(1)
data = {"x": rng.standard_normal((48, 3)), "y": rng.standard_normal(48)}
optimizer = ps.Adam(0.05)
with ps.session() as session:
    for number, batch in enumerate(session.batches(data, batch_size=4, epochs=3), 1):
        loss = ops.mean(ops.square(ops.matmul(batch.x, W) - batch.y))
        optimizer.minimize(loss)
        session.summary.scalar("accuracy", number / 64)
        time.sleep(0.15)
        while number == 7 and os.environ["WAITS"] == "yes" and not os.path.exists("go"):
            time.sleep(0.01)
"""
#: When all runs began, in seconds since 1970.
BEGIN = 1_767_225_600.0
COMMAND = (sys.executable, "-m", "psworker", "local", "--progress", "off", "--workers", "2", "--shards", "2")


def record(write):
    """Run both, and write what is read from them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        _run(folder, "finished", "no")
        killed = _run(folder, "resumed", "yes", wait=False)
        _wait_for(folder / "resumed", killed)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        time.sleep(20.0)  # servers and workers notice
        _keep(folder / "resumed", FIXTURES / "runs" / "killed")
        shutil.rmtree(FIXTURES / "runs" / "killed" / "scalars")
        (FIXTURES / "runs" / "killed" / "events.jsonl").unlink()
        (folder / "go").touch()
        _run(folder, "resumed", "yes", "--resume")
        for name in ("finished", "resumed"):
            _keep(folder / name, FIXTURES / "runs" / name)
    write("runs", "outputs.json", data=outputs(FIXTURES / "runs"))


def _run(folder, name, waits, *options, wait=True):
    command = [*COMMAND, "--run-dir", name, "--journal", *options, "train.py", "--rate", "0.05"]
    process = subprocess.Popen(command, cwd=folder, env=os.environ | {"WAITS": waits})
    if wait:
        assert process.wait(timeout=120) == 0
    return process


def _wait_for(run, process):
    """Return when both workers wait."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        files = list((run / "scalars").glob("*.jsonl"))
        if len(files) == 2 and all(len(file.read_text().splitlines()) > 1 for file in files):
            time.sleep(3.0)
            return
        time.sleep(0.05)
    raise AssertionError("the workers have not begun")


def _keep(run, destination):
    shutil.rmtree(destination, ignore_errors=True)
    (destination / "scalars").mkdir(parents=True)
    begin = json.loads((run / "run.json").read_text())["lives"][0]["begin"]
    for file in [*(run / "scalars").glob("*.jsonl"), run / "events.jsonl", run / "run.json"]:
        text = file.read_text()
        if file.name == "run.json":
            text = json.dumps(_earlier(_anonymous(json.loads(text)), begin), indent=1)
        else:
            text = "\n".join([json.dumps(_earlier(json.loads(line), begin)) for line in text.splitlines()])
        (destination / file.relative_to(run)).write_text(_without_places(text, run) + "\n")


def _earlier(data, begin):
    """The data with all times moved, so that the run began at the same moment whenever it is recorded."""
    if isinstance(data, list):
        return [_earlier(one, begin) for one in data]
    if not isinstance(data, dict):
        return data
    moved = {name: _earlier(one, begin) for name, one in data.items()}
    for name in {"time", "begin", "updated", "end"} & data.keys():
        if data[name]:
            moved[name] = round(data[name] - begin + BEGIN, 4)
    return moved


def _without_places(text, run):
    for process in json.loads((run / "run.json").read_text())["lives"]:
        text = text.replace(process["start"]["process"]["host"], "host")
    return text.replace(str(run.parent), "runs")


def _anonymous(data):
    """A run without what is of this machine."""
    data["id"] = "20260101-000000-00000000"
    for life in data["lives"]:
        start = life["start"]
        start |= {"directory": "programs", "system": "Linux", "cores": 2, "environment": {"OMP_NUM_THREADS": "1"}}
        start["process"] = {"host": "host", "process": 1234, "boot": "", "started": 0}
        start["versions"] |= {"python": "3.11.0"}
    return data
