"""Steps that fail, here or on one of several shards: nothing is half done, and the work goes on."""

from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch, TimedOut
from pswire.messages import Leave, Push
from psworker import ops
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess


@pytest.fixture
def two_shards():
    """The transport to two shards, and an open session."""
    ps.Variable(ops.ones(8), name="x")
    ps.Variable(ops.ones(4), name="y")
    transport = ShardsInProcess(2)
    with Session(WorkerConfig(name="w0", timeout=30), transport):
        yield transport


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
def test_an_invalid_gradient_leaves_both_shards_as_they_were(two_shards, bad, error, message):
    x, y = ps.global_variables()
    optimizer = ps.GradientDescent(0.5)
    with pytest.raises(error, match=message):
        optimizer.apply_gradients([(np.ones(8, np.float32), x), (bad, y)])
    assert [two_shards.status(shard).global_step for shard in range(2)] == [0, 0]
    optimizer.apply_gradients([(np.ones(8, np.float32), x), (np.ones(4, np.float32), y)])
    assert [two_shards.status(shard).global_step for shard in range(2)] == [1, 1]
    np.testing.assert_array_equal([*x.value, *y.value], [0.5] * 12)


def test_a_worker_that_fails_in_on_epoch_gives_its_examples_back(open_session):
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


def test_a_value_is_assigned_without_losing_its_fraction(open_session):
    count = ps.Variable(np.int64(3), name="count")
    x = ps.Variable([0.5], name="x")
    with open_session("w0") as session:
        with pytest.raises(TypeError, match="Cannot cast"):
            session.assign(count, 1.7)
        session.assign(x, [2])
        assert (int(count.value), float(x.value[0])) == (3, 2)


def worker(transport, **strategy):
    """A session of local steps under an outer optimizer that takes differences as they are; it tries calls once."""
    config = WorkerConfig(name="w0", timeout=0.01, strategy=StrategyConfig(**strategy))
    return Session(config, transport, ps.GradientDescent(1.0))


def fail():
    raise InvalidMessage("disturbed")


def a_push(shard, message):
    return isinstance(message, Push)


def told_failed(transport):
    """The `failed` field of each `Leave` of the worker."""
    return [message.failed for _, message in transport.messages(Leave)]


@pytest.mark.parametrize("fault", ["refused", "answer lost", "error while it is under way"])
def test_a_round_of_local_steps_whose_push_fails_is_never_sent_again(fault):
    """Rounds of two steps by 1 each; the second fails, in which y was trained too."""
    transport = ShardsInProcess(1)
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer, one = ps.GradientDescent(1.0), np.float32([1])
    with worker(transport, local_steps=2) as session:
        for _ in range(2):
            optimizer.apply_gradients([(one, x)])
        optimizer.apply_gradients([(one, x), (one, y)])
        if fault == "error while it is under way":
            session._replica.prepare, prepare = fail, session._replica.prepare
        refuse = transport.refuse
        transport.refuse = a_push if fault == "refused" else refuse
        transport.lose = a_push if fault == "answer lost" else refuse
        with pytest.raises(InvalidMessage if fault != "answer lost" else TimedOut):
            optimizer.apply_gradients([(one, x)])
        if fault == "error while it is under way":
            session._replica.prepare = prepare
        transport.refuse = transport.lose = refuse
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
def test_a_worker_leaves_as_failed_when_an_exception_ends_its_session(error, failed):
    transport = ShardsInProcess(1)
    with pytest.raises(type(error)) if error else nullcontext(), worker(transport):
        if error:
            raise error
    assert told_failed(transport) == [failed]


def test_a_worker_whose_last_push_is_refused_has_failed():
    transport = ShardsInProcess(1)
    x = ps.Variable([0.0], name="x")
    session = worker(transport, push_every=2)
    session.__enter__()
    ps.GradientDescent(1.0).minimize(ops.sum(x))
    transport.refuse = a_push
    with pytest.raises(InvalidMessage, match="not this one"):
        session.__exit__(None, None, None)
    assert told_failed(transport) == [True]


def test_a_worker_that_cannot_begin_has_failed():
    transport = ShardsInProcess(1)
    ps.Table((4, 2), ps.RowConstant(0.0), name="table")
    with pytest.raises(ps.errors.ConfigurationError, match="Table"), worker(transport, local_steps=2):
        pass
    assert told_failed(transport) == [True]
