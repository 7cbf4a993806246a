"""The live display on a real terminal, as a terminal emulator shows it: nothing scrolls away and nothing is left."""

import re
import sys

import pyte
import pytest

from tests.support.commands import environment
from tests.support.terminals import run_on_terminal

#: A launcher's display of a job with many workers, for some frames, with lines of workers in between.
PROGRAM = """
import sys
from psjob.status.job_status import ShardAnswer, merge_reports
from pswire.messages import EventReport, StatusDetail, StatusReport, WorkerStatus
from psworker.launch.display.choice import make_display
from psworker.launch.display.dashboard import Note
from psjob.status.job_view import JobView

names = [f"worker-{number}" for number in range(64)]
view = JobView(names)
with make_display("auto", names, title="train.py") as display:
    display.notice("psworker: servers at h:1")
    display.note("waiting for server-0 to answer")
    for second in range(1, 11):
        workers = [
            WorkerStatus(
                name=name, incarnation=1, number=number, state="lost" if number == 50 and second > 5 else "live",
                steps=second * (100 + number), staleness_sum=second * number, cost=1.0 / second,
                epoch=1, lease_left=15.0,
            )
            for number, name in enumerate(names)
        ]
        detail = StatusDetail((EventReport(number=second, time=second, kind="epoch", text=f"epoch {second} is done"),))
        report = StatusReport(shard=0, shards=1, global_step=6400 * second, workers=tuple(workers), detail=detail)
        view = view.follow(merge_reports([ShardAnswer("h:1", report)]), 10.0 * second)
        display.show(view)
        if second % 4 == 0:
            display.lines(names[second], "stdout", [f"line {second} " + "long " * 30])
        if second == 6:
            display.finding(Note("guard: momentum times staleness", True))
display.summary(view)
"""
ENDS_OF_FRAMES = "\x1b[?2026l"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "lines"), [(40, 10), *[pytest.param(*size, marks=pytest.mark.slow) for size in ((80, 24), (200, 50))]]
)
def test_a_picture_of_64_workers_is_replaced_in_place_and_only_lines_above_it_scroll(columns, lines):
    env = environment(TERM="xterm-256color")
    code, written = run_on_terminal([sys.executable, "-c", PROGRAM], columns, env, lines=lines)
    assert code == 0, written
    screen = pyte.HistoryScreen(columns, lines, history=1000)
    stream = pyte.Stream(screen)
    seen = []
    for frame in written.split(ENDS_OF_FRAMES):
        stream.feed(frame + ENDS_OF_FRAMES)
        shown = [line.rstrip() for line in screen.display]
        seen += [line for line in shown if re.search(r"step [\d,]+", line)]
        assert sum(bool(re.match(r"\d:\d\d · ", line)) for line in shown) <= 1, shown
        assert sum(line.startswith("worker  ") for line in shown) <= 1, shown
        assert len({line for line in shown if re.match(r"worker-\d+ +(?:live|lost|\d)", line)}) < lines, shown
    assert len(seen) >= 10, "in each frame"
    scrolled = ["".join(one.data for one in line.values()) for line in screen.history.top]
    stays = [line for line in [*scrolled, *map(str.rstrip, screen.display)] if line]
    text = re.sub(r" +", " ", "".join(stays))
    assert text.startswith("psworker: servers at h:1")
    assert [f"line {second} long long" in text for second in (4, 8)] == [True] * 2
    assert "guard: momentum times staleness" in text
    assert not re.search(r"worker state|live|epoch|train\.py", text), text
    assert stays[-1].startswith("57,600 steps in 90.0 s"), stays
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1, "the cursor is shown again"


@pytest.mark.slow
def test_no_color_and_a_terminal_that_cannot_move_its_cursor_are_honoured():
    env = environment(TERM="xterm-256color", NO_COLOR="1")
    _, written = run_on_terminal([sys.executable, "-c", PROGRAM], 80, env)
    styles = {number for codes in re.findall(r"\x1b\[([\d;]*)m", written) for number in codes.split(";")}
    assert styles <= {"", "0", "1", "2"}, "bold and dim alone"
    _, written = run_on_terminal([sys.executable, "-c", PROGRAM], 80, environment(TERM="dumb"))
    assert "\x1b" not in written
    assert re.search(r"^\[100\.0 s\] epoch 1 · step 64,000 · ", written, re.MULTILINE)
