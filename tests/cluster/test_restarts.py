"""`psworker local --restarts`: processes that fail are started again, and end with the job."""

import os
import re
import signal
import sys

import pytest

from psworker.launch import cluster, restart_times
from psworker.launch.cluster import Cluster, Outcome
from psworker.launch.display.plain import Display
from psworker.launch.job import Job
from tests.support.combinations import few_fast

LOCAL = ("psworker", "local", "--progress", "off")
PAUSES = (1, "0.5"), (2, "1")


def launcher_lines(err):
    """What the launcher says about its processes: the name and the text without the time of day."""
    found = [re.fullmatch(r"(\S+) +\| psworker: [0-9:]+ (.*)", line) for line in err]
    return [f"{line[1]} {line[2]}" for line in found if line]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: Each push adds 1 to the element of each of its examples. The first process of worker-1 kills itself when it has a
#: batch that it has not pushed; worker-0 begins when that has happened.
KILLS_ITSELF_ONCE = """
    import os, signal, time
    import numpy as np
    import psworker as ps

    def report(epoch):
        print("epoch with", epoch.examples, flush=True)

    seen = ps.Variable(np.zeros(48), name="seen")
    data = ps.Dataset({"x": np.arange(48)})
    with ps.session() as session:
        print("incarnation", session._client.membership.sender.incarnation, flush=True)
        while session.worker == "worker-0" and not os.path.exists("killed"):
            time.sleep(0.01)
        for batch in session.batches(data, 4, 2, on_epoch=report):
            if session.worker == "worker-1" and not os.path.exists("killed"):
                open("killed", "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            gradient = np.zeros(48)
            gradient[batch.x] = -1.0
            ps.GradientDescent(1.0).apply_gradients([(gradient, seen)])
        session.pull()
        print("trained", *sorted(set(seen.value.tolist())), flush=True)
"""


@pytest.mark.slow
def test_a_killed_worker_is_started_again_with_its_name_and_the_job_trains_on_each_example_once_an_epoch(commands):
    script = commands.script(KILLS_ITSELF_ONCE)
    code, out, err = commands.run(*LOCAL, script)
    assert (code, launcher_lines(err)) == (0, ["worker-1 was killed by SIGKILL; restart 1 of 5 in 0.5 s"])
    assert [line for line in out if line.startswith("worker-1 | inc")] == [
        "worker-1 | incarnation 1",
        "worker-1 | incarnation 2",
    ]
    assert {line[11:] for line in out if "epoch" in line} == {"epoch with 48"}
    assert {line[11:] for line in out if "trained" in line} == {"trained 2.0"}


@pytest.mark.slow
def test_a_worker_that_fails_again_ends_the_job_when_its_restarts_are_used_up(commands):
    source = """
        import os, sys, time
        print("begins", flush=True)
        while os.environ["PSWORKER_NAME"] == "worker-0": time.sleep(600)
        sys.exit("no luck")
    """
    code, out, err = commands.run(*LOCAL, "--restarts", "2", commands.script(source))
    assert (code, out.count("worker-1 | begins")) == (1, 3)
    restarts = [f"worker-1 ended with exit code 1; restart {number} of 2 in {pause} s" for number, pause in PAUSES]
    assert launcher_lines(err) == [*restarts, "worker-0 stopped, because worker-1 has failed"]
    assert err[-4:-2] == [
        "Error: worker-1 ended with exit code 1 after 2 restarts; the others were stopped",
        "Its last lines:",
    ]
    assert sorted(err[-2:]) == ["  begins", "  no luck"], "of two streams, in any order"


@pytest.mark.slow
@pytest.mark.parametrize("number", few_fast([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_in_the_pause_before_a_restart_ends_the_job_at_once(commands, monkeypatch, number):
    monkeypatch.setattr(cluster, "WORKER_GRACE", 600.0)
    monkeypatch.setattr(restart_times, "FIRST_PAUSE", 600.0)
    monkeypatch.setattr(restart_times, "LONGEST_PAUSE", 600.0)
    for name, value in commands.environment().items():
        monkeypatch.setenv(name, value)

    class SignalsInThePause(Display):
        def lines(self, name, stream, lines):
            if any("restart 1 of 1 in 600 s" in line for line in lines):
                os.kill(os.getpid(), number)

    job = Job(str(commands.folder / commands.script("import sys; sys.exit(3)")), workers=1, restarts=1)
    assert Cluster(job, SignalsInThePause(job.worker_names)).run() == Outcome(128 + number)
