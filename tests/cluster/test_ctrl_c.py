"""Ctrl-C at many moments of the commands that call servers: each ends, whether the server answers or is stopped."""

import json
import signal

import pytest

from tests.support.combinations import few_fast

#: Processes of one command, each of which gets SIGINT a little later than the one before.
MOMENTS = 12

#: Runs the command `ARGUMENTS` in forked processes, which are real ones without the time of the imports, and prints
#: their exit codes; "hangs" for one that has not ended after 60 s.
PROGRAM = """
import os, signal, sys, threading, time
import psjob.status.interventions, psserver.cli.checkpoint_save, psserver.cli.jobs, psserver.cli.status
from psserver.cli.main import main
from pswire.system.signals import end_at_interrupt

moments, last, *arguments = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]

def run(delay):
    end_at_interrupt()
    os.dup2(2, 1)
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        main(arguments, prog_name="psserver")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # after the command

processes = []
for moment in range(moments):
    process = os.fork()
    if not process:
        run(last * moment / moments)
    processes.append(process)

def end(process, until=time.monotonic() + 60):
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return "hangs"

import json
print(json.dumps([end(process) for process in processes]))
"""

COMMANDS = {
    "checkpoint": ("checkpoint", "save"),
    "status": ("status",),
    "watch": ("status", "--watch", "--every", "0.001"),
    "jobs": ("jobs",),
    "reset": ("reset",),
    "quarantine": ("quarantine", "--worker", "w0"),
    "health": ("health",),
}


@pytest.mark.parametrize("name", few_fast(COMMANDS, fast=0, slow=1))
def test_ctrl_c_ends_a_command_whatever_it_is_doing(name, commands):
    first, *options = COMMANDS[name]
    words = [first, *options[: first == "checkpoint"]]
    server = commands.serve("--checkpoint-dir", "checkpoints")
    timeout = [] if first == "quarantine" else ["--timeout", "600"]
    arguments = [*words, server.address, *options[len(words) - 1 :], *timeout]

    answered = codes(commands, 1.0, arguments)
    server.signal(signal.SIGSTOP)
    stalled = codes(commands, 1.0, arguments)
    server.signal(signal.SIGCONT)
    server.end()

    assert "hangs" not in answered
    assert set(stalled) <= {128 + signal.SIGINT, *[0] * (name == "watch")}, "a watch that has begun ends with 0"


def codes(commands, last, arguments):
    """The exit codes of the processes, of which the last gets SIGINT after this time in seconds."""
    program = commands.python("-c", PROGRAM, str(MOMENTS), str(last), *arguments)
    assert program.wait() == 0, program.err
    found = json.loads(program.out[-1])
    assert len(found) == MOMENTS
    return found
