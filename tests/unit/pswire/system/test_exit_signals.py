"""Exit at a signal, for process 1 of a container and for others."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
os.getpid = lambda number=int(sys.argv[1]): number
from pswire.system.exit_signals import end_at_next

end_at_next(signal.SIGTERM)
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    print("cleaned up", end="")
"""


@pytest.mark.parametrize(("number", "code"), [(1, 128 + signal.SIGTERM), (2, -signal.SIGTERM)])
def test_the_next_signal_ends_a_process_at_once_also_process_1_that_must_do_it_itself(number, code):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(number)], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
