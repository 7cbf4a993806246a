"""Other calls of a session: slots, rows, and new hyperparameters in a running job."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.messages import Status
from psworker import ops

# Slots.


def test_the_slots_of_a_variable_can_be_read(open_session):
    x = ps.Variable(np.float32([[0, 0], [0, 0]]), name="x")
    with open_session("w0") as session:
        for gradient in ([[1, 2], [3, 4]], [[1, 0], [0, 0]]):
            ps.Adam(0.1).apply_gradients([(np.float32(gradient), x)])
        np.testing.assert_allclose(session.slot(x, "m"), [[0.19, 0.18], [0.27, 0.36]], rtol=1e-6)
        np.testing.assert_allclose(session.slot(x, "v"), [[0.001999, 0.003996], [0.008991, 0.015984]], rtol=1e-5)


def test_a_slot_that_is_not_there_is_an_error_that_lists_those_that_are(open_session):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    with open_session("w0") as session:
        ps.Adam(0.1).apply_gradients([(np.float32([1]), x)])
        with pytest.raises(ConfigurationError, match="'x' has no slot 'momentum': its optimizer, Adam, keeps m, v"):
            session.slot(x, "momentum")
        with pytest.raises(ConfigurationError, match="'y' has no slot 'm': slots are made by the first push"):
            session.slot(y, "m")
        with ps.collection(), open_session("w1") as other:
            assert other.slot(ps.Variable([0.0], name="x"), "m") == np.float32([0.1]), "of another worker's training"


# Rows.


def test_rows_come_in_the_shape_and_order_of_their_numbers(open_session):
    x = ps.Variable(np.arange(12, dtype=np.float32).reshape(4, 3), name="x")
    with open_session("w0") as session:
        np.testing.assert_array_equal(session.rows(x, [[3, 0], [3, 1]]), x.value[[[3, 0], [3, 1]]])
        assert session.rows(x, np.zeros((2, 0), np.int64)).shape == (2, 0, 3)
        np.testing.assert_array_equal(session.rows(x, 2), x.value[2])
        assert session.rows(x, []).shape == (0, 3)
        with pytest.raises(IndexError, match=r"x float32\[4, 3\] must be in 0 \.\.\. 3, but they span 1 \.\.\. 4"):
            session.rows(x, [1, 4])
        with pytest.raises(IndexError, match=r"span -1 \.\.\. -1"):
            session.rows(x, [-1])
        with pytest.raises(TypeError, match="integers"):
            session.rows(x, [0.5])
        with pytest.raises(ValueError, match="'number': it is a single number"):
            session.rows(ps.Variable(1.0, name="number"), [0])


def test_calls_of_a_closed_session_raise(open_session):
    x, optimizer = ps.Variable([0.0], name="x"), ps.Adam(0.1)
    with open_session("w0") as session:
        optimizer.minimize(ops.sum(x))
    for call in (
        session.pull,
        lambda: session.rows(x, [0]),
        lambda: session.slot(x, "m"),
        lambda: session.set_hyperparameters(optimizer, learning_rate=1.0),
        lambda: session.push(optimizer, [(np.float32([1]), x)]),
    ):
        with pytest.raises(ConfigurationError, match="this session is not open"):
            call()


@pytest.mark.parametrize("given", ["x", None, np.zeros(3), [0]], ids=repr)
def test_other_objects_than_variables_are_refused(open_session, given):
    with open_session("w0") as session:
        with pytest.raises(TypeError, match=r"session\.rows takes a psworker\.Variable or Table, got"):
            session.rows(given, [0])
        with pytest.raises(TypeError, match=r"session\.slot takes a psworker\.Variable or Table, got"):
            session.slot(given, "m")
        with pytest.raises(TypeError, match=r"session\.set_hyperparameters takes an optimizer or variables, got"):
            session.set_hyperparameters(given, learning_rate=1.0)


# Hyperparameters.


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


def test_only_the_hyperparameters_that_are_named_change_whoever_has_set_the_others(open_session):
    """One worker sets the rate, another one that does not know of it the momentum."""
    x, optimizer = ps.Variable([0.0], name="x"), ps.Momentum(1.0, momentum=0.5)
    with open_session("w0") as session:
        optimizer.apply_gradients([(np.float32([0]), x)])
        with ps.collection(), open_session("w1") as other:
            y = ps.Variable([0.0], name="x")
            optimizer.apply_gradients([(np.float32([0]), y)])
            session.set_hyperparameters(optimizer, learning_rate=0.0)
            other.set_hyperparameters(y, nesterov=True)
            optimizer.apply_gradients([(np.float32([1]), y)])
            assert y.value == [0]
            session.set_hyperparameters(x, learning_rate=1.0)
            session.push(optimizer, [(np.float32([1]), x)])
            momentum = 0.5 * 1 + 1
            assert x.value == [-(1 + 0.5 * momentum)], "it is nesterov"


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
        ("adam", {}, ConfigurationError, "Adam, the optimizer of x, was given nothing to change: give one"),
        ("adam", {"beta1": 2.0}, ValueError, "beta1"),
        (
            "adam",
            {"amsgrad": True},
            ConfigurationError,
            "keeps the slots m, v and with amsgrad=True would keep m, v, v",
        ),
        ("sgd", {"learning_rate": 1.0}, ConfigurationError, "no variable was trained with GradientDescent"),
        (
            "y",
            {"learning_rate": 1.0},
            ConfigurationError,
            "y: an optimizer's hyperparameters are changed for variables",
        ),
        ("none", {"learning_rate": 1.0}, ConfigurationError, "no variable: an optimizer's"),
    ],
)
def test_invalid_hyperparameters_change_nothing(open_session, target, changes, error, message):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    adam = ps.Adam(0.1)
    with open_session("w0") as session:
        adam.minimize(ops.sum(x), x)
        before = session._client._transport.call(0, Status(), 10).result().variables
        with pytest.raises(error, match=message):
            session.set_hyperparameters(
                {"adam": adam, "sgd": ps.GradientDescent(1.0), "y": [x, y], "none": []}[target], **changes
            )
        assert session._client._transport.call(0, Status(), 10).result().variables == before
