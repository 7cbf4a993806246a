"""Between compute_gradients and apply_gradients: losses, update ops, and the whole step of optimize_loss."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import NotFinite
from pswire.messages import Status
from psworker import ops, schedules

STEPS = 6


def status(session):
    return session._client._transport.call(0, Status(), 10).result()


def noted(variable, value, decay=0.75):
    update = ps.UpdateOp(variable, np.float32(value), decay)
    ps.note_update(update)
    return update


def average(*values, name="average"):
    return ps.Variable(np.array(values, np.float32), name=name, trainable=False)


def test_a_push_carries_the_loss_of_its_own_variables(open_session):
    x, y = ps.Variable([3.0], name="x"), ps.Variable([5.0], name="y")
    optimizer = ps.GradientDescent(0.0)
    with open_session("w0") as session:
        pushes = [(optimizer.compute_gradients(ops.sum(v), [v]), loss) for v, loss in ((x, 3), (y, 5))]
        for pairs, loss in pushes:
            optimizer.apply_gradients([(g, v) for g, v in pairs])
            assert status(session).workers[0].loss == loss


def test_staleness_counts_from_the_weights_that_a_gradient_was_computed_with(open_session):
    """Not from those that another optimizer's push has brought in between, as in a GAN."""
    x, y = ps.Variable([3.0], name="x"), ps.Variable([5.0], name="y")
    optimizer = ps.GradientDescent(0.5)
    with open_session("w0") as first:
        of_x, of_y = (optimizer.compute_gradients(ops.sum(one), [one]) for one in (x, y))
        with ps.collection():
            other = ps.Variable([0.0], name="x")
            with open_session("w1"):
                optimizer.minimize(ops.sum(other))
        for pairs, staleness in ((of_y, 0), (of_x, 1)):
            optimizer.apply_gradients(pairs)
            assert first.staleness == staleness
        optimizer.minimize(ops.sum(x))
        assert first.staleness == 0


def test_loops_that_take_turns_have_each_their_own_costs(open_session):
    x, optimizer = ps.Variable([0.0], name="x"), ps.GradientDescent(0.0)
    costs, data = {}, ps.Dataset({"x": np.arange(40)})
    with open_session("w0") as session:
        a, b = (session.batches(data, 10, name=n, on_epoch=lambda e: costs.update({e.queue: e.cost})) for n in "ab")
        for number, _ in enumerate(a):
            optimizer.minimize(ops.sum(x) + float(number))
            if number == 1:
                for _ in b:
                    optimizer.minimize(ops.sum(x) + 10.0)
    assert costs == {"a": pytest.approx((0 + (1 + 4 * 10) / 5 + 2 + 3) / 4), "b": 10}


def test_update_ops_travel_with_the_next_push_and_become_moving_averages_over_all_workers(open_session):
    x, mean = ps.Variable([1.0], name="x"), average(1, 2)
    with open_session("w0") as session:
        noted(mean, [4, 4])
        with pytest.raises(NotFinite, match="'x'"):
            ps.GradientDescent(1.0).apply_gradients([(np.float32([np.nan]), x)])
        assert mean.version == 0
        noted(mean, [5, 10])
        assert [update.variable for update in ps.update_ops()] == [mean]
        ps.GradientDescent(1.0).minimize(ops.sum(x))
        expected = 0.75 * np.float32([1, 2]) + 0.25 * np.float32([5, 10])
        np.testing.assert_array_equal(mean.value, expected)
        assert (ps.update_ops(), session.global_step, mean.version, x.version) == ([], 1, 1, 1)
        with ps.collection():
            y, other = ps.Variable([1.0], name="x"), average(99, 99)
            with open_session("w1"):
                noted(other, [4, 8])
                ps.GradientDescent(1.0).minimize(ops.sum(y))
        session.pull()
        np.testing.assert_array_equal(mean.value, 0.75 * expected + 0.25 * np.float32([4, 8]))


def test_update_ops_may_be_chosen_by_scope_left_out_or_discarded(open_session):
    x = ps.Variable([1.0], name="x")
    with ps.variable_scope("gen"):
        a = average(0)
    with ps.variable_scope("generator"):
        b = average(0)
    with open_session("w0"):
        noted(a, [4])
        noted(b, [np.inf])
        pairs = ps.GradientDescent(1.0).compute_gradients(ops.sum(x))
        ps.GradientDescent(1.0).apply_gradients(pairs, update_ops=())
        assert (a.version, b.version) == (0, 0)
        ps.GradientDescent(1.0).apply_gradients(pairs, update_ops=ps.update_ops("gen"))
        assert (a.value, b.version) == ([1], 0)
        ps.discard_update_ops("other")
        assert [update.variable for update in ps.update_ops()] == [b]
        ps.discard_update_ops()
        ps.GradientDescent(1.0).minimize(ops.sum(x))
        assert b.version == 0


def test_optimize_loss_is_the_step_by_hand(open_session):
    """Momentum 0.5 under a rate that halves at every step, gradients (3, 4) clipped to norm 1, only x; in float64."""
    x, other = ps.Variable([0.0, 0.0], name="x"), ps.Variable([1.0], name="other")
    value, momentum = np.zeros(2), np.zeros(2)
    with open_session("w0") as session:
        for step in range(STEPS):
            loss = ps.optimize_loss(
                ops.sum(x * np.float32([3, 4])) * other[0],
                1.0,
                lambda learning_rate: ps.Momentum(learning_rate, momentum=0.5),
                clip_gradients=1.0,
                learning_rate_decay_fn=lambda rate: schedules.ExponentialDecay(rate, decay_steps=1, decay_rate=0.5),
                variables=[x],
            )
            assert loss == pytest.approx(value @ [3, 4], rel=1e-6)
            momentum = 0.5 * momentum + np.array([0.6, 0.8])
            value = value - 0.5**step * momentum
            np.testing.assert_allclose(x.value, value, rtol=1e-6)
        assert (session.global_step, other.version) == (STEPS, 0)


def test_optimize_loss_takes_a_function_for_clipping_and_sends_the_update_ops(open_session):
    x, mean = ps.Variable([0.0, 0.0], name="x"), average(0)
    with open_session("w0"):
        noted(mean, [4])
        loss = ops.sum(x * np.float32([3, 4]))
        ps.optimize_loss(loss, 1.0, ps.GradientDescent, clip_gradients=lambda pairs: ps.clip_by_value(pairs, -3.5, 3.5))
        np.testing.assert_array_equal(x.value, [-3, -3.5])
        assert mean.value == [1]
