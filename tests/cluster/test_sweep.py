"""`psworker sweep` as processes: the results of single runs, one that fails, Ctrl-C, and a sweep that continues."""

import json
import re
import signal
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

OPTIONS = "--workers", "1", "--shards", "2", "--threads", "1"

#: Trains two variables, which are on two shards; with several layers of one value each the cost differs.
PROGRAM = """
    import argparse
    import numpy as np
    import psworker as ps
    from psworker import ops

    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    data = ps.Dataset({"x": np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)})
    W = ps.Variable(np.full(3, 0.7, np.float32), name="W")
    b = ps.Variable(np.float32(0.1), name="b")

    def loss(batch):
        y = ops.matmul(batch.x, W)
        for _ in range(options.layers):
            y = ops.tanh(y + b)
        return ops.mean(ops.square(y - 0.3))

    with ps.session() as session:
        for batch in session.batches(data, 5, epochs=2):
            ps.Adam(options.rate).minimize(loss(batch))
        session.summary.scalar("loss", session.evaluate(loss, data))
        session.summary.scalar("b", session.slot(b, "m"))
"""


def results(folder):
    """Final cost, scalars and steps of the last life in a folder, with all digits."""
    (life,) = json.loads((folder / "run.json").read_text())["lives"]
    assert life["state"] == "completed"
    return life["results"]["cost"], life["results"]["scalars"], life["results"]["step"]


def test_six_runs_on_two_shards_have_the_results_of_six_single_runs(commands):
    script = commands.script(PROGRAM)
    settings = "--set", "rate=0.1,0.01", "--set", "layers=1,2,3"
    code, table, err = commands.run("psworker", "sweep", script, *settings, "--jobs", "2", *OPTIONS)
    assert code == 0, err
    sweep = {}
    for rate in ("0.1", "0.01"):
        for layers in ("1", "2", "3"):
            single = f"single/{rate}-{layers}"
            local = "psworker", "local", *OPTIONS, "--progress", "off", "--run-dir", single, script
            assert commands.run(*local, "--rate", rate, "--layers", layers)[0] == 0
            sweep[rate, layers] = found = results(commands.folder / f"runs/train/rate={rate},layers={layers}")
            assert found == results(commands.folder / single)
            assert found[2] == 24
    costs = {cost for cost, *_ in sweep.values()}
    assert len(costs) == 6
    rows = [re.split(r" +", line.strip()) for line in table[1:]]
    assert [row[:3] for row in rows] == [[*key, "24"] for key in sweep]
    assert [row[-1] for row in rows] == ["completed"] * 6
    head = re.split(r" +", table[0].strip())
    assert [row[head.index("loss") + 1] for row in rows] == [f"{found[1]['loss']:.4f}" for found in sweep.values()]


#: Ends at once, fails, or waits until there is a file `go`.
MODES = """
    import argparse, os, time
    import numpy as np
    import psworker as ps

    parser = argparse.ArgumentParser()
    parser.add_argument("--mode")
    mode = parser.parse_args().mode
    W = ps.Variable(np.ones(2, np.float32), name="W")
    with ps.session() as session:
        for batch in session.batches(ps.Dataset({"x": np.arange(4)}), 1):
            ps.GradientDescent(0.1).minimize(ps.ops.sum(W * W))
            if mode == "fails" and not os.path.exists("go"):
                raise ValueError("as it should")
            while mode == "waits" and not os.path.exists("go"):
                open("waiting", "w").close()
                time.sleep(0.01)
"""


def outcomes(table):
    """By value of the one option."""
    rows = [re.split(r" {2,}", line.strip()) for line in table[1:]]
    return {row[0]: row[-1] for row in rows}


def test_a_run_that_fails_ends_no_other_ctrl_c_stops_all_and_the_sweep_continues_with_what_is_left(commands):
    sweep = "psworker", "sweep", commands.script(MODES), "--set", "mode=ends,fails,waits,late", "--workers", "1"
    command = commands.start(*sweep)
    while not (commands.folder / "waiting").exists():
        assert command.popen.poll() is None, command.err
    code, table, err = command.end(signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert commands.wait_for_none()
    assert outcomes(table) == {"ends": "completed", "fails": "failed", "waits": "stopped", "late": "not begun"}
    assert any("mode=fails has failed" in line and "ValueError: as it should" in line for line in err)
    assert "3 runs of 4 not completed" in err[-1]

    (commands.folder / "go").touch()
    code, table, err = commands.run(*sweep, "--resume")
    assert code == 0, err
    again = "completed (2 lives)"
    assert outcomes(table) == {"ends": "completed", "fails": again, "waits": again, "late": "completed"}

    code, _, err = commands.run(*sweep[:-4], "--set", "mode=ends", "--resume", "--", "more")
    assert (code, err) == (
        1,
        [
            "Error: the run in runs/train/mode=ends was started with the arguments --mode=ends, "
            "not more --mode=ends: use another folder"
        ],
    )
