"""Downpour: intervals of pushes and pulls, and overlap, against a few lines of float64.

Policies of the servers are in `test_strategies_and_policies`, pushes that fail in `test_failed_steps`.
"""

from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, NotFinite
from pswire.messages import Status
from psworker import ops
from psworker.client import placement
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.data_loop import batches_per_block
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess

BOUND = 30.0  # seconds that no wait comes near to
START = np.float32([1, -2, 3])
CURVATURE = np.float32([0.1, 0.2, 0.3])


def status(session):
    return session._client._transport.call(0, Status(), 10).result()


def weights_of_a_quadratic(push_every, pull_every, overlap, steps):
    """Downpour on 1/2 w^T C w - w with rate 0.5, one worker: the weights that each step used, and the last ones."""
    server = START.astype(np.float64)
    here = there = server  # in the worker; in the answer that is under way
    accrued, used = 0.0, []
    for step in range(1, steps + 1):
        used.append(here)
        accrued = accrued + CURVATURE.astype(np.float64) * here - 1
        pushes, pulls = step % push_every == 0, step % pull_every == 0
        if overlap and (pushes or pulls):
            here = there
        if pushes:
            server, accrued = server - 0.5 * accrued, 0.0
        if pulls and overlap:
            there = server
        elif pulls:
            here = server
    return used, server - 0.5 * accrued


@pytest.mark.parametrize("overlap", [False, True], ids=["waits", "overlap"])
@pytest.mark.parametrize(("push_every", "pull_every"), [(1, 1), (3, 1), (1, 4), (3, 3), (2, 3), (4, 2)])
def test_every_step_uses_the_weights_that_downpour_gives_it(open_session, push_every, pull_every, overlap):
    x = ps.Variable(START, name="x")
    used, last = weights_of_a_quadratic(push_every, pull_every, overlap, steps=13)
    with open_session("w0", push_every=push_every, pull_every=pull_every, overlap=overlap) as session:
        for expected in used:
            np.testing.assert_allclose(x.value, expected, rtol=1e-5, atol=1e-6)
            ps.GradientDescent(0.5).minimize(ops.sum(CURVATURE * ops.square(x)) / 2 - ops.sum(x))
        session.pull()
        np.testing.assert_allclose(x.value, last, rtol=1e-5, atol=1e-6)
        assert session.global_step == -(-13 // push_every)


def test_a_program_may_write_into_its_gradients_while_they_are_under_way(open_session):
    x, gradient = ps.Variable(np.zeros(3, np.float32), name="x"), np.zeros(3, np.float32)
    with open_session("w0", overlap=True) as session:
        for step in range(1, 5):
            gradient[:] = step
            ps.GradientDescent(1.0).apply_gradients([(gradient, x)])
            gradient[:] = np.nan
        session.pull()
        np.testing.assert_array_equal(x.value, [-10, -10, -10])


def test_losses_and_what_was_seen_go_as_their_means(open_session):
    x = ps.Variable([0.0], name="x")
    mean = ps.Variable([0.0], name="mean", trainable=False)
    with open_session("w0", push_every=3) as session:
        for seen in (3, 5, 10):
            ps.note_update(ps.UpdateOp(mean, np.float32([seen]), 0.5))
            ps.GradientDescent(1.0).minimize(ops.sum(x) + float(seen))
        assert (mean.value, mean.version) == ([0.5 * 6], 1)
        assert status(session).workers[0].loss == 6


def test_a_sum_is_as_stale_as_the_first_of_its_gradients(open_session):
    x = ps.Variable([0.0], name="x")
    with open_session("w0", push_every=3) as session:
        for _ in range(3):
            assert session.staleness == 0
            ps.GradientDescent(1.0).minimize(ops.sum(x))
            with ps.collection():
                other = ps.Variable([0.0], name="x")
                with open_session("w1"):
                    ps.GradientDescent(1.0).minimize(ops.sum(other))
            session._replica.start_pull(["x"])  # fresh weights, and no flush
            session._replica.complete()
        assert session.staleness == 2, "the third of the other's pushes came later"


def test_each_optimizer_counts_the_steps_of_its_own_variables(open_session):
    """Two that are equal too, as those of a GAN may be."""
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    with open_session("w0", push_every=2) as session:
        steps = []
        for variable in (x, y, x, y):
            ps.GradientDescent(1.0).minimize(ops.sum(variable), [variable])
            steps.append((session.global_step, float(x.value[0]), float(y.value[0])))
    assert steps == [(0, 0, 0), (0, 0, 0), (1, -2, 0), (2, -2, -2)]


def test_a_step_that_is_refused_leaves_the_sum_as_it_was(open_session):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    optimizer = ps.GradientDescent(1.0)
    with open_session("w0", push_every=2, overlap=True) as session:
        optimizer.apply_gradients([(np.float32([1]), x)])
        with pytest.raises(NotFinite, match="'x'"):
            optimizer.apply_gradients([(np.float32([np.inf]), x)])
        with pytest.raises(AlreadyRegistered, match="'x'"):
            ps.Adam().apply_gradients([(np.float32([1]), x), (np.float32([1]), y)])
        optimizer.apply_gradients([(np.float32([2]), x)])
        session.pull()
        assert (x.value, y.value, session.global_step) == ([-3], [0], 1)


def at_the_server(open_session):
    """The value of x that a new worker gets."""
    with ps.collection(), open_session("looks on"):
        return float(ps.Variable([9.0], name="x").value[0])


@pytest.mark.parametrize(
    "strategy",
    [
        {"push_every": 3},
        {"overlap": True},
        {"push_every": 5, "pull_every": 2, "overlap": True},
        {"local_steps": 4, "outer": ps.GradientDescent(1.0)},
    ],
    ids=str,
)
def test_an_epoch_is_complete_when_all_of_its_gradients_are_at_the_server(open_session, strategy):
    """100 examples in batches of 7, three epochs; each gradient counts its batch."""
    x, seen = ps.Variable([0.0], name="x"), []
    with open_session("w0", **strategy) as session:
        for batch in session.batches(
            ps.Dataset({"x": np.arange(100)}), 7, epochs=3, on_epoch=lambda _: seen.append(at_the_server(open_session))
        ):
            ps.GradientDescent(1.0).apply_gradients([(np.float32([-len(batch)]), x)])
    assert seen == [100, 200, 300]


@pytest.mark.parametrize(("steps", "batches"), [(1, 16), (3, 18), (16, 16), (17, 17), (500, 500)])
def test_a_block_is_a_whole_number_of_pushes(steps, batches):
    assert batches_per_block(steps) == batches


CALLS = {
    "pull": lambda session, x, y: session.pull(),
    "assign": lambda session, x, y: session.assign(y, [7]),
    "slot": lambda session, x, y: session.slot(x, "momentum"),
    "register": lambda session, x, y: session.register([y]),
    "evaluate": lambda session, x, y: session.evaluate(lambda batch: 0, ps.Dataset({"x": np.arange(3)})),
    "set_hyperparameters": lambda session, x, y: session.set_hyperparameters(x, learning_rate=0.5),
}
SUMS = pytest.mark.parametrize("strategy", [{"push_every": 9}, {"push_every": 2, "overlap": True}], ids=str)


@SUMS
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_sums_are_pushed_before_any_other_call(open_session, strategy, call):
    x, y = ps.Variable([0.0], name="x"), ps.Variable([0.0], name="y")
    with open_session("w0", **strategy) as session:
        for _ in range(3):
            ps.Momentum(1.0, momentum=0.0).apply_gradients([(np.float32([1]), x)])
        call(session, x, y)
        assert at_the_server(open_session) == -3


@SUMS
@pytest.mark.parametrize("error", [None, KeyError])
def test_a_session_that_ends_pushes_what_is_left_unless_an_error_ends_it(open_session, strategy, error):
    with open_session("stays"):
        with pytest.raises(error) if error else nullcontext(), ps.collection(), open_session("w0", **strategy):
            x = ps.Variable([0.0], name="x")
            for _ in range(3):
                ps.GradientDescent(1.0).apply_gradients([(np.float32([1]), x)])
            if error:
                raise error
        lost = strategy["push_every"] if error else 0
        assert at_the_server(open_session) == {0: -3, 9: 0, 2: -2}[lost]


@pytest.mark.parametrize(
    ("push_every", "pull_every", "overlap"), [(1, 4, False), (2, 6, False), (1, 4, True), (1, 1, True), (2, 1, False)]
)
def test_a_program_ends_with_weights_that_have_all_of_its_pushes(open_session, push_every, pull_every, overlap):
    x = ps.Variable([0.0], name="x")
    with open_session("w0", push_every=push_every, pull_every=pull_every, overlap=overlap):
        for _ in range(10):
            ps.GradientDescent(1.0).apply_gradients([(np.float32([1]), x)])
    assert (x.value, x.version) == ([-10], 10 // push_every)


def test_the_end_of_a_block_of_examples_is_no_pull(open_session):
    """Blocks of 16 batches, 40 in all; pull_every decides when fresh weights come."""
    x, seen = ps.Variable([0.0], name="x"), set()
    with open_session("w0", pull_every=100) as session:
        for _ in session.batches(ps.Dataset({"x": np.arange(40)}), 1):
            ps.GradientDescent(1.0).apply_gradients([(np.float32([1]), x)])
            seen.add(float(x.value[0]))
    assert (seen, x.value) == ({0.0}, [-40])


def test_looking_up_rows_leaves_what_is_under_way_where_it_is(open_session):
    """The weights of one step stay the same, though their push may be answered while it looks up rows."""
    x, table = ps.Variable([0.0], name="x"), ps.Table((5, 1), ps.RowConstant(1), name="table")
    used = []
    with open_session("w0", overlap=True) as session:
        for step in range(4):
            before = float(x.value[0])
            rows = ops.embedding(table, [step])
            assert session.rows(table, [4, step]).tolist() == [[1], [1]]
            assert float(x.value[0]) == before
            used.append(before)
            ps.GradientDescent(1.0).minimize(ops.sum(x) + ops.sum(rows))
        session.pull()
        assert session.rows(table, range(5)).tolist() == [[0], [0], [0], [0], [1]]
    assert used == [0, 0, -1, -2]


@pytest.mark.parametrize(
    "strategy", [{"push_every": 3, "pull_every": 2}, {"push_every": 2, "overlap": True}, {"local_steps": 3}], ids=str
)
def test_two_shards_and_a_variable_that_is_split_make_no_difference(monkeypatch, strategy):
    """Bit for bit; of the table each third row gets a gradient."""
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)
    runs = []
    for shards in (1, 2):
        config = WorkerConfig(name="w0", strategy=StrategyConfig(**strategy))
        with ps.collection(), Session(config, ShardsInProcess(shards)) as session:
            W, table = ps.Variable(np.ones((10, 3), np.float32), name="W"), ps.Variable(ops.zeros((9, 2)), name="table")
            for step in range(7):
                rows = ops.embedding(table, [0, 3, 6])
                ps.Adam(0.1).minimize(ops.sum(ops.square(W) * float(step + 1)) + ops.sum(ops.square(rows - 1)))
            session.pull()
            runs.append((W.value.tobytes(), table.value.tobytes()))
            assert len(W.versions) == shards
    assert runs[0] == runs[1]
