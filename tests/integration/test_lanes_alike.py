"""What is trained does not depend on how tensors travel: variables and slots are the same to the last bit."""

import functools

import numpy as np
import pytest

import psworker as ps
from pswire.specs.encodings import Int8, TopK
from psworker import nn, ops
from tests.lanes import EMBEDDED, GRPC, GRPC_OF_TWO, SHARED, SHARED_OF_TWO, parameters
from tests.shared_folder import in_shared_memory, needs_shared_memory

STEPS = 5
EACH_STEP, DOWNPOUR = (), (("push_every", 2), ("pull_every", 2))
OVERLAP = (*DOWNPOUR, ("overlap", True))


def softmax():
    """A regression on 20 numbers, 7 classes."""
    W, b = ps.Variable(ops.zeros((20, 7)), name="W"), ps.Variable(ops.zeros((7,)), name="b")

    def loss(random):
        images, labels = random.normal(size=(10, 20)).astype(np.float32), random.integers(0, 7, 10)
        return ops.softmax_cross_entropy(ops.matmul(images, W) + b, labels)

    return loss, []


def deep():
    """Convolutions with batch normalization, whose averages travel as update ops, and a head of two nn."""
    conv, norm = nn.Conv2D(1, 8, 3), nn.BatchNorm(8)
    hidden, out = nn.Dense(14 * 14 * 8, 32, activation=ops.relu), nn.Dense(32, 10)

    def loss(random):
        images, labels = random.normal(size=(4, 28, 28, 1)).astype(np.float32), random.integers(0, 10, 4)
        features = ops.max_pool2d(ops.relu(norm(conv(images), training=True)))
        return ops.softmax_cross_entropy(out(hidden(ops.reshape(features, (4, -1)))), labels)

    return loss, []


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

    return loss, [words, labels]


def trained(tensor_transport, model, strategy):
    """The bytes of all variables and slots after some steps of Adam, by name; and how each shard was spoken to."""
    random, found = np.random.default_rng(3), {}
    with tensor_transport.sessions() as open_session, ps.collection():
        ps.set_random_seed(11)
        loss, tables = model()
        with open_session("w0", **dict(strategy)) as session:
            for _ in range(STEPS):
                ps.Adam(0.01).minimize(loss(random))
            session.pull()
            transport = session._client._transport
            lanes = [transport.tensor_transport(shard) for shard in range(transport.shards)]
            if (
                transport.shards == 1 and not session._client.encoder.encoding
            ):  # otherwise the worker makes arrays of its own
                shared = [in_shared_memory(one.value) for one in ps.global_variables() if one not in tables]
                assert shared == [tensor_transport.shared_memory] * len(shared)
            for variable in ps.global_variables():
                value = session.rows(variable, np.arange(variable.shape[0])) if variable in tables else variable.value
                found[variable.name] = value.tobytes()
                for slot in ("m", "v") if variable.trainable else ():
                    found[f"{variable.name}/{slot}"] = session.slot(variable, slot).tobytes()
    return found, lanes


@functools.cache
def trained_in_process(model, strategy):
    return trained(EMBEDDED, model, strategy)


@pytest.mark.parametrize("tensor_transport", parameters(GRPC, GRPC_OF_TWO, SHARED, SHARED_OF_TWO))
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        pytest.param(softmax, EACH_STEP, id="softmax"),
        pytest.param(softmax, OVERLAP, id="softmax with overlap"),
        pytest.param(deep, EACH_STEP, id="deep"),
        pytest.param(deep, OVERLAP, id="deep with overlap"),
        pytest.param(rows, EACH_STEP, id="tables"),
        pytest.param(rows, DOWNPOUR, id="tables, sums of gradients"),  # with overlap, rows come when they come
    ],
)
def test_a_model_trains_bit_for_bit_as_it_does_in_one_process(model, strategy, tensor_transport):
    expected, (found, lanes) = trained_in_process(model, strategy)[0], trained(tensor_transport, model, strategy)
    assert lanes == ["shared memory" if tensor_transport.shared_memory else "gRPC"] * tensor_transport.shards
    assert found.keys() == expected.keys()
    assert len(expected) > 5
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize(
    ("tensor_transport", "other"), [(GRPC, SHARED), (GRPC_OF_TWO, SHARED_OF_TWO)], ids=["1 shard", "2 shards"]
)
@pytest.mark.parametrize(
    ("model", "travel"),
    [
        pytest.param(deep, {"encoding": "bfloat16"}, id="deep, bfloat16"),
        pytest.param(deep, {"encoding": "float16"}, id="deep, float16"),
        pytest.param(deep, {"compression": Int8()}, id="deep, int8"),
        pytest.param(deep, {"encoding": "bfloat16", "compression": TopK(0.01)}, id="deep, bfloat16, topk"),
        pytest.param(rows, {"encoding": "bfloat16"}, id="tables, bfloat16"),
        pytest.param(rows, {"encoding": "float16"}, id="tables, float16"),
    ],
)
@needs_shared_memory
def test_what_is_packed_trains_bit_for_bit_alike_by_grpc_and_by_shared_memory(model, travel, tensor_transport, other):
    options = tuple(travel.items())
    expected, found = trained(tensor_transport, model, options)[0], trained(other, model, options)[0]
    assert [name for name in expected if found[name] != expected[name]] == []
    assert found != trained_in_process(model, EACH_STEP)[0], "it was in this form that it travelled"
