"""The view of a job: its workers, rates of the last seconds, and how much is left."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from psjob.status.job_view import JobView
from psworker.launch.display.dashboard import table
from psworker.progress.text import step_line, summary_line
from tests.unit.psjob.status.views import data, followed, job, status

NAMES = ("worker-0", "worker-1")


def test_workers_are_in_the_order_of_their_numbers_and_starting_until_a_shard_knows_them():
    view = JobView(["worker-2", "worker-10"]).follow(job(0, status("worker-9"), status("guest")), 0.5)
    states = [f"{worker.name} {worker.state}" for worker in view.workers]
    assert states == ["guest live", "worker-2 starting", "worker-9 live", "worker-10 starting"]


def test_workers_that_had_left_before_a_resumed_job_began_do_not_count():
    gone = [status(f"worker-{number}", "lost", steps=30) for number in range(3)]
    view = JobView(NAMES).follow(job(90, *gone), 0.0)
    assert summary_line(view).endswith(" · 2 workers")
    back = [replace(one, incarnation=2, state="left") for one in gone[:2]]
    view = view.follow(job(100, *back, gone[2], status("guest", "left")), 1.0)
    assert [one.name for one in view.taking_part] == ["guest", *NAMES]


def test_the_next_session_of_a_program_begins_anew_with_the_same_workers_and_is_numbered():
    view = JobView(NAMES).follow(job(0, session=1), 0.0)
    view = view.follow(job(900, status("worker-0", steps=900, cost=1.0), queues=(data(9000),), session=1), 1.0)
    assert "session" not in step_line(view)
    view = view.follow(job(10, status("worker-1", steps=10, cost=3.0), session=2), 2.0)
    assert [(one.state, one.steps) for one in view.workers] == [("starting", 0), ("live", 10)]
    assert tuple(one.name for one in view.workers) == NAMES
    assert (view.steps, view.first, view.began, view.seconds, view.queue) == (10, 0, 1.0, 2.0, None)
    assert step_line(view) == "session 2 · step 10 · cost 3.0000"
    assert summary_line(view) == "session 2 · 10 steps in 1.0 s · 10 steps/s · 2 workers"


def test_rates_are_of_the_last_seconds_and_none_is_shown_of_a_worker_that_left():
    def after(seconds, state="live"):
        return job(300 * seconds, status(steps=100 * seconds, state=state), status("worker-1", steps=200 * seconds))

    view = JobView(NAMES).follow(after(1), 1.0)
    assert [view.steps_per_second, *map(view.steps_per_second_of, view.workers)] == [None, None, None]
    view = view.follow(after(2), 2.0)
    assert [view.steps_per_second, *map(view.steps_per_second_of, view.workers)] == [300.0, 100.0, 200.0]
    assert "300 steps/s" in step_line(view)
    out = Console(file=io.StringIO(), width=120)
    out.print(table(view.follow(after(3, "left"), 3.0)))
    assert re.search(r"worker-0 +left +– +300 +0\.0 ", out.file.getvalue())


def test_the_rest_is_estimated_from_examples_of_the_last_part_of_the_run():
    view = followed((0.0, 0, data(0)), (1.0, 10, data(100)), (3.0, 30, data(300)), (5.0, 50, data(500)))
    assert (view.seconds_left, view.total_steps) == (95.0, 1000.0)  # 9,500 examples at 100 a second, 10 of them a step
    assert step_line(view) == "epoch 1 of 10 · step 50 of ~1,000 · 1:35 left · 10 steps/s"
    slower = [(5.0 + second, 50 + second, data(500 + 10 * second)) for second in range(1, 61)]
    view = followed((0.0, 0, data(0)), (1.0, 10, data(100)), (5.0, 50, data(500)), *slower)
    assert view.seconds_left == pytest.approx((10_000 - 1100) / 10), "as in the last 30 seconds"
    resumed = followed((0.0, 7000, data(5000)), (9.5, 7000, data(5000)), (13.0, 7035, data(5350)))
    assert (resumed.total_steps, resumed.seconds_left) == pytest.approx((7500, 4650 / 350 * 3.5)), "not of the start"


@pytest.mark.parametrize(
    ("reason", "moments"),
    [
        ("nothing yet", [(9.0, 0)]),
        ("no queue", [(1.0, 10), (9.0, 90)]),
        ("a moment", [(1.0, 10, data(100)), (3.5, 35, data(350))]),
        ("no end", [(1.0, 10, data(100, epochs=0)), (9.0, 90, data(900, epochs=0))]),
        ("unknown size", [(1.0, 10, data(10, size=0, epochs=0)), (9.0, 90, data(90, size=0, epochs=0))]),
        ("it stands still", [(1.0, 10, data(100)), (9.0, 10, data(100))]),
        ("it is done", [(1.0, 10, data(100)), (9.0, 1000, data(10_000))]),
        ("it went back", [(1.0, 10, data(100)), (5.0, 50, data(500)), (9.0, 30, data(300))]),
        ("one queue after the other", [(s, 10 * s, data(10_000), data(100 * s, name="2")) for s in (1.0, 9.0)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_said_about_the_rest_without_evidence(reason, moments):
    moments = [(seconds, int(step), *queues) for seconds, step, *queues in moments]
    view = followed(*moments)
    assert (view.seconds_left, view.total_steps) == (None, None)
    assert not re.search("left|~", step_line(view))


def test_of_several_queues_that_are_read_together_the_one_that_is_behind_counts():
    view = followed(*[(s, 10 * s, data(200 * s, name="fast"), data(100 * s, name="slow")) for s in (1, 3, 5)])
    assert (view.queue.spec.name, view.seconds_left) == ("slow", 95.0)
    view = followed((1.0, 5, data(10_000), data(70, name="2", epochs=1)))
    assert step_line(view).startswith("epoch 1 of 1 · step 5")


def test_steps_that_limit_a_queue_are_its_end_and_epochs_without_an_end_are_counted():
    limited = [data(done, epochs=0, limit=2500) for done in (100, 500)]
    view = followed((1.0, 10, limited[0]), (5.0, 50, limited[1]))
    assert (view.total_steps, view.seconds_left) == (250.0, 20.0)
    view = followed((5.0, 50, replace(data(5500, epochs=0), epoch=6)))
    assert step_line(view).startswith("epoch 6 · step 50")
