"""Windows: a program in one process trains, and what needs POSIX ends with a line that says so."""

import subprocess
import sys
import textwrap

import pytest

from tests.commands import environment
from tests.windows import like_windows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulates Windows on Linux")

TRAINS = """
    import numpy as np
    import psworker as ps
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    data = ps.Dataset({"x": x, "y": x @ np.array([1.0, 2.0, 3.0], np.float32)})
    W = ps.Variable(np.zeros(3, np.float32), name="W")
    with ps.session() as session:
        for batch in session.batches(data, 16, epochs=50):
            error = ps.ops.matmul(batch.x, W) - batch.y
            ps.Adam(0.1).minimize(ps.ops.mean(ps.ops.square(error)))
        session.save("model.safetensors")
        session.save("model.safetensors")
    ps.load("model.safetensors")
    assert np.allclose(W.value, [1, 2, 3], atol=0.1), W.value
    print("trained", sys.platform, "fcntl" in sys.modules)
"""


def run(program, folder):
    command, options = like_windows(textwrap.dedent(program)), {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, cwd=folder, env=environment(), **options)
    return done.returncode, done.stdout, done.stderr


def test_a_program_in_one_process_trains_saves_and_loads(tmp_path):
    assert run(TRAINS, tmp_path) == (0, "trained win32 False\n", "")


@pytest.mark.parametrize(
    ("option", "what"),
    [("checkpoint_dir='run'", "a program with a checkpoint_dir"), ("servers='h:1'", "a session with servers")],
)
def test_checkpoints_and_servers_are_refused(tmp_path, option, what):
    code, out, err = run(TRAINS.replace("session()", f"session({option})"), tmp_path)
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"pswire.errors.ConfigurationError: {what} does not run on Windows: use WSL 2")


@pytest.mark.parametrize(
    "command",
    [
        "psserver serve",
        "psworker run train.py",
        "psworker local train.py",
        "psserver checkpoint list .",
        "psserver replay .",
    ],
)
def test_a_command_that_needs_posix_ends_with_one_line(tmp_path, command):
    (tmp_path / "train.py").touch()
    package, *arguments = command.split()
    code, out, err = run(f"sys.argv[1:] = {arguments}; from {package}.__main__ import main; main()", tmp_path)
    first, second = command.split()[:2]
    assert (code, out, err.count("\n")) == (1, "", 1), err
    advice = "use WSL 2 or a container; a program in one process, `python train.py`, runs on Windows too"
    assert err == f"Error: {first} {second} does not run on Windows: {advice}\n"


def test_help_and_commands_that_ask_servers_elsewhere_work(tmp_path):
    for arguments in (["--help"], ["serve", "--help"]):
        code, out, err = run(f"sys.argv[1:] = {arguments}; from psserver.__main__ import main; main()", tmp_path)
        assert (code, out[:6], err) == (0, "Usage:", "")
    code, out, err = run("sys.argv[1:] = ['run', '--help']; from psworker.__main__ import main; main()", tmp_path)
    assert (code, out[:6], err) == (0, "Usage:", "")
    program = "sys.argv[1:] = ['status', '127.0.0.1:1']; from psserver.__main__ import main; main()"
    code, out, err = run(program, tmp_path)
    assert (code, err.startswith("Error: no server answers at 127.0.0.1:1: ")) == (1, True)
