"""Windows: a program in one process trains, and what needs POSIX ends with a line that says so."""

import subprocess
import sys
import textwrap

import pytest

from tests.support.commands import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulates Windows on Linux")

#: The beginning of a program that finds Python as it is on Windows, as far as that can be simulated on Linux.
#: There are no POSIX modules, functions and signals; folders cannot be opened, and open files cannot be renamed.
#: Python's own modules and dependencies are loaded before, as those of Linux.
LIKE_WINDOWS = """
import asyncio, importlib.metadata, logging, mmap, os, runpy, signal, socket, subprocess, sys, tempfile, uuid
import click, google.protobuf, grpc, grpc.aio, numpy, rich.live, rich.table, safetensors.numpy
from grpc_health.v1 import health_pb2, health_pb2_grpc

POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
names = "fork forkpty register_at_fork sysconf getuid geteuid getpgrp getpgid killpg setsid tcgetpgrp tcsetpgrp waitid "
names += "sched_getaffinity fdatasync posix_fallocate writev pwritev preadv O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY"
for name in names.split():
    delattr(os, name)
for name in "SIGKILL SIGHUP SIGALRM SIGUSR1 SIGCHLD SIGTTOU SIGTTIN pthread_sigmask pthread_kill".split():
    delattr(signal, name)
del socket.AF_UNIX, mmap.MAP_SHARED

open_file, replace_file = os.open, os.replace

def open_no_folder(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return open_file(path, *arguments, **options)

def replace_no_open_file(source, target):
    descriptors = [os.path.join("/proc/self/fd", one) for one in os.listdir("/proc/self/fd")]
    if os.path.realpath(source) in map(os.path.realpath, descriptors):
        raise PermissionError(32, "The process cannot access the file because it is being used by another process")
    replace_file(source, target)

os.open, os.replace = open_no_folder, replace_no_open_file
sys.platform = "win32"
"""


def like_windows(program: str) -> list[str]:
    """The command that runs a program there."""
    return [sys.executable, "-c", LIKE_WINDOWS + program]


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


#: Runs commands one after the other, with their exit codes on stdout.
COMMANDS = """
    import importlib
    for package, *sys.argv[1:] in {}:
        try:
            importlib.import_module(package + ".__main__").main()
        except SystemExit as end:
            print(package, *sys.argv[1:], "->", end.code or 0)
"""


def run(program, folder):
    command, options = like_windows(textwrap.dedent(program)), {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, cwd=folder, env=environment(), **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_program_in_one_process_trains_saves_and_loads(tmp_path):
    assert run(TRAINS, tmp_path) == (0, "trained win32 False\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "what"),
    [("checkpoint_dir='run'", "a program with a checkpoint_dir"), ("servers='h:1'", "a session with servers")],
)
def test_checkpoints_and_servers_are_refused(tmp_path, option, what):
    code, out, err = run(TRAINS.replace("session()", f"session({option})"), tmp_path)
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"pswire.errors.ConfigurationError: {what} does not run on Windows: use WSL 2")


NEED_POSIX = ["psserver serve", "psworker run train.py", "psworker local train.py", "psserver checkpoint list ."]
NEED_POSIX += ["psserver replay ."]


@pytest.mark.slow
def test_a_command_that_needs_posix_ends_with_one_line(tmp_path):
    (tmp_path / "train.py").touch()
    code, out, err = run(COMMANDS.format([command.split() for command in NEED_POSIX]), tmp_path)
    assert (code, out.splitlines()) == (0, [f"{command} -> 1" for command in NEED_POSIX])
    names = [" ".join(command.split()[:2]) for command in NEED_POSIX]
    advice = "use WSL 2 or a container; a program in one process, `python train.py`, runs on Windows too"
    assert err.splitlines() == [f"Error: {name} does not run on Windows: {advice}" for name in names]


@pytest.mark.slow
def test_help_and_commands_that_ask_servers_elsewhere_work(tmp_path):
    helped = ["psserver --help", "psserver serve --help", "psworker run --help"]
    asks = "psserver status 127.0.0.1:1"
    code, out, err = run(COMMANDS.format([command.split() for command in [*helped, asks]]), tmp_path)
    lines = out.splitlines()
    assert (code, [line for line in lines if "->" in line]) == (0, [*(f"{one} -> 0" for one in helped), f"{asks} -> 1"])
    assert [line.split()[:2] for line in lines if line.startswith("Usage:")] == [
        ["Usage:", one.split()[0]] for one in helped
    ]
    assert err.startswith("Error: no server answers at 127.0.0.1:1: ")
