"""`psworker local --run-dir`: killed servers are started again with their state, and a stopped job is resumed."""

import os
import re
import shlex
import signal
import socket
import sys
from contextlib import closing

import pytest

from psworker.launch.cluster import Cluster
from psworker.launch.display.plain import Display
from psworker.launch.job import Job
from psworker.launch.run_folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

LOCAL = ("psworker", "local", "--progress", "off", "--run-dir", "run")

#: Each push adds 1 to the element of each of its examples. A run of the two epochs, 24 batches, waits after its tenth
#: batch until there is a file `go`.
COUNTS = """
    import os, time
    import numpy as np
    import psworker as ps

    seen = ps.Variable(np.zeros(48), name="seen")
    data = ps.Dataset({"x": np.arange(48)})
    with ps.session() as session:
        print("incarnation", session._client.membership.sender.incarnation, "at step", session.global_step, flush=True)
        for number, batch in enumerate(session.batches(data, 4, 2), 1):
            gradient = np.zeros(48)
            gradient[batch.x] = -1.0
            ps.GradientDescent(1.0).apply_gradients([(gradient, seen)])
            if number == 10:
                print("at ten", flush=True)
            while number == 10 and not os.path.exists("go"):
                time.sleep(0.01)
        session.pull()
        print("trained", *sorted(set(seen.value.tolist())), "until step", session.global_step, flush=True)
"""


def server_of(commands, shard):
    (pid,) = [pid for pid, line in commands.alive().items() if f"--shard {shard}" in line]
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_server_is_started_again_with_its_state_and_the_workers_go_on(commands, shards):
    options = "--restarts", "1", "--journal", "--workers", "1", "--shards", str(shards)
    command = commands.start(*LOCAL, *options, commands.script(COUNTS))
    command.wait_for("at ten")
    for shard in range(shards):
        os.kill(server_of(commands, f"{shard}/{shards}"), signal.SIGKILL)
    (commands.folder / "go").touch()
    assert command.wait() == 0, command.err
    assert command.out[0] == "worker-0 | incarnation 1 at step 0"
    assert command.out[-1] == "worker-0 | trained 2.0 until step 24"
    for shard in range(shards):
        log = (commands.folder / "run" / "logs" / f"server-{shard}.log").read_text()
        assert re.search(
            r"psworker: [0-9:]{8} was killed by SIGKILL; restart 1 of 1 in 0\.5 s\n"
            r"(?:.*\n)*.* listening on (\S+)\n(?:.*\n)*psworker: [0-9:]{8} listens again on \1\n",
            log,
        ), log


@pytest.mark.slow
@pytest.mark.parametrize(("options", "then"), [((), ()), (("--journal",), ()), ((), ("--shards", "2"))])
def test_a_job_that_was_stopped_is_resumed_where_it_was_also_on_more_shards(commands, options, then):
    script = commands.script(COUNTS)
    words = *LOCAL, *options, "--workers", "1", "--progress", "plain", script
    command = commands.start(*words)
    command.wait_for("at ten")
    code, _, err = command.end(signal.SIGINT)
    assert code == 130
    assert err[-2].startswith("10 steps in ")
    assert err[-1] == f"psworker: continue with: psworker local --resume {shlex.join(words[2:])}"
    assert "handed out again" not in "".join(err), "its examples wait for it"
    (commands.folder / "go").touch()
    code, out, err = commands.run(*LOCAL, *options, *then, "--workers", "1", "--resume", script)
    assert (code, "starts anew" in "".join(err)) == (0, False)
    assert out[0] == "worker-0 | incarnation 2 at step 10"
    assert out[-1] == "worker-0 | trained 2.0 until step 24", "each example once an epoch, over both runs"
    log = (commands.folder / "run" / "logs" / "worker-0.log").read_text()
    assert log.splitlines() == ["incarnation 1 at step 0", "at ten", *[line[11:] for line in out]]


@pytest.mark.slow
def test_a_run_that_was_never_begun_is_resumed_anew_and_says_so(commands):
    code, out, err = commands.run(*LOCAL, "--resume", "--workers", "1", commands.script("print('in')"))
    assert (code, out, err[0]) == (0, ["worker-0 | in"], "psworker: nothing to resume in run: the run starts anew")


@pytest.mark.slow
def test_a_server_whose_port_was_taken_in_the_pause_ends_the_job_with_an_error_that_names_it(commands, monkeypatch):
    for name, value in commands.environment().items():
        monkeypatch.setenv(name, value)
    script = commands.script("import threading; print('in', flush=True); threading.Event().wait(600)")
    folder = RunFolder(commands.folder / "run")
    job = Job(str(commands.folder / script), workers=1, restarts=1, run_folder=folder)
    with closing(socket.socket()) as taken:

        class TakesThePort(Display):
            def lines(self, name, stream, lines):
                if lines == ["in"]:
                    cluster._processes["server-0"].kill(signal.SIGKILL)
                if "restart 1 of 1" in lines[0]:
                    host, _, port = cluster._addresses["server-0"].rpartition(":")
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    taken.bind((host, int(port)))
                    taken.listen()

        cluster = Cluster(job, TakesThePort(job.worker_names))
        outcome = cluster.run()
    address = cluster._addresses["server-0"]
    assert (outcome.code, outcome.error) == (
        1,
        "server-0 ended with exit code 1 after 1 restart; the others were stopped",
    )
    assert outcome.last_lines[-1].startswith(f"Error: cannot listen on {address}: Address already in use")
