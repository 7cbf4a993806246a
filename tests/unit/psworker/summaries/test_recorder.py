"""Points of a worker: what they sum up, and when they are due."""

import json
import math
from dataclasses import astuple

import pytest

from psworker.runs.scalar_files import Point
from psworker.summaries.recorder import Recorder, point_line


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_point_has_means_of_the_steps_since_the_last_one_and_counts_of_all(clock):
    recorder = Recorder(clock)
    recorder.examples += 32
    assert recorder.note(2.0, None)  # the first step
    first = recorder.point(7, 0, 0.1, 1.5, {})
    assert astuple(first)[1:] == (7, 1, 32, 2.0, None, 0, None, 0.1, 1.5, {}, 1)
    clock.now += 0.5
    for cost, staleness in ((1.0, 3), (None, 0), (3.0, None), (5.0, 6)):
        recorder.examples += 10
        recorder.note(cost, staleness)
    assert recorder.has_new_steps
    second = recorder.point(19, 2, None, None, {"accuracy": 0.5})
    assert astuple(second)[1:] == (19, 5, 72, 3.0, 3.0, 2, 8.0, None, None, {"accuracy": 0.5}, 1)
    assert not recorder.has_new_steps
    assert first.time <= second.time
    assert astuple(recorder.point(20, 2, None, None, {}))[3:6] == (72, None, None)


@pytest.mark.parametrize(("age", "seconds", "pause"), [(0, 0, 0.1), (40, 0, 0.1), (5000, 0, 10), (0, 0.002, 1)])
def test_the_next_point_is_due_after_a_tenth_of_a_second_or_a_500th_of_the_age_or_500_times_what_the_last_one_took(
    clock, age, seconds, pause
):
    recorder = Recorder(clock)
    clock.now += age
    assert recorder.note(None, None)
    recorder.postpone(seconds)
    clock.now += 0.99 * pause
    assert not recorder.note(None, None)
    assert not recorder.is_due()
    clock.now += 0.02 * pause
    assert recorder.note(None, None)
    assert recorder.is_due()


def test_a_line_is_json_in_which_nan_and_infinity_are_null():
    scalars = {"accuracy": 0.75, "gap": math.inf}
    line = point_line(Point(1.5, 7, 3, 96, math.nan, 0.5, 1, math.inf, 0.1, None, scalars))

    def refused(constant):
        raise AssertionError(constant)

    assert line.endswith(b"}\n")
    assert json.loads(line, parse_constant=refused) == {
        "time": 1.5,
        "step": 7,
        "steps": 3,
        "examples": 96,
        "cost": None,
        "staleness": 0.5,
        "dropped": 1,
        "steps_per_second": None,
        "learning_rate": 0.1,
        "gradient_norm": None,
        "scalars": {"accuracy": 0.75, "gap": None},
    }
