"""Sessions over several shards: the same numbers as with one, bit for bit, and gradients as stale as their weights."""

import contextlib

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import WrongShard
from pswire.messages import Push, RemoteWeights, Renew
from pswire.specs.consistency import Bounded, DropStalePushes
from pswire.specs.initializers import RowUniform
from psworker import ops
from psworker.client import placement
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess

TABLE = RowUniform(-0.1, 0.1, seed=7)


@contextlib.contextmanager
def servers(shards):
    """The addresses of the servers of a new job."""
    with contextlib.ExitStack() as stack:
        configs = [ServerConfig(shard=shard, shards=shards) for shard in range(shards)]
        yield [stack.enter_context(ServerThread(one)).address for one in configs]


def test_a_worker_with_other_servers_or_another_order_is_refused():
    with servers(2) as addresses:
        for named, message in ((addresses[::-1], "shard 0 of 2, it is shard 1 of 2"), (addresses[:1], "0 of 1, it is")):
            with pytest.raises(WrongShard, match=f"{message}.*: name all servers, in the order"):
                ps.session(servers=named, name="w0").__enter__()


def train_a_program(addresses):
    """What a user's script leaves behind: a matrix, a bias, a table and their slots."""
    generator = np.random.default_rng(5)
    with ps.collection():
        W = ps.Variable(generator.normal(size=(9, 4)).astype(np.float32), name="W")
        b = ps.Variable(np.zeros(4, np.float32), name="b")
        words = ps.Table((50, 3), TABLE, name="words")
        optimizer = ps.Adam(0.05)
        with ps.session(servers=addresses, name="w0") as session:
            for _ in range(8):
                ids = generator.integers(0, 50, (6, 3))
                vectors = ops.reshape(ops.embedding(words, ids), (6, 9))
                logits = ops.matmul(vectors, W) + b
                optimizer.minimize(ops.softmax_cross_entropy(logits, generator.integers(0, 4, 6)))
            session.assign_add(W, np.ones((9, 4), np.float32))
            kept = [W.value, b.value, session.rows(words, np.arange(50)[::-1])]
            return kept + [session.slot(variable, slot) for variable in (W, b, words) for slot in ("m", "v")]


def test_a_program_trains_the_same_bit_for_bit_on_one_shard_and_on_several(monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)  # the matrix and the table are split
    runs = []
    for shards in (1, 2, 3):
        with servers(shards) as addresses:
            runs.append(train_a_program(addresses))
    for run in runs[1:]:
        for array, expected in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(array, expected, strict=True)


def two_variables():
    """One on shard 0 and one on shard 1, when there are two; their loss has the gradient 1 everywhere."""
    large, small = ps.Variable(np.zeros(100), name="large"), ps.Variable(np.zeros(2), name="small")
    return large, small, lambda: ops.sum(large) + ops.sum(small)


def session_over(transport, worker, **strategy):
    return Session(WorkerConfig(name=worker, timeout=30, strategy=StrategyConfig(**strategy)), transport)


@pytest.mark.parametrize("strategy", [{"push_every": 3}, {"local_steps": 3}], ids=str)
def test_a_push_of_several_steps_is_as_stale_as_the_first_of_them(strategy):
    transport, optimizer = ShardsInProcess(2, staleness=DropStalePushes(9)), ps.GradientDescent(1.0)
    with ps.collection():
        *_, loss = two_variables()
        with session_over(transport, "w0", **strategy):
            optimizer.minimize(loss())
            with ps.collection():
                *_, its_loss = two_variables()
                with session_over(transport, "w1", **dict.fromkeys(strategy, 1)):
                    optimizer.minimize(its_loss())
            for _ in range(5):
                optimizer.minimize(loss())
    pushes = [(message.sender.worker, *message.remote) for shard, message in transport.messages(Push) if not shard]
    assert pushes == [
        ("w1", RemoteWeights("small", 0)),
        ("w0", RemoteWeights("small", 0)),
        ("w0", RemoteWeights("small", 2)),
    ]


def test_an_idle_worker_has_pushed_everything_and_is_not_waited_for():
    transport = ShardsInProcess(2, Bounded(0))
    with ps.collection():
        large, _, loss = two_variables()
        with session_over(transport, "w0", push_every=2) as session:
            ps.GradientDescent(1.0).minimize(loss())
            assert not transport.messages(Push)
            session.idle()
            sent = [(shard, type(message)) for shard, message in transport.sent if isinstance(message, Push | Renew)]
            assert sent == [(0, Push), (1, Push), (0, Renew)], "shard 0 decides which worker waits"
            assert [message.idle for _, message in transport.messages(Renew)] == [True]
            assert large.value[0] == -1
