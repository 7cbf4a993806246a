"""The picture of the terminal: `psworker local` on a pty with a terminal emulator, drawn by Chromium."""

import fcntl
import html
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pyte

from tests.support.browser import Browser
from tests.support.commands import BOUND
from tests.tools.screenshots.training import ROOT, DeepMnist, wait_until

COLUMNS, LINES = 116, 22

#: What emulators show as dim, which pyte does not know; and colors of a dark theme.
_DIM, _GRAY = b"\x1b[2m", b"\x1b[38;2;150;150;150m"
_FOREGROUND, _BACKGROUND = "#d8d8d8", "#16181d"


class OnTerminal:
    """A command on a terminal of `COLUMNS` and `LINES`; a thread reads what it writes. As `commands.Command`."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream, self._written, self._lock = pyte.ByteStream(self.screen), b"", threading.Lock()
        self._ours, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        env = env | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [sys.executable, "-m", *arguments]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        self.popen = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **streams)
        os.close(terminal)
        self._thread = threading.Thread(target=self._read, name="terminal")
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # all processes have closed the terminal
            while data := os.read(self._ours, 1 << 16):
                with self._lock:
                    self._written += data
                    self._stream.feed(data.replace(_DIM, _GRAY))

    @property
    def out(self) -> list[str]:
        """The lines that were written."""
        with self._lock:
            return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self._written.decode(errors="replace")).splitlines()

    err = out

    def wait_for(self, text: str) -> None:
        """Waits until it was written."""
        wait_until(lambda: any(text in line for line in self.out), text, BOUND)

    def end(self) -> None:
        """Ends the command, as Ctrl-C does."""
        self.popen.send_signal(signal.SIGINT)
        self.popen.wait(BOUND)
        self._thread.join(BOUND)
        os.close(self._ours)

    def page(self) -> str:
        """What is on the terminal, as HTML."""
        with self._lock:
            rows = [[self.screen.buffer[row][column] for column in range(COLUMNS)] for row in range(LINES)]
        lines = []
        for row in rows:
            cells = [(_style(cell), html.escape(cell.data)) for cell in row]
            lines.append("".join(f'<span style="{style}">{text}</span>' if style else text for style, text in cells))
        font = "font: 15px/19px 'DejaVu Sans Mono', monospace"
        body = f"margin: 0; padding: 14px 18px; color: {_FOREGROUND}; background: {_BACKGROUND}; {font}"
        return f'<meta charset="utf-8"><body style="{body}"><pre style="margin: 0; {font}">{chr(10).join(lines)}</pre>'


def _style(cell: pyte.screens.Char) -> str:
    color = "" if cell.fg == "default" else f"color: #{cell.fg};" if re.fullmatch("[0-9a-f]{6}", cell.fg) else cell.fg
    return f"{color}{'font-weight: bold;' if cell.bold else ''}"


class DeepMnistOnTerminal(DeepMnist):
    """The run, with `psworker local` on a terminal."""

    def _start(self, stack: ExitStack, name: str, *arguments: str) -> object:
        if name != "local":
            return super()._start(stack, name, *arguments)
        local = OnTerminal("psworker", *arguments, env=self._env)
        stack.callback(local.end)
        return local


def take(images: Path, folder: Path) -> None:
    """docs/images/terminal.png: three workers, of which one is slowed and one was killed."""
    options = ("--shards", "2", "--run-dir", str(folder / "run"), "--checkpoint-every", "20s")
    with DeepMnistOnTerminal(folder, *options) as run:
        run.wait_for_step(60)
        run.slow()
        run.wait_for_step(200)
        run.kill()
        wait_until(lambda: any(re.match("worker-2 +lost", line) for line in run.local.screen.display), "lost", BOUND)
        run.wait_for_step(300)
        time.sleep(1.0)  # the picture of that step
        page = folder / "terminal.html"
        page.write_text(run.local.page())
    with Browser(width=9 * COLUMNS + 40, height=19 * LINES + 28, scale=1.5) as browser:
        browser.open(page.as_uri())
        browser.picture(images / "terminal.png", colors=64)
