"""Fewer bytes for gradients and weights train to the cost of float32: the softmax job, on a tenth of MNIST.

A tenth of the examples with ten times the learning rate goes the way of the whole job. That it does not matter to which
of the lanes these forms are given is in `test_lanes_alike`.
"""

import functools

import pytest

import psworker as ps
from pswire.specs.encodings import Int8, TopK
from psworker import datasets, ops
from tests.lanes import EMBEDDED, GRPC


@functools.cache
def examples():
    return datasets.mnist().train[:5500]


def costs(tensor_transport, **travel):
    """The mean costs of ten epochs."""
    found = []
    with tensor_transport.sessions() as open_session, ps.collection():
        W, b = ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")
        with open_session("w0", **travel) as session:
            for batch in session.batches(examples(), 100, epochs=10, on_epoch=lambda epoch: found.append(epoch.cost)):
                loss = ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)
                ps.GradientDescent(learning_rate=0.1).minimize(loss)
    return found


@functools.cache
def costs_of_float32():
    return costs(EMBEDDED)


@pytest.mark.parametrize(
    ("travel", "tolerance"),
    [
        ({"encoding": "bfloat16"}, 0.01),
        ({"compression": Int8()}, 0.01),
        ({"compression": TopK(0.01)}, 0.02),
        ({"encoding": "float16", "compression": TopK(0.01)}, 0.02),
    ],
    ids=["bfloat16", "int8", "topk", "float16, topk"],
)
def test_ten_epochs_of_softmax_regression_reach_the_cost_of_float32(travel, tolerance):
    found = costs(GRPC, **travel)
    assert len(found) == 10
    assert abs(found[-1] - costs_of_float32()[-1]) <= tolerance
    assert found != costs_of_float32(), "it was in this form that they travelled"
