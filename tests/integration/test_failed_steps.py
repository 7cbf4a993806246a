"""Steps that fail, here or on one of several shards: nothing is half done, and the work goes on."""

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.server import ServerThread
from pswire.errors import NotFinite, ShapeMismatch
from pswire.messages import Status
from psworker import ops
from psworker.config import WorkerConfig
from psworker.session import Session


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


@pytest.fixture
def two_shards():
    """A session with two servers."""
    servers = [ServerThread(ServerConfig(shard=shard, shards=2)) for shard in range(2)]
    with servers[0] as first, servers[1] as second:
        ps.Variable(ops.ones(8), name="x")
        ps.Variable(ops.ones(4), name="y")
        with Session(WorkerConfig((first.address, second.address), "w0", timeout=30)) as session:
            yield session


def steps_of(session):
    return [session._client._transport.call(shard, Status(), 10).result().global_step for shard in range(2)]


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.ones(4, np.complex64), ShapeMismatch, "gradient for 'y' is complex64.*must keep its shape and dtype"),
        (np.ones(4), ShapeMismatch, "gradient for 'y' is float64.*must keep its shape and dtype"),
        (np.ones(3, np.float32), ShapeMismatch, r"float32\[3\], the variable is float32\[4\]"),
        (np.float32([1, 1, np.nan, 1]), NotFinite, "gradient for 'y' has 1 elements that are NaN.*nothing was sent"),
        (ps.IndexedSlices(np.float32([np.inf]), np.array([2]), (4,)), NotFinite, "'y' has 1 elements"),
    ],
    ids=["complex", "float64", "shape", "nan", "rows"],
)
def test_a_gradient_that_cannot_be_leaves_both_shards_as_they_were(two_shards, bad, error, message):
    x, y = ps.global_variables()
    optimizer = ps.GradientDescent(0.5)
    with pytest.raises(error, match=message):
        optimizer.apply_gradients([(np.ones(8, np.float32), x), (bad, y)])
    assert steps_of(two_shards) == [0, 0]
    optimizer.apply_gradients([(np.ones(8, np.float32), x), (np.ones(4, np.float32), y)])
    assert steps_of(two_shards) == [1, 1]
    np.testing.assert_array_equal([*x.value, *y.value], [0.5] * 12)


def test_rows_that_come_several_times_are_sent_once_and_their_sum_is_checked(open_session):
    table = ps.Variable(ops.ones((2, 1)), name="table")
    huge = np.float32([[3e38], [3e38], [1]])
    with open_session("w0"), pytest.raises(NotFinite, match="'table'"), np.errstate(over="ignore"):
        ps.GradientDescent(1.0).apply_gradients([(ps.IndexedSlices(huge, np.array([1, 1, 0]), (2, 1)), table)])
    np.testing.assert_array_equal(table.value, [[1], [1]])


def test_who_fails_when_an_epoch_is_reported_gives_its_examples_back(open_session):
    def boom(report):
        raise RuntimeError("boom")

    data = ps.Dataset({"x": np.arange(320)})
    with open_session("w0") as first:
        with pytest.raises(RuntimeError, match="boom"):
            for _ in first.batches(data, 10, epochs=2, on_epoch=boom):
                pass
        with ps.collection(), open_session("w1") as second:
            seen = [batch.x for batch in second.batches(data, 10, epochs=2)]
    assert sorted(np.concatenate(seen)) == list(range(320))


def test_evaluation_is_with_what_others_have_pushed(open_session):
    x = ps.Variable([1.0], name="x")
    data = ps.Dataset({"x": np.arange(3)})
    with open_session("w0") as first:
        with ps.collection():
            other = ps.Variable([9.0], name="x")
            with open_session("w1"):
                ps.GradientDescent(1.0).minimize(ops.sum(other))
        assert first.evaluate(lambda batch: x[0], data) == 0


def test_of_one_worker_nothing_is_stale_its_averages_included(open_session):
    x = ps.Variable([1.0], name="x")
    norm = ps.nn.BatchNorm(2, name="norm")
    with open_session("w0") as session:
        for _ in range(3):
            ps.GradientDescent(0.1).minimize(ops.sum(norm(np.float32([[1, 2], [3, 5]]), training=True)) + ops.sum(x))
            assert session.staleness == 0
        assert norm.moving_mean.version == 3


def test_a_value_is_assigned_without_losing_its_fraction(open_session):
    count = ps.Variable(np.int64(3), name="count")
    x = ps.Variable([0.5], name="x")
    with open_session("w0") as session:
        with pytest.raises(TypeError, match="Cannot cast"):
            session.assign(count, 1.7)
        session.assign(x, [2])
        assert (int(count.value), float(x.value[0])) == (3, 2)
