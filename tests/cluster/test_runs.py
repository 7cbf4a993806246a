"""Runs of `psworker local --run-dir` in `psworker runs`: complete, killed, resumed, with a killed worker."""

import json
import os
import signal
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

LOCAL = ("psworker", "local", "--progress", "off")

#: Two epochs, 24 batches; waits after its tenth batch until there is a file `go`.
PROGRAM = """
    import os, time
    import numpy as np
    import psworker as ps

    W = ps.Variable(np.ones(4), name="W")
    data = ps.Dataset({"x": np.arange(48)})
    with ps.session() as session:
        for number, batch in enumerate(session.batches(data, 4, 2), 1):
            ps.GradientDescent(0.1).minimize(ps.ops.sum(W * W))
            if number == 10:
                print("at ten", flush=True)
            while number == 10 and not os.path.exists("go"):
                time.sleep(0.01)
"""


def shown(commands, *arguments):
    code, out, err = commands.run("psworker", "runs", "--json", *arguments)
    assert (code, err) == (0, [])
    return json.loads("\n".join(out))


@pytest.mark.slow
def test_a_run_is_recorded_with_its_results_and_events_and_listed(commands):
    (commands.folder / "go").touch()
    script = commands.script(PROGRAM)
    code, *_ = commands.run(*LOCAL, "--run-dir", "runs/a", "--workers", "1", "--push-every", "2", script, "--rate", "1")
    assert code == 0
    (row,) = shown(commands)
    assert (row["path"], row["script"], row["outcome"], row["step"]) == ("runs/a", "train.py", "completed", 12)
    run = shown(commands, "runs/a")
    (life,) = run["lives"]
    assert (life["exit_code"], life["start"]["arguments"]) == (0, ["--rate", "1"])
    assert life["start"]["options"]["push_every"] == 2
    (worker,) = life["results"]["workers"]
    assert (worker["name"], worker["steps"], worker["state"]) == ("worker-0", 12, "left")
    about = [(event["source"], event["kind"], event["worker"]) for event in run["events"]]
    for event in (
        ("launcher", "started", "worker-0"),
        ("shard 0", "joined", "worker-0"),
        ("shard 0", "left", "worker-0"),
        ("launcher", "ended", "server-0"),
        ("launcher", "job", ""),
    ):
        assert about.count(event) == 1, event
    assert [event["time"] for event in run["events"]] == sorted(event["time"] for event in run["events"])


@pytest.mark.slow
def test_a_run_whose_launcher_is_killed_was_interrupted_and_has_another_life_when_it_is_resumed(commands):
    script = commands.script(PROGRAM)
    options = "--run-dir", "runs/a", "--journal", "--workers", "1"
    command = commands.start(*LOCAL, *options, script, PSSERVER_LEASE="1")
    command.wait_for("at ten")
    while "joined" not in [event["kind"] for event in shown(commands, "runs/a")["events"]]:  # asked for once a second
        assert command.popen.poll() is None, command.err
    assert shown(commands)[0]["outcome"] == "running"
    command.signal(signal.SIGKILL)
    command.wait()
    assert commands.wait_for_none()
    assert shown(commands)[0]["outcome"] == "interrupted"
    (commands.folder / "go").touch()
    assert commands.run(*LOCAL, *options, "--resume", script, PSSERVER_LEASE="1")[0] == 0
    run = shown(commands, "runs/a")
    assert [life["state"] for life in run["lives"]] == ["interrupted", "completed"]
    assert (run["lives"][1]["results"]["first_step"], run["lives"][1]["results"]["step"]) == (10, 24)
    assert shown(commands)[0]["lives"] == 2
    assert [event["kind"] for event in run["events"]].count("joined") == 2


@pytest.mark.slow
def test_a_killed_worker_its_restart_and_a_stop_by_ctrl_c_are_events_and_the_outcome(commands):
    script = commands.script(PROGRAM)
    command = commands.start(*LOCAL, "--run-dir", "a", "--restarts", "1", "--workers", "1", script)
    command.wait_for("at ten")
    (worker,) = [pid for pid, line in commands.alive().items() if "--name worker-0" in line]
    os.kill(worker, signal.SIGKILL)
    while not any(
        event["kind"] == "joined" and "incarnation 2" in event["text"] for event in shown(commands, "a")["events"]
    ):
        assert command.popen.poll() is None, command.err
    assert command.end(signal.SIGINT)[0] == 130
    run = shown(commands, "a")
    (life,) = run["lives"]
    assert (life["state"], life["exit_code"]) == ("stopped", 130)
    assert life["results"]["workers"][0]["restarts"] == 1
    curves = commands.run("psworker", "plot", "a", "--by", "time", "--workers", "--output", "a.svg")
    assert curves == (0, ["a.svg"], [])
    picture = (commands.folder / "a.svg").read_text()
    assert ("worker lost" in picture, "worker joined" in picture, '<g id="a">' in picture) == (True,) * 3
    (killed,) = [event for event in run["events"] if event["level"] == "warning" and event["source"] == "launcher"]
    assert killed["text"] == "worker-0 was killed by SIGKILL; restart 1 of 1 in 0.5 s"


@pytest.mark.slow
def test_a_run_that_fails_has_its_error(commands):
    command = commands.run(*LOCAL, "--run-dir", "a", "--workers", "1", commands.script("raise ValueError('no data')"))
    assert command[0] == 1
    (life,) = shown(commands, "a")["lives"]
    assert life["state"] == "failed"
    assert life["error"] == "worker-0 ended with exit code 1; the others were stopped. Its error: ValueError: no data"
