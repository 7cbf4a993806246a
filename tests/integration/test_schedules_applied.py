"""The learning rate of a push at the servers' step t is the schedule's at t, for all workers."""

import numpy as np
import pytest

import psworker as ps
from psworker import schedules

SCHEDULES = [
    0.1,
    schedules.ExponentialDecay(0.1, 3, 0.7, staircase=True),
    schedules.PiecewiseConstant([2, 5], [0.3, 0.2, 0.1]),
    schedules.WarmUp(4, schedules.WarmUp(2, schedules.CosineDecay(0.1, 7))),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_workers_in_turn_apply_the_rate_of_the_servers_step_to_the_last_bit(open_session, schedule, dtype):
    optimizer, expected = ps.GradientDescent(schedule), np.array([1], dtype)
    with ps.collection():
        x = ps.Variable(expected, name="x")
        with open_session("w0") as first, ps.collection():
            y = ps.Variable(np.zeros_like(expected), name="x")
            with open_session("w1") as second:
                for step in range(10):
                    session, variable = [(first, x), (second, y)][step % 2]
                    gradient = np.array([step - 4.5], dtype)
                    session.push(optimizer, [(gradient, variable)])
                    expected -= gradient * schedules.rate(schedule, step)
                    np.testing.assert_array_equal(variable.value, expected)
                    assert session.global_step == step + 1
