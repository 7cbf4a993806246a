"""Local steps: rounds of an optimizer in the worker under one on the servers, against a few lines of float64."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError, NotFinite
from pswire.messages import Status
from psworker import ops, schedules
from psworker.config import WorkerConfig
from psworker.sessions.session import Session

START = np.float32([1, -2, 3])
CURVATURE = np.float32([0.1, 0.2, 0.3])


def quadratic(x):
    return ops.sum(CURVATURE * ops.square(x)) / 2 - ops.sum(x)


def gradient_of_the_quadratic(w):
    return CURVATURE.astype(np.float64) * w - 1


class Adam:
    """A worker's optimizer by hand, whose state lives on over rounds."""

    def __init__(self):
        self.m, self.v, self.t = 0.0, 0.0, 0

    def step(self, w):
        g = gradient_of_the_quadratic(w)
        self.t += 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        return w - 0.1 * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8)


class Outer:
    """Nesterov's momentum by hand: rate 0.7, momentum 0.9."""

    def __init__(self):
        self.w, self.m = START.astype(np.float64), 0.0

    def step(self, difference):
        self.m = 0.9 * self.m + difference
        self.w = self.w - 0.7 * (difference + 0.9 * self.m)


@pytest.mark.parametrize("steps", [1, 4])
def test_rounds_are_those_of_diloco(open_session, steps):
    """Three rounds and one step; the weights that every step uses."""
    x = ps.Variable(START, name="x")
    inner, outer = Adam(), Outer()
    with open_session("w0", local_steps=steps) as session:
        w = outer.w
        for step in range(1, 3 * steps + 2):
            np.testing.assert_allclose(x.value, w, rtol=2e-6, atol=2e-6)
            ps.Adam(0.1).minimize(quadratic(x))
            w = inner.step(w)
            if step % steps == 0:
                outer.step(outer.w - w)
                w = outer.w
        assert session.global_step == 3 + (steps == 1), "the servers count rounds"
        np.testing.assert_allclose(x.value, w, rtol=2e-6, atol=2e-6)


def test_an_unfinished_round_is_pushed_before_anything_else_is_done(open_session):
    x = ps.Variable([4.0], name="x")
    with open_session("w0", local_steps=10, outer=ps.GradientDescent(1.0)) as session:
        for _ in range(3):
            ps.GradientDescent(1.0).minimize(ops.sum(x))
        assert (x.value, session.global_step) == ([1], 0)
        session.pull()
        assert (x.value, session.global_step) == ([1], 1)
        with ps.collection(), open_session("w1"):
            assert ps.Variable([0.0], name="x").value == [1]


def test_the_next_step_uses_an_assigned_value(open_session):
    x, y = ps.Variable([4.0], name="x"), ps.Variable([1.0], name="y", trainable=False)
    with open_session("w0", local_steps=2, outer=ps.GradientDescent(1.0)) as session:
        ps.GradientDescent(1.0).minimize(ops.sum(x * y))
        session.assign_all({x: [10], y: [3]})
        ps.GradientDescent(1.0).minimize(ops.sum(x * y))
        assert x.value == [7]
        late = ps.Variable([2.0], name="late")
        ps.GradientDescent(1.0).minimize(ops.sum(late * y))
        assert (late.value, session.global_step) == ([-1], 2)
        ps.GradientDescent(1.0).minimize(ops.sum(late * y))
        assert (late.value, session.global_step) == ([-4], 3)


@pytest.mark.parametrize("steps", [3, 100])
def test_moving_averages_are_those_of_the_plain_loop(open_session, steps):
    """One worker, seven steps: whole rounds, and one that is cut short; steps without anything seen, too."""
    x = ps.Variable([0.0], name="x")
    average = ps.Variable(np.float32([5, -5]), name="average", trainable=False)
    expected = average.value.astype(np.float64)
    with open_session("w0", local_steps=steps) as session:
        for number in range(7):
            if number != 4:
                seen = np.float32([number, number**2])
                ps.note_update(ps.UpdateOp(average, seen, 0.9))
                expected = 0.9 * expected + 0.1 * seen.astype(np.float64)
            ps.GradientDescent(0.1).minimize(ops.sum(x))
        session.pull()
        np.testing.assert_allclose(average.value, expected, rtol=1e-5)


def test_the_round_of_each_of_several_workers_moves_an_average_by_what_it_has_seen(open_session):
    """Both begin where it is 5; two steps of decay 0.9 keep 0.81 of what the servers have by then."""
    optimizer, one = ps.GradientDescent(0.1), np.ones(1, np.float32)
    x, average = ps.Variable([0.0], name="x"), ps.Variable([5.0], name="average", trainable=False)
    with open_session("w0", local_steps=2) as first, ps.collection():
        y, same = ps.Variable([0.0], name="x"), ps.Variable([5.0], name="average", trainable=False)
        with open_session("w1", local_steps=2) as second:
            for _ in range(2):
                first.push(optimizer, [(one, x)], [ps.UpdateOp(average, one, 0.9)])
                second.push(optimizer, [(one, y)], [ps.UpdateOp(same, 3 * one, 0.9)])
            expected = 0.81 * (0.81 * 5 + 0.19 * 1) + 0.19 * 3
            np.testing.assert_allclose(same.value, [expected], rtol=1e-5)


def test_schedules_go_by_the_steps_of_the_worker_and_the_loss_is_the_mean_of_a_round(open_session):
    x = ps.Variable([0.0], name="x")
    halving = schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.5)
    with open_session("w0", local_steps=2, outer=ps.GradientDescent(1.0)) as session:
        for loss in (1, 2, 3, 5):
            ps.GradientDescent(halving).minimize(ops.sum(x) - ps.stop_gradient(ops.sum(x)) + float(loss))
        assert x.value == [-(1 + 0.5 + 0.25 + 0.125)]
        assert session._client._transport.call(0, Status(), 10).result().workers[0].loss == 4


def test_hyperparameters_and_slots_are_those_of_the_optimizer_here(open_session):
    x = ps.Variable([0.0], name="x")
    inner, outer = ps.Momentum(1.0, 0.5), ps.GradientDescent(1.0)
    with open_session("w0", local_steps=2, outer=outer) as session:
        for _ in range(2):
            inner.minimize(ops.sum(x))
        assert (x.value, session.slot(x, "momentum")) == ([-2.5], [1.5])
        session.set_hyperparameters(inner, learning_rate=2.0)
        session.set_hyperparameters(outer, learning_rate=0.5)
        for _ in range(2):
            inner.minimize(ops.sum(x))
        momentum = 0.5 * 1.5 + 1, 0.5 * (0.5 * 1.5 + 1) + 1
        assert x.value == [-2.5 - 0.5 * 2 * sum(momentum)]


def test_a_table_and_an_outer_optimizer_that_is_none_are_refused(open_session):
    ps.Table((10, 2), ps.RowConstant(0.0), name="table")
    with (
        pytest.raises(ConfigurationError, match=r"'table' is a Table.*leave out local_steps"),
        open_session("w0", local_steps=2),
    ):
        pass
    with pytest.raises(ConfigurationError, match=r"outer must be an optimizer, such as .*, got 0.7"):
        Session(WorkerConfig(), outer=0.7)


def test_a_step_whose_update_would_overflow_changes_neither_values_nor_slots(open_session):
    x, y = ps.Variable([1.0], name="x"), ps.Variable([1.0, 1.0], name="y")
    optimizer = ps.Adam(0.5, beta2=0.0)
    with open_session("w0", local_steps=5) as session:

        def state():
            return [array.tolist() for one in (x, y) for array in (session.slot(one, "m"), one.value)]

        optimizer.apply_gradients([(np.float32([1]), x), (np.float32([1, 1]), y)])
        before = state()
        with pytest.raises(NotFinite, match=r"update of 'y' would make NaN or infinity of 1 of 2 elements of its slot"):
            optimizer.apply_gradients([(np.float32([1]), x), (np.float32([1e20, 0]), y)])
        assert state() == before
        optimizer.apply_gradients([(np.float32([1]), x), (np.float32([1, 0]), y)])
        assert state() != before
