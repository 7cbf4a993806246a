"""The status of a job, followed over time, and the lines, tables and displays that are made of it."""

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from psjob.status.job_view import JobView
from pswire.messages import AcceptedPoint, MinimizationStatus
from psworker.launch.display.choice import make_display
from psworker.launch.display.dashboard import table
from psworker.launch.display.plain import Display
from psworker.progress.text import clock, step_line, summary_line
from tests.unit.psjob.status.views import data, followed, job, status

NAMES = ("worker-0", "worker-1")


def test_staleness_is_the_mean_over_all_pushes_and_training_lasts_from_the_first_step_to_the_last():
    workers = status("worker-0", steps=10, staleness_sum=5), status("worker-1", steps=30, staleness_sum=45)
    view = JobView(NAMES)
    for seconds, step in ((1.0, 0), (1.5, 0), (2.0, 50), (2.5, 100), (3.0, 100)):
        view = view.follow(job(step, *workers), seconds)
        assert step or summary_line(view).startswith("0 steps in 0.0 s")
    assert summary_line(view) == "100 steps in 1.0 s · 100 steps/s · staleness 1.2 · 2 workers"  # 50 / 40


def test_a_summary_counts_steps_from_the_first_status_on_since_a_job_may_be_resumed_or_joined_later():
    view = JobView(NAMES)
    for seconds, step in ((0.0, 7000), (1.0, 7000), (2.0, 7050), (3.0, 7100)):
        view = view.follow(job(step, status()), seconds)
    assert summary_line(view).startswith("100 steps in 2.0 s · 50 steps/s")
    back = view.follow(job(6500, status()), 4.0)
    assert (back.steps, back.follow(job(6600, status()), 5.0).steps) == (0, 100), "to a checkpoint before"


def training(first=(), left=()):
    """The job of two workers after 4,000 steps, with other fields of them."""
    workers = (
        status(steps=3000, staleness_sum=1500, epoch=5, cost=0.45, **dict(first)),
        status("worker-1", "left", 1000, 2100, 0.5, 4, **dict(left)),
    )
    return job(4000, *workers)


def trained(**fields):
    view = JobView(NAMES).follow(job(0, status(), status("worker-1")), 1.0)
    return replace(view.follow(training(**fields), 3.5), seconds=4.0)


DROPPED = {"dropped": 3, "waiting_for": "worker-0, 2 steps behind"}
TRAINING, DROPPING = trained(), trained(left=DROPPED, first={"tensor_transport": "gRPC"})
WITHOUT_COSTS = JobView().follow(job(0, status()), 0.0)
TAIL = "1,600 steps/s · cost 0.4750 · staleness 0.9"
SUMMARY = "4,000 steps in 2.5 s · 1,600 steps/s · staleness 0.9 · 2 workers"
RENDERED = f"""
epoch 5 · step 4,000 · {TAIL}
{SUMMARY}
worker    state   epoch   steps  steps/s    cost  staleness
worker-0  live        5   3,000    1,200  0.4500        0.5
worker-1  left        4   1,000      0.0  0.5000        2.1

epoch 5 · step 4,000 · {TAIL} · 3 dropped · no answer from h:1
4,000 steps in 2.5 s · 1,600 steps/s · staleness 0.9 · 3 dropped · 2 workers
worker    state   epoch   steps  steps/s    cost  staleness  dropped  transport  waiting for
worker-0  live        5   3,000    1,200  0.4500        0.5        0  gRPC       –
worker-1  left        4   1,000      0.0  0.5000        2.1        3  –          worker-0, 2 steps behind

step 0
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
    for view in (TRAINING, replace(DROPPING, problem="no answer from h:1"), WITHOUT_COSTS, JobView(NAMES)):
        out.print("", step_line(view), summary_line(view), table(view), sep="\n")
    assert [line.rstrip() for line in out.file.getvalue().splitlines()] == RENDERED.splitlines()


LONG_NAMES = [f"gpu-node-17.cluster.example.com-{number}" for number in range(12340, 12352)]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("names", [NAMES, LONG_NAMES], ids=["2 workers", "12 with long names"])
@pytest.mark.parametrize("waits", ["", "gpu-node-17.cluster.example.com-12345, which is 2 steps behind"])
def test_the_table_fits_the_terminal_with_a_row_a_worker_whole_numbers_and_the_number_of_each_name(width, names, waits):
    fields = {"epoch": 5, "cost": 0.4567, "dropped": 7, "waiting_for": waits, "tensor_transport": "gRPC"}
    view = JobView()
    for steps in (123_456 - 1234, 123_456):
        workers = [status(name, steps=steps, number=number, **fields) for number, name in enumerate(names)]
        view = view.follow(job(steps, *workers), steps / 1234)
    out = Console(file=io.StringIO(), width=width)
    out.print(table(view))
    header, *rows = out.file.getvalue().splitlines()
    assert (len(rows), max(map(len, (header, *rows))) <= width) == (len(names), True)
    for row, name in zip(rows, names, strict=True):
        first, state, *numbers = re.split(" {2,}", row.strip())
        assert (first[-5:], state) == (name[-5:], "live")
        assert first == name or "…" in first
        assert "123,456" in numbers
    for column, value in {"cost": "0.4567", "dropped": "7", "steps/s": "1,234", "transport": "gRPC"}.items():
        assert (column in header) == (value in numbers)
    assert {"worker", "steps", "cost"} <= {*header.split(), *["cost"] * (width == 60 and bool(waits))}
    assert ("waiting for" in header) == bool(waits)


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
            display.show(replace(TRAINING, seconds=quarter / 4))
        display.summary(TRAINING)
    out, err = capsys.readouterr()
    lines = [f"[  {seconds}.0 s] epoch 5 · step 4,000 · {TAIL}" for seconds in (2, 4)]
    assert (out, err.splitlines()) == ("", [*lines, SUMMARY])


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
    assert ("\x1b[35mworker-1 | " in with_line) == colors, "a worker's lines have the color of its row"
    assert colors or "worker-1 | hello there\n" in with_line
    shown = terminal.getvalue()
    assert shown.endswith(summary_line(TRAINING) + "\n")
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display("auto", NAMES)) is Display, "for a terminal that cannot move its cursor"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden, and shown again"


def test_a_line_leaves_out_what_matters_less_in_a_narrow_terminal_and_never_the_step():
    moments = [(s, 1000 * s, data(5000 * s, size=10_000)) for s in (1, 3, 5)]
    view = replace(followed(*moments), workers=TRAINING.workers)
    lines = {width: step_line(view, width) for width in (110, 80, 60, 40, 20, 10)}
    assert lines == {
        110: "epoch 3 of 10 · step 5,000 of ~20,000 · 0:15 left · 1,000 steps/s · cost 0.4750 · staleness 0.9",
        80: "epoch 3 of 10 · step 5,000 · 0:15 left · 1,000 steps/s · cost 0.4750",
        60: "epoch 3 of 10 · step 5,000 · 0:15 left · cost 0.4750",
        40: "epoch 3 of 10 · step 5,000 · 0:15 left",
        20: "step 5,000",
        10: "step 5,000",
    }
    silent = replace(view, problem="no server answers at h:1: Connection refused; is it running?")
    assert step_line(silent, 60) == "step 5,000 · no server answers at h:1: Connection refused; …"
    waiting = JobView([f"worker-{number}" for number in range(12)])
    assert step_line(waiting, 61) == "waiting for worker-0, worker-1, worker-2 and 9 others to join"
    assert step_line(waiting, 60) == "waiting for 12 workers to join"
    assert summary_line(TRAINING, 60) == "4,000 steps in 2.5 s · 1,600 steps/s · staleness 0.9"


def test_a_running_minimization_has_the_line_with_its_last_accepted_point_and_what_matters_less_is_left_out():
    point = AcceptedPoint(
        iterations=12, evaluations=1013, loss=0.26941, gradient=0.0069, step=1.0
    )  # and all shards have gone back to a checkpoint before it
    one = MinimizationStatus(
        name="minimize-1", evaluation=1_000_000_002, portions=64, counted=37, backups=3, point=point
    )

    def line(status, width=None, before=TRAINING):
        return step_line(replace(before, job=replace(job(50), minimizations=(status,))), width)

    at_point = "minimize-1 · iteration 12 · loss 0.2694 · gradient 6.9e-03"
    assert line(one) == f"{at_point} · step 1 · 1,013 evaluations · 37/64 portions · 3 backups"
    assert line(one, 100) == f"{at_point} · step 1 · 37/64 portions · 3 backups"
    assert line(one, 85) == f"{at_point} · step 1 · 37/64 portions"
    assert line(one, 61) == at_point
    assert line(one, 40) == "iteration 12 · loss 0.2694"
    assert line(replace(one, point=None, backups=1), 80) == "minimize-1 · 37/64 portions · 1 backup"
    at_start = replace(one, point=AcceptedPoint(evaluations=1, loss=2.3026, gradient=0.5), backups=0)
    at_point = "minimize-1 · iteration 0 · loss 2.303 · gradient 5.0e-01"
    assert line(at_start, 58) == at_point
    assert line(at_start) == f"{at_point} · 1 evaluation · 37/64 portions"
    over = replace(one, end="{}")
    assert line(over) == step_line(TRAINING).replace("4,000", "50")
    minimized = replace(job(0), minimizations=(over,))
    summary = summary_line(replace(followed((1.0, 0)), job=minimized))
    assert summary == "minimize-1: 12 iterations, 1,013 evaluations · 0 workers"
    assert summary_line(replace(TRAINING, job=replace(minimized, global_step=4000))) == summary_line(TRAINING)


def test_a_time_is_short():
    times = [clock(s) for s in (0.4, 59.6, 725.0, 3725.0, 172_799.0, 200_000.0)]
    assert times == ["0:00", "1:00", "12:05", "1:02:05", "47:59:59", "2 days"]
