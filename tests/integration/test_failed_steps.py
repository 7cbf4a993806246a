"""Steps that fail, here or on one of several shards: nothing is half done, and the work goes on."""

from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch
from pswire.messages import Leave, Push, Status
from psworker import ops
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from psworker.transport import Future
from psworker.transport.embedded import EmbeddedTransport


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
        (np.ones(4, np.complex64), ShapeMismatch, "gradient for 'y' is complex64.*must keep shape and dtype"),
        (np.ones(4), ShapeMismatch, "gradient for 'y' is float64.*must keep shape and dtype"),
        (np.ones(3, np.float32), ShapeMismatch, r"float32\[3\], the variable is float32\[4\]"),
        (
            np.float32([1, 1, np.nan, 1]),
            NotFinite,
            "gradient for 'y' has 1 of 4 elements that are NaN.*nothing was sent",
        ),
        (ps.IndexedSlices(np.float32([np.inf]), np.array([2]), (4,)), NotFinite, "'y' has 1 of 1 elements"),
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


class Disturbed(EmbeddedTransport):
    """A shard that keeps what is said to it, and refuses pushes, or loses their answers, when told to."""

    def __init__(self):
        super().__init__()
        self.said, self.refuse, self.lose = [], False, False

    def call(self, shard, message, timeout):
        self.said.append(message)
        if isinstance(message, Push) and self.refuse:
            return Future(self._fail)
        call = super().call(shard, message, timeout)
        return Future(self._fail) if isinstance(message, Push) and self.lose else call

    def _fail(self):
        raise InvalidMessage("disturbed")

    def worker(self, **strategy):
        """A session of local steps under an outer optimizer that takes differences as they are."""
        config = WorkerConfig(name="w0", timeout=30, strategy=StrategyConfig(**strategy))
        return Session(config, self, ps.GradientDescent(1.0))


@pytest.mark.parametrize("fault", ["refused", "answer lost", "error while it is under way"])
def test_a_round_of_local_steps_whose_push_fails_is_never_sent_again(fault):
    """Rounds of two steps by 1 each; the second fails, in which y was trained too."""
    transport = Disturbed()
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer, one = ps.GradientDescent(1.0), np.float32([1])
    with transport.worker(local_steps=2) as session:
        for _ in range(2):
            optimizer.apply_gradients([(one, x)])
        optimizer.apply_gradients([(one, x), (one, y)])
        if fault == "error while it is under way":
            session._strategy.prepare, prepare = transport._fail, session._strategy.prepare
        transport.refuse, transport.lose = fault == "refused", fault == "answer lost"
        with pytest.raises(InvalidMessage, match="disturbed"):
            optimizer.apply_gradients([(one, x)])
        if fault == "error while it is under way":
            session._strategy.prepare = prepare
        transport.refuse = transport.lose = False
        known = fault == "error while it is under way"
        assert (x.value, y.value) == ([-4 if known else -2], [-1 if known else 0])
        for _ in range(2):
            optimizer.apply_gradients([(one, x)])
        refused = fault == "refused"
        assert (x.value, y.value) == ([-4 if refused else -6], [0 if refused else -1])
        assert (session.global_step, session.staleness) == (2 if refused else 3, int(fault == "answer lost"))


@pytest.mark.parametrize(
    ("error", "failed"), [(None, False), (KeyError(), True), (KeyboardInterrupt(), True), (SystemExit(), True)]
)
def test_a_worker_says_whether_it_came_to_its_end(error, failed):
    transport = Disturbed()
    with pytest.raises(type(error)) if error else nullcontext(), transport.worker():
        if error:
            raise error
    assert [message.failed for message in transport.said if isinstance(message, Leave)] == [failed]


def test_a_worker_whose_last_push_is_refused_has_failed():
    transport = Disturbed()
    x = ps.Variable([0.0], name="x")
    session = transport.worker(push_every=2)
    session.__enter__()
    ps.GradientDescent(1.0).minimize(ops.sum(x))
    transport.refuse = True
    with pytest.raises(InvalidMessage, match="disturbed"):
        session.__exit__(None, None, None)
    assert [message.failed for message in transport.said if isinstance(message, Leave)] == [True]


def test_a_worker_that_cannot_begin_has_failed():
    transport = Disturbed()
    ps.Table((4, 2), ps.RowConstant(0.0), name="table")
    with pytest.raises(ps.errors.ConfigurationError, match="Table"), transport.worker(local_steps=2):
        pass
    assert [message.failed for message in transport.said if isinstance(message, Leave)] == [True]
