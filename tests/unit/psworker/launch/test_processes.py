"""Child processes of the launcher: commands, environment, lines, ends, and that nothing of them is left; signals."""

import io
import os
import queue
import select
import signal
import textwrap

import pytest

from pswire.specs.consistency import Bounded, DropStalePushes
from psworker import environment
from psworker.launch import processes
from psworker.launch.job import Job, child_environment
from tests.support.commands import BOUND


class Child(processes.Process):
    """A process that runs a little module, and the lines it wrote, in order."""

    def __init__(self, *arguments):
        self.lines, self._reports = [], queue.SimpleQueue()
        super().__init__("child", *arguments, *[lambda process, *report: self._reports.put(report)] * 2)

    def wait_for(self, text):
        while text not in [line for _, line in self.lines]:
            self._add(*self._reports.get(timeout=BOUND))

    def wait(self):
        """Until it has ended; its code."""
        while report := self._reports.get(timeout=BOUND):
            self._add(*report)
        assert self._reports.empty()
        return self.code

    def _add(self, stream, lines):
        self.lines += [(stream, line) for line in lines]


@pytest.fixture
def start(tmp_path):
    """Starts a child that runs `source`; it ends with the test at the latest."""
    with processes.ParentPipe() as of_the_test:

        def start(source, *arguments, parent=of_the_test):
            (tmp_path / "child_module.py").write_text(textwrap.dedent(source))
            environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
            return Child(["child_module", *arguments], environment, parent)

        yield start


# A child that starts one of its own, which ignores SIGTERM; both hold the named pipe.
FAMILY = """
    import os, signal, subprocess, sys, time
    held = open(sys.argv[1], "wb", buffering=0)
    ignores_sigterm = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('grandchild sleeps'); "
    subprocess.Popen([sys.executable, "-u", "-c", ignores_sigterm + "time.sleep(600)"], pass_fds=[held.fileno()])
    {then}
"""


@pytest.fixture
def family(start, tmp_path):
    """Starts `FAMILY`; and what tells that all who hold the pipe are gone, of which it waits for the last."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def gone():
        return bool(select.select([reader], [], [], BOUND)[0]) and not os.read(reader, 1 << 16)

    yield lambda then, **options: start(FAMILY.format(then=then), str(path), **options), gone
    os.close(reader)


def test_a_process_was_killed_if_a_signal_of_another_ended_it_also_in_good_order_but_not_if_it_crashed_or_failed():
    ends = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    killed = [-number for number in ends] + [128 + number for number in ends]
    others = [0, 1, 2, 69, None, -signal.SIGSEGV, -signal.SIGABRT, 128 + signal.SIGSEGV]
    assert [processes.was_killed(code) for code in killed + others] == [True] * len(killed) + [False] * len(others)


class ByteByByte(io.BytesIO):
    def read(self, size):
        return super().read(1)


def test_lines_are_the_same_whole_and_byte_by_byte_and_one_without_an_end_comes_in_pieces():
    for data, lines in [
        (b"", []),
        (b"one\n\ntwo", ["one", "", "two"]),
        (b" 1%\r50%\r100%\r\n", ["100%"]),
        ("grün · 数\n".encode(), ["grün · 数"]),
        (b"\xff\xfe\x00ab\xc3\n\xe2\x82", ["\ufffd\ufffd\x00ab\ufffd", "\ufffd"]),
    ]:
        for pipe in (io.BytesIO(data), ByteByByte(data)):
            assert [line for batch in processes.read_lines(pipe) for line in batch] == lines
    text = "äöü" * 100_000
    pieces = [line for batch in processes.read_lines(io.BytesIO(text.encode())) for line in batch]
    assert (len(pieces) > 1, "".join(pieces)) == (True, text)


def test_it_gets_arguments_and_an_empty_stdin_and_its_lines_come_with_their_stream_before_its_end(start):
    source = """
        import os, sys
        print("err", file=sys.stderr)
        os.write(1, bytes(range(256)) * 1000 + b"\\n")
        print(*range(100), sep="\\n")
        print(__name__, sys.argv[1:], repr(sys.stdin.read()), end="")
        sys.exit(7)
    """
    child = start(source, "a b", "--c")
    assert (child.wait(), child.describe_exit()) == (7, "ended with exit code 7")
    assert ("stderr", "err") in child.lines
    printed = [line for stream, line in child.lines if stream == "stdout"]
    assert printed[-101:] == [*map(str, range(100)), "__main__ ['a b', '--c'] ''"]
    assert set(child.last_lines) <= {"err", *printed[-processes.LAST_LINES :]}


def test_a_signal_reaches_the_whole_group_which_is_gone_at_the_end(family):
    start, gone = family
    child = start("time.sleep(600)")
    child.wait_for("grandchild sleeps")
    child.kill(signal.SIGKILL)
    assert (child.wait(), child.describe_exit()) == (-signal.SIGKILL, "was killed by SIGKILL")
    assert gone()
    child.kill(signal.SIGKILL)  # has no effect


def test_no_process_of_the_group_is_left_when_its_end_is_reported(family):
    start, gone = family
    assert (start("sys.exit(3)").wait(), gone()) == (3, True)


def test_child_and_a_grandchild_that_ignores_sigterm_end_with_the_parent(family):
    start, gone = family
    with processes.ParentPipe() as parent:
        child = start("try: time.sleep(600)\n    finally: print('cleaned up', flush=True)", parent=parent)
        child.wait_for("grandchild sleeps")
    assert (child.wait(), ("stdout", "cleaned up") in child.lines, gone()) == (-signal.SIGKILL, True, True)


def test_a_process_that_left_the_group_with_the_output_does_not_delay_the_end(start, monkeypatch):
    monkeypatch.setattr(processes, "DRAIN_TIMEOUT", 0.1)
    sleep = '[sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True'
    child = start(f"import subprocess, sys; print(subprocess.Popen({sleep}).pid)")
    child.wait()
    os.kill(int(child.lines[0][1]), signal.SIGKILL)


def test_a_child_of_a_parent_that_died_before_it_started_ends(start):
    with processes.ParentPipe() as parent:
        with open(os.devnull, "wb") as other:
            os.dup2(other.fileno(), parent._writer, inheritable=False)
        assert start("import time; time.sleep(600)", parent=parent).wait() == -signal.SIGKILL


def test_signals_are_handled_but_an_ignored_sighup_and_all_handlers_are_restored():
    arrived, ours = [], [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in ours}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.signals_handled(ours, arrived.append):
            for number in ours:
                signal.raise_signal(number)
        assert arrived == [signal.SIGTERM]
        assert [signal.getsignal(number) for number in ours] == [before[signal.SIGTERM], signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])


def test_every_shard_and_worker_has_a_name_and_a_command():
    job = Job("train.py", ("--epochs", "3"), workers=3, shards=2, consistency=Bounded(2), staleness=DropStalePushes(5))
    assert job.worker_names + job.server_names == ["worker-0", "worker-1", "worker-2", "server-0", "server-1"]
    serve = "psserver serve --bind 127.0.0.1:0 --shard 1/2 --direct-port 0 --consistency bounded:2 --staleness drop:5"
    assert " ".join(job.server_command(1, job.bind[1])) == serve
    run = "psworker run --servers h:1,h:2 --name worker-2 --launched -- train.py --epochs 3"
    assert " ".join(job.worker_command("worker-2", "h:1,h:2", job.script)) == run
    other = Job("train.py", debug=True, worker_options={"shared_memory": False})
    assert other.worker_command("worker-0", "h:1", "train.py")[:3] == ["psworker", "--debug", "run"]
    assert other.server_command(0, "h:1")[-1] == "--no-shared-memory"


def test_the_direct_ports_of_shards_follow_each_other_or_are_free_ones_or_none():
    for port, expected in [(7170, ["7170", "7171"]), (0, ["0", "0"]), (None, ["off", "off"])]:
        job = Job("train.py", shards=2, direct_port=port)
        commands = [job.server_command(shard, job.bind[shard]) for shard in range(2)]
        assert [command[command.index("--direct-port") + 1] for command in commands] == expected


def test_blas_threads_are_as_the_flag_says_or_the_user_has_set_or_the_share_of_the_cores():
    for base, threads, blas in [
        ({"OMP_NUM_THREADS": ""}, None, environment.blas_threads(3)),
        ({"OMP_NUM_THREADS": "7"}, 2, environment.blas_threads(2)),
        *[({variable: "7"}, None, {variable: "7"}) for variable in environment.BLAS_VARIABLES],
    ]:
        assert child_environment(base, threads, share=3) == base | {"PYTHONUNBUFFERED": "1"} | blas
