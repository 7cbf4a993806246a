"""Layers: composition, pooling, dropout, recurrence and attention."""

from functools import partial

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from psworker import nn, ops

SEED = 20140603


def normal(*shape, seed=SEED):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_dir_of_nn_shows_the_public_names_alone():
    assert dir(nn) == sorted(nn.__all__)
    assert all(isinstance(getattr(nn, name), type) for name in dir(nn))


# --- Composition ------------------------------------------------------------------------------------------------------


class Block(nn.Layer):
    """Variables and layers in attributes, lists, tuples and dicts, one of them twice."""

    def __init__(self, width, *, name=None):
        with self.scope(name):
            self.scale = ps.Variable([1.0], name="scale")
            self.hidden = [nn.Dense(width, width, bias=False), (nn.Dense(width, width, bias=False),)]
            self.norms = {"first": nn.BatchNorm(width, center=False)}
            self.tied, self.first = self.hidden[0], self.scale
            self.hidden.append(self.hidden)
        self.width = width

    def __call__(self, x, training=False):
        return self.norms["first"](self.hidden[1][0](self.hidden[0](x)), training) * self.scale


PARTS = ["scale", "dense/kernel", "dense_1/kernel", "batch_norm/gamma", "batch_norm/moving_mean"]
PARTS += ["batch_norm/moving_variance"]


def test_a_composed_layer_names_and_finds_its_variables_once_in_the_order_of_its_attributes():
    with ps.variable_scope("net"):
        blocks = Block(2), Block(2), Block(2, name="last")
    assert [block.name for block in blocks] == ["net/block", "net/block_1", "net/last"]
    assert [repr(block) for block in blocks][:2] == ["Block('net/block')", "Block('net/block_1')"]
    for block in blocks:
        assert [variable.name for variable in block.variables] == [f"{block.name}/{part}" for part in PARTS]
        assert block.trainable_variables == block.variables[:4] == ps.trainable_variables(block.name)
    model = nn.Sequential(blocks[1], ops.relu, nn.Sequential(nn.Flatten(), blocks[0]))
    assert model.variables == blocks[1].variables + blocks[0].variables
    assert (nn.Flatten().variables, nn.Flatten().trainable, nn.Flatten().name) == ([], False, "")


@pytest.mark.parametrize(
    ("kind", "scope"), [("MLPBlock", "mlp_block"), ("Conv2DPair", "conv2d_pair"), ("_Small", "small"), ("GAN", "gan")]
)
def test_the_default_scope_of_a_composed_layer_is_its_class_in_lower_case(kind, scope):
    layer = type(kind, (nn.Layer,), {})()
    with layer.scope():
        ps.Variable([1.0], name="x")
    assert layer.name == scope


def test_a_composed_layer_that_fails_leaves_no_variable():
    class Twice(nn.Layer):
        def __init__(self):
            with self.scope():
                self.layers = [nn.Dense(2, 3, name="one") for _ in range(2)]

    with pytest.raises(ConfigurationError, match="already a variable 'twice/one/kernel'"):
        Twice()
    assert ps.global_variables() == []


def test_a_frozen_layer_gets_no_gradients_and_is_trained_again_as_it_was_made():
    with ps.variable_scope("fixed", trainable=False):
        fixed = nn.Dense(2, 2)
    table = nn.Embedding(5, 2, initializer=ps.RowConstant(0.5))
    block, model = Block(2), nn.Sequential(table, fixed)
    model.block = block
    trained = [table.table, *block.trainable_variables]

    def with_gradients():
        y = ops.sum(block(model(np.array([1, 2])), training=True))
        ps.discard_update_ops()
        return [v for v, g in zip(model.variables, ps.gradients(y, model.variables), strict=True) if g is not None]

    assert with_gradients() == model.trainable_variables == ps.trainable_variables() == trained
    block.trainable = False
    assert with_gradients() == ps.trainable_variables() == [table.table]
    assert (model.trainable, block.trainable) == (True, False)
    model.trainable = False
    model.trainable = False
    assert with_gradients() == ps.trainable_variables() == []
    block.tied.trainable = True  # part of a frozen layer
    assert with_gradients() == [block.tied.kernel]
    recorded = ops.sum(block.tied(normal(3, 2)))
    model.trainable = True
    assert ps.gradients(recorded, block.tied.kernel)[0] is not None
    assert with_gradients() == model.trainable_variables == trained
    assert not block.norms["first"].moving_mean.trainable


def test_sequential_applies_layers_and_functions_in_order():
    x, hidden, out = normal(4, 3, 2), nn.Dense(6, 5), nn.Dense(5, 2)
    model = nn.Sequential(nn.Flatten(), hidden, ops.relu, out)
    np.testing.assert_array_equal(model(x).value, out(ops.relu(hidden(x.reshape(4, 6)))).value)
    assert repr(model) == "Sequential(Flatten(), Dense('dense': 6 -> 5), relu, Dense('dense_1': 5 -> 2))"
    assert (len(model), model.layers[1]) == (4, hidden)
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize("training", [True, False])
def test_sequential_passes_training_to_the_layers_that_take_it(training):
    seen = []

    class Own(nn.Layer):
        def __call__(self, x, training=None):
            seen.append(training)
            return x

    def function(x, training):
        seen.append(training)
        return x

    x, norm = normal(6, 3), nn.BatchNorm(3)
    model = nn.Sequential(Own(), nn.Sequential(function, np.asarray), partial(function, training=not training), norm)
    np.testing.assert_array_equal(model(x, training=training).value, norm(x, training).value)
    assert seen == [training, training, not training]
    assert bool(ps.update_ops()) == training
    nn.Sequential(Own())(x)
    assert seen[-1] is None


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm(3), lambda: nn.Sequential(ops.relu, nn.Dropout(0.5))])
def test_sequential_does_not_guess_whether_it_trains(layer):
    with pytest.raises(TypeError, match="one of the layers requires training"):
        nn.Sequential(layer())(normal(2, 3))


@pytest.mark.parametrize("layer", [[], nn.Dense, 3, None])
def test_sequential_refuses_what_is_neither_a_layer_nor_a_function(layer):
    with pytest.raises(TypeError, match=r"^Sequential: each argument must be a layer or .* argument 1 is "):
        nn.Sequential(ops.relu, layer)


# --- Pooling, flattening and dropout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"pool_size": (3, 2), "strides": 2, "padding": "SAME"}, {"pool_size": 3}])
def test_pooling_layers_pass_their_settings_to_the_ops(settings):
    x = normal(2, 7, 6, 3)
    given = {"size" if name == "pool_size" else name: value for name, value in settings.items()}
    for layer, op in ((nn.MaxPool2D, ops.max_pool2d), (nn.AvgPool2D, ops.avg_pool2d)):
        np.testing.assert_array_equal(layer(**settings)(x).value, op(x, **given).value)
    assert repr(nn.MaxPool2D((3, 2))) == "MaxPool2D(3 x 2)"


def test_flatten_keeps_the_first_axis():
    for shape, flat in (((2, 3, 4), (2, 12)), ((3,), (3, 1)), ((0, 2, 3), (0, 6))):
        np.testing.assert_array_equal(nn.Flatten()(normal(*shape)).value, normal(*shape).reshape(flat))


def test_dropout_draws_the_masks_of_its_op_in_training_and_none_otherwise():
    x, layer = normal(50, 4), nn.Dropout(0.3)
    found = []
    for drop in (layer, lambda x, training: ops.dropout(x, 0.3, training)):
        ps.set_random_seed(5)
        found.append([drop(x, training=True).value, drop(x, training=False).value, drop(x, training=True).value])
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][1], x)
    assert not np.array_equal(found[0][0], found[0][2])
    assert repr(layer) == "Dropout(0.3)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Dropout(1), ValueError, "^Dropout: rate, .* below 1, got 1"),
        (lambda: nn.MaxPool2D(0), ValueError, "^MaxPool2D: pool_size must be at least 1"),
        (lambda: nn.AvgPool2D(2, strides="2"), TypeError, "^AvgPool2D: strides must be an integer"),
        (lambda: nn.AvgPool2D(2, padding="same"), ValueError, '^AvgPool2D: padding must be "SAME" or "VALID", got'),
        (lambda: nn.Flatten()(1.0), ValueError, r"^Flatten\(\): x must have shape \(batch, \.\.\.\)"),
        (lambda: nn.MaxPool2D()(normal(2, 3)), ValueError, r"^max_pool2d\(.*axes \(batch, height, width"),
    ],
)
def test_invalid_arguments_are_refused_in_the_name_of_the_layer(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []
