"""Training through a session: the same over a network and in the process, checked against plain numpy."""

import threading

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, ConfigurationError, NotFinite, ShapeMismatch
from psworker import datasets, ops

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


@pytest.fixture(scope="module")
def mnist():
    return datasets.mnist()


def softmax_gradients(images, labels, W, b):
    """Mean cross-entropy of softmax regression and its gradients, in float64, from the textbook formula."""
    images, W, b = (np.asarray(array, np.float64) for array in (images, W, b))
    z = images @ W + b
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    cost = -np.log(p[np.arange(len(labels)), labels]).mean()
    d = (p - np.eye(W.shape[1])[labels]) / len(labels)
    return cost, images.T @ d, d.sum(axis=0)


def softmax_variables():
    return ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")


def softmax_loss(batch, W, b):
    return ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)


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


def test_a_worker_computes_the_gradient_of_a_plain_numpy_reference(open_session, mnist):
    W = ps.Variable(RNG.normal(size=(784, 10)).astype(np.float32) * 0.05, name="W")
    b = ps.Variable(RNG.normal(size=10).astype(np.float32), name="b")
    batch = mnist.train.take(np.arange(100))
    with open_session("w0"):
        loss = softmax_loss(batch, W, b)
        [(dW, _), (db, _)] = ps.GradientDescent(0.01).compute_gradients(loss)
    cost, expected_W, expected_b = softmax_gradients(batch.image, batch.label, W.value, b.value)
    assert abs(float(loss) - cost) < 1e-5
    np.testing.assert_allclose(dW, expected_W, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(db, expected_b, rtol=1e-4, atol=1e-7)


def first_and_second_value(optimizer, value, g1, g2):
    """Two updates by hand in float64, from the formulas of the papers."""
    w, (g1, g2) = np.float64(value), (np.float64(g1), np.float64(g2))
    rate = optimizer.learning_rate
    if isinstance(optimizer, ps.GradientDescent):
        return w - rate * g1, w - rate * g1 - rate * g2
    if isinstance(optimizer, ps.Momentum):
        m1 = g1
        m2 = optimizer.momentum * m1 + g2
        if optimizer.nesterov:
            m1, m2 = g1 + optimizer.momentum * m1, g2 + optimizer.momentum * m2
        return w - rate * m1, w - rate * (m1 + m2)
    if isinstance(optimizer, ps.Adagrad):
        a1 = optimizer.initial_accumulator + g1**2
        first = w - rate * g1 / np.sqrt(a1)
        return first, first - rate * g2 / np.sqrt(a1 + g2**2)
    first = w - rate * g1 / (np.abs(g1) + optimizer.epsilon)
    m = (0.9 * 0.1 * g1 + 0.1 * g2) / (1 - 0.9**2)
    v = (0.999 * 0.001 * g1**2 + 0.001 * g2**2) / (1 - 0.999**2)
    return first, first - rate * m / (np.sqrt(v) + optimizer.epsilon)


@pytest.mark.parametrize(
    "optimizer",
    [
        ps.GradientDescent(0.5),
        ps.Momentum(0.1, momentum=0.8),
        ps.Momentum(0.1, nesterov=True),
        ps.Adagrad(0.1),
        ps.Adam(0.01),
    ],
    ids=str,
)
def test_a_push_followed_by_a_pull_equals_the_update_rule_by_hand(open_session, optimizer):
    value = RNG.normal(size=(3, 4)).astype(np.float32)
    g1, g2 = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    expected = first_and_second_value(optimizer, value, g1, g2)
    x = ps.Variable(value, name="x")
    with open_session("w0") as session:
        for gradient, after in zip((g1, g2), expected, strict=True):
            optimizer.apply_gradients([(gradient, x)])
            np.testing.assert_allclose(x.value, after, rtol=2e-6, atol=1e-7)
            pushed = x.value
            session.pull()
            np.testing.assert_array_equal(x.value, pushed)
        assert (session.global_step, x.version) == (2, 2)


def test_a_large_variable_trains_as_a_small_one_does(open_session):
    """8 MB go in chunks; the update is exact because every number is a small power of two."""
    x = ps.Variable(np.full((2, 1024, 1024), 4, np.float32), name="x")
    gradient = np.arange(2 * 1024 * 1024, dtype=np.float32).reshape(x.shape) % 64
    with open_session("w0"):
        ps.GradientDescent(0.5).apply_gradients([(gradient, x)])
        np.testing.assert_array_equal(x.value, 4 - gradient / 2)


def test_two_workers_share_variables_and_see_each_others_updates(open_session):
    with ps.collection():
        mine = ps.Variable(ops.zeros(3), name="x")
        with open_session("w0"):
            ps.GradientDescent(1.0).apply_gradients([(np.ones(3, np.float32), mine)])
            with ps.collection():
                other = ps.Variable(np.full(3, 9, np.float32), name="x")
                with open_session("w1") as second:
                    np.testing.assert_array_equal(other.value, [-1, -1, -1])  # the first registration has won
                    ps.GradientDescent(1.0).apply_gradients([(np.ones(3, np.float32), other)])
                    assert second.staleness == 0
            ps.GradientDescent(1.0).apply_gradients([(np.ones(3, np.float32), mine)])
            np.testing.assert_array_equal(mine.value, [-3, -3, -3])


def test_workers_in_threads_cover_each_epoch_exactly_once(open_session):
    data = ps.Dataset({"x": np.arange(1003)})
    seen: dict[int, list[int]] = {1: [], 2: [], 3: []}
    heard = {}
    lock = threading.Lock()

    def work(name: str) -> None:
        count = ps.Variable(np.float32(0), name="count")
        reports = heard[name] = []
        with open_session(name) as session:
            for batch in session.batches(data, 10, epochs=3, seed=5, on_epoch=reports.append):
                with lock:
                    seen[batch.epoch] += batch.x.tolist()
                ps.GradientDescent(1.0).apply_gradients([(np.float32(-len(batch)), count)])
            totals.append(float(count.value))

    totals: list[float] = []
    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(examples) == list(range(1003)) for examples in seen.values())
    assert seen[1] != seen[2]
    for reports in heard.values():
        assert [(report.epoch, report.examples) for report in reports] == [(1, 1003), (2, 1003), (3, 1003)]
    assert max(totals) == 3 * 1003


def test_two_asynchronous_workers_reach_the_cost_of_one(open_session, mnist):
    """A short form of the demo's job: one epoch, two workers in threads."""
    heard = {}

    def work(name: str) -> None:
        W, b = softmax_variables()
        costs = heard[name] = []
        optimizer = ps.GradientDescent(0.01)
        with open_session(name) as session:
            for batch in session.batches(mnist.train, 100, epochs=1, on_epoch=lambda epoch: costs.append(epoch.cost)):
                optimizer.minimize(softmax_loss(batch, W, b))

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard["w0"] == heard["w1"]
    np.testing.assert_allclose(heard["w0"], [1.1843], rtol=0, atol=0.015)


def test_assign_and_assign_add_change_the_variable_on_the_server(open_session):
    x = ps.Variable([1.0, 2.0], name="x")
    steps = ps.Variable(np.int64(0), name="steps", trainable=False)
    with open_session("w0") as session:
        session.assign(x, [5, 6])
        session.assign_add(x, [0.5, 0.5])
        session.assign_add(steps, 3)
        np.testing.assert_array_equal(x.value, np.float32([5.5, 6.5]))
        assert (steps.value, x.version, x.dtype) == (3, 2, np.float32)


def test_several_variables_are_assigned_at_once_or_none(open_session):
    x, y = ps.Variable([1.0, 2.0], name="x"), ps.Variable(3.0, name="y")
    with open_session("w0") as session:
        session.assign_all({x: [5, 6], y: 7})
        assert (x.value.tolist(), float(y.value), x.version, y.version) == ([5, 6], 7, 1, 1)
        session.assign_all({x: [1, 1], y: 1}, add=True)
        assert (x.value.tolist(), float(y.value)) == ([6, 7], 8)
        with pytest.raises(ShapeMismatch, match="'y'"):
            session.assign_all({x: [0, 0], y: [1, 2]})
        session.assign_all({})
        session.pull()
        assert (x.value.tolist(), float(y.value)) == ([6, 7], 8)


def test_variables_made_while_the_session_is_open_get_the_servers_value(open_session):
    with open_session("w0") as session:
        first = ps.Variable([1.0], name="late")
        session.assign(first, [7])
        with ps.collection(), open_session("w1"):
            assert ps.Variable([2.0], name="late").value == [7]


def test_gradients_between_compute_and_apply_may_be_changed_at_will(open_session):
    x = ps.Variable([3.0, -4.0], name="x")
    optimizer = ps.GradientDescent(1.0)
    with open_session("w0"):
        pairs = optimizer.compute_gradients(ops.sum(ops.square(x)))
        np.testing.assert_array_equal(pairs[0][0], [6, -8])
        optimizer.apply_gradients([(np.clip(gradient, -1, 1), variable) for gradient, variable in pairs])
        np.testing.assert_array_equal(x.value, [2, -3])


def test_a_variable_the_loss_does_not_reach_has_no_gradient_and_stays(open_session):
    x, y = ps.Variable([3.0], name="x"), ps.Variable([5.0], name="y")
    optimizer = ps.GradientDescent(0.5)
    with open_session("w0"):
        pairs = optimizer.compute_gradients(ops.sum(x))
        assert pairs[1] == (None, y)
        optimizer.apply_gradients(pairs)
        assert (x.value, y.value, y.version) == ([2.5], [5.0], 0)
        with pytest.raises(ValueError, match="no gradients to push for y"):
            optimizer.apply_gradients([(None, y)])


def test_minimize_pushes_only_the_variables_named(open_session):
    x, y = ps.Variable([3.0], name="x"), ps.Variable([5.0], name="y")
    with open_session("w0"):
        ps.GradientDescent(1.0).minimize(ops.sum(x * y), var_list=[y])
        assert (x.value, y.value) == ([3.0], [2.0])


def test_a_step_without_any_variable_is_an_error_and_not_silence(open_session):
    ps.Variable([1.0], name="generator/x")
    x = ps.Variable([3.0], name="x")
    with open_session("w0") as session:
        with pytest.raises(ValueError, match=r"no variable to train.*misspelt\? Trainable are: generator/x, x"):
            ps.GradientDescent(1.0).minimize(ops.sum(x), ps.trainable_variables("generater"))
        with pytest.raises(ValueError, match="no variable to train"):
            ps.optimize_loss(ops.sum(x), 1.0, ps.Adam, variables=[])
        with pytest.raises(TypeError, match="a loss is a Tensor made by ops, this one is float"):
            ps.GradientDescent(1.0).minimize(0.5)
        with pytest.raises(TypeError, match="optimizer must be a class such as psworker"):
            ps.optimize_loss(ops.sum(x), 1.0, ps.Adam())
        assert session.global_step == 0
        ps.GradientDescent(1.0).minimize(ops.sum(x), x)
        assert x.value == [2]


def test_a_push_whose_update_would_overflow_is_refused_and_training_goes_on(open_session):
    y = ps.Variable([1.0, 1.0], name="y")
    optimizer = ps.Adam(1.0, beta2=0.0)
    with open_session("w0"):
        with pytest.raises(
            NotFinite, match=r"update of 'y' would make NaN or infinity of 1 of [12] elements of its slot"
        ):
            optimizer.apply_gradients([(np.float32([1e20, 0]), y)])
        np.testing.assert_array_equal(y.value, [1, 1])
        optimizer.apply_gradients([(np.float32([1e10, 0]), y)])
        np.testing.assert_allclose(y.value, [0, 1], atol=1e-6)


def test_a_refused_push_names_the_variable_and_training_goes_on(open_session):
    x, y = ps.Variable([1.0, 1.0], name="x"), ps.Variable([1.0], name="y")
    optimizer = ps.GradientDescent(1.0)
    with open_session("w0"):
        with pytest.raises(NotFinite, match=r"gradient for 'y' has 1 (of 1 )?elements"):
            optimizer.apply_gradients([(np.float32([1, 1]), x), (np.float32([np.nan]), y)])
        with pytest.raises(ShapeMismatch, match=r"gradient for 'x' is float64\[2\], the variable is float32\[2\]"):
            optimizer.apply_gradients([(np.ones(2), x)])
        with pytest.raises(AlreadyRegistered, match=r"'x' is registered with GradientDescent.*declares Adam"):
            ps.Adam().apply_gradients([(np.float32([1, 1]), x)])
        np.testing.assert_array_equal(x.value, [1, 1])
        optimizer.apply_gradients([(np.float32([1, 0]), x)])
        np.testing.assert_array_equal(x.value, [0, 1])


def test_a_worker_whose_variable_differs_is_refused_and_the_other_goes_on(open_session):
    x = ps.Variable([1.0], name="x")
    with open_session("w0"):
        with ps.collection():
            ps.Variable([1.0, 2.0], name="x")
            with (
                pytest.raises(AlreadyRegistered, match=r"'x' is registered as float32\[1\].*declares float32\[2\]"),
                open_session("w1"),
            ):
                pass
        ps.GradientDescent(1.0).apply_gradients([(np.float32([1]), x)])
        assert x.value == [0]


def test_who_leaves_its_loop_early_gives_its_examples_back_to_the_others(open_session):
    data = ps.Dataset({"x": np.arange(1000)})
    with open_session("w0") as first:
        for _ in first.batches(data, 10):
            break
        with ps.collection(), open_session("w1") as second:
            seen = [batch.x for batch in second.batches(data, 10)]
    assert sorted(np.concatenate(seen)) == list(range(1000))


def test_an_epochs_cost_is_the_mean_over_the_examples_that_had_a_loss(open_session):
    """Losses 0, 1, 2, ... of batches of 10, each second one pushed: the mean of 1, 3, 5, ..., the last a half batch."""
    x = ps.Variable([0.0], name="x")
    optimizer = ps.GradientDescent(0.0)
    costs = []
    with open_session("w0") as session:
        batches = session.batches(
            ps.Dataset({"x": np.arange(195)}), 10, on_epoch=lambda epoch: costs.append(epoch.cost)
        )
        for number, _ in enumerate(batches):
            if number % 2:
                optimizer.minimize(ops.sum(x) + float(number))
    odd = [1, 3, 5, 7, 9, 11, 13, 15]
    first_block, second_block = np.mean(odd) * 160, np.average([17, 19], weights=[10, 5]) * 35
    assert costs == [pytest.approx((first_block + second_block) / 195)]


def test_the_first_worker_is_the_chief_and_when_it_fails_the_next_one_is(open_session):
    data = ps.Dataset({"x": np.arange(4)})
    with ps.collection():
        first = open_session("w0").__enter__()
        with ps.collection(), open_session("w1") as second:
            assert (first.is_chief, second.is_chief) == (True, False)
            first.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
            assert [second.is_chief for _ in second.batches(data, 4)] == [True]


def test_one_program_has_one_session_and_pushing_needs_it(open_session):
    x = ps.Variable([1.0], name="x")
    with pytest.raises(ConfigurationError, match="no session is open"):
        ps.GradientDescent(1.0).minimize(ops.sum(x))
    with open_session("w0"), pytest.raises(ConfigurationError, match="one program has one session"), open_session("w0"):
        pass
