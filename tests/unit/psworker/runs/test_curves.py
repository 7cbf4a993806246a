"""Curves of a run: positions on the axes, means over workers, lives that were resumed, marks of events."""

import json
import math
import random

import numpy as np
import pytest

from pswire.errors import DamagedFile
from psworker.runs.curves import MEAN_POINTS, Curve, Mark, run_curves, smoothed, tags
from psworker.runs.run_data import read_run_data
from psworker.runs.run_file import Results
from tests.unit.psworker.runs.conftest import BEGIN, life, point, write_points


def test_the_curve_of_one_worker_has_the_points_of_its_file(make_run):
    rng = random.Random(7)
    lines = [point(n / 10, 3 * n, rng.random(), examples=60 * n, gradient_norm=2.0) for n in range(1, 600)]
    run = read_run_data(make_run(points={"worker-0": lines}))
    steps = run_curves(run, "step", "cost")
    assert (steps.job,) == steps.workers["worker-0"]
    assert steps.job == Curve(tuple(3.0 * n for n in range(1, 600)), tuple(line["cost"] for line in lines))
    assert run_curves(run, "time", "cost").job.x == pytest.approx([n / 10 for n in range(1, 600)], abs=1e-6)
    assert run_curves(run, "examples", "cost").job.x == pytest.approx([60.0 * n for n in range(1, 600)])
    assert set(run_curves(run, "step", "gradient_norm").job.y) == {2.0}


def test_the_mean_over_workers_weighs_each_point_with_its_pushes(make_run):
    fast = [point(1, 30, 1.0, steps=30), point(2, 90, 0.5, steps=80)]
    slow = [point(1.5, 60, 4.0, steps=10), point(2, 100, 2.0, steps=20)]
    curves = run_curves(read_run_data(make_run(points={"worker-0": fast, "worker-1": slow})), "step", "cost")
    assert curves.workers["worker-1"] == (Curve((60.0, 100.0), (4.0, 2.0)),)
    # two ranges, 30 to 65 and from there to 100; pushes of the points: 30 and 10, then 50 and 10
    assert curves.job.x == pytest.approx(((30 * 30 + 10 * 60) / 40, (50 * 90 + 10 * 100) / 60))
    assert curves.job.y == pytest.approx(((30 * 1.0 + 10 * 4.0) / 40, (50 * 0.5 + 10 * 2.0) / 60))


@pytest.mark.slow
def test_the_mean_of_long_runs_has_a_bounded_number_of_points_and_the_mean_of_all(make_run):
    rng = random.Random(8)
    workers = {
        f"worker-{worker}": [point(n, 4 * n + worker, rng.random(), steps=n) for n in range(1, 2000)]
        for worker in range(3)
    }
    curve = run_curves(read_run_data(make_run(points=workers)), "step", "cost").job
    assert len(curve.x) == MEAN_POINTS
    assert list(curve.x) == sorted(curve.x)
    everything = [line["cost"] for lines in workers.values() for line in lines]
    assert np.mean(curve.y) == pytest.approx(np.mean(everything), abs=0.01)


def test_the_rate_of_a_job_is_that_of_all_workers_together(make_run):
    points = {
        f"worker-{worker}": [point(n / 10, 20 * n, steps=10 * n, steps_per_second=100.0) for n in range(1, 100)]
        for worker in range(2)
    }
    rates = run_curves(read_run_data(make_run(points=points)), "time", "steps_per_second").job.y
    assert rates == pytest.approx([200.0] * len(rates), rel=0.01)
    assert len(rates) > 20
    del points["worker-1"]
    run = read_run_data(make_run("b", points=points))
    assert set(run_curves(run, "time", "steps_per_second").job.y) == {100.0}, "what the worker has recorded"


def test_time_is_that_of_training_and_steps_that_were_done_again_replace_the_first_ones(make_run):
    lives = [
        life(BEGIN - 7, 4.0, "interrupted", Results(0, 40)),  # 7 s before its first session
        life(BEGIN + 1000, 10.0, "completed", Results(20, 80)),
    ]
    first = [point(n, 10 * n, 1.0, steps=10 * n, examples=n) for n in range(1, 6)]
    folder = make_run(lives=lives, points={"worker-0": first})
    again = [point(1003 + n, 21 + 10 * n, 2.0, steps=10 * n, examples=n) for n in range(1, 7)]
    write_points(folder, "worker-0", again, BEGIN + 1000 + 3)
    run = read_run_data(folder)
    (one, two) = run_curves(run, "time", "cost").workers["worker-0"]
    assert (set(one.y), set(two.y)) == ({1.0}, {2.0}), "a line for each life"
    assert run_curves(run, "step", "cost").job == Curve(
        (10.0, 20.0, 30.0, 31.0, 41.0, 51.0, 61.0, 71.0, 81.0), (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    )
    assert run_curves(run, "time", "cost").job.x == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert run_curves(run, "examples", "cost").job.x == pytest.approx(range(1, 12)), "counted on in the second life"


def test_examples_are_those_of_all_workers_in_proportion_between_their_points(make_run):
    points = {"worker-0": [point(10, 1, 1.0, examples=100)], "worker-1": [point(20, 2, 1.0, examples=400)]}
    run = read_run_data(make_run(points=points))
    assert [run.examples(BEGIN + time) for time in (-5, 0, 5, 10, 20, 99)] == [0, 0, 150, 300, 500, 500]


def test_lost_later_joined_and_restored_are_marked_and_what_happens_at_the_start_is_not(make_run):
    other = {"source": "shard 1"}
    events = [
        ("joined", "worker-0", 0, 0),
        ("joined", "worker-1", 0.1, 1),
        ("joined", "outsider", 0.2, 0),
        ("epoch", "", 1, 10),
        ("ended", "worker-1", 2, 20, {"source": "launcher", "level": "warning"}),
        ("lost", "worker-1", 3, 30),  # the same death
        ("lost", "worker-1", 3.2, 30, other),
        ("joined", "worker-1", 5, 50),
        ("joined", "worker-1", 5.1, 50, other),
        ("joined", "helper", 6, 60),
        ("restored", "", 7, 70),
        ("restored", "", 7.5, 75, other),
        ("lost", "helper", 8, 80),
        ("ended", "worker-0", 8.5, 85, {"source": "launcher"}),
        ("ended", "server-0", 8.5, 85, {"source": "launcher", "level": "warning"}),
        ("lost", "worker-1", 99, 500),  # after the last point
    ]
    points = {"worker-0": [point(n, 10 * n, 1.0) for n in range(1, 10)]}
    run = read_run_data(make_run(points=points, events=events, workers=2))
    marks = [Mark(20, "lost", "worker-1"), Mark(50, "joined", "worker-1"), Mark(60, "joined", "helper")]
    marks += [Mark(70, "restored", ""), Mark(80, "lost", "helper")]
    assert list(run_curves(run, "step", "cost").marks) == marks
    assert [mark.x for mark in run_curves(run, "time", "cost").marks] == pytest.approx([2, 5, 6, 7, 8])


def test_a_moving_average_is_that_of_tensorboard(make_run):
    rng = random.Random(9)
    curve = Curve(tuple(map(float, range(50))), tuple(rng.random() for _ in range(50)))
    assert smoothed(curve, 0.0) == curve
    # by the definition: weights S**k, normalized
    for weight in (0.3, 0.9):
        expected = [np.average(curve.y[: n + 1], weights=weight ** np.arange(n, -1, -1)) for n in range(50)]
        assert smoothed(curve, weight).y == pytest.approx(expected)


def test_values_that_are_missing_are_left_out_and_tags_of_the_program_are_found(make_run):
    lines = [point(1, 1), point(2, 2, 0.5, scalars={"accuracy": 0.1}), point(3, 3, scalars={"accuracy": 0.4})]
    run = read_run_data(make_run(points={"worker-0": lines}))
    assert tags(run) == ["cost", "accuracy"]
    assert run_curves(run, "step", "cost").job == Curve((2.0,), (0.5,))
    assert run_curves(run, "step", "accuracy").job == Curve((2.0, 3.0), (0.1, 0.4))
    assert run_curves(run, "step", "nothing").job == Curve((), ())


def test_what_a_session_has_recorded_without_a_launcher_has_curves_from_its_beginning(tmp_path):
    (tmp_path / "alone").mkdir()
    write_points(tmp_path / "alone", "worker-0", [point(n, 10 * n, 1 / n, examples=5 * n) for n in range(2, 6)])
    run = read_run_data(tmp_path / "alone")
    assert run_curves(run, "time", "cost").job == Curve((2.0, 3.0, 4.0, 5.0), (1 / 2, 1 / 3, 1 / 4, 1 / 5))
    assert run_curves(run, "examples", "cost").job.x == pytest.approx((10, 15, 20, 25))
    (tmp_path / "alone" / "run.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"run.json is damaged"):
        read_run_data(tmp_path / "alone")


def test_lines_that_are_cut_or_no_points_are_skipped_and_named(make_run):
    folder = make_run(points={"worker-0": [point(1, 1, 0.5)]})
    path = folder / "scalars" / "worker-0.jsonl"
    bad = ["{", "7", json.dumps({"time": BEGIN}), '{"time": 1e999, "step": 1}', f'{{"time": 1{"0" * 400}, "step": 1}}']
    nan = f'{{"time": {BEGIN + 2}, "step": 2, "cost": NaN, "scalars": {{"a": "b", "c": Infinity}}}}'
    path.write_text("\n".join([*bad, path.read_text(), nan, json.dumps(point(3, 3, 0.25))[:-9]]))
    run = read_run_data(folder)
    assert [(one.step, one.cost, one.scalars) for one in run.points] == [(1, 0.5, {}), (2, None, {})]
    assert run.problems == [f"{path}: line 1 and 5 others skipped: cut, or of another kind"]
    assert not math.isnan(run.active_seconds(BEGIN))
