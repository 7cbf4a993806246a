"""Tables in a session, against a variable of the same rows."""

import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import ShapeMismatch, TooLarge
from pswire.messages import tensor_bytes
from pswire.specs.initializers import rows_of
from psworker import ops
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.shards_in_process import ShardsInProcess

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

    def push_of_another():
        with ps.collection():
            other = ps.Table((9, 2), UNIFORM, name="table")
            with open_session("w1"):
                SGD.minimize(ops.sum(ops.embedding(other, [0])))

    with open_session("w0") as session:
        SGD.minimize(ops.sum(ops.embedding(table, [1])))
        for version in (1, 4):  # the second time around shows that the next lookup begins anew
            loss = ops.sum(ops.embedding(table, [8]))
            for _ in range(2):
                push_of_another()
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
