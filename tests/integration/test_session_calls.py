"""Other calls of a session: slots, rows, and new hyperparameters in a running job."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.messages import Status
from psworker import ops


def status(session):
    return session._client._transport.call(0, Status(), 10).result()


def test_the_slots_of_a_variable_can_be_read_also_by_another_worker(open_session):
    x, y = ps.Variable(np.zeros((2, 2), np.float32), name="x"), ps.Variable([0.0], name="y")
    with open_session("w0") as session:
        for gradient in ([[1, 2], [3, 4]], [[1, 0], [0, 0]]):
            ps.Adam(0.1).apply_gradients([(np.float32(gradient), x)])
        np.testing.assert_allclose(session.slot(x, "m"), [[0.19, 0.18], [0.27, 0.36]], rtol=1e-6)
        np.testing.assert_allclose(session.slot(x, "v"), [[0.001999, 0.003996], [0.008991, 0.015984]], rtol=1e-5)
        with pytest.raises(ConfigurationError, match="'x' has no slot 'momentum': its optimizer, Adam, keeps m, v"):
            session.slot(x, "momentum")
        with pytest.raises(ConfigurationError, match="'y' has no slot 'm': slots are made by the first push"):
            session.slot(y, "m")
        expected = session.slot(x, "m")
        with ps.collection(), open_session("w1") as other:
            same = ps.Variable(np.zeros((2, 2), np.float32), name="x")
            np.testing.assert_array_equal(other.slot(same, "m"), expected)


def test_rows_come_in_the_shape_and_order_of_their_numbers(open_session):
    x = ps.Variable(np.arange(12, dtype=np.float32).reshape(4, 3), name="x")
    with open_session("w0") as session:
        for rows in ([[3, 0], [3, 1]], np.zeros((2, 0), np.int64), 2):
            np.testing.assert_array_equal(session.rows(x, rows), x.value[rows], strict=True)
        number = ps.Variable(1.0, name="number")
        for variable, rows, error, message in [
            (x, [1, 4], IndexError, r"x float32\[4, 3\] must be in 0 \.\.\. 3, but they span 1 \.\.\. 4"),
            (x, [-1], IndexError, r"span -1 \.\.\. -1"),
            (x, [0.5], TypeError, "integers"),
            (number, [0], ValueError, "'number': it is a scalar"),
        ]:
            with pytest.raises(error, match=message):
                session.rows(variable, rows)


def test_calls_of_a_closed_session_raise(open_session):
    x, table, optimizer = ps.Variable([0.0], name="x"), ps.Table((9, 2), ps.RowConstant(1.0), name="t"), ps.Adam(0.1)
    with open_session("w0") as session:
        optimizer.minimize(ops.sum(x))
    for call, message in (
        (session.pull, "this session is not open"),
        (lambda: session.rows(table, [0]), "this session is not open"),
        (lambda: session.slot(x, "m"), "this session is not open"),
        (lambda: session.set_hyperparameters(optimizer, learning_rate=1.0), "this session is not open"),
        (lambda: session.push(optimizer, [(np.float32([1]), x)]), "this session is not open"),
        (lambda: ops.embedding(table, [1]), "rows of 't' are kept by the server, and no session is open here"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()


@pytest.mark.parametrize("given", ["x", None, [0]], ids=repr)
def test_other_objects_than_variables_are_refused(open_session, given):
    with open_session("w0") as session:
        for call, taken in (
            (lambda: session.rows(given, [0]), "rows takes a psworker.Variable or Table"),
            (lambda: session.slot(given, "m"), "slot takes a psworker.Variable or Table"),
            (lambda: session.set_hyperparameters(given), "set_hyperparameters takes an optimizer or variables"),
        ):
            with pytest.raises(TypeError, match=rf"session\.{taken}, got"):
                call()


def test_new_hyperparameters_count_from_the_next_push_on_for_all_workers(open_session):
    """Momentum by hand: rates 1, 1, then 0.1 and momentum 0, for both workers."""
    x = ps.Variable([0.0], name="x")
    optimizer = ps.Momentum(1.0, momentum=0.5)
    with open_session("w0") as session:
        for _ in range(2):
            optimizer.apply_gradients([(np.float32([1]), x)])
        session.set_hyperparameters(optimizer, learning_rate=0.5)
        session.set_hyperparameters(optimizer, momentum=0.0)
        optimizer.apply_gradients([(np.float32([1]), x)])
        assert (x.value, session.slot(x, "momentum")) == ([-1 - 1.5 - 0.5], [1])
        with ps.collection(), open_session("w1"):
            y = ps.Variable([0.0], name="x")
            optimizer.apply_gradients([(np.float32([1]), y)])
            assert y.value == [-3.5]


def test_a_second_change_goes_on_from_the_first(open_session):
    """Both together are what the variable follows, and may be what only both together can be."""
    x, optimizer = ps.Variable([0.0], name="x"), ps.Adagrad(1.0)
    with open_session("w0") as session:
        optimizer.apply_gradients([(np.float32([0]), x)])
        session.set_hyperparameters(optimizer, epsilon=0.5)
        session.set_hyperparameters(optimizer, initial_accumulator=0.0)  # without an epsilon there would be 0 / 0
        session.set_hyperparameters(ps.Adagrad(1.0, 0.0, 0.5), learning_rate=0.0)
        optimizer.apply_gradients([(np.float32([1]), x)])
        assert x.value == [0]


def test_hyperparameters_may_be_changed_for_some_variables_only(open_session):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer = ps.GradientDescent(1.0)
    with open_session("w0") as session:
        optimizer.minimize(ops.sum(x + y))
        session.set_hyperparameters(y, learning_rate=ps.schedules.ExponentialDecay(0.5, 1, 0.5))
        optimizer.minimize(ops.sum(x + y))
        assert (x.value, y.value) == ([-2], [-1.25])
        session.set_hyperparameters([x, y], learning_rate=0.0)
        optimizer.minimize(ops.sum(x + y))
        assert (x.value, y.value) == ([-2], [-1.25])


@pytest.mark.parametrize(
    ("target", "changes", "error", "message"),
    [
        ("adam", {"rate": 1.0}, ConfigurationError, r"Adam, the optimizer of x, has no hyperparameter rate.*beta1"),
        ("adam", {}, ConfigurationError, "Adam, the optimizer of x, was given nothing to change: choose from"),
        ("adam", {"beta1": 2.0}, ValueError, "beta1"),
        ("adam", {"amsgrad": True}, ConfigurationError, "keeps the slots m, v and with amsgrad=True would keep m, v, "),
        ("sgd", {"learning_rate": 1.0}, ConfigurationError, "no variable was trained with GradientDescent"),
        ("y", {"learning_rate": 1.0}, ConfigurationError, "y: an optimizer's hyperparameters are changed for variab"),
        ("none", {"learning_rate": 1.0}, ConfigurationError, "no variable: an optimizer's"),
    ],
)
def test_invalid_hyperparameters_change_nothing(open_session, target, changes, error, message):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    adam = ps.Adam(0.1)
    targets = {"adam": adam, "sgd": ps.GradientDescent(1.0), "y": [x, y], "none": []}
    with open_session("w0") as session:
        adam.minimize(ops.sum(x), x)
        before = status(session).variables
        with pytest.raises(error, match=message):
            session.set_hyperparameters(targets[target], **changes)
        assert status(session).variables == before
