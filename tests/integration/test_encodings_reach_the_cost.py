"""Encodings and compressions train to the cost of float32: the softmax job on a tenth of MNIST, ten times the rate."""

import functools

import pytest

import psworker as ps
from pswire.specs.encodings import Int8, TopK
from psworker import datasets, ops
from tests.lanes import EMBEDDED, GRPC


@functools.cache
def examples():
    return datasets.mnist().train[:5500]


def costs(tensor_transport, epochs, **travel):
    """The mean costs of the epochs."""
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
