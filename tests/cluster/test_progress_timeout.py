"""A worker whose program computes nothing, while its heartbeats go on, does not hold the others up for ever."""

import time

import pytest

from tests.support.commands import BOUND

pytestmark = pytest.mark.slow

#: `member` pushes once, and again when there is a file; the other one pushes ten times.
PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
import psworker as ps

W = ps.Variable(np.zeros(3, np.float32), name="W")
optimizer, name = ps.GradientDescent(0.1), sys.argv[1]
with ps.session():
    for step in range(2 if name == "member" else 10):
        while name == "member" and step and not Path("go-on").exists():
            time.sleep(0.05)
        optimizer.minimize(ps.ops.sum(W * W))
        print(name, "has pushed", step, flush=True)
"""


def wait_for_line(command, text):
    """Waits until the text is part of a line of stderr."""
    end = time.monotonic() + BOUND
    while not any(text in line for line in command.err):
        assert time.monotonic() < end, f"no {text!r} in {command.err}"
        time.sleep(0.02)


def test_workers_finish_beside_one_that_only_renews_its_lease_and_that_one_finishes_later(commands):
    server = commands.serve("--consistency", "bounded:1", "--lease", "2", "--progress-timeout", "1")
    script = commands.script(PROGRAM)
    run = ("psworker", "run", "--servers", server.address)
    member = commands.start(*run, "--name", "member", script, "member")
    member.wait_for("member has pushed 0")
    code, out, err = commands.run(*run, "--name", "worker", "--log-level", "info", script, "worker")
    assert (code, out[-1]) == (0, "worker has pushed 9"), err
    assert any("worker waits, shard 0: bounded:1: member is at step" in line for line in err)
    wait_for_line(member, "member waits, shard 0: not waited for: it exceeded --progress-timeout")
    (commands.folder / "go-on").touch()
    assert member.wait() == 0
    assert member.out[-1] == "member has pushed 1"
    code, _, err = server.end()
    assert code == 0
    assert len([line for line in err if "'member' has held others up for longer than --progress-timeout" in line]) == 1
