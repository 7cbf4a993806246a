"""`psworker local --guard`: a job in which one worker goes wrong, with real processes; and demonstrations, short."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"), pytest.mark.slow]

LOCAL = ("psworker", "local", "--progress", "off", "--workers", "3", "--threads", "1")
DEMO = str(Path(__file__).parents[2] / "benchmarks" / "_guard_job.py")

#: Minimizes w^2 / 2. From its 60th push on worker-1 sends 1,000 times the gradient, with which w grows at each step.
ONE_GOES_WRONG = """
    import time
    import numpy as np
    import psworker as ps
    from psworker import config

    w = ps.Variable(np.ones(4), name="w")
    wrong = config.worker_name() == "worker-1"
    with ps.session() as session:
        session.barrier()
        for number in range(1, 501):
            if session.stopped:
                break
            gradient = w.value * (1000.0 if wrong and number >= 60 else 1.0)
            ps.GradientDescent(0.01).apply_gradients([(gradient, w)])
            time.sleep(0.01)
        session.pull()
        print("ended with", abs(w.value).max(), "stopped:", session.stopped, flush=True)
"""


def guard_events(folder):
    lines = (folder / "run" / "events.jsonl").read_text().splitlines()
    return [
        event["text"] for event in map(json.loads, lines) if event["kind"] == "guard" and event["source"] == "guard"
    ]


def test_a_job_is_stopped_with_an_exit_code_cause_and_remedy(commands):
    options = "--guard", "stop", "--run-dir", "run"
    code, out, err = commands.run(*LOCAL, *options, commands.script(ONE_GOES_WRONG))
    assert code == 3, err
    assert "Error: the guard has stopped the job: gradients of worker 'worker-1' were " in err[-1]
    assert "psserver quarantine --worker worker-1" in err[-1]
    assert all("stopped: guard: gradients of worker 'worker-1'" in line for line in out), "workers end by themselves"
    (event,) = guard_events(commands.folder)
    assert "times as large as usual from update " in event


def test_a_job_goes_back_to_before_puts_the_worker_into_quarantine_and_trains(commands):
    options = "--guard", "rollback", "--run-dir", "run", "--checkpoint-every", "20steps", "--keep", "50"
    code, out, err = commands.run(*LOCAL, *options, commands.script(ONE_GOES_WRONG))
    assert code == 0, err
    values = [float(line.split("ended with ")[1].split()[0]) for line in out if "ended with" in line]
    assert len(values) == 3
    assert max(values) < 0.6, "without the guard it is beyond 1e50"
    told = guard_events(commands.folder)
    assert told[0].startswith("gradients of worker 'worker-1' were ")
    assert told[1].startswith("guard: all shards went back to checkpoint ")
    assert told[2] == "guard: pushes of worker 'worker-1' are dropped from now on"
    assert any("quarantine: guard: gradients of worker" in line for line in err)


def test_a_warning_leaves_the_job_as_it_is_and_off_is_silent(commands):
    script = commands.script(ONE_GOES_WRONG)
    for mode, told in (("warn", 1), ("off", 0)):
        _, _, err = commands.run(*LOCAL, "--guard", mode, script)
        assert len([line for line in err if line.startswith("psworker: guard: gradients of worker")]) == told


def test_going_back_needs_a_folder_for_checkpoints(commands):
    code, _, err = commands.run(*LOCAL, "--guard", "rollback", commands.script("pass"))
    assert code == 2
    assert "--guard rollback goes back to a checkpoint: it needs --run-dir" in "".join(err)


@pytest.mark.parametrize(
    ("workers", "options", "kind", "accuracy"),
    [
        ("8", ("--learning-rate", "0.2", "--steps", "2500"), "staleness", (0.0, 0.5)),
        ("4", ("--learning-rate", "0.2", "--steps", "1500"), "", (0.8, 1.0)),
        ("8", ("--learning-rate", "0.025", "--steps", "1500"), "", (0.8, 1.0)),
        ("8", ("--learning-rate", "0.02", "--momentum", "0.9", "--steps", "2500"), "momentum", (0.0, 0.6)),
    ],
    ids=["8 workers", "4 workers", "a smaller rate", "momentum"],
)
def test_digits_are_learned_by_four_workers_and_not_by_eight_unless_their_rate_is_smaller(
    commands, workers, options, kind, accuracy
):
    code, out, err = commands.run("psworker", "local", "--workers", workers, "--threads", "1", DEMO, *options)
    assert code == 0, err
    (result,) = [json.loads(line.partition("RESULT ")[2]) for line in out if "RESULT" in line]
    assert accuracy[0] <= result["accuracy"] <= accuracy[1]
    findings = [line for line in err if line.startswith("psworker: guard: ")]
    assert [line.rstrip(")").rpartition(" ")[2] for line in findings] == [kind] * bool(kind)
