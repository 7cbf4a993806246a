"""Training through a session: pushes, losses, update ops, epochs, assigns, hyperparameters, slots, rows and tables."""

import inspect
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.testing import serve
from pswire.errors import ConfigurationError, NotFinite, ShapeMismatch, TooLarge
from pswire.messages import EpochReport, Leave, Push, Renew, Take, tensor_bytes
from pswire.specs.consistency import Bounded
from pswire.specs.initializers import rows_of
from psworker import ops, schedules
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.support.servers import DIRECT, EMBEDDED, GRPC, SHARED_OF_TWO, parameters
from tests.support.shards import ShardsInProcess

ONE, SGD = np.float32([1]), ps.GradientDescent(1.0)


def average(*values, name="average"):
    return ps.Variable(np.array(values, np.float32), name=name, trainable=False)


def note(variable, value, decay=0.75):
    ps.note_update(ps.UpdateOp(variable, np.float32(value), decay))


def test_a_variable_without_a_gradient_is_logged_once(open_session, caplog):
    x, y, z = (ps.Variable([1.0], name=name) for name in "xyz")
    frozen = average(1.0)
    with open_session("w0"):
        for _ in range(3):
            SGD.minimize(ops.sum(x), [x, y, frozen])
        assert [record.name for record in caplog.records] == ["psworker.sessions.pushing"]
        assert caplog.messages[0].startswith("no gradient for 'y': the loss does not depend on it")
        SGD.minimize(ops.sum(x), [x, y, z])
        assert caplog.messages[1].startswith("no gradient for 'z': ")
        assert len(caplog.messages) == 2
        np.testing.assert_array_equal([*x.value, *y.value, *frozen.value], [-3, 1, 1])


def test_a_push_has_the_loss_and_the_staleness_of_its_own_gradients(open_session, status):
    """Not of the weights that another optimizer's push has brought in between, as in a GAN; z gets no gradient."""
    x, y, z = (ps.Variable([value], name=name) for name, value in (("x", 3.0), ("y", 5.0), ("z", 7.0)))
    with open_session("w0") as first:
        of_x, of_y = (SGD.compute_gradients(ops.sum(one), [one, z]) for one in (x, y))
        with ps.collection(), open_session("w1"):
            SGD.apply_gradients([(ONE, ps.Variable([0.0], name="x"))])
        for pairs, staleness, loss in ((of_y, 0, 5), (of_x, 1, 3)):
            assert pairs[1] == (None, z)
            SGD.apply_gradients(pairs)
            assert (first.staleness, status(first).workers[0].loss) == (staleness, loss)
        SGD.minimize(ops.sum(x))
        assert (first.staleness, z.value, z.version) == (0, 7, 0)


def optimized(rate=1.0, **options):
    """A step by `optimize_loss`."""
    return lambda x, _: ps.optimize_loss(ops.sum(x), learning_rate=rate, variables=x, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, _: SGD.minimize(ops.sum(x), ps.trainable_variables("y")), ValueError, r"misspelt\? .*: generator/x"),
        (lambda x, _: SGD.minimize(ops.sum(x), average(1.0)), ValueError, "no variable to train: 'average' is frozen"),
        (
            lambda x, _: SGD.minimize(ops.sum(x), [ps.Variable(np.ones(1, int), "n", False), average(1.0)]),
            ValueError,
            "'n' is int64, and only floating point is trained; 'average' is frozen",
        ),
        (lambda x, _: SGD.apply_gradients([(None, x)]), ValueError, "no gradients to push for x"),
        (lambda x, _: SGD.minimize(0.5), TypeError, "a loss must be a Tensor made by ops, but this one is float"),
        (lambda x, _: SGD.minimize(x * [1, 2]), ValueError, r"a loss has one element, but this has shape \(2,\)"),
        (lambda x, _: SGD.minimize(ops.sum(x), x, global_step=x), TypeError, "global_step is the variable 'x'"),
        (optimized(optimizer=7), TypeError, "optimizer must be a name .* an optimizer: 7"),
        (optimized(optimizer="Sgd"), ValueError, "no optimizer 'Sgd': choose from SGD, Gradient"),
        (optimized(optimizer=ps.Adam()), ValueError, "another is given, 1.0: .* class Adam"),
        (optimized(optimizer=lambda rate: rate), TypeError, "must make an optimizer .* not 1.0"),
        (
            optimized(None, optimizer="Momentum"),
            ValueError,
            "Momentum has no learning rate by default: give learning_rate",
        ),
        (optimized(ps.Adam, global_step=1.0), TypeError, "global_step is 1.0, which would never"),
        (optimized(summaries=["loss"]), ValueError, r"cannot be selected, got \['loss'\]"),
        (optimized(learning_rate_decay_fn=lambda rate, _: rate / 2), TypeError, r"must return a schedule, .* got 0\.5"),
        (optimized(gradient_multipliers={"y": 2.0}), ValueError, "no gradient of 'y' to be multiplied: choose from x"),
        (lambda x, open_session: open_session("w1").__enter__(), ConfigurationError, "one session at a time"),
    ],
)
def test_an_invalid_step_is_refused_and_training_goes_on(open_session, call, error, message):
    ps.Variable([1.0], name="generator/x")
    x = ps.Variable([4.0], name="x")
    with pytest.raises(ConfigurationError, match="no session is open"):
        SGD.minimize(ops.sum(x))
    with open_session("w0") as session:
        SGD.minimize(ops.sum(x), x)
        with pytest.raises(error, match=message):
            call(x, open_session)
        SGD.minimize(ops.sum(x), x)
        assert (x.value, session.global_step) == ([2], 2)


def test_optimize_loss_is_the_step_by_hand(open_session):
    """Momentum 0.5 under a rate that halves at every step, gradients (3, 4) clipped to norm 1, only x; in float64."""
    x, other = ps.Variable([0.0, 0.0], name="x"), ps.Variable([1.0], name="other")
    value, momentum = np.zeros(2), np.zeros(2)
    with open_session("w0") as session:
        for step in range(6):
            loss = ps.optimize_loss(
                ops.sum(x * np.float32([3, 4])) * other[0],
                session.global_step,
                1.0,
                lambda rate: ps.Momentum(rate, momentum=0.5),
                clip_gradients=1.0 if step % 2 else lambda pairs: ps.clip_by_global_norm(pairs, 1.0),
                learning_rate_decay_fn=lambda rate, _: schedules.ExponentialDecay(rate, decay_steps=1, decay_rate=0.5),
                variables=[x],
            )
            assert loss == pytest.approx(value @ [3, 4], rel=1e-6)
            momentum = 0.5 * momentum + np.array([0.6, 0.8])
            value = value - 0.5**step * momentum
            np.testing.assert_allclose(x.value, value, rtol=1e-6)
        assert (session.global_step, other.version) == (6, 0)


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC), indirect=True)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_gradient_of_another_floating_point_dtype_is_cast_to_its_variable_s(open_session, dtype):
    x, y, z = (ps.Variable(np.zeros(shape, dtype), name=name) for name, shape in (("x", 2), ("y", ()), ("z", (4, 1))))
    third = 1 / 3  # rounded once, to the variable's dtype
    with open_session("w0"):
        for number in (np.float64, np.float32, np.float16):
            rows = ps.IndexedSlices(np.full((1, 1), third, number), np.array([2]), (4, 1))
            before = x.value.copy(), y.value.copy(), z.value.copy()
            SGD.apply_gradients([(np.full(2, third, number), x), (third, y), (rows, z)])
            cast = dtype(number(third))
            np.testing.assert_array_equal(x.value, before[0] - cast, strict=True)
            np.testing.assert_array_equal(y.value, np.asarray(before[1] - dtype(third)), strict=True)
            np.testing.assert_array_equal(z.value, before[2] - np.array([[0], [0], [cast], [0]], dtype), strict=True)


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC), indirect=True)
@pytest.mark.parametrize(
    "minimize",
    [SGD.minimize, lambda loss, x, **options: ps.optimize_loss(loss, None, 1.0, variables=x, **options)],
    ids=["minimize", "optimize_loss"],
)
def test_a_loss_is_minimized_twice_if_its_graph_is_retained(open_session, minimize):
    """Both gradients are those at the weights of the forward pass, x = 2 and y = 3: 2 x y and x^2."""
    x, y = ps.Variable([2.0], name="x"), ps.Variable([3.0], name="y")
    with open_session("w0") as session:
        loss = ops.sum(x * x * y)
        minimize(loss, x, retain_graph=True)
        assert (x.value, y.value) == ([2 - 12], [3])
        minimize(loss, y)
        assert (x.value, y.value) == ([-10], [3 - 4])
        with pytest.raises(RuntimeError, match=r"retain_graph=True to that earlier call, .* minimize or optimize_loss"):
            minimize(loss, x)
        assert (x.value, session.global_step) == ([-10], 2)


@pytest.mark.parametrize(
    ("optimizer", "rate", "first_step"),
    [
        ("SGD", 0.5, 0.5 * 3),
        ("Adagrad", 0.5, 0.5 * 3 / np.sqrt(0.1 + 9)),
        ("Adam", None, 0.001),
        (ps.Adam, 0.25, 0.25),
        (lambda: ps.GradientDescent(0.25), None, 0.25 * 3),
        (lambda rate: ps.GradientDescent(rate / 2), 0.5, 0.25 * 3),
        (ps.GradientDescent(0.125), None, 0.125 * 3),
    ],
)
def test_optimize_loss_takes_a_name_a_class_a_function_or_an_optimizer(open_session, optimizer, rate, first_step):
    x = ps.Variable([1.0], name="x")
    with open_session("w0"):
        ps.optimize_loss(ops.sum(3 * x), learning_rate=rate, optimizer=optimizer)
        np.testing.assert_allclose(x.value, [1 - first_step], rtol=1e-6)


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC), indirect=True)
def test_optimize_loss_adds_noise_multiplies_and_then_clips(open_session):
    x, y = ps.Variable(np.zeros(20_000, np.float32), name="x"), ps.Variable([0.0], name="y")
    multipliers, seen = {x: 2.0, "y": -3.0}, []

    def clipped(pairs):
        seen.extend(pairs)
        return ps.clip_by_global_norm(pairs, 1.0)

    with open_session("w0"):
        ps.set_random_seed(20131016)
        options = {"gradient_noise_scale": 0.5, "gradient_multipliers": multipliers, "clip_gradients": clipped}
        ps.optimize_loss(ops.sum(x) + 4 * y[0], learning_rate=1.0, **options)
        noise = seen[0][0].astype(np.float64) / 2 - 1
        assert (abs(noise.mean()) < 0.02, 0.99 < np.abs(noise).max() <= 1 + 1e-6) == (True, True)  # two of 0.5
        assert noise.std() == pytest.approx(0.5 * 0.8796, rel=0.02)
        assert -15 <= seen[1][0][0] <= -9
        pushed = np.concatenate([gradient.astype(np.float64) for gradient, _ in seen])
        np.testing.assert_allclose([*x.value, *y.value], -pushed / np.linalg.norm(pushed), rtol=1e-5)


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, DIRECT, SHARED_OF_TWO, slow=(GRPC,)), indirect=True)
def test_two_workers_share_variables_and_moving_averages(open_session):
    x, mean = ps.Variable(ops.zeros(3), name="x"), average(1, 2)
    with open_session("w0") as first:
        note(mean, [4, 4])
        with pytest.raises(NotFinite, match="'x'"):
            SGD.apply_gradients([(np.float32([np.nan] * 3), x)])
        assert mean.version == 0
        note(mean, [5, 10])
        assert [update.variable for update in ps.update_ops()] == [mean]
        ps.optimize_loss(ops.sum(x), learning_rate=1.0, optimizer="SGD")
        expected = 0.75 * np.float32([1, 2]) + 0.25 * np.float32([5, 10])
        np.testing.assert_array_equal(mean.value, expected)
        assert (ps.update_ops(), first.global_step, mean.version) == ([], 1, 1)
        with ps.collection():
            y, other = ps.Variable(np.full(3, 9, np.float32), name="x"), average(99, 99)
            with open_session("w1") as second:
                assert ((first.number, first.is_chief), (second.number, second.is_chief)) == ((0, True), (1, False))
                np.testing.assert_array_equal([*y.value, *other.value], [-1, -1, -1, *expected])  # the first has won
                note(other, [4, 8])
                SGD.minimize(ops.sum(y))
                assert second.staleness == 0
        first.pull()
        np.testing.assert_array_equal(mean.value, 0.75 * expected + 0.25 * np.float32([4, 8]))
        SGD.minimize(ops.sum(x))
        np.testing.assert_array_equal(x.value, [-3, -3, -3])


def test_update_ops_may_be_chosen_by_scope_left_out_or_discarded(open_session):
    x, a, b = ps.Variable([1.0], name="x"), average(0, name="gen/average"), average(0, name="generator/average")
    with open_session("w0"):
        note(a, [4])
        note(b, [np.inf])
        SGD.apply_gradients([(ONE, x)], update_ops=())
        assert (a.version, b.version) == (0, 0)
        SGD.apply_gradients([(ONE, x)], update_ops=ps.update_ops("gen"))
        assert (a.value, b.version) == ([1], 0)
        ps.discard_update_ops("other")
        assert [update.variable for update in ps.update_ops()] == [b]
        ps.discard_update_ops()
        SGD.apply_gradients([(ONE, x)])
        assert b.version == 0


def test_workers_in_threads_cover_each_epoch_exactly_once(open_session):
    data, seen = ps.Dataset({"x": np.arange(1003)}), {1: [], 2: [], 3: []}
    lock, joined = threading.Lock(), threading.Barrier(3)

    def work(name):
        count, reports = ps.Variable(np.float32(0), name="count"), []
        with open_session(name) as session:
            joined.wait(30)
            for batch in session.batches(data, 10, epochs=3, seed=5, on_epoch=reports.append):
                with lock:
                    seen[batch.epoch] += batch.x.tolist()
                SGD.apply_gradients([(np.float32(-len(batch)), count)])
            assert [(report.epoch, report.examples) for report in reports] == [(1, 1003), (2, 1003), (3, 1003)]
            return float(count.value)

    with ThreadPoolExecutor(3) as threads:
        assert max(threads.map(work, ("w0", "w1", "w2"))) == 3 * 1003
    assert all(sorted(examples) == list(range(1003)) for examples in seen.values())
    assert seen[1] != seen[2]


def test_an_epochs_cost_is_the_mean_over_the_examples_that_had_a_loss(open_session):
    """Losses 0, 1, 2, ... of batches of 10, each second one pushed: the mean of 1, 3, 5, ..., the last a half batch."""
    x, costs, data = ps.Variable([0.0], name="x"), [], ps.Dataset({"x": np.arange(195)})
    with open_session("w0") as session:
        for number, _ in enumerate(session.batches(data, 10, on_epoch=lambda epoch: costs.append(epoch.cost))):
            if number % 2:
                ps.GradientDescent(0.0).minimize(ops.sum(x) + float(number))
        with pytest.raises(ValueError, match=r"batch_size and epochs are 1 or more.* got 0, 1, 0"):
            session.batches(data, 0)
    first_block, second_block = np.mean(range(1, 16, 2)) * 160, np.average([17, 19], weights=[10, 5]) * 35
    assert costs == [pytest.approx((first_block + second_block) / 195)]


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


@pytest.mark.parametrize(
    ("how", "idles"), [("end", 1), ("leave", 0), ("fail", 0), ("pull", 1), ("push", 0), ("heartbeat", 1)]
)
def test_a_worker_without_examples_gives_back_its_block_and_is_idle_from_its_next_call_on(how, idles):
    """Unless it fails, or pushes again: then others wait for it as before."""
    lease, reported = 0.03 if how == "heartbeat" else np.inf, threading.Event()
    transport = ShardsInProcess(1, Bounded(3), lease=lease)
    transport.refuse = lambda shard, message: isinstance(message, Renew) and message.idle and reported.set()
    error, weight = pytest.raises(KeyboardInterrupt) if how == "fail" else nullcontext(), ps.Variable([0.0], name="x")
    with error, Session(WorkerConfig(name="w0", timeout=30), transport) as session:
        for number, _ in enumerate(session.batches(ps.Dataset({"x": np.arange(9)}), 1), 1):
            if number == 3 and how == "fail":
                raise KeyboardInterrupt
            if number == 3 and how != "end":
                break
            SGD.minimize(ops.sum(weight))
        if how == "push":
            SGD.minimize(ops.sum(weight))
        if how in ("pull", "push"):
            session.pull()
            session.pull()
        assert how != "heartbeat" or reported.wait(30)
    assert [message.give_back for _, message in transport.messages(Take)] == [False, how != "end"]
    assert [message.failed for _, message in transport.messages(Leave)] == [how == "fail"]
    settled = [message.settled for _, message in transport.messages(Renew) if message.idle]
    assert len(settled) == idles
    assert all(one > max(push.sequence for _, push in transport.messages(Push)) for one in settled)


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


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC), indirect=True)
def test_an_optimizer_applies_its_chain_of_transforms_in_order(open_session):
    """Gradients (3, 4) and (9, 12): the mean is (6, 8); clipped to norm 5 it is (3, 4); then halved."""
    x = ps.Variable([0.0, 0.0], name="x")
    halved = ps.chain(ps.accumulate(2), lambda g: ps.clip_by_global_norm(g, 5.0), lambda g: ps.scale(g, 0.5))
    plain = ps.GradientDescent(1.0)
    optimizer = plain.with_transform(halved)
    assert (optimizer, hash(optimizer), repr(optimizer)) == (plain, hash(plain), repr(plain))
    with open_session("w0") as session:
        optimizer.minimize(ops.sum(x * np.float32([3, 4])))
        assert session.global_step == 0
        optimizer.minimize(ops.sum(x * np.float32([9, 12])))
        np.testing.assert_allclose(x.value, [-1.5, -2], rtol=1e-6)
        session.set_hyperparameters(optimizer, learning_rate=2.0)
        plain.minimize(ops.sum(x))
        np.testing.assert_allclose(x.value, [-3.5, -4], rtol=1e-6)
        with pytest.raises(TypeError, match="a transform of a chain returned None"):
            plain.with_transform(ps.chain(lambda pairs: None)).minimize(ops.sum(x))
    with pytest.raises(TypeError, match="chain takes functions of a list of pairs, got 5"):
        ps.chain(5.0)
    with pytest.raises(TypeError, match=r"with_transform takes a function of a list of pairs, .* got 5\.0"):
        plain.with_transform(5.0)


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, GRPC), indirect=True)
def test_a_push_reports_outcome_staleness_and_step_and_minimize_the_loss(open_session):
    x, y = ps.Variable(np.float32(3), name="x"), ps.Variable([1.0], name="y")
    with open_session("w0") as session:
        assert SGD.minimize(x) == 3  # before the step
        assert ps.optimize_loss(x, learning_rate=1.0) == 2
        assert float(x.value) == 1
        pairs = SGD.compute_gradients(ops.sum(x * y), x)
        with ps.collection(), open_session("w1"):
            theirs = ps.Variable(np.float32(0), name="x")
            assert SGD.apply_gradients([(np.float32(1), theirs)]) == ps.PushReport("applied", 0, 3, {0: "applied"})
        assert SGD.apply_gradients(pairs) == ps.PushReport("applied", 1, 4, {0: "applied"})
        assert SGD.apply_gradients([]) == ps.PushReport("none", 0, 4)
        with pytest.raises(AttributeError):
            SGD.apply_gradients([]).step = 5
        assert session.global_step == 4


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, DIRECT, SHARED_OF_TWO, slow=(GRPC,)), indirect=True)
def test_a_variable_is_assigned_by_its_method_on_the_servers(open_session):
    x, y = (ps.Variable([1.0, 2.0], name=name) for name in "xy")
    x.assign([5, 6])  # before a session: the initial value
    with open_session("w0") as session:
        assert (x.value.tolist(), x.version) == ([5, 6], 0)
        with ps.collection(), open_session("w1"):
            theirs = ps.Variable([0.0, 0.0], name="x")
            theirs.assign_add([1, 1])
        x.assign_add(ps.stop_gradient(y))  # to the value on the servers, 6 and 7
        assert (x.value.tolist(), x.version) == ([7, 9], 2)
        y.assign(2 * x)
        assert (y.value.tolist(), y.version, session.global_step) == ([14, 18], 1, 0)
        with pytest.raises(ShapeMismatch, match="'y'"):
            y.assign([1, 2, 3])
        with pytest.raises(NotFinite, match="'y'"):
            y.assign([1, np.nan])
        with pytest.raises(AttributeError, match=r"use variable\.assign\(value\)"):
            y.value = np.zeros(2, np.float32)
        session.pull()
        assert y.value.tolist() == [14, 18]


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, DIRECT, SHARED_OF_TWO, slow=(GRPC,)), indirect=True)
def test_rows_of_a_table_are_assigned(open_session):
    table = ps.Table((30, 2), UNIFORM, name="table")
    expected, rows = rows_of(UNIFORM, np.arange(30), (2,)), np.arange(20.0).reshape(10, 2)
    with open_session("w0") as session:
        table.assign_rows(11, rows)
        table.assign_rows(np.int64(29), ps.Tensor(rows[:1] - 7))
        expected[11:21], expected[29] = rows, [-7, -6]
        np.testing.assert_array_equal(session.rows(table, range(30)), expected)
        for error, message, first, given in (
            (ShapeMismatch, "no rows float32.* from row 21", 21, rows),
            (ShapeMismatch, "no rows", 0, rows[:, :1]),
            (TypeError, "are a scalar", 0, 1.0),
            (TypeError, "Cannot cast complex128", 0, 1j * rows),
            (NotFinite, "'table'", 0, rows * np.nan),
        ):
            with pytest.raises(error, match=message):
                table.assign_rows(first, given)
        np.testing.assert_array_equal(session.rows(table, range(30)), expected)


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
        for variable, rows, error, message in [
            (x, [1, 4], IndexError, r"x float32\[4, 3\] must be in 0 \.\.\. 3, but they span 1 \.\.\. 4"),
            (x, [-1], IndexError, r"span -1 \.\.\. -1"),
            (x, [0.5], TypeError, "integers"),
            (ps.Variable(1.0, name="number"), [0], ValueError, "'number': it is a scalar"),
        ]:
            with pytest.raises(error, match=message):
                session.rows(variable, rows)


def test_calls_of_a_closed_session_and_for_other_objects_than_variables_are_refused(open_session):
    x, table, optimizer = ps.Variable([0.0], name="x"), ps.Table((9, 2), ps.RowConstant(1.0), name="t"), ps.Adam(0.1)
    with open_session("w0") as session:
        optimizer.minimize(ops.sum(x))
        for given in ("x", None, [0]):
            for call, taken in (
                (lambda given: session.rows(given, [0]), "rows takes a psworker.Variable or Table"),
                (lambda given: session.slot(given, "m"), "slot takes a psworker.Variable or Table"),
                (
                    lambda given: session.set_hyperparameters(given),
                    "set_hyperparameters takes an optimizer, .* or variabl",
                ),
            ):
                with pytest.raises(TypeError, match=rf"session\.{taken}.*, got"):
                    call(given)
    with pytest.raises(ConfigurationError, match="rows of 't' are kept by the server, and no session is open here"):
        ops.embedding(table, [1])


@pytest.mark.parametrize("opened", [False, True])
def test_every_method_of_a_session_that_is_not_open_says_how_to_open_it(open_session, opened):
    x, data = ps.Variable([0.0], name="x"), {"x": np.ones(2)}
    session = open_session("w0")
    if opened:
        with session:
            pass
    arguments = {
        "assign": (x, [1.0]),
        "assign_add": (x, [1.0]),
        "assign_all": ({x: [1.0]},),
        "assign_rows": (x, [ONE]),
        "batches": (data, 1),
        "begin_push": ([(ONE, x)], None),
        "evaluate": (lambda batch: 0.0, data),
        "fetch": ([x],),
        "fetch_rows": (x, 0, 1),
        "is_latest": (EpochReport(queue="batches-1", epoch=1),),
        "load_best": (),
        "look_up": (x, np.zeros(1, np.int64)),
        "minimize": (lambda batch: ops.sum(x), data),
        "mirror": ([x], print),
        "note_loss": (0.0, [x]),
        "push": (ps.GradientDescent(1.0), [(ONE, x)]),
        "register": ([x],),
        "rows": (x, [0]),
        "save": ("x.safetensors",),
        "save_best": (0.0,),
        "set_hyperparameters": (x,),
        "slot": (x, "m"),
        "step_outside": ({}, None),
    }
    methods = {name for name, member in vars(Session).items() if inspect.isfunction(member) and name[0] != "_"}
    assert set(arguments) < methods
    calls = {name: partial(getattr(session, name), *arguments.get(name, ())) for name in methods - {"open", "close"}}
    calls |= {"generation": session.generation().__enter__, "workers": lambda: session.workers}
    for call in calls.values():
        with pytest.raises(ConfigurationError, match="this session is not open"):
            call()


def test_new_hyperparameters_count_from_the_next_push_on_for_all_workers(open_session):
    """Momentum by hand: rates 1, 1, then 0.5 and momentum 0, and a schedule for y alone; for both workers."""
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer = ps.Momentum(1.0, momentum=0.5)
    with open_session("w0") as session:
        for _ in range(2):
            optimizer.apply_gradients([(ONE, x), (ONE, y)])
        session.set_hyperparameters(optimizer, learning_rate=0.5)
        session.set_hyperparameters(optimizer, momentum=0.0)
        optimizer.apply_gradients([(ONE, x), (ONE, y)])
        assert (x.value, y.value, session.slot(x, "momentum")) == ([-1 - 1.5 - 0.5], [-3], [1])
        session.set_hyperparameters([y], learning_rate=schedules.ExponentialDecay(16.0, 1, 0.5))
        optimizer.apply_gradients([(ONE, x), (ONE, y)])
        assert (x.value, y.value) == ([-3.5], [-3 - 16 * 0.5**3])
        with ps.collection(), open_session("w1"):
            same = ps.Variable([0.0], name="x")
            optimizer.apply_gradients([(ONE, same)])
            assert same.value == [-4]


def test_a_second_change_goes_on_from_the_first(open_session):
    """Both together are what the variable follows, and may be what only both together can be."""
    x, optimizer = ps.Variable([0.0], name="x"), ps.Adagrad(1.0)
    with open_session("w0") as session:
        optimizer.apply_gradients([(0 * ONE, x)])
        session.set_hyperparameters(optimizer, epsilon=0.5)
        session.set_hyperparameters(optimizer, initial_accumulator=0.0)  # without an epsilon there would be 0 / 0
        session.set_hyperparameters(ps.Adagrad(1.0, 0.0, 0.5), learning_rate=0.0)
        optimizer.apply_gradients([(ONE, x)])
        assert x.value == [0]


@pytest.mark.parametrize(
    ("target", "changes", "error", "message"),
    [
        ("adam", {"rate": 1.0}, ConfigurationError, r"Adam, the optimizer of x, has no hyperparameter rate.*beta1"),
        ("adam", {}, ConfigurationError, "Adam, the optimizer of x, was given nothing to change: choose"),
        ("adam", {"beta1": 2.0}, ValueError, "beta1"),
        ("adam", {"amsgrad": True}, ConfigurationError, "keeps the slots m, v and with amsgrad=True would keep m, v, "),
        ("sgd", {"learning_rate": 1.0}, ConfigurationError, "no variable was trained with GradientDescent"),
        ("y", {"learning_rate": 1.0}, ConfigurationError, "y: an optimizer's hyperparameters are changed for variab"),
        ("none", {"learning_rate": 1.0}, ConfigurationError, "no variable: an optimizer's"),
    ],
)
def test_invalid_hyperparameters_change_nothing(open_session, status, target, changes, error, message):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    adam = ps.Adam(0.1)
    targets = {"adam": adam, "sgd": SGD, "y": [x, y], "none": []}
    with open_session("w0") as session:
        adam.minimize(ops.sum(x), x)
        before = status(session).variables
        with pytest.raises(error, match=message):
            session.set_hyperparameters(targets[target], **changes)
        assert status(session).variables == before


SEED = 19480701
UNIFORM = ps.RowUniform(-1, 1, seed=SEED)
SGD = ps.GradientDescent(1.0)


@pytest.mark.parametrize("optimizer", [ps.GradientDescent(0.1), ps.Adagrad(0.1), ps.Adam(0.01)], ids=lambda o: o.kind)
def test_a_table_trains_as_a_variable_of_the_same_rows_does_to_the_last_bit(open_session, optimizer):
    random, initial = np.random.default_rng(SEED), rows_of(UNIFORM, np.arange(40), (3,))
    table, variable = ps.Table((40, 3), UNIFORM, name="table"), ps.Variable(initial, name="variable")
    weights = ps.Variable(random.normal(size=3).astype(np.float32), name="weights")

    def loss(rows, ids, target):
        return ops.mean_squared_error(ops.sum(ops.embedding(rows, ids) * weights, axis=-1), target)

    with open_session("w0") as session:
        for _ in range(5):
            ids, target = random.integers(0, 40, (6, 5)), random.normal(size=(6, 5)).astype(np.float32)
            optimizer.minimize(loss(table, ids, target) + loss(variable, ids, target))
        np.testing.assert_array_equal(session.rows(table, np.arange(40)), variable.value)
        assert np.any(variable.value != initial)
        assert (session.global_step, session.staleness, table.version) == (5, 0, 4)


@pytest.mark.parametrize("reads", ["rows", "no_grad", "decay", "lookups"])
def test_staleness_of_a_table_counts_from_the_models_first_lookup(open_session, reads):
    """Another worker pushes twice after the lookup that counts; then the table is read again in one way or another."""
    table = ps.Table((9, 2), UNIFORM, name="table")
    with open_session("w0") as session:
        SGD.minimize(ops.sum(ops.embedding(table, [1])))
        for version in (1, 4):  # the second time around shows that the next lookup begins anew
            loss = ops.sum(ops.embedding(table, [8]))
            for _ in range(2):
                with ps.collection(), open_session("w1"):
                    SGD.minimize(ops.sum(ops.embedding(ps.Table((9, 2), UNIFORM, name="table"), [0])))
                with ps.no_grad() if reads == "no_grad" else nullcontext():
                    again = ops.embedding(table, [1]) if reads in ("no_grad", "lookups") else session.rows(table, [1])
                loss = loss + ops.sum(again) if reads == "lookups" else loss
            pairs = SGD.compute_gradients(loss)
            if reads == "decay":
                before = session.rows(table, [8])
                pairs = ps.add_decayed_weights(pairs, 0.5)
                np.testing.assert_allclose(pairs[0][0].values, 1 + 0.5 * before, rtol=1e-6)
            assert table.version == version
            SGD.apply_gradients(pairs)
            assert (session.staleness, table.version) == (2, version)


@pytest.mark.slow
def test_in_one_process_there_is_no_second_copy_of_the_table():
    table = ps.Table((1_000_000, 16), ps.RowConstant(1), name="table")
    tracemalloc.start()
    try:
        with Session(WorkerConfig(name="w0", timeout=30), EmbeddedTransport()) as session:
            ps.Adagrad(0.1).minimize(ops.sum(ops.embedding(table, [5, 999_999])))
            session.pull()
            assert session.rows(table, [4])[0, 0] == 1
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2 <= peak / (1_000_000 * 16 * 4) < 2.2  # the table and its accumulator


@pytest.mark.slow
def test_of_a_large_table_only_rows_pass_the_transport():
    transport, random = ShardsInProcess(1), np.random.default_rng(SEED)
    table, bias = ps.Table((1_000_000, 16), UNIFORM, name="table"), ps.Variable(np.zeros(16), name="bias")
    with Session(WorkerConfig(name="w0"), transport) as session:
        for _ in range(2):
            rows = ops.embedding(table, random.integers(0, 10**6, 500))
            ps.Adagrad(0.1).minimize(ops.sum(ops.square(rows + bias)))
        session.pull()
    sizes = [tensor_bytes(message) for _, message in (*transport.sent, *transport.answers)]
    assert max(sizes) <= 500 * (16 * 4 + 8) + bias.value.nbytes


def test_calls_that_need_the_whole_table_are_refused_and_change_nothing(open_session):
    table, other = ps.Table((9, 2), UNIFORM, name="table"), ps.Variable(np.zeros(2), name="other")
    with open_session("w0") as session:
        for use in (
            lambda: session.assign(table, np.zeros((9, 2))),
            lambda: session.assign_all({other: 1.0, table: 1.0}, add=True),
            lambda: session.pull([other, table]),
            lambda: SGD.apply_gradients([(np.ones(2), other), (np.ones((9, 2), np.float32), table)]),
        ):
            with pytest.raises(TypeError, match=r"'table' is a Table.* as a whole: see rows by session\.rows"):
                use()
        wrong = ps.IndexedSlices(np.ones((1, 2), np.float32), np.array([0]), (8, 2))
        with pytest.raises(ShapeMismatch, match="'table'"):
            SGD.apply_gradients([(np.ones(2), other), (wrong, table)])
        session.pull()
        assert other.value.tolist() == [0, 0]
        np.testing.assert_array_equal(session.rows(table, range(9)), rows_of(UNIFORM, np.arange(9), (2,)))


def test_a_table_larger_than_the_servers_memory_is_refused_and_training_goes_on():
    with ServerThread(ServerConfig(memory_limit=1 << 20)) as server, ps.session(server.address, "w0") as session:
        with pytest.raises(TooLarge, match=r"huge.*may hold 524,288"):
            ps.Table((10**9, 64), UNIFORM, name="huge")
        small = ps.Table((100, 2), UNIFORM, name="small")
        assert ps.global_variables() == [small]
        SGD.minimize(ops.sum(ops.embedding(small, [3])))
        assert (small.version, session.global_step) == (0, 1)


@pytest.mark.parametrize(("workers", "level"), [(1, "WARNING"), (2, "INFO")])
def test_a_worker_that_finds_nothing_left_warns_unless_others_have_done_it(caplog, workers, level):
    caplog.set_level("INFO", "psworker")
    with serve() as servers:
        for name in ("w0", "w1"):
            with Session(WorkerConfig(tuple(servers.addresses), name, 30, resume=True, workers=workers)) as session:
                left = list(session.batches({"n": np.arange(4)}, 2))
    [found] = [one for one in caplog.records if "no examples are left in batches-1: all are done" in one.message]
    assert (left, found.levelname) == ([], level)
