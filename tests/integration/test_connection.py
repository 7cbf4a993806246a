"""The plain client: arrays by name, with the values of a session with variables, and clear errors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, ConfigurationError, NotFinite, ShapeMismatch, Unavailable
from psworker import ops
from psworker.client import retry
from psworker.config import WorkerConfig
from psworker.model.collection import Collection
from psworker.sessions.connection import Connection
from psworker.sessions.session import Session

random = np.random.default_rng(0)
X = random.normal(size=(40, 4)).astype("f")
Y = random.normal(size=(40, 3)).astype("f")
W, B = random.normal(size=(4, 3)).astype("f"), np.zeros(3, "f")


def gradients(weights, x, y):
    error = (x @ weights["W"] + weights["b"] - y) * np.float32(2 / y.size)
    return {"W": x.T @ error, "b": error.sum(axis=0)}


@pytest.fixture
def connect(open_session):
    """As `ps.connect`, all to the same shards."""
    return lambda name="w0", **options: Connection(open_session(name, **options), Collection())


class FromDlpack:
    """An array of another library, of which only this protocol is known."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class FromArray:
    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)


@pytest.mark.parametrize("wrap", [np.asarray, FromDlpack, FromArray, lambda array: array.tolist()])
def test_steps_have_the_values_of_a_float64_reference(connect, wrap):
    expected = {"W": W.astype(float), "b": B.astype(float)}
    with connect() as model:
        weights = model.declare({"W": W, "b": B}, ps.Momentum(0.1, 0.9))
        momentum = {name: np.zeros_like(value) for name, value in expected.items()}
        for _ in range(20):
            weights = model.push({name: wrap(each) for name, each in gradients(weights, X, Y).items()}, loss=0.5)
            for name, each in gradients(expected, X.astype(float), Y.astype(float)).items():
                momentum[name] = 0.9 * momentum[name] + each
                expected[name] = expected[name] - 0.1 * momentum[name]
        assert (model.report.outcome, model.report.step, model.session.global_step) == ("applied", 20, 20)
        assert set(weights) == set(model.values) == {"W", "b"}
        for name, value in model.pull().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
            assert not value.flags.writeable


def test_workers_with_variables_and_with_arrays_train_one_model(open_session, connect):
    with ps.collection(), open_session("w0") as session:
        table, weight = ps.Table((100, 3), ps.RowConstant(1.0), name="rows"), ps.Variable(W, name="W")
        with connect("w1") as model:
            model.declare({"W": W}, ps.GradientDescent(0.5))
            model.declare_table("rows", (100, 3), ps.RowConstant(1.0), ps.GradientDescent(0.5))
            ps.GradientDescent(0.5).minimize(ops.sum(weight) + ops.sum(ops.embedding(table, [3, 3])))
            assert np.array_equal(model.pull()["W"], W - np.float32(0.5))
            assert np.array_equal(model.rows("rows", [[3], [4]]), [[[0, 0, 0]], [[1, 1, 1]]])
            model.push({"rows": (np.array([4, 4, 5]), np.ones((3, 3), "f"))})
            assert model.report.staleness == 0
        assert np.array_equal(session.rows(table, [3, 4, 5]), np.repeat([[0.0], [0.0], [0.5]], 3, axis=1))
        with pytest.raises(AlreadyRegistered, match="W"), connect("w2") as other:
            other.declare({"W": np.zeros(5, "f")})


def test_each_declaration_has_an_optimizer_of_its_own_and_one_push_for_all(connect):
    clipped = ps.GradientDescent(1.0).with_transform(lambda pairs: ps.clip_by_global_norm(pairs, 1.0))
    groups = ps.ParameterGroups([("fast/*", ps.GradientDescent(2.0)), ("*", ps.GradientDescent(0.25))])
    with connect() as model:
        model.declare({"clipped": np.zeros(2, "f")}, clipped)
        model.declare({"fast/v": np.zeros(2, "f"), "slow": np.zeros(2, "f")}, groups)
        values = model.push({name: np.full(2, 4, "f") for name in ("slow", "clipped", "fast/v")})
        assert model.session.global_step == 1
        assert np.array_equal(values["fast/v"], [-8, -8])
        assert np.array_equal(values["slow"], [-1, -1])
        np.testing.assert_allclose(values["clipped"], -np.sqrt(0.5), rtol=1e-6)


def test_data_losses_and_assignments_are_those_of_the_session(connect):
    reports, losses = [], []
    with connect() as model:
        weights = model.declare({"W": W, "b": B}, ps.GradientDescent(0.1))
        for batch in model.session.batches({"x": X, "y": Y}, 10, epochs=2, on_epoch=reports.append):
            losses.append(float(np.mean(np.square(batch.x @ weights["W"] + weights["b"] - batch.y))))
            weights = model.push(gradients(weights, batch.x, batch.y), losses[-1])
        assert np.array_equal(model.assign({"b": [1, 2, 3]})["b"], [1, 2, 3])
    assert [one.cost for one in reports] == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:])], rel=1e-6)


def test_local_steps_push_the_difference_of_a_round(connect):
    with connect(local_steps=3, outer=ps.GradientDescent(1.0)) as model:
        weights = model.declare({"W": np.zeros(2, "f")})
        for step in range(1, 7):
            weights = model.local_step({"W": weights["W"] + np.float32(step)}, loss=1.0)
            assert np.array_equal(weights["W"], np.full(2, step * (step + 1) / 2))
        assert model.session.global_step == 2
        assert np.array_equal(model.pull()["W"], [21, 21])


def test_wrong_use_is_refused_and_nothing_is_applied(connect):
    with connect() as model:
        model.declare({"W": W, "b": B}, ps.Adam())
        model.declare({"constant": B})
        with pytest.raises(ConfigurationError, match="'V' was not declared; there are: W, b, constant"):
            model.push({"V": W})
        with pytest.raises(ConfigurationError, match="constant: declared without an optimizer"):
            model.push({"W": W, "constant": B})
        with pytest.raises(ShapeMismatch, match="gradient for 'W'"):
            model.push({"W": B})
        with pytest.raises(NotFinite, match="W"):
            model.push({"W": W * np.nan, "b": B})
        with pytest.raises(ConfigurationError, match="already a variable 'W'"):
            model.declare({"W": W})
        with pytest.raises(ConfigurationError, match="for sessions with local steps"):
            model.local_step({"W": W})
        with pytest.raises(IndexError, match="rows: ids"):
            model.rows("W", [4])
        assert np.array_equal(model.pull()["W"], W)
        assert model.session.global_step == 0
    with pytest.raises(ConfigurationError, match="not open"):
        model.push({"W": W})


def test_a_declaration_that_fails_leaves_its_names_free(connect):
    with connect("w0") as first, connect("w1") as second:
        first.declare({"a": W, "b": B}, ps.Adam())
        with pytest.raises(AlreadyRegistered, match="b"):
            second.declare({"a": W, "b": W})
        second.declare({"a": W, "b": B})
        assert set(second.values) == {"a", "b"}


def test_the_best_model_is_that_of_the_connection(connect, tmp_path):
    with connect(checkpoint_dir=tmp_path) as model:
        model.declare({"W": W}, ps.GradientDescent(1.0))
        assert model.session.save_best(1.0)
        model.push({"W": np.ones_like(W)})
        model.session.load_best()
        assert np.array_equal(model.values["W"], W)


def test_connections_in_threads_are_workers_beside_each_other(connect):
    def work(name):
        with connect(name) as model:
            model.declare({"W": np.zeros(2, "f")}, ps.GradientDescent(1.0))
            for _ in range(10):
                model.push({"W": np.ones(2, "f")})

    with connect("first") as model, ThreadPoolExecutor(3) as pool:
        model.declare({"W": np.zeros(2, "f")}, ps.GradientDescent(1.0))
        for _ in pool.map(work, ["w0", "w1", "w2"], timeout=60):
            pass
        assert np.array_equal(model.pull()["W"], [-30, -30])


def test_a_worker_that_finds_no_server_says_where_it_looks_long_before_it_gives_up(caplog, monkeypatch):
    monkeypatch.setattr(retry, "LOG_BEFORE_JOIN", 0.0)
    with pytest.raises(Unavailable), Session(WorkerConfig(("127.0.0.1:1",), "w0", 0.1)):
        pass
    assert caplog.messages[0].startswith("w0 waits for shard 0, for 0 s: no server answers at 127.0.0.1:1: ")
