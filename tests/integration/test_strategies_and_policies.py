"""Strategies with servers that wait for other workers, or drop stale pushes."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.specs.consistency import parse_consistency, parse_staleness
from psworker import ops
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess

BOUND = 30.0  # seconds that no wait comes near to


def server_with(consistency="async", staleness="none"):
    """A function that makes sessions with a shard of a policy."""
    transport = ShardsInProcess(1, parse_consistency(consistency), parse_staleness(staleness), lease=0.3)
    return lambda worker, **strategy: Session(
        WorkerConfig(name=worker, timeout=10, strategy=StrategyConfig(**strategy)), transport
    )


def test_a_push_that_is_dropped_is_counted_and_brings_fresh_weights(caplog):
    open_session = server_with(staleness="drop:0")
    x = ps.Variable([0.0], name="x")
    optimizer = ps.GradientDescent(1.0)
    caplog.set_level(logging.INFO, "psworker")
    with open_session("w0") as session:
        for number in range(1, 3):
            pairs = optimizer.compute_gradients(ops.sum(x))
            with ps.collection():
                other = ps.Variable([0.0], name="x")
                with open_session("w1"):
                    optimizer.minimize(ops.sum(other))
            optimizer.apply_gradients(pairs)
            assert (session.dropped, float(x.value[0])) == (number, -number)
    told = [(record.levelname, record.message) for record in caplog.records if "dropped" in record.message]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert all("staleness" in message for _, message in told)


def test_a_worker_without_examples_is_not_waited_for():
    """With bounded:0 each waits for the other, but for one whose loop has ended or was left."""
    open_session, data, optimizer = server_with("bounded:0"), ps.Dataset({"x": np.arange(32)}), ps.GradientDescent(1.0)
    idle, done = threading.Event(), threading.Event()

    def work():
        y = ps.Variable([0.0], name="x")
        with open_session("w1") as session:
            for size in (32, 8):
                for _ in session.batches(data, size):
                    optimizer.apply_gradients([(np.float32([1]), y)])
                    if size == 8:
                        break
            idle.set()
            assert done.wait(BOUND)

    with ThreadPoolExecutor(1) as thread:
        worker = thread.submit(work)
        assert idle.wait(BOUND)
        x = ps.Variable([0.0], name="x")
        with open_session("w0"):
            for _ in range(3):
                optimizer.apply_gradients([(np.float32([1]), x)])
        done.set()
        worker.result()
    assert x.value == [-5]


@pytest.mark.parametrize(
    "strategy", [{"overlap": True}, {"pull_every": 2}, {"push_every": 3, "pull_every": 2}], ids=str
)
def test_a_strategy_whose_pushes_would_be_dropped_is_refused_at_once(strategy):
    open_session = server_with("sync:1")
    with pytest.raises(ConfigurationError, match=r"--consistency sync:1, and drop .* let pull_every divide push_every"):
        open_session("w0", **strategy).__enter__()
    x = ps.Variable([0.0], name="x")
    with open_session("w0", push_every=4, pull_every=2) as session:
        for _ in range(8):
            ps.GradientDescent(1.0).minimize(ops.sum(x))
        assert (x.value, session.dropped, session.global_step) == ([-8], 0, 2)


#: push_every, pull_every, overlap, and how many of its own pushes a worker's gradients have missed, counted by hand.
#: push_every, pull_every, overlap, and how many of its own pushes a worker's gradients have missed, counted by hand.
OWN_STALENESS = [
    *[(1, 1, False, 0), (1, 4, False, 3), (4, 2, False, 0), (3, 3, False, 0), (2, 3, False, 1), (4, 6, False, 1)],
    *[(2, 5, False, 2), (1, 4, True, 4), (4, 1, True, 1), (3, 3, True, 1), (2, 4, True, 2), (2, 5, True, 3)],
]


@pytest.mark.parametrize(("push_every", "pull_every", "overlap", "own"), OWN_STALENESS)
def test_a_workers_own_pushes_make_no_other_of_it_too_stale_to_be_applied(push_every, pull_every, overlap, own):
    """The servers drop what is staler than what it makes itself: nothing of 60 steps; below that it is refused."""
    strategy = {"push_every": push_every, "pull_every": pull_every, "overlap": overlap}
    x = ps.Variable([0.0], name="x")
    with server_with(staleness=f"drop:{own}")("w0", **strategy) as session:
        seen = set()
        for _ in range(60):
            ps.GradientDescent(1.0).minimize(ops.sum(x))
            seen.add(session.staleness)
        session.pull()
        assert (float(x.value[0]), session.dropped, max(seen)) == (-60, 0, own)
    if own:
        with (
            pytest.raises(ConfigurationError, match=rf"--staleness drop:{own - 1}, .* up to {own} of its own pushes"),
            server_with(staleness=f"drop:{own - 1}")("w0", **strategy),
        ):
            pass
