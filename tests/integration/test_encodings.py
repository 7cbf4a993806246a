"""Encodings and compressions: servers keep float32, and training reaches its cost."""

import functools

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.specs.encodings import Int8, TopK
from psworker import datasets, ops
from tests.transports import EMBEDDED, GRPC


@functools.cache
def examples():
    return datasets.mnist().train[:5500]


def costs(tensor_transport, epochs, **travel):
    """The mean costs of the epochs of softmax regression on a tenth of MNIST, with ten times the usual rate."""
    found = []
    with tensor_transport.sessions() as open_session, ps.collection():
        W, b = ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")
        with open_session("w0", **travel) as session:
            for batch in session.batches(
                examples(), 100, epochs=epochs, on_epoch=lambda epoch: found.append(epoch.cost)
            ):
                loss = ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)
                ps.GradientDescent(learning_rate=0.1).minimize(loss)
    return found


@functools.cache
def costs_of_float32(epochs):
    return costs(EMBEDDED, epochs)


@pytest.mark.parametrize(
    ("travel", "epochs", "tolerance"),
    [
        pytest.param({"encoding": "bfloat16"}, 10, 0.01, marks=pytest.mark.slow),
        pytest.param({"compression": Int8()}, 10, 0.01, marks=pytest.mark.slow),
        pytest.param({"encoding": "float16", "compression": TopK(0.01)}, 10, 0.02, marks=pytest.mark.slow),
        ({"encoding": "float16", "compression": TopK(0.1)}, 2, 0.02),
    ],
    ids=["bfloat16", "int8", "float16, topk", "float16, topk, 2 epochs"],
)
def test_softmax_regression_reaches_the_cost_of_float32(travel, epochs, tolerance):
    found = costs(GRPC, epochs, **travel)
    assert len(found) == epochs
    assert abs(found[-1] - costs_of_float32(epochs)[-1]) <= tolerance
    assert found != costs_of_float32(epochs)


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


@pytest.mark.parametrize("option", [{"encoding": "float8"}, {"compress": "topk"}, {"shared_memory": "yes"}])
def test_invalid_options_are_refused_before_a_server_is_called(option):
    with pytest.raises(ConfigurationError):
        ps.session("127.0.0.1:1", **option)
