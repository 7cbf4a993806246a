"""The status line on a terminal: never mixed with output, one line at any width, and nothing without a terminal."""

import re
import sys
import textwrap

import pytest

from tests.support.combinations import few_fast
from tests.support.commands import environment
from tests.support.terminals import frames, run_on_terminal, screen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="opens a terminal of its own")

#: A status line of an invented job, whose step is what the program says: `show(step)` in place of a watch.
LINE = """
import logging, os, sys
logging.basicConfig(format="log: %(message)s")
from dataclasses import replace
from pswire.messages import StatusReport, WorkerStatus
from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from psworker.progress.terminal import StatusLine
def job(step):
    worker = WorkerStatus(name="worker-0", state="live", epoch=3, steps=step, cost=0.4567)
    report = StatusReport(shard=0, shards=1, global_step=step, workers=(worker,))
    return merge_reports([ShardAnswer("h:1", report)])
line = StatusLine(sys.stderr)
def show(step):
    line.show(JobView().follow(job(step - 1234), 0.0).follow(job(step), 1.0))
"""


def shown(program, columns=80, **changes):
    """The exit code of a program on a terminal, what it has written, and the lines that stay."""
    command = [sys.executable, "-c", LINE + textwrap.dedent(program)]
    code, written = run_on_terminal(command, columns, environment(TERM="xterm") | changes)
    assert code == 0, written
    return written, screen(written)


@pytest.mark.slow
def test_lines_of_the_program_its_errors_and_its_log_stay_whole_and_the_line_is_gone_at_the_end():
    written, lines = shown("""
        show(1)
        print("first")
        show(2)
        print("second", file=sys.stderr)
        show(3)
        logging.warning("third")
        show(4)
        print("fo", end="", flush=True)
        show(5)
        print("urth")
        show(6)
        show(7)
        line.close()
        print("last", sys.stdout.__dict__.get("write"))
    """)
    assert lines == ["first", "second", "log: third", "fourth", "last None", ""]
    steps = [int(step) for step in re.findall(r"step (\d+)", written)]
    assert steps == [1, 2, 3, 4, 6, 7], "not within a line of the program"


@pytest.mark.slow
def test_a_forked_child_writes_as_without_a_line():
    written, _ = shown("""
        show(1)
        if not os.fork():
            sys.stdout.write("of a child")
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        line.close()
    """)
    assert re.search(r"cost 0\.4567of a child\r", written), "without erasing a line that is not its own"


@pytest.mark.slow
@pytest.mark.parametrize("columns", few_fast([60, 30]))
def test_the_line_is_never_wider_than_the_terminal_and_is_drawn_again_only_when_something_has_advanced(columns):
    written, lines = shown("show(10 ** 9); show(10 ** 9); show(10 ** 9 + 1); line.close()", columns)
    drawn = frames(written)
    assert [len(line) < columns for line in drawn] == [True, True]
    assert ("epoch 3 · step 1,000,000,000 · 1,234 steps/s · cost 0.4567" in drawn) == (columns == 60)
    assert lines == [""]


@pytest.mark.slow
def test_a_program_in_the_background_does_not_draw():
    written, _ = shown("""
        import signal, time
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            time.sleep(600)
        os.setpgid(child, child)
        os.tcsetpgrp(2, child)
        show(1)
        os.tcsetpgrp(2, os.getpgrp())
        show(2)
        os.kill(child, 9)
        os.wait()
        line.close()
    """)
    assert re.findall(r"step (\d+)", written) == ["2"]


#: Trains until it has seen several status lines, or for some steps.
TRAINS = """
import sys, time
import numpy as np
import psworker as ps
W = ps.Variable(np.zeros(2), name="W")
data = ps.Dataset({"x": np.ones((40, 2))})
with ps.session() as session:
    for batch in session.batches(data, 1, epochs=2, on_epoch=lambda report: print("epoch", report.epoch)):
        ps.GradientDescent(0.001).minimize(ps.ops.sum(ps.ops.square(W - batch.x)))
        time.sleep(float(sys.argv[1]))
print("trained")
"""


@pytest.mark.slow
def test_a_program_in_one_process_has_a_line_on_a_terminal_and_a_summary(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    command = [sys.executable, "train.py", "0.02"]
    code, written = run_on_terminal(command, 60, environment(TERM="xterm"), tmp_path)
    *lines, summary, trained, end = screen(written)
    assert (code, lines, trained, end) == (0, ["epoch 1", "epoch 2"], "trained", ""), written
    assert re.fullmatch(r"80 steps in .* s · .* steps/s · 1 worker", summary)
    drawn = [frame for frame in frames(written) if re.match(r"epoch \d of 2 · step \d+ · .* · cost ", frame)]
    assert drawn
    assert max(map(len, drawn)) < 60


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"PSWORKER_PROGRESS": "off"}])
def test_a_terminal_that_cannot_erase_and_progress_that_is_off_have_no_line(tmp_path, changes):
    (tmp_path / "train.py").write_text(TRAINS)
    command = [sys.executable, "train.py", "0.02"]
    code, written = run_on_terminal(command, 60, environment(TERM="xterm") | changes, tmp_path)
    assert (code, written.splitlines()) == (0, ["epoch 1", "epoch 2", "trained"])
