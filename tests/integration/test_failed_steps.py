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


INVALID = {
    "float64": (np.ones(4), ShapeMismatch, "gradient for 'y' is float64.*must keep shape and dtype"),
    "shape": (np.ones(3, np.float32), ShapeMismatch, r"float32\[3\], the variable is float32\[4\]"),
    "nan": (np.float32([1, 1, np.nan, 1]), NotFinite, "'y' has 1 of 4 elements that are NaN.*nothing was sent"),
    "rows": (ps.IndexedSlices(np.float32([np.inf]), np.array([2]), (4,)), NotFinite, "'y' has 1 of 1 elements"),
}


@pytest.mark.parametrize(("bad", "error", "message"), INVALID.values(), ids=INVALID)
def test_an_invalid_gradient_leaves_both_shards_as_they_were(two_shards, bad, error, message):
    x, y = ps.global_variables()
    optimizer = ps.GradientDescent(0.5)
    with pytest.raises(error, match=message):
        optimizer.apply_gradients([(np.ones(8, np.float32), x), (bad, y)])
    assert [two_shards.status(shard).global_step for shard in range(2)] == [0, 0]
    optimizer.apply_gradients([(np.ones(8, np.float32), x), (np.ones(4, np.float32), y)])
    assert [two_shards.status(shard).global_step for shard in range(2)] == [1, 1]
    np.testing.assert_array_equal([*x.value, *y.value], [0.5] * 12)


def worker(transport, **strategy):
    """A session of local steps under an outer optimizer that takes differences as they are; it tries calls once."""
    config = WorkerConfig(name="w0", timeout=0.01, strategy=StrategyConfig(**strategy))
    return Session(config, transport, ps.GradientDescent(1.0))


def fail():
    raise InvalidMessage("disturbed")


def a_push(shard, message):
    return isinstance(message, Push)


@pytest.mark.parametrize("fault", ["refused", "answer lost", "error while it is under way"])
def test_a_round_of_local_steps_whose_push_fails_is_never_sent_again(fault, monkeypatch):
    """Rounds of two steps by 1 each; the second fails, in which y was trained too."""
    transport = ShardsInProcess(1)
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer, one = ps.GradientDescent(1.0), np.float32([1])
    known, refused = fault == "error while it is under way", fault == "refused"
    with worker(transport, local_steps=2) as session:
        for gradients in ([(one, x)], [(one, x)], [(one, x), (one, y)]):
            optimizer.apply_gradients(gradients)
        faults = {"refused": (transport, "refuse", a_push), "answer lost": (transport, "lose", a_push)}
        with monkeypatch.context() as patch:
            patch.setattr(*faults.get(fault, (session._replica, "prepare", fail)))
            with pytest.raises(TimedOut if fault == "answer lost" else InvalidMessage):
                optimizer.apply_gradients([(one, x)])
        assert (x.value, y.value) == ([-4 if known else -2], [-1 if known else 0])
        for _ in range(2):
            optimizer.apply_gradients([(one, x)])
        assert (x.value, y.value) == ([-4 if refused else -6], [0 if refused else -1])
        assert (session.global_step, session.staleness) == (2 if refused else 3, int(fault == "answer lost"))


def failed(transport):
    """The `failed` field of each `Leave` of the worker."""
    return [message.failed for _, message in transport.messages(Leave)]


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt, SystemExit])
def test_a_worker_leaves_as_failed_when_an_exception_ends_its_session(error):
    transport = ShardsInProcess(1)
    with pytest.raises(error) if error else nullcontext(), worker(transport):
        if error:
            raise error
    assert failed(transport) == [error is not None]


def test_a_worker_whose_last_push_is_refused_has_failed():
    transport = ShardsInProcess(1)
    x = ps.Variable([0.0], name="x")
    with pytest.raises(InvalidMessage, match="not this one"), worker(transport, push_every=2):  # noqa: PT012
        ps.GradientDescent(1.0).minimize(ops.sum(x))
        transport.refuse = a_push
    assert failed(transport) == [True]


def test_a_worker_that_cannot_begin_has_failed():
    transport = ShardsInProcess(1)
    ps.Table((4, 2), ps.RowConstant(0.0), name="table")
    with pytest.raises(ps.errors.ConfigurationError, match="Table"), worker(transport, local_steps=2):
        pass
    assert failed(transport) == [True]
