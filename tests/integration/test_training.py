"""Training through a session, checked against plain numpy."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, ConfigurationError, ShapeMismatch
from psworker import datasets, ops
from tests.transports import EMBEDDED, GRPC, SHARED_OF_TWO, parameters

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def mnist():
    return datasets.mnist()


def softmax_variables():
    return ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")


def softmax_loss(batch, W, b):
    return ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)


@pytest.mark.slow
def test_ten_epochs_of_softmax_regression_follow_the_known_costs(mnist):
    """The figures of the classic job: learning rate 0.01, batch 100, zero initial values."""
    W, b = softmax_variables()
    optimizer = ps.GradientDescent(learning_rate=0.01)
    costs = []
    with ps.session() as session:
        for batch in session.batches(mnist.train, 100, epochs=10, on_epoch=lambda epoch: costs.append(epoch.cost)):
            optimizer.minimize(softmax_loss(batch, W, b))

        def accuracy(dataset):
            return session.evaluate(lambda batch: ops.accuracy(ops.matmul(batch.image, W) + b, batch.label), dataset)

        first, every = accuracy(mnist.test[:3000]), accuracy(mnist.test)
    known = [1.1843, 0.6654, 0.5529, 0.4987, 0.4656, 0.4426, 0.4255, 0.4122, 0.4014, 0.3924]
    np.testing.assert_allclose(costs, known, rtol=0, atol=0.004)
    assert abs(first - 0.873) <= 0.003
    assert abs(every - 0.904) <= 0.003


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC, SHARED_OF_TWO), indirect=True)
def test_two_workers_share_variables_and_see_each_others_updates(open_session):
    one, mine = np.ones(3, np.float32), ps.Variable(ops.zeros(3), name="x")
    with open_session("w0") as first:
        SGD.apply_gradients([(one, mine)])
        with ps.collection():
            other = ps.Variable(np.full(3, 9, np.float32), name="x")
            with open_session("w1") as second:
                assert ((first.number, first.is_chief), (second.number, second.is_chief)) == ((0, True), (1, False))
                np.testing.assert_array_equal(other.value, [-1, -1, -1])  # the first registration has won
                SGD.apply_gradients([(one, other)])
                assert second.staleness == 0
        SGD.apply_gradients([(one, mine)])
        np.testing.assert_array_equal(mine.value, [-3, -3, -3])


def test_workers_in_threads_cover_each_epoch_exactly_once(open_session):
    data, seen, lock = ps.Dataset({"x": np.arange(1003)}), {1: [], 2: [], 3: []}, threading.Lock()

    def work(name):
        count, reports = ps.Variable(np.float32(0), name="count"), []
        with open_session(name) as session:
            for batch in session.batches(data, 10, epochs=3, seed=5, on_epoch=reports.append):
                with lock:
                    seen[batch.epoch] += batch.x.tolist()
                ps.GradientDescent(1.0).apply_gradients([(np.float32(-len(batch)), count)])
            assert [(report.epoch, report.examples) for report in reports] == [(1, 1003), (2, 1003), (3, 1003)]
            return float(count.value)

    with ThreadPoolExecutor(3) as threads:
        assert max(threads.map(work, ("w0", "w1", "w2"))) == 3 * 1003
    assert all(sorted(examples) == list(range(1003)) for examples in seen.values())
    assert seen[1] != seen[2]


def test_several_variables_are_assigned_at_once_or_none(open_session):
    x, y = ps.Variable([1.0, 2.0], name="x"), ps.Variable(np.int64(3), name="y")
    with open_session("w0") as session:
        session.assign_all({x: [5, 6], y: 7})
        assert (x.value.tolist(), int(y.value), x.version, y.version) == ([5, 6], 7, 1, 1)
        session.assign_all({x: [1, 1], y: 1}, add=True)
        with pytest.raises(ShapeMismatch, match="'y'"):
            session.assign_all({x: [0, 0], y: [1, 2]})
        with pytest.raises(TypeError, match="Cannot cast"):
            session.assign(y, 1.7)
        session.assign_all({})
        session.pull()
        assert (x.value.tolist(), int(y.value)) == ([6, 7], 8)


def test_a_variable_the_loss_does_not_reach_has_no_gradient_and_stays(open_session):
    x, y = ps.Variable([3.0], name="x"), ps.Variable([5.0], name="y")
    optimizer = ps.GradientDescent(0.5)
    with open_session("w0"):
        pairs = optimizer.compute_gradients(ops.sum(x))
        assert pairs[1] == (None, y)
        optimizer.apply_gradients(pairs)
        assert (x.value, y.value, y.version) == ([2.5], [5.0], 0)


def open_twice(open_session):
    with open_session("w1"):
        pass


SGD = ps.GradientDescent(1.0)
INVALID = {
    "misspelt": (
        lambda x, _: SGD.minimize(ops.sum(x), ps.trainable_variables("generater")),
        (ValueError, r"no variable to train.*misspelt\? Trainable: generator/x, x"),
    ),
    "no variable": (
        lambda x, _: ps.optimize_loss(ops.sum(x), 1.0, ps.Adam, variables=[]),
        (ValueError, "no variable to train"),
    ),
    "no gradient": (lambda x, _: SGD.apply_gradients([(None, x)]), (ValueError, "no gradients to push for x")),
    "a number": (
        lambda x, _: SGD.minimize(0.5),
        (TypeError, "a loss must be a Tensor made by ops, but this one is float"),
    ),
    "an instance": (
        lambda x, _: ps.optimize_loss(ops.sum(x), 1.0, ps.Adam()),
        (TypeError, "optimizer must be a class such as psworker"),
    ),
    "another optimizer": (
        lambda x, _: ps.Adam().apply_gradients([(np.float32([1]), x)]),
        (AlreadyRegistered, r"'x' is registered with GradientDescent.*declares Adam"),
    ),
    "a second session": (
        lambda x, session: open_twice(session),
        (ConfigurationError, "a program has one session at a time"),
    ),
}


@pytest.mark.parametrize(("call", "error"), INVALID.values(), ids=INVALID)
def test_an_invalid_step_is_refused_and_training_goes_on(open_session, call, error):
    ps.Variable([1.0], name="generator/x")
    x = ps.Variable([4.0], name="x")
    with pytest.raises(ConfigurationError, match="no session is open"):
        SGD.minimize(ops.sum(x))
    with open_session("w0") as session:
        SGD.minimize(ops.sum(x), x)
        with pytest.raises(error[0], match=error[1]):
            call(x, open_session)
        SGD.minimize(ops.sum(x), x)
        assert (x.value, session.global_step) == ([2], 2)


def test_an_epochs_cost_is_the_mean_over_the_examples_that_had_a_loss(open_session):
    """Losses 0, 1, 2, ... of batches of 10, each second one pushed: the mean of 1, 3, 5, ..., the last a half batch."""
    x, costs, data = ps.Variable([0.0], name="x"), [], ps.Dataset({"x": np.arange(195)})
    with open_session("w0") as session:
        for number, _ in enumerate(session.batches(data, 10, on_epoch=lambda epoch: costs.append(epoch.cost))):
            if number % 2:
                ps.GradientDescent(0.0).minimize(ops.sum(x) + float(number))
    first_block, second_block = np.mean(range(1, 16, 2)) * 160, np.average([17, 19], weights=[10, 5]) * 35
    assert costs == [pytest.approx((first_block + second_block) / 195)]
