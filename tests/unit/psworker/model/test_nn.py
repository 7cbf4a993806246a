"""Layers: the variables they create, the values they compute, and the errors of wrong calls."""

from functools import partial

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.specs import initializers
from psworker import nn, ops

SEED = 20151208


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


def test_layers_name_their_variables_by_kind_and_count_in_the_current_scope():
    with ps.variable_scope("model"):
        layers = [nn.Dense(2, 3), nn.Dense(3, 4), nn.Conv2D(1, 2, (5, 3)), nn.Embedding(9, 2), nn.LayerNorm(2)]
    layers += [nn.BatchNorm(7), nn.Dense(2, 3, name="logits", bias=False)]
    parts = "kernel bias", "kernel bias", "kernel bias", "table", "gamma beta", "gamma beta", "kernel"
    of_layers = [f"{layer.name}/{part}" for layer, some in zip(layers, parts, strict=True) for part in some.split()]
    assert [variable.name for variable in ps.trainable_variables()] == of_layers
    assert [repr(layer) for layer in layers] == [
        "Dense('model/dense': 2 -> 3)",
        "Dense('model/dense_1': 3 -> 4)",
        "Conv2D('model/conv2d': 1 -> 2, 5 x 3)",
        "Embedding('model/embedding': 9 rows of 2)",
        "LayerNorm('model/layer_norm': 2)",
        "BatchNorm('batch_norm': 7)",
        "Dense('logits': 2 -> 3)",
    ]
    moving = [variable.name for variable in ps.global_variables() if not variable.trainable]
    assert moving == ["batch_norm/moving_mean", "batch_norm/moving_variance"]
    with pytest.raises(ConfigurationError, match="'logits/kernel'"):
        nn.Dense(2, 3, name="logits")


def test_kernels_are_by_default_glorot_biases_zero_and_tables_small_uniform():
    given = {"kernel_initializer": initializers.constant(0.5), "bias_initializer": initializers.constant(0.1)}
    for layer in (nn.Dense(2, 3, **given), nn.Conv2D(2, 3, (1, 2), **given)):
        assert set(layer.kernel.value.flat) == {0.5}
        assert set(layer.bias.value) == {np.float32(0.1)}
    assert set(nn.Embedding(2, 3, initializer=initializers.ones()).table.value.flat) == {1}
    dense, conv, embedding = nn.Dense(300, 200), nn.Conv2D(3, 4, 5), nn.Embedding(100, 20)
    limits = [(dense.kernel, (6 / 500) ** 0.5), (conv.kernel, (6 / 175) ** 0.5), (embedding.table, 0.05)]
    for variable, limit in limits:
        assert 0.9 * limit < np.abs(variable.value).max() <= limit
    assert not any([*dense.bias.value, *conv.bias.value])


def test_sizes_are_any_integers_and_initial_values_of_float64_become_float32():
    for size in (np.int64(3), (3, np.int32(3)), [3, 3]):
        assert nn.Conv2D(1, 2, size, strides=np.int64(2)).kernel.shape == (3, 3, 1, 2)
    for made, kept in (("float16", "float16"), ("float32", "float32"), ("float64", "float32")):
        layer = nn.Dense(3, 4, kernel_initializer=lambda shape, random, dtype=made: np.ones(shape, dtype))
        assert layer.kernel.dtype == kept


@pytest.mark.parametrize("shape", [(3,), (2, 4, 3), (0, 3)])
def test_dense_is_a_matrix_product_a_bias_and_an_activation(shape):
    x, layer = normal(*shape), nn.Dense(3, 2, activation=ops.tanh, bias_initializer=initializers.constant(0.5))
    np.testing.assert_allclose(layer(x).value, np.tanh(x @ layer.kernel.value + 0.5), rtol=1e-5, atol=1e-6)
    plain = nn.Dense(3, 2, bias=False)
    np.testing.assert_allclose(plain(x).value, x @ plain.kernel.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", [None, ops.relu, ops.tanh])
def test_conv2d_passes_its_settings_to_the_op_and_its_result_to_the_activation(activation):
    x, settings = normal(2, 9, 8, 3), {"strides": (2, 1), "padding": "VALID", "dilations": 2}
    layer = nn.Conv2D(3, 4, (3, 2), activation=activation, bias_initializer=initializers.constant(-0.1), **settings)
    linear = ops.conv2d(x, layer.kernel, **settings) + layer.bias
    results = layer(x), linear if activation is None else activation(linear)
    np.testing.assert_allclose(results[0].value, results[1].value, rtol=1e-5, atol=1e-6)
    gradients = [ps.gradients(ops.sum(ops.square(y)), [layer.kernel, layer.bias]) for y in results]
    for gradient, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-5)


def test_norms_are_their_ops_with_the_moments_of_the_batch_or_moving_averages():
    x, layer, batch = normal(6, 5, 3), nn.LayerNorm(3, epsilon=0.1), nn.BatchNorm(3, decay=0.9, epsilon=0.5)
    for variable in ps.global_variables():
        variable.value = np.random.default_rng(len(variable.name)).uniform(0.5, 2, 3).astype(np.float32)
    moving, scaled = (batch.moving_mean, batch.moving_variance), (batch.gamma, batch.beta)
    for y, expected in (
        (layer(x), ops.layer_norm(x, layer.gamma, layer.beta, 0.1)),
        (batch(x, training=False), ops.batch_norm_inference(x, *moving, *scaled, 0.5)),
        (batch(x, training=True), ops.batch_norm(x, *scaled, 0.5)),
    ):
        np.testing.assert_array_equal(y.value, expected.value)
    updates = ps.update_ops()
    assert [(one.variable, one.decay) for one in updates] == [(one, 0.9) for one in moving]
    expected = x.mean(axis=(0, 1)), x.reshape(30, 3).var(axis=0, ddof=1)
    np.testing.assert_allclose([one.value for one in updates], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_center_or_scale_lacks_that_variable_alone(training):
    x, settings = normal(5, 3), [{"center": False, "scale": False}, {"center": False}, {"scale": False}]
    for layer in [nn.BatchNorm(3, **some) for some in settings]:
        np.testing.assert_allclose(layer(x, training).value, nn.BatchNorm(3)(x, training).value, rtol=1e-6)
    assert [one.name for one in ps.trainable_variables()][:2] == ["batch_norm_1/gamma", "batch_norm_2/beta"]


@pytest.mark.parametrize(
    ("layer", "x", "error", "message"),
    [
        (lambda: nn.Dense(784, 10), np.zeros((5, 28, 28)), ValueError, r"\(\.\.\., 784\), but .* is \(5, 28, 28\)"),
        (lambda: nn.Dense(784, 10), 1.0, ValueError, r"Dense\('net/dense': 784 -> 10\): x must have .* is \(\)"),
        (lambda: nn.Conv2D(1, 2, 3), np.zeros((5, 28, 28)), ValueError, r"\(batch, height, width, 1\), .* 28, 28\)"),
        (lambda: nn.LayerNorm(3), np.zeros((5, 2)), ValueError, r"LayerNorm\('net/layer_norm': 3\): .* \(\.\.\., 3\)"),
        (lambda: partial(nn.BatchNorm(3), training=False), np.zeros((5, 1)), ValueError, r"BatchNorm\('net/.*\., 3\)"),
        (lambda: partial(nn.BatchNorm(3), training=True), np.zeros((0, 3)), ValueError, "no elements"),
        (lambda: nn.Dense(3, 4), np.ones((2, 3), complex), TypeError, r"Dense\(.*must be of real numbers, .*complex"),
        (lambda: nn.Embedding(5, 2), [2, 5], IndexError, r"'net/embedding/table'.*ids must be in 0 \.\.\. 4"),
    ],
)
def test_an_invalid_x_is_refused_in_the_name_of_the_layer(layer, x, error, message):
    with ps.variable_scope("net"):
        layer = layer()
    with pytest.raises(error, match=message):
        layer(x)


def returns(array):
    return lambda shape, random: np.asarray(array)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Dense(3, 4, activation="relu"), TypeError, "^Dense: activation must be .*ops.relu, .*'relu'"),
        (lambda: nn.Conv2D(1, 2, 3, activation="relu"), TypeError, "^Conv2D: activation must be a function"),
        (lambda: nn.Conv2D(1, 2, 1.5), TypeError, "^Conv2D: kernel_size must be an integer or two"),
        (lambda: nn.Conv2D(1, 2, (3, 3, 3)), ValueError, "^Conv2D: kernel_size must be at least 1, as one"),
        (lambda: nn.Conv2D(1, 2, 3, strides=0), ValueError, "^Conv2D: strides must be at least 1"),
        (lambda: nn.Conv2D(1, 2, 3, dilations="2"), TypeError, "^Conv2D: dilations must be an integer"),
        (lambda: nn.Dense(3.0, 4), TypeError, r"^kernel: the sizes .* must be integers, but they are \(3.0, 4\)"),
        (lambda: nn.BatchNorm(3, decay=1), ValueError, "BatchNorm: decay must be at least 0 and below 1"),
        (lambda: nn.Dense(3, 4, kernel_initializer=initializers.he_normal), TypeError, "^kernel: .*with parentheses"),
        (lambda: nn.Conv2D(1, 2, 3, bias_initializer="zeros"), TypeError, "^bias: .*with parentheses"),
        (lambda: nn.Dense(3, 4, bias_initializer=returns([0] * 3)), ValueError, r"^bias: .*\(3,\) instead of \(4,\)"),
        (lambda: nn.Conv2D(1, 2, 3, kernel_initializer=returns(0.5)), ValueError, r"^kernel: .*\(\) instead of"),
        (lambda: nn.Dense(3, 2, bias_initializer=returns([0, 0])), TypeError, "^bias: .*int64 instead of float32"),
    ],
)
def test_an_invalid_argument_is_refused_when_the_layer_is_created(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []
    assert nn.Dense(3, 4).name == "dense"  # the name is free


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Dense(2, 3),
        lambda: nn.Conv2D(2, 3, 3),
        lambda: nn.LayerNorm(2),
        lambda: partial(nn.BatchNorm(2), training=True),
        lambda: partial(nn.BatchNorm(2), training=False),
    ],
)
def test_x_of_another_dtype_is_cast_to_that_of_the_variables_and_its_gradient_back(layer):
    layer = layer()
    for dtype in ("float64", "float16", "uint8", "int64", "bool"):
        x = np.random.default_rng(SEED).integers(0, 9, (3, 4, 5, 2)).astype(dtype)
        expected = layer(x.astype(np.float32)).value
        for given in (x, ps.Tensor(x), x.tolist()):
            np.testing.assert_array_equal(layer(given).value, expected, strict=True)
    wide, narrow = (ps.Tensor(normal(3, 4, 5, 2, dtype=dtype), requires_grad=True) for dtype in ("f8", "f4"))
    [found], [expected] = (ps.gradients(ops.sum(ops.square(layer(x)) * layer(x)), [x]) for x in (wide, narrow))
    np.testing.assert_allclose(found, expected.astype("f8"), rtol=1e-4, atol=1e-5, strict=True)
