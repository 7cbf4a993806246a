"""The status of a job, followed over time, and the lines, tables and displays that are made of it."""

import io
import itertools
import math
import queue
import sys
from dataclasses import replace
from unittest import mock

import pytest
from rich.console import Console

from pswire.job_status import JobWorker, ShardAnswer, merge_reports
from pswire.messages import StatusReport, WorkerStatus
from psworker.launch import progress
from psworker.launch.display import Display, make_display, step_line, summary_line, table
from psworker.launch.progress import COST_SMOOTHING, RATE_SMOOTHING, Progress, Watch, WorkerProgress, follow, starting

NAMES = ("worker-0", "worker-1")


def status(name="worker-0", state="live", steps=0, staleness_sum=0, loss=None, epoch=0):
    return WorkerStatus(name, 1, 0, state, steps, 0, staleness_sum, loss, epoch, 15.0)


def job(global_step, *workers):
    return merge_reports([ShardAnswer("h:1", StatusReport(0, 1, global_step, 0, workers=workers))])


def test_workers_are_in_the_order_of_their_numbers_and_starting_until_a_shard_knows_them():
    view = follow(starting(["worker-2", "worker-10"]), job(0, status("worker-9"), status("guest")), 0.5)
    states = [f"{worker.status.name} {worker.status.state}" for worker in view.workers]
    assert states == ["guest live", "worker-2 starting", "worker-9 live", "worker-10 starting"]


def test_a_rate_is_steps_over_seconds_follows_a_change_within_the_time_constant_and_is_zero_when_a_worker_left():
    view = follow(starting(NAMES), job(300, status("worker-0", steps=100), status("worker-1", steps=200)), 0.5)
    assert ([worker.rate for worker in view.workers], view.step) == ([200.0, 400.0], 300)
    assert "600 steps/s" in step_line(view)
    view = follow(starting(["worker-0"]), job(100, status(steps=100)), 1.0)
    steps = 100 + int(300 * RATE_SMOOTHING)
    view = follow(view, job(steps, status(steps=steps)), 1.0 + RATE_SMOOTHING)
    assert view.workers[0].rate == pytest.approx(100 + 200 * (1 - math.exp(-1)))
    left = follow(view, job(steps, status(state="left", steps=steps)), 5.0).workers[0]
    assert (left.rate, left.status.steps, left.status.state) == (0.0, steps, "left")
    assert follow(view, job(100, status(steps=0)), 2.5).workers[0].rate >= 0, "a worker that starts again from zero"


def test_a_cost_is_smoothed_alike_however_often_it_is_asked_for_and_stays_when_a_push_has_none():
    first = follow(starting(["worker-0"]), job(1, status(steps=1, loss=2.0)), 1.0)
    assert follow(first, job(2, status(steps=2)), 2.0).workers[0].cost == first.workers[0].cost == 2.0
    later, end = job(9, status(steps=9, loss=1.0)), 1.0 + COST_SMOOTHING
    for before in (first, follow(first, later, 1.0 + COST_SMOOTHING / 3)):
        assert follow(before, later, end).workers[0].cost == pytest.approx(1 + math.exp(-1))


def test_staleness_is_the_mean_over_all_pushes_and_training_lasts_from_the_first_step_to_the_last():
    workers = status("worker-0", steps=10, staleness_sum=5), status("worker-1", steps=30, staleness_sum=45)
    view = starting(NAMES)
    for seconds, step in ((1.0, 0), (1.5, 0), (2.0, 50), (2.5, 100), (3.0, 100)):
        view = follow(view, job(step, *workers), seconds)
        assert step or summary_line(view).startswith("0 steps in 0.0 s")
    assert summary_line(view) == "100 steps in 1.0 s · 100 steps/s · staleness 1.2 · 2 workers"  # 50 / 40


FIRST = WorkerProgress(JobWorker("worker-0", state="live", epoch=5, steps=3000, mean_staleness=0.5), 800.0, 0.45)
LEFT = WorkerProgress(JobWorker("worker-1", state="left", epoch=4, steps=1000, mean_staleness=2.1), 490.0, 0.5)
TRAINING = Progress((FIRST, LEFT), seconds=4.0, step=4000, began=1.0, advanced=3.5)
DROPPED = replace(LEFT, status=replace(LEFT.status, dropped=3, waiting_for="worker-0, 2 steps behind"))
DROPPING = replace(TRAINING, workers=(replace(FIRST, status=replace(FIRST.status, tensor_transport="gRPC")), DROPPED))
WITHOUT_COSTS = Progress((WorkerProgress(JobWorker("worker-0", state="live")),))
TAIL = "1290 steps/s · epoch 5 · cost 0.4750 · staleness 0.9"
SUMMARY = "4000 steps in 2.5 s · 1600 steps/s · staleness 0.9 · 2 workers"
RENDERED = f"""
step 4000 · {TAIL}
{SUMMARY}
worker    state   epoch   steps  steps/s    cost  staleness
worker-0  live        5    3000      800  0.4500        0.5
worker-1  left        4    1000      490  0.5000        2.1

step 4000 · {TAIL} · 3 dropped · no answer from h:1
4000 steps in 2.5 s · 1600 steps/s · staleness 0.9 · 3 dropped · 2 workers
worker    state   epoch   steps  steps/s    cost  staleness  dropped  transport  waiting for
worker-0  live        5    3000      800  0.4500        0.5        0  gRPC       –
worker-1  left        4    1000      490  0.5000        2.1        3  –          worker-0, 2 steps behind

step 0 · 0.0 steps/s
0 steps in 0.0 s · 1 worker
worker    state   epoch   steps  steps/s    cost  staleness
worker-0  live        –       0      0.0       –          –

waiting for worker-0 and worker-1 to join
0 steps in 0.0 s · 2 workers
worker    state      epoch   steps  steps/s    cost  staleness
worker-0  starting       –       0      0.0       –          –
worker-1  starting       –       0      0.0       –          –
"""


def test_the_line_the_summary_and_the_table_of_a_job():
    out = Console(file=io.StringIO(), width=120, highlight=False)
    for view in (TRAINING, replace(DROPPING, problem="no answer from h:1"), WITHOUT_COSTS, starting(NAMES)):
        out.print("", step_line(view), summary_line(view), table(view), sep="\n")
    assert [line.rstrip() for line in out.file.getvalue().splitlines()] == RENDERED.splitlines()


def test_lines_keep_their_stream_and_every_character_and_progress_off_shows_nothing_else(capsys):
    with make_display("off", ("worker-9", "worker-10")) as display:
        assert type(display) is Display
        display.lines("worker-9", "stdout", ["[bold]\tx[/bold] :smile:", ""])
        display.lines("worker-10", "stderr", ["\x1b[31mred\x1b[0m " + "long " * 100])
        display.note("waiting")
        display.show(TRAINING)
        display.summary(TRAINING)
    out, err = capsys.readouterr()
    assert out == "worker-9  | [bold]\tx[/bold] :smile:\nworker-9  | \n"
    assert err == "worker-10 | \x1b[31mred\x1b[0m " + "long " * 100 + "\n"


def test_without_a_terminal_there_is_a_plain_line_every_two_seconds(capsys):
    with make_display("auto", NAMES) as display:
        for quarter in range(18):
            display.show(replace(TRAINING, seconds=quarter / 4, step=quarter))
        display.summary(TRAINING)
    out, err = capsys.readouterr()
    assert [out, *err.splitlines()] == [
        "",
        f"[  2.0 s] step 8 · {TAIL}",
        f"[  4.0 s] step 16 · {TAIL}",
        SUMMARY.format(""),
    ]


@pytest.mark.parametrize("colors", [True, False])
def test_the_live_display_prints_lines_above_itself_and_leaves_only_the_summary(monkeypatch, colors):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "NO_COLOR": "" if colors else "1"}.items():
        monkeypatch.setenv(name, value)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with make_display("auto", NAMES) as display:
        display.show(TRAINING)
        shown = terminal.getvalue()
        display.lines("worker-1", "stdout", ["hello \x1b[2J\x1b[31mthere"])
        with_line = terminal.getvalue()[len(shown) :]
    display.summary(TRAINING)
    assert "cost 0.4750" in shown
    assert with_line.index("there") < with_line.index("cost 0.4750"), "the line, then the table again"
    assert ("\x1b[36mworker-0" in shown) == colors, "the first worker has the first color"
    assert ("\x1b[32mworker-1 | " in with_line) == colors, "a worker's lines have the color of its row"
    assert colors or "worker-1 | hello there\n" in with_line
    shown = terminal.getvalue()
    assert shown.endswith(summary_line(TRAINING) + "\n")
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display("auto", NAMES)) is Display, "for a terminal that cannot move its cursor"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden, and shown again"


def test_a_watch_shows_each_status_keeps_the_last_one_while_a_shard_is_silent_and_asks_again_at_the_end(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    silent, last = merge_reports([ShardAnswer("h:1", problem="no server at h:1")]), job(9, status(steps=9))
    answers = [job(7, status(steps=7)), silent, job(8, status(steps=8))]
    client = mock.MagicMock(ask=mock.Mock(side_effect=itertools.chain(answers, itertools.repeat(last))))
    views = queue.SimpleQueue()
    with Watch(client, NAMES, views.put) as watch:
        seen = [views.get(timeout=20) for _ in range(3)]
    assert [(view.step, view.problem) for view in seen] == [(7, ""), (7, "no server at h:1"), (8, "")]
    assert watch.progress.step == 9
    client.__exit__.assert_called_once()
