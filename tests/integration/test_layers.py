"""Models of layers reach the same values, bit for bit, with a shard in the process and with a server."""

import numpy as np
import pytest

import psworker as ps
from psworker import nn, ops
from tests.support.servers import EMBEDDED, GRPC


def convolutional():
    images, labels = np.random.default_rng(2).normal(size=(12, 6, 6, 1)).astype(np.float32), np.arange(12) % 3
    features = nn.Sequential(nn.Conv2D(1, 4, 3), nn.BatchNorm(4), ops.relu, nn.MaxPool2D(2), nn.AvgPool2D((3, 1)))
    return nn.Sequential(features, nn.Flatten(), nn.Dropout(0.1), nn.Dense(12, 3)), images, labels


def recurrent():
    words, labels = np.random.default_rng(2).normal(size=(8, 5, 3)).astype(np.float32), np.arange(8) % 2
    return nn.Sequential(nn.GRU(3, 6, return_sequences=True), nn.LSTM(6, 6), nn.Dense(6, 2)), words, labels


def attending():
    words, labels = np.random.default_rng(2).normal(size=(8, 5, 4)).astype(np.float32), np.arange(8) % 2
    return nn.Sequential(nn.MultiHeadAttention(4, 2, 3), nn.LayerNorm(4), nn.Flatten(), nn.Dense(20, 2)), words, labels


def trained(transport, make):
    """The losses of 30 steps of Adam, and all values after them by name."""
    with transport.sessions() as open_session, ps.collection():
        ps.set_random_seed(7)
        model, x, labels = make()
        optimizer, losses = ps.Adam(0.05), []
        with open_session("w0") as session:
            for _ in range(30):
                loss = ops.softmax_cross_entropy(model(x, training=True), labels)
                losses.append(loss.item())
                optimizer.minimize(loss, model.trainable_variables)
            session.pull()
            return losses, {variable.name: variable.value.tobytes() for variable in model.variables}


@pytest.mark.parametrize("make", [convolutional, recurrent, attending])
def test_a_sequential_model_trains_embedded_and_with_a_server_to_the_same_values(make):
    embedded, served = trained(EMBEDDED, make), trained(GRPC, make)
    assert embedded == served
    assert embedded[0][-1] < embedded[0][0] / 3
