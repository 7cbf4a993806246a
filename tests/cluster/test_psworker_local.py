"""`psworker local` as a process: a cluster of processes comes, is watched, and goes without a trace."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from psworker.launch import local_cluster
from psworker.launch.display import Display

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

LOCAL = ("psworker", "local", "--progress", "off")

TRAIN = """
    import psworker as ps
    W = ps.Variable([0.0, 0.0], name="W")
    b = ps.Variable(0.0, name="b")
    optimizer = ps.GradientDescent(0.1)
    with ps.session() as session:
        print("joined", session.worker, flush=True)
        for _ in range(50):
            optimizer.minimize(ps.ops.sum((W - 1.0) ** 2) + (b - 2.0) ** 2)
    print("value", W.value.tolist(), flush=True)
"""

# Every worker has a child of its own, which ignores SIGTERM, and waits for a signal.
WAIT = """
    import os, subprocess, sys, threading
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child'); time.sleep(600)"
    try:
        subprocess.Popen([sys.executable, "-c", child])
        print("in", os.getpid(), flush=True)
        threading.Event().wait(600)
    finally:
        print("out", flush=True)
"""
BOTH_WAIT = "worker-0 | in", "worker-1 | in", "worker-0 | child", "worker-1 | child"


def test_workers_train_together_and_their_lines_come_with_their_names(commands):
    arguments = "local", "--progress", "plain", "--workers", "2", "--shards", "2", commands.script(TRAIN)
    code, out, err = commands.run("psworker", *arguments)
    assert (code, len(out)) == (0, 4)
    assert {"worker-0 | joined worker-0", "worker-1 | joined worker-1"} < set(out)
    assert all(line.startswith(("worker-0 | ", "worker-1 | ")) for line in out)
    assert err[-1].startswith("100 steps in ")
    assert err[-1].endswith(" · 2 workers")


@pytest.mark.slow
def test_servers_and_workers_get_what_their_flags_say(commands):
    script = commands.script(
        """
        import psworker as ps
        W = ps.Variable([0.0], name="W")
        optimizer = ps.GradientDescent(1.0)
        with ps.session() as session:
            for _ in range(4):
                optimizer.minimize(ps.ops.sum(W))
            session.pull()
            print(session._client.consistency, session.global_step, W.value.tolist(), flush=True)
        """
    )
    flags = "--workers", "1", "--consistency", "sync:1,backup=0", "--staleness", "scale", "--push-every", "2"
    assert commands.run(*LOCAL, *flags, script)[:2] == (0, ["worker-0 | sync:1 2 [-4.0]"])


@pytest.mark.slow
def test_a_worker_that_fails_stops_the_others_and_its_last_lines_are_shown(commands):
    script = commands.script(
        """
        import os, sys, threading
        if os.environ["PSWORKER_NAME"] == "worker-1":
            for number in range(30):
                print("line", number)
            sys.exit(3)
        try:
            threading.Event().wait(600)
        finally:
            print("stopped in good order")
        """
    )
    code, out, err = commands.run(*LOCAL, script)
    assert code == 3
    assert "worker-0 | stopped in good order" in out or not any(line.startswith("worker-0") for line in out)
    assert err == [
        "Error: worker-1 ended with exit code 3; the others were stopped",
        "Its last lines:",
        *[f"  line {number}" for number in range(10, 30)],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "options"), [("worker-1", "--name worker-1"), ("server-1", "--shard 1/2")])
def test_a_killed_process_stops_the_job(commands, victim, options):
    command = commands.start(*LOCAL, "--shards", "2", commands.script(WAIT))
    command.wait_for(*BOTH_WAIT)
    pids = [pid for pid, line in commands.alive().items() if options in line]
    os.kill(pids[0], signal.SIGKILL)
    assert command.wait() == 128 + signal.SIGKILL
    assert command.err[0] == f"Error: {victim} was killed by SIGKILL; the others were stopped"
    assert "worker-0 | out" in command.out
    assert ("worker-1 | out" in command.out) == (victim == "server-1")
    assert not commands.alive()


@pytest.mark.slow
def test_each_signal_to_end_stops_everything_in_good_order(commands):
    script = commands.script(WAIT)
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
    jobs = {number: commands.start(*LOCAL, script) for number in codes}
    for number, job in jobs.items():
        job.wait_for(*BOTH_WAIT)
        job.signal(number)
    assert {number: job.wait() for number, job in jobs.items()} == codes
    assert all({"worker-0 | out", "worker-1 | out"} < set(job.out) for job in jobs.values())
    assert not commands.alive()


@pytest.mark.slow
def test_nothing_is_left_when_the_launcher_is_killed(commands):
    command = commands.start(*LOCAL, commands.script(WAIT))
    command.wait_for(*BOTH_WAIT)
    assert len(commands.alive()) == 6, "launcher, server, two workers and a child of each"
    command.signal(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    assert commands.wait_for_none()


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_workers_that_do_not_leave(commands, monkeypatch):
    monkeypatch.setattr(local_cluster, "WORKER_GRACE", 600.0)
    for name, value in commands.environment().items():
        monkeypatch.setenv(name, value)
    script = commands.script(
        """
        import signal, threading
        signal.signal(signal.SIGTERM, lambda *_: print("I stay", flush=True))
        print("in", flush=True)
        threading.Event().wait(600)
        """
    )

    class PressesCtrlC(Display):
        def lines(self, name, stream, lines):
            if {"in", "I stay"} & set(lines):
                os.kill(os.getpid(), signal.SIGINT)

    job = local_cluster.Job(str(commands.folder / script), workers=1)
    outcome = local_cluster.LocalCluster(job, PressesCtrlC(job.worker_names)).run()
    assert outcome == local_cluster.Outcome(130)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_job(commands):
    script = commands.script("while True: print('y')")
    command = [sys.executable, "-P", "-m", *LOCAL, script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=commands.folder, env=commands.environment(), **pipes) as popen:
        assert popen.stdout.readline().endswith(b"| y\n")
        popen.stdout.close()
        assert popen.wait(30) == 1
        assert popen.stderr.read() == b""
    assert not commands.alive()


@pytest.mark.slow
def test_a_server_that_cannot_start_is_explained(commands):
    code, out, err = commands.run(*LOCAL, commands.script(TRAIN), PSSERVER_SERVE_LEASE="soon")
    assert (code, out) == (2, [])
    assert any(line.startswith("server-0 | Error: Invalid value for '--lease'") for line in err)
    assert "Error: server-0 ended with exit code 2 before the workers were started" in err


@pytest.mark.slow
def test_a_terminal_gets_a_live_display_and_is_left_clean(commands):
    leader, follower = pty.openpty()
    command = [sys.executable, "-P", "-m", "psworker", "local", commands.script(TRAIN)]
    environment = commands.environment(TERM="xterm", COLUMNS="100", LINES="30")
    terminal = {"stdin": follower, "stdout": follower, "stderr": follower}
    popen = subprocess.Popen(command, cwd=commands.folder, env=environment, **terminal)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 1 << 16):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(leader)
    assert popen.wait(30) == 0
    text = shown.decode()
    assert "joined worker-1" in text
    assert "\x1b[32mworker-1 | " in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden, and shown again"
    assert text.splitlines()[-1].endswith(" · 2 workers")
