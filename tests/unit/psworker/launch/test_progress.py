"""What the shards report, followed over time, and the lines that are made of it."""

import io
import queue
import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from pswire.errors import Unavailable
from pswire.messages import Status, StatusReport, WorkerStatus
from psworker.launch.display import Display, LiveDisplay, PlainDisplay, make_display, step_line, summary_line, table
from psworker.launch.progress import COST_SMOOTHING, RATE_SMOOTHING, JobView, Watch, WorkerView, follow
from psworker.transport import Future

NAMES = ("worker-0", "worker-1")


def status(name="worker-0", state="live", steps=0, staleness_sum=0, loss=None, epoch=0) -> WorkerStatus:
    return WorkerStatus(name, 1, 0, state, steps, 0, staleness_sum, loss, epoch, 15.0)


def report(global_step, *workers, shard=0, shards=1) -> StatusReport:
    return StatusReport(shard, shards, global_step, 0, workers=workers)


def job(*names) -> JobView:
    return JobView(tuple(WorkerView(name) for name in names))


# --- follow -----------------------------------------------------------------------------------------------------------


def test_a_worker_is_starting_until_a_shard_knows_it():
    view = follow(job(*NAMES), [report(0, status("worker-1"))], 0.5)
    assert [(worker.name, worker.state) for worker in view.workers] == [("worker-0", "starting"), ("worker-1", "live")]


def test_workers_are_in_the_order_of_their_numbers_also_those_that_nobody_expected():
    view = follow(job("worker-2", "worker-10"), [report(0, status("worker-9"), status("guest"))], 0.5)
    assert [worker.name for worker in view.workers] == ["guest", "worker-2", "worker-9", "worker-10"]


def test_a_rate_is_steps_over_seconds_and_the_jobs_is_the_sum():
    reports = [report(300, status("worker-0", steps=100), status("worker-1", steps=200))]
    view = follow(job(*NAMES), reports, 0.5)
    assert [worker.rate for worker in view.workers] == [200.0, 400.0]
    assert view.rate == 600.0
    assert view.step == 300


def test_a_rate_follows_a_change_within_the_time_constant():
    view = follow(job("worker-0"), [report(100, status(steps=100))], 1.0)
    steps = 100 + int(300 * RATE_SMOOTHING)
    view = follow(view, [report(steps, status(steps=steps))], 1.0 + RATE_SMOOTHING)
    assert view.rate == pytest.approx(100 + 200 * (1 - 0.36787944117))


def test_the_rate_of_a_worker_that_left_is_zero_at_once_and_its_steps_stay():
    view = follow(job("worker-0"), [report(100, status(steps=100))], 1.0)
    view = follow(view, [report(110, status(state="left", steps=110))], 1.25)
    assert (view.rate, view.workers[0].steps, view.workers[0].state) == (0.0, 110, "left")


def test_a_cost_is_smoothed_the_same_however_often_it_is_looked_at():
    first = follow(job("worker-0"), [report(1, status(steps=1, loss=2.0))], 1.0)
    assert first.cost == 2.0
    once = follow(first, [report(9, status(steps=9, loss=1.0))], 1.0 + COST_SMOOTHING)
    twice = first
    for seconds in (1.0 + COST_SMOOTHING / 3, 1.0 + COST_SMOOTHING):
        twice = follow(twice, [report(9, status(steps=9, loss=1.0))], seconds)
    assert once.cost == pytest.approx(twice.cost)
    assert once.cost == pytest.approx(1.36787944117)


def test_a_cost_stays_when_a_push_comes_without_one():
    view = follow(job("worker-0"), [report(1, status(steps=1, loss=2.0))], 1.0)
    assert follow(view, [report(2, status(steps=2))], 2.0).cost == 2.0


def test_staleness_is_the_mean_over_all_pushes():
    workers = status("worker-0", steps=10, staleness_sum=5), status("worker-1", steps=30, staleness_sum=45)
    view = follow(job(*NAMES), [report(40, *workers)], 1.0)
    assert [worker.staleness for worker in view.workers] == [0.5, 1.5]
    assert view.staleness == pytest.approx(50 / 40)


def test_several_shards_are_seen_as_one_job():
    # a step that pushes to both shards counts once; a shard without variables counts nothing
    first = report(0, status(epoch=2), shard=0, shards=3)
    second = report(100, status(steps=100, staleness_sum=100, loss=0.5), shard=1, shards=3)
    third = report(100, status(steps=100, staleness_sum=300, loss=0.5), shard=2, shards=3)
    view = follow(job("worker-0"), [first, second, third], 1.0)
    assert (view.step, view.epoch, view.cost, view.staleness) == (100, 2, 0.5, 2.0)
    assert view.workers[0].steps == 100


def test_what_is_dropped_who_waits_and_how_tensors_travel_is_followed():
    first = replace(status(steps=5), dropped=2, tensor_transport="shared memory")
    second = replace(status(steps=7), dropped=3, waiting_for="worker-1, 2 steps behind", tensor_transport="gRPC")
    view = follow(job(*NAMES), [report(5, first, shards=2), report(7, second, shard=1, shards=2)], 1.0)
    assert (view.workers[0].dropped, view.dropped) == (3, 3)
    assert view.workers[0].waiting_for == "worker-1, 2 steps behind"
    assert [worker.tensor_transport for worker in view.workers] == ["shared memory and gRPC", ""]
    assert follow(view, [report(8, status(steps=8))], 2.0).workers[0].waiting_for == ""


def test_training_lasts_from_the_first_step_to_the_last():
    view = job("worker-0")
    for seconds, step in ((1.0, 0), (1.5, 0), (2.0, 50), (2.5, 100), (3.0, 100)):
        view = follow(view, [report(step, status(steps=step))], seconds)
        assert step or view.training_seconds == 0.0
    assert view.training_seconds == 1.0
    assert view.seconds == 3.0


def test_a_worker_that_starts_again_from_zero_has_no_negative_rate():
    view = follow(job("worker-0"), [report(100, status(steps=100))], 1.0)
    assert follow(view, [report(100, status(steps=0))], 2.0).rate >= 0


# --- lines ------------------------------------------------------------------------------------------------------------

TRAINING = JobView(
    (
        WorkerView("worker-0", "live", 5, 3000, 800.0, 0.45, 0.5),
        WorkerView("worker-1", "left", 4, 1000, 490.0, 0.5, 2.1),
    ),
    seconds=4.0,
    step=4000,
    began=1.0,
    advanced=3.5,
)


def test_the_line_of_a_job():
    assert step_line(TRAINING) == "step 4000 · 1290 steps/s · epoch 5 · cost 0.4750 · staleness 0.9"


def test_the_line_of_a_job_without_costs_and_epochs_leaves_them_out():
    assert step_line(JobView((WorkerView("worker-0", "live"),))) == "step 0 · 0.0 steps/s"


def test_the_line_of_a_job_says_whom_it_waits_for():
    assert step_line(job(*NAMES)) == "waiting for worker-0 and worker-1 to join"


def test_the_line_of_a_job_says_what_is_wrong():
    view = JobView((WorkerView("worker-0", "live"),), problem="no answer from h:1")
    assert step_line(view).endswith(" · no answer from h:1")


def test_the_summary_counts_seconds_of_training_only():
    assert summary_line(TRAINING) == "4000 steps in 2.5 s · 1600 steps/s · staleness 0.9 · 2 workers"
    assert summary_line(job("worker-0")) == "0 steps in 0.0 s · 1 worker"


def test_the_table_has_a_row_for_each_worker():
    out = Console(file=io.StringIO(), width=100)
    out.print(table(JobView((*TRAINING.workers, WorkerView("worker-2")))))
    rows = [line.split() for line in out.file.getvalue().splitlines()]
    assert rows == [
        ["worker", "state", "epoch", "steps", "steps/s", "cost", "staleness"],
        ["worker-0", "live", "5", "3000", "800", "0.4500", "0.5"],
        ["worker-1", "left", "4", "1000", "490", "0.5000", "2.1"],
        ["worker-2", "starting", "–", "0", "0.0", "–", "–"],
    ]


def test_the_table_and_the_lines_tell_of_drops_lanes_and_waiting_where_there_are_any():
    slow = WorkerView("worker-0", "live", 5, 10, 1.0, 0.5, 0.0, tensor_transport="gRPC")
    fast = replace(slow, name="worker-1", dropped=3, tensor_transport="", waiting_for="worker-0, 2 steps behind")
    view = JobView((slow, fast), seconds=4.0, step=20, began=1.0, advanced=3.0)
    out = Console(file=io.StringIO(), width=120)
    out.print(table(view))
    header, *rows = [re.split(r" {2,}", line.strip()) for line in out.file.getvalue().splitlines()]
    assert header[-3:] == ["dropped", "tensor_transport", "waiting for"]
    assert [row[-3:] for row in rows] == [["0", "gRPC", "–"], ["3", "–", "worker-0, 2 steps behind"]]
    assert step_line(view).endswith(" · staleness 0.0 · 3 dropped")
    assert summary_line(view).endswith(" · staleness 0.0 · 3 dropped · 2 workers")


# --- displays ---------------------------------------------------------------------------------------------------------


def test_lines_keep_their_stream_and_every_character(capsys):
    with Display(("worker-9", "worker-10")) as display:
        display.lines("worker-9", "stdout", ["[bold]\tx[/bold] :smile:", ""])
        display.lines("worker-10", "stderr", ["\x1b[31mred\x1b[0m " + "long " * 100])
    out, err = capsys.readouterr()
    assert out == "worker-9  | [bold]\tx[/bold] :smile:\nworker-9  | \n"
    assert err == "worker-10 | \x1b[31mred\x1b[0m " + "long " * 100 + "\n"


def test_the_plain_display_says_a_line_every_two_seconds(capsys):
    with PlainDisplay(NAMES) as display:
        for quarter in range(18):
            display.show(JobView(TRAINING.workers, seconds=quarter / 4, step=quarter))
        display.summary(TRAINING)
    out, err = capsys.readouterr()
    assert out == ""
    tail = "1290 steps/s · epoch 5 · cost 0.4750 · staleness 0.9"
    assert err.splitlines() == [
        f"[  2.0 s] step 8 · {tail}",
        f"[  4.0 s] step 16 · {tail}",
        "4000 steps in 2.5 s · 1600 steps/s · staleness 0.9 · 2 workers",
    ]


def test_progress_off_shows_lines_only(capsys):
    with make_display("off", NAMES) as display:
        display.note("waiting")
        display.show(TRAINING)
        display.summary(TRAINING)
        display.lines("worker-0", "stdout", ["hello"])
    assert capsys.readouterr() == ("worker-0 | hello\n", "")


def test_auto_is_plain_without_a_terminal(capsys):
    assert type(make_display("auto", NAMES)) is PlainDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_terminal(monkeypatch) -> Callable[[], Terminal]:
    """Makes stdout and stderr the same terminal; to be called in the test, since pytest sets both before it."""

    def open_terminal() -> Terminal:
        terminal = Terminal()
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, terminal)
        return terminal

    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return open_terminal


def test_auto_is_live_on_a_terminal_that_can_move_its_cursor(open_terminal, monkeypatch):
    open_terminal()
    assert type(make_display("auto", NAMES)) is LiveDisplay
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display("auto", NAMES)) is PlainDisplay


def test_the_live_display_prints_lines_above_itself_and_leaves_only_the_summary(open_terminal):
    terminal = open_terminal()
    with make_display("live", NAMES) as display:
        display.show(TRAINING)
        shown = terminal.getvalue()
        display.lines("worker-1", "stdout", ["hello \x1b[2Jthere"])
        with_line = terminal.getvalue()[len(shown) :]
    display.summary(TRAINING)
    assert "cost 0.4750" in shown
    assert "worker-0" in shown
    assert with_line.index("hello there") < with_line.index("cost 0.4750"), "the line, then the table again"
    assert "\x1b[36mworker-0" in shown, "the first worker has the first color"
    assert "\x1b[32mworker-1 | " in with_line, "a worker's lines have the color of its row"
    assert terminal.getvalue().endswith(summary_line(TRAINING) + "\n")


def test_no_color_is_respected(open_terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = open_terminal()
    with make_display("live", NAMES) as display:
        display.lines("worker-1", "stdout", ["\x1b[31mred"])
        display.show(TRAINING)
    assert "worker-1 | red\n" in terminal.getvalue()
    assert "\x1b[3" not in terminal.getvalue()


# --- the thread that asks ---------------------------------------------------------------------------------------------


class Shards:
    """A transport whose shards answer what they are told to, the last thing again and again."""

    def __init__(self, *answers):
        self.shards = 1
        self._answers = list(answers)
        self.closed = False

    def call(self, shard, message, timeout):
        assert message == Status()
        return Future(self._answer)

    def _answer(self):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tensor_transport(self, shard):
        return ""

    def close(self):
        self.closed = True


def test_a_watch_shows_what_the_shards_say_and_looks_once_more_at_the_end():
    shards = Shards(report(1, status(steps=1)), report(2, status(steps=2)))
    views = queue.SimpleQueue()
    with Watch(shards, NAMES, views.put) as watch:
        assert views.get(timeout=20).step == 1
    assert watch.view.step == 2
    assert shards.closed


def test_a_watch_keeps_what_it_knows_while_nobody_answers():
    shards = Shards(report(7, status(steps=7)), Unavailable("no server at h:1"), report(8, status(steps=8)))
    views = queue.SimpleQueue()
    with Watch(shards, NAMES, views.put):
        seen = [views.get(timeout=20) for _ in range(3)]
    assert [(view.step, view.problem) for view in seen] == [(7, ""), (7, "no server at h:1"), (8, "")]
