"""Training does not depend on the tensor transport: variables and slots are the same bit for bit."""

import functools
import itertools

import numpy as np
import pytest

import psworker as ps
from pswire.specs.encodings import Int8, TopK
from psworker import nn, ops
from tests.shared_folder import in_shared_memory, needs_shared_memory
from tests.transports import EMBEDDED, GRPC, GRPC_OF_TWO, SHARED, SHARED_OF_TWO

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
            used = [transport.tensor_transport(shard) for shard in range(transport.shards)]
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
    return found, used


@functools.cache
def trained_in_process(model, strategy):
    return trained(EMBEDDED, model, strategy)


PAIRS = [  # rows with overlap come when they come
    *((softmax, EACH_STEP, one) for one in (GRPC, SHARED)),
    *((rows, EACH_STEP, one) for one in (GRPC_OF_TWO, SHARED)),
    (deep, OVERLAP, SHARED_OF_TWO),
]
ALL = itertools.product(
    (softmax, deep, rows), (EACH_STEP, DOWNPOUR, OVERLAP), (GRPC, GRPC_OF_TWO, SHARED, SHARED_OF_TWO)
)
OTHERS = [one for one in ALL if one not in PAIRS and one[:2] != (rows, OVERLAP)]


@pytest.mark.parametrize(
    ("model", "strategy", "tensor_transport"),
    [
        pytest.param(*one, id=f"{one[0].__name__} {dict(one[1])} {one[2].name}", marks=marks)
        for cases, slow in ((PAIRS, []), (OTHERS, [pytest.mark.slow]))
        for one in cases
        for marks in [[*slow, *[needs_shared_memory] * one[2].shared_memory]]
    ],
)
def test_a_model_trains_bit_for_bit_as_it_does_in_one_process(model, strategy, tensor_transport):
    expected, (found, used) = trained_in_process(model, strategy)[0], trained(tensor_transport, model, strategy)
    assert used == ["shared memory" if tensor_transport.shared_memory else "gRPC"] * tensor_transport.shards
    assert found.keys() == expected.keys()
    assert len(expected) > 5
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize(
    ("model", "travel", "tensor_transport", "other"),
    [
        (softmax, {"encoding": "bfloat16", "compression": TopK(0.01)}, GRPC, SHARED),
        pytest.param(deep, {"encoding": "float16"}, GRPC_OF_TWO, SHARED_OF_TWO, marks=pytest.mark.slow),
        pytest.param(deep, {"compression": Int8()}, GRPC, SHARED, marks=pytest.mark.slow),
        pytest.param(rows, {"encoding": "bfloat16"}, GRPC, SHARED, marks=pytest.mark.slow),
        (rows, {"encoding": "float16"}, GRPC_OF_TWO, SHARED_OF_TWO),
    ],
    ids=["softmax, bfloat16, topk", "deep, float16", "deep, int8", "tables, bfloat16", "tables, float16"],
)
@needs_shared_memory
def test_encoded_and_compressed_models_train_alike_by_grpc_and_by_shared_memory(model, travel, tensor_transport, other):
    options = tuple(travel.items())
    expected, found = trained(tensor_transport, model, options)[0], trained(other, model, options)[0]
    assert [name for name in expected if found[name] != expected[name]] == []
    assert found != trained_in_process(model, EACH_STEP)[0]
