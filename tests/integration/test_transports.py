"""Training does not depend on transport and shards, bit for bit; by an encoding it reaches the cost of float32."""

import contextlib
import functools
import itertools
import subprocess
import sys

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import WrongShard
from pswire.specs.encodings import Int8, TopK
from psworker import datasets, nn, ops
from tests.support.commands import environment
from tests.support.files import in_shared_memory
from tests.support.servers import DIRECT, DIRECT_OF_TWO, EMBEDDED, GRPC, GRPC_OF_TWO, SHARED, SHARED_OF_TWO

EACH_STEP, DOWNPOUR, LOCAL = (), (("push_every", 2), ("pull_every", 2)), (("local_steps", 3),)
OVERLAP, HALF = (*DOWNPOUR, ("overlap", True)), (("encoding", "float16"),)
INT8, TOP_K = (("compress", Int8()),), (("encoding", "bfloat16"), ("compress", TopK(0.01)))


def images():
    """Convolutions with batch normalization, whose averages travel as update ops, and a head of two layers."""
    conv, norm = nn.Conv2D(1, 8, 3), nn.BatchNorm(8)
    hidden, out = nn.Dense(4 * 4 * 8, 32, activation=ops.relu), nn.Dense(32, 10)

    def loss(random):
        images, labels = random.normal(size=(4, 8, 8, 1)).astype(np.float32), random.integers(0, 10, 4)
        features = ops.max_pool2d(ops.relu(norm(conv(images), training=True)))
        return ops.softmax_cross_entropy(out(hidden(ops.reshape(features, (4, -1)))), labels)

    return loss


def rows():
    """Tables, one of which several lookups read, beside a variable that is looked up too."""
    words = ps.Table((500, 6), ps.RowNormal(0.0, 0.1, seed=5), name="words")
    labels = ps.Table((30,), ps.RowConstant(0.5), name="labels")
    seen = ps.Variable(np.linspace(-1, 1, 120, dtype=np.float32).reshape(20, 6), name="seen")

    def loss(random):
        first, second = random.integers(0, 500, (8, 3)), random.integers(0, 500, 8)
        both = ops.sum(ops.embedding(words, first), axis=1) * ops.embedding(words, second)
        both = both * ops.embedding(seen, random.integers(0, 20, 8))
        return ops.sum(ops.square(ops.sum(both, axis=-1) - ops.embedding(labels, random.integers(0, 30, 8))))

    return loss


USED = """
import sys
import psworker as ps
with ps.session(sys.argv[1], shared_memory=False) as session:
    print(session._client._calls.transport.tensor_transport(0))
"""


def test_tensors_go_by_the_transport_of_the_run_here_and_in_processes_where_none_is_chosen(pytestconfig):
    expected = {"auto": "direct", "grpc": "gRPC"}[pytestconfig.option.transport]
    with ServerThread(ServerConfig()) as server:
        with ps.session(server.address, shared_memory=False) as session:
            assert session._client._calls.transport.tensor_transport(0) == expected
        command = [sys.executable, "-c", USED, server.address]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.strip() == expected


def trained(tensor_transport, model, strategy):
    """The bytes of all variables and slots after some steps of Adam, by name; the tensor transport of each shard."""
    random, found = np.random.default_rng(3), {}
    with tensor_transport.sessions() as open_session, ps.collection():
        ps.set_random_seed(11)
        loss = model()
        with open_session("w0", **dict(strategy)) as session:
            for _ in range(5):
                ps.Adam(0.01).minimize(loss(random))
            session.pull()
            transport = session._client._calls.transport
            used = [transport.tensor_transport(shard) for shard in range(transport.shards)]
            for variable in ps.global_variables():
                if isinstance(variable, ps.Table):
                    found[variable.name] = session.rows(variable, np.arange(len(variable))).tobytes()
                else:
                    found[variable.name] = variable.value.tobytes()
                    if tensor_transport in (GRPC, DIRECT, SHARED) and "encoding" not in dict(strategy):
                        assert in_shared_memory(variable.value) == tensor_transport.shared_memory
                for slot in ("m", "v") if variable.trainable else ():
                    found[f"{variable.name}/{slot}"] = session.slot(variable, slot).tobytes()
    return found, used


@functools.cache
def trained_in_process(model, strategy):
    return trained(EMBEDDED, model, strategy)[0]


FAST = [
    *((images, EACH_STEP, GRPC), (rows, EACH_STEP, SHARED)),
    *((images, OVERLAP, SHARED_OF_TWO), (images, LOCAL, DIRECT_OF_TWO)),
    *((images, TOP_K, SHARED), (images, EACH_STEP, DIRECT)),
]
CASES = GRPC, GRPC_OF_TWO, DIRECT, DIRECT_OF_TWO, SHARED, SHARED_OF_TWO
ALL = itertools.product((images, rows), (EACH_STEP, DOWNPOUR, OVERLAP), CASES)
SLOW = [case for case in ALL if case not in FAST and case[:2] != (rows, OVERLAP)]  # whose rows come when they come
SLOW += [(images, INT8, GRPC), (images, INT8, SHARED), (images, HALF, GRPC_OF_TWO), (images, HALF, DIRECT_OF_TWO)]
SLOW += [(images, INT8, DIRECT), (images, LOCAL, GRPC_OF_TWO)]
SLOW += [(images, TOP_K, GRPC), (rows, HALF, SHARED_OF_TWO)]


@pytest.mark.parametrize(
    ("model", "strategy", "tensor_transport"),
    [
        pytest.param(
            *case, id=f"{case[0].__name__} {dict(case[1])} {case[2].name}", marks=[pytest.mark.slow] * (case in SLOW)
        )
        for case in FAST + SLOW
    ],
)
def test_a_model_trains_bit_for_bit_as_it_does_in_one_process(model, strategy, tensor_transport):
    expected, (found, used) = trained_in_process(model, strategy), trained(tensor_transport, model, strategy)
    assert used == tensor_transport.used
    assert [name for name in expected | found if found[name] != expected[name]] == []
    assert len(expected) > 5
    assert strategy not in (HALF, INT8, TOP_K) or expected != trained_in_process(model, EACH_STEP)


@functools.cache
def costs(tensor_transport, epochs, **options):
    """The mean costs of the epochs of softmax regression on a tenth of MNIST, with ten times the usual rate."""
    found = []
    with tensor_transport.sessions() as open_session, ps.collection(), open_session("w0", **options) as session:
        W, b = ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")
        examples = datasets.mnist().train[:5500]
        for batch in session.batches(examples, 100, epochs, on_epoch=lambda epoch: found.append(epoch.cost)):
            loss = ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)
            ps.GradientDescent(learning_rate=0.1).minimize(loss)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "epochs", "tolerance"),
    [
        ({"encoding": "bfloat16"}, 10, 0.01),
        ({"compress": Int8()}, 10, 0.01),
        ({"encoding": "float16", "compress": TopK(0.01)}, 10, 0.02),
        ({"encoding": "float16", "compress": TopK(0.1)}, 2, 0.02),
    ],
)
def test_softmax_regression_reaches_the_cost_of_float32(options, epochs, tolerance):
    found, expected = costs(GRPC, epochs, **options), costs(EMBEDDED, epochs)
    assert len(found) == epochs
    assert 0 < abs(found[-1] - expected[-1]) <= tolerance


def test_weights_travel_in_the_encoding_and_servers_store_float32(open_session):
    target, little = np.linspace(0.5, 1.5, 4000, dtype=np.float32), np.full(4000, 2.0**-12, np.float32)
    W = ps.Variable(0 * target, name="W")
    with open_session("w0", encoding="bfloat16") as session:
        session.assign(W, target)
        assert not np.any(W.value.view(np.uint32) & 0xFFFF)
        np.testing.assert_allclose(W.value, target, rtol=2.0**-8)
        for _ in range(16):  # each is less than 16 bits can show
            session.assign_add(W, little)
        np.testing.assert_allclose(W.value, target + 16 * little, rtol=2.0**-8)
        assert abs(np.mean(W.value - (target + 16 * little))) < 2.0**-12


def test_a_worker_with_other_servers_or_another_order_is_refused():
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(ServerConfig(shard=shard, shards=2))) for shard in range(2)]
        first, second = [server.address for server in servers]
        for named, message in (([second, first], "shard 0 of 2, it is shard 1 of 2"), (first, "0 of 1, it is")):
            with pytest.raises(WrongShard, match=f"{message}.*: name all servers, in the order"):
                ps.session(servers=named, name="w0").__enter__()
