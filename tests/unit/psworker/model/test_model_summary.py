"""The summary of a model: shapes of results, parameters and bytes, compared with numbers worked out by hand."""

import numpy as np
import pytest

import psworker as ps
from psworker import nn, ops


class Tied(nn.Layer):
    """A dense layer that is called twice, a variable of its own, and one that two attributes have."""

    def __init__(self, width):
        with self.scope():
            self.inner = [nn.Dense(width, width, name="inner")]
            self.scale = self.again = ps.Variable(np.ones(width), name="scale", trainable=False)

    def __call__(self, x, training):
        assert not training
        return self.inner[0](self.inner[0](x)) * self.scale


class Named(nn.Dense):
    """A layer whose call is that of its base."""


def test_each_layer_has_the_shape_parameters_and_bytes_worked_out_by_hand():
    model = nn.Sequential(
        nn.Conv2D(3, 8, 5), ops.relu, nn.MaxPool2D(2), nn.Flatten(), nn.BatchNorm(200), Named(200, 6, name="d"), Tied(6)
    )
    summary = model.summary((2, 10, 10, 3))
    found = [(one.kind, one.depth, one.output, one.parameters, one.nbytes) for one in summary.layers]
    conv, norm, dense = 5 * 5 * 3 * 8 + 8, 4 * 200, 200 * 6 + 6
    assert found == [
        ("Sequential", 0, (2, 6), 0, 0),
        ("Conv2D", 1, (2, 10, 10, 8), conv, 4 * conv),
        ("MaxPool2D", 1, (2, 5, 5, 8), 0, 0),
        ("Flatten", 1, (2, 200), 0, 0),
        ("BatchNorm", 1, (2, 200), norm, 4 * norm),
        ("Named", 1, (2, 6), dense, 4 * dense),
        ("Tied", 1, (2, 6), 6, 8 * 6),  # float64
        ("Dense", 2, (2, 6), 42, 4 * 42),
    ]
    assert summary.parameters == conv + norm + dense + 6 + 42 == sum(v.value.size for v in model.variables)
    assert summary.trainable_parameters == summary.parameters - 2 * 200 - 6
    assert summary.nbytes == summary.worker_nbytes == sum(v.value.nbytes for v in model.variables)
    assert list(summary.variables) == [*model.variables[:-3], model.variables[-1], *model.variables[-3:-1]]


def test_rows_of_a_table_are_on_servers_alone_and_ids_are_given_as_an_example():
    table = nn.Embedding(1_000_000, 64, initializer=ps.RowUniform(-1, 1))
    model = nn.Sequential(table, nn.GRU(64, 5, return_state=True))
    summary = model.summary(np.zeros((3, 4), int))
    assert [(one.output, one.where) for one in summary.layers] == [
        (((3, 5), (3, 5)), ""),
        ((3, 4, 64), "servers"),
        (((3, 5), (3, 5)), "workers, servers"),
    ]
    gru = 3 * 5 * (64 + 5 + 1 + 1)
    assert summary.layers[2].parameters == gru
    assert summary.nbytes == 4 * (64_000_000 + gru)
    assert summary.worker_nbytes == 4 * gru
    with pytest.raises(TypeError, match="ids"):
        model.summary((3, 4))


def test_it_is_a_table_as_text_and_shapes_are_unknown_without_an_input():
    model = nn.Sequential(nn.Dense(784, 128), ops.relu, nn.Dropout(0.5), nn.Dense(128, 10, name="logits"))
    assert repr(model.summary()) == str(model.summary())
    assert str(model.summary((32, 784))) == (
        """\
layer     kind        output     parameters    bytes  where
–         Sequential  (32, 10)            0        0
  dense   Dense       (32, 128)     100,480  401,920  workers, servers
  –       Dropout     (32, 128)           0        0
  logits  Dense       (32, 10)        1,290    5,160  workers, servers

parameters: 101,770, trainable 101,770, others 0
bytes: 407,080 on servers, without slots; 407,080 in each worker"""
    )
    assert [layer.output for layer in model.summary().layers] == [None] * 4


def test_a_summary_leaves_no_trace():
    model, before = nn.Dense(3, 2), nn.Dense.__call__
    model.summary((1, 3))
    with pytest.raises(ValueError, match=r"x must have shape \(..., 3\)"):
        model.summary((1, 4))
    assert nn.Dense.__call__ is before
    frozen = nn.Sequential(nn.BatchNorm(2))
    averages = [variable.value.copy() for variable in frozen.variables]
    frozen.trainable = False
    assert frozen.summary(np.full((4, 2), 9.0)).trainable_parameters == 0
    assert frozen.summary().parameters == 8
    assert all(map(np.array_equal, averages, [variable.value for variable in frozen.variables]))
