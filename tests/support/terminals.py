"""Commands on a real terminal (a pty), and what a person sees there."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.commands import BOUND

#: Makes standard input the controlling terminal of this session, then becomes the command. A process of its own and no
#: `preexec_fn`, which would run in a fork of this one, in which other modules may have threads: JAX warns of it.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def run_on_terminal(
    command: list[str], columns: int, env: Mapping[str, str], folder: Path | None = None, lines: int = 24
) -> tuple[int, str]:
    """Run a command whose controlling terminal has this size; its exit code and all that it has written."""
    ours, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    on_terminal = [sys.executable, "-S", "-c", TAKE_TERMINAL, *command]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    written = bytearray()
    with subprocess.Popen(on_terminal, cwd=folder, env=dict(env), start_new_session=True, **streams) as process:
        os.close(terminal)
        end = time.monotonic() + 2 * BOUND
        while time.monotonic() < end:
            readable, _, _ = select.select([ours], [], [], 1.0)
            try:
                data = os.read(ours, 1 << 16) if readable else b"" if process.poll() is not None else None
            except OSError:  # all processes have closed the terminal
                break
            if data == b"":
                break
            written += data or b""
        else:
            process.kill()
        os.close(ours)
        code = process.wait()
    return code, written.decode()


def frames(written: str) -> list[str]:
    """Everything that was a line at some moment, in order: each ends with a line feed, or is erased."""
    return [part for part in re.split(r"[\r\n]+", written.replace("\x1b[K", "")) if part]


def screen(written: str) -> list[str]:
    """The lines that stay, of output that returns to a line's beginning and erases it."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        lines.append(line.rpartition("\r\x1b[K")[2])
    return lines
