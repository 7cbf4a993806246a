"""Child processes: their lines, their ends, and that nothing of them is left."""

import os
import queue
import select
import signal
import textwrap
from collections.abc import Callable, Iterator

import pytest

from psworker.launch import processes
from psworker.launch.processes import LAST_LINES, Lines, ParentPipe, Process

BOUND = 20.0  # seconds that no test comes near to


class Child:
    """A `Process` that runs a little module, and what it reported, in order."""

    def __init__(self, process: Process, reports: queue.SimpleQueue) -> None:
        self.process, self._reports = process, reports
        self.lines: list[tuple[str, str]] = []

    def wait_line(self, text: str) -> None:
        while text not in [line for _, line in self.lines]:
            stream, lines = self._reports.get(timeout=BOUND)
            assert stream != "end", f"ended without {text!r}: {self.lines}"
            self.lines += [(stream, line) for line in lines]

    def wait_end(self) -> int:
        while True:
            stream, lines = self._reports.get(timeout=BOUND)
            if stream == "end":
                assert self.process.code is not None
                return self.process.code
            self.lines += [(stream, line) for line in lines]

    def nothing_more(self) -> bool:
        return self._reports.empty()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Child]]:
    """Starts a child that runs `source`; it ends with the test at the latest."""
    of_the_test = ParentPipe()

    def start(source: str, *arguments: str, parent: ParentPipe = of_the_test) -> Child:
        (tmp_path / "child_module.py").write_text(textwrap.dedent(source))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
        reports = queue.SimpleQueue()
        process = Process(
            "child",
            ["child_module", *arguments],
            environment,
            parent,
            lambda _, stream, lines: reports.put((stream, lines)),
            lambda _: reports.put(("end", [])),
        )
        return Child(process, reports)

    with of_the_test:
        yield start


@pytest.fixture
def fifo(tmp_path) -> Iterator[Callable[[], bool]]:
    """A named pipe, `fifo` in the test's folder. What it gives waits until all who opened it for writing are gone."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def closed() -> bool:
        while select.select([reader], [], [], BOUND)[0]:
            if not os.read(reader, 1 << 16):
                return True
        return False

    yield closed
    os.close(reader)


# A child that starts one of its own, which ignores SIGTERM; both hold the named pipe.
FAMILY = """
    import os, signal, subprocess, sys, time
    held = open(sys.argv[1], "wb", buffering=0)
    grandchild = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + sys.argv[2]
    subprocess.Popen([sys.executable, "-c", grandchild], pass_fds=[held.fileno()])
    {then}
"""
SLEEP = "print('grandchild sleeps', flush=True); time.sleep(600)"


# --- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo", ["one", "", "two"]),
        (b"dos\r\n", ["dos"]),
        (b" 1%\r50%\r100%\r\n", ["100%"]),
        ("grün · 数\n".encode(), ["grün · 数"]),
        (b"\xff\xfe\x00ab\xc3\n\xe2\x82", ["\ufffd\ufffd\x00ab\ufffd", "\ufffd"]),
    ],
)
def test_lines_are_the_same_whole_and_byte_by_byte(data, lines):
    whole = Lines()
    assert whole.feed(data) + whole.feed(b"") == lines
    cut = Lines()
    assert [line for byte in data for line in cut.feed(bytes([byte]))] + cut.feed(b"") == lines


def test_a_line_without_an_end_is_passed_on_in_pieces_and_nothing_is_lost():
    lines = Lines(longest=10)
    pieces = lines.feed("äöü".encode() * 15)
    assert pieces == ["äöüäöüäöüä", "öüäöüäöüäö", "üäöüäöüäöü", "äöüäöüäöüä"]
    assert lines.feed(b"\n") + lines.feed(b"") == ["öüäöü"]


# --- a process --------------------------------------------------------------------------------------------------------


def test_it_gets_arguments_and_an_empty_stdin_and_its_lines_come_with_their_stream_before_its_end(start):
    child = start(
        """
        import sys
        print(__name__, sys.argv[1:], repr(sys.stdin.read()))
        print("err", file=sys.stderr)
        print("cut", end="")
        sys.exit(7)
        """,
        "a b",
        "--c",
    )
    assert child.wait_end() == 7
    assert sorted(child.lines) == [("stderr", "err"), ("stdout", "__main__ ['a b', '--c'] ''"), ("stdout", "cut")]
    assert child.nothing_more()
    assert (child.process.ending, child.process.shell_exit_code) == ("ended with exit code 7", 7)


def test_the_last_lines_are_kept_and_binary_garbage_passes(start):
    child = start("import os; os.write(1, bytes(range(256)) * 1000 + b'\\n')\nfor n in range(1000): print(n)")
    assert child.wait_end() == 0
    assert len(child.lines) == 1001 + 1000
    assert child.process.last_lines == tuple(str(number) for number in range(1000 - LAST_LINES, 1000))


def test_a_signal_is_named(start):
    child = start("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert child.wait_end() == -signal.SIGSEGV
    assert (child.process.ending, child.process.shell_exit_code) == ("was killed by SIGSEGV", 128 + signal.SIGSEGV)


def test_a_signal_reaches_the_whole_group_and_none_after_the_end(start, tmp_path, fifo):
    child = start(FAMILY.format(then="time.sleep(600)"), str(tmp_path / "fifo"), SLEEP)
    child.wait_line("grandchild sleeps")
    child.process.kill(signal.SIGKILL)
    assert child.wait_end() == -signal.SIGKILL
    assert fifo()
    child.process.kill(signal.SIGKILL)


def test_no_process_of_the_group_is_left_when_its_end_is_reported(start, tmp_path, fifo):
    child = start(FAMILY.format(then="sys.exit(3)"), str(tmp_path / "fifo"), SLEEP)
    assert child.wait_end() == 3
    assert fifo()


def test_a_process_that_left_the_group_with_the_output_does_not_delay_the_end(start, monkeypatch):
    monkeypatch.setattr(processes, "DRAIN_TIMEOUT", 0.1)
    child = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print(child.pid)
        """
    )
    child.wait_end()
    os.kill(int(child.lines[0][1]), signal.SIGKILL)


def test_child_and_a_grandchild_that_ignores_sigterm_end_with_the_parent(start, tmp_path, fifo):
    with ParentPipe() as parent:
        then = "try: time.sleep(600)\n    finally: print('cleaned up', flush=True)"
        child = start(FAMILY.format(then=then), str(tmp_path / "fifo"), SLEEP, parent=parent)
        child.wait_line("grandchild sleeps")
    assert child.wait_end() == -signal.SIGKILL
    assert ("stdout", "cleaned up") in child.lines
    assert fifo()


def test_a_child_of_a_parent_that_died_before_it_started_ends(start):
    with ParentPipe() as parent:
        with open(os.devnull, "wb") as other:
            os.dup2(other.fileno(), parent._writer, inheritable=False)
        child = start("import time; time.sleep(600)", parent=parent)
        assert child.wait_end() == -signal.SIGKILL
