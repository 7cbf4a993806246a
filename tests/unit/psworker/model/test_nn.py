"""Layers: the variables they make, what they compute, and what they say when called wrongly."""

from functools import partial

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.specs import initializers
from psworker import nn, ops

SEED = 20151208


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


def names():
    return [variable.name for variable in ps.trainable_variables()]


# --- variables ------------------------------------------------------------------------------------------------------


def test_layers_name_their_variables_by_kind_and_count_in_the_current_scope():
    with ps.variable_scope("model"):
        layers = [nn.Dense(2, 3), nn.Dense(3, 4), nn.Conv2D(1, 2, 3), nn.Embedding(5, 2), nn.LayerNorm(2)]
    nn.Dense(2, 3, name="logits", bias=False)
    assert [layer.name for layer in layers] == [
        "model/dense",
        "model/dense_1",
        "model/conv2d",
        "model/embedding",
        "model/layer_norm",
    ]
    assert names() == [
        *("model/dense/kernel", "model/dense/bias", "model/dense_1/kernel", "model/dense_1/bias"),
        *("model/conv2d/kernel", "model/conv2d/bias", "model/embedding/table"),
        *("model/layer_norm/gamma", "model/layer_norm/beta", "logits/kernel"),
    ]


def test_two_layers_of_one_name_are_refused():
    nn.Dense(2, 3, name="logits")
    with pytest.raises(ConfigurationError, match="'logits/kernel'"):
        nn.Dense(2, 3, name="logits")


def test_the_seed_and_the_name_decide_a_first_value_and_the_order_of_making_does_not():
    def kernels(seed, order):
        with ps.collection():
            ps.set_random_seed(seed)
            made = {name: nn.Dense(4, 5, name=name).kernel.value for name in order}
        return made["a"], made["b"]

    a, b = kernels(0, "ab")
    other_a, other_b = kernels(0, "ba")
    np.testing.assert_array_equal(a, other_a)
    np.testing.assert_array_equal(b, other_b)
    assert not np.any(a == b)
    assert not np.any(a == kernels(1, "ab")[0])


def test_initializers_are_what_was_asked_for():
    given = {"kernel_initializer": initializers.constant(0.5), "bias_initializer": initializers.constant(0.1)}
    for layer in (nn.Dense(2, 3, **given), nn.Conv2D(2, 3, (1, 2), **given)):
        assert np.all(layer.kernel.value == 0.5)
        assert np.all(layer.bias.value == np.float32(0.1))
    assert np.all(nn.Embedding(2, 3, initializer=initializers.ones()).table.value == 1)


def test_without_being_told_kernels_are_glorot_biases_zero_and_tables_small():
    dense, conv, table = nn.Dense(300, 200), nn.Conv2D(3, 4, 5), nn.Embedding(100, 20).table
    assert 0.99 * (6 / 500) ** 0.5 < np.abs(dense.kernel.value).max() <= (6 / 500) ** 0.5
    assert 0.9 * (6 / 175) ** 0.5 < np.abs(conv.kernel.value).max() <= (6 / 175) ** 0.5
    assert 0.049 < np.abs(table.value).max() <= 0.05
    assert not dense.bias.value.any()
    assert not conv.bias.value.any()


def test_a_layer_says_in_one_line_what_it_is():
    with ps.variable_scope("model"):
        layers = [nn.Dense(784, 10), nn.Conv2D(1, 32, (5, 3)), nn.BatchNorm(7), nn.LayerNorm(8), nn.Embedding(9, 2)]
    assert [repr(layer) for layer in layers] == [
        "Dense('model/dense': 784 -> 10)",
        "Conv2D('model/conv2d': 1 -> 32, 5 x 3)",
        "BatchNorm('model/batch_norm': 7)",
        "LayerNorm('model/layer_norm': 8)",
        "Embedding('model/embedding': 9 rows of 2)",
    ]


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (0, 3)])
def test_dense_is_a_matrix_product_a_bias_and_an_activation(shape):
    x = normal(*shape)
    layer = nn.Dense(3, 2, activation=ops.tanh, bias_initializer=initializers.constant(0.5))
    expected = np.tanh(np.einsum("...i,io->...o", x, layer.kernel.value) + 0.5)
    y = layer(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.value, expected, rtol=1e-5, atol=1e-6)
    plain = nn.Dense(3, 2, bias=False)
    np.testing.assert_allclose(plain(x).value, x @ plain.kernel.value, rtol=1e-5, atol=1e-6)


def test_conv2d_passes_its_settings_to_the_op_and_its_result_to_the_activation():
    x = normal(2, 9, 8, 3)
    settings = {"strides": (2, 1), "padding": "VALID", "dilations": 2, "bias_initializer": initializers.constant(-0.1)}
    for name, activation in [("plain", None), ("fused", ops.relu), ("after", ops.tanh)]:
        layer = nn.Conv2D(3, 4, (3, 2), activation=activation, name=name, **settings)
        linear = ops.conv2d(x, layer.kernel, strides=(2, 1), padding="VALID", dilations=2) + layer.bias
        expected = linear if activation is None else activation(linear)
        y = layer(x)
        np.testing.assert_allclose(y.value, expected.value, rtol=1e-5, atol=1e-6)
        ours, theirs = (ps.gradients(ops.sum(ops.square(z)), [layer.kernel, layer.bias]) for z in (y, expected))
        for gradient, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-5)


def test_embedding_gives_rows_and_gets_rows():
    layer = nn.Embedding(5, 3)
    ids = np.array([[4, 0], [4, 1]])
    y = layer(ids)
    np.testing.assert_array_equal(y.value, layer.table.value[ids])
    [gradient] = ps.gradients(y, layer.table)
    assert isinstance(gradient, ps.IndexedSlices)
    assert gradient.indices.tolist() == [4, 0, 4, 1]


def test_layer_norm_brings_each_example_to_mean_0_and_variance_1():
    layer = nn.LayerNorm(50)
    y = layer(3 * normal(4, 2, 50) + 7).value
    np.testing.assert_allclose(y.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(axis=-1), 1, atol=1e-4)


def test_layer_norm_adds_its_epsilon_to_the_variance():
    layer = nn.LayerNorm(2, epsilon=3.0)
    np.testing.assert_allclose(layer(np.float32([[1, 3], [0, 0]])).value, [[-0.5, 0.5], [0, 0]], rtol=1e-6)
    assert layer(np.zeros((0, 2), np.float32)).shape == (0, 2)


def test_a_gradient_reaches_every_trainable_variable_of_a_model():
    layers = [
        nn.Conv2D(1, 2, 3, activation=ops.relu),
        nn.BatchNorm(2),
        lambda x, *_: ops.reshape(x, (-1, 32)),
        nn.Dense(32, 4),
        nn.LayerNorm(4),
    ]
    x = normal(3, 4, 4, 1)
    for layer in layers:
        x = layer(x, True) if isinstance(layer, nn.BatchNorm) else layer(x)
    variables = ps.trainable_variables()
    assert len(variables) == 8
    for gradient, variable in zip(ps.gradients(ops.sum(ops.square(x) * x), variables), variables, strict=True):
        assert gradient.shape == variable.shape
        assert gradient.dtype == np.float32


# --- batch norm -----------------------------------------------------------------------------------------------------


def test_batch_norm_normalises_a_batch_in_training_and_notes_its_moments():
    layer = nn.BatchNorm(3, decay=0.9, epsilon=0)
    x = normal(6, 5, 3) * [1, 10, 100] + [0, -5, 50]
    y = layer(x.astype(np.float32), training=True).value
    np.testing.assert_allclose(y.mean(axis=(0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(axis=(0, 1)), 1, rtol=1e-5)
    mean, variance = ps.update_ops()
    assert [mean.variable, variance.variable] == [layer.moving_mean, layer.moving_variance]
    assert (mean.decay, variance.decay) == (0.9, 0.9)
    assert (mean.value.dtype, variance.value.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(mean.value, x.mean(axis=(0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance.value, x.reshape(30, 3).var(axis=0, ddof=1), rtol=1e-4)


def test_several_batches_before_a_push_are_noted_once_with_their_mean():
    layer = nn.BatchNorm(1)
    for value in (1.0, 2.0, 6.0):
        layer(np.full((4, 1), value, np.float32), training=True)
    mean, variance = ps.update_ops()
    np.testing.assert_allclose(mean.value, [3])
    np.testing.assert_array_equal(variance.value, [0])


def test_batch_norm_goes_by_its_moving_averages_when_not_training_and_notes_nothing():
    layer = nn.BatchNorm(2, epsilon=0.5)
    layer.moving_mean.value = np.float32([1, -2])
    layer.moving_variance.value = np.float32([3.5, 15.5])
    layer.gamma.value, layer.beta.value = np.float32([2, -1]), np.float32([10, 20])
    x = ps.Tensor(normal(7, 2), requires_grad=True)
    y = layer(x, training=False)
    normalised = (x.value - [1, -2]) / [2, 4]
    np.testing.assert_allclose(y.value, normalised * [2, -1] + [10, 20], rtol=1e-5)
    assert y.dtype == np.float32
    assert ps.update_ops() == []
    weights = np.random.default_rng(SEED).random((7, 2))
    of_x, of_gamma, of_beta = ps.gradients(y, [x, layer.gamma, layer.beta], weights)
    np.testing.assert_allclose(of_x, weights * [1, -0.25], rtol=1e-5)
    np.testing.assert_allclose(of_gamma, (weights * normalised).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(of_beta, weights.sum(axis=0), rtol=1e-5)


def test_a_new_batch_norm_changes_next_to_nothing_when_not_training():
    x = normal(4, 3)
    np.testing.assert_allclose(nn.BatchNorm(3)(x, training=False).value, x, rtol=1e-3)


def test_moving_averages_are_not_trained():
    layer = nn.BatchNorm(3)
    assert not layer.moving_mean.trainable
    assert not layer.moving_variance.trainable
    assert names() == ["batch_norm/gamma", "batch_norm/beta"]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_center_and_scale_has_neither_variable(training):
    layer = nn.BatchNorm(3, center=False, scale=False)
    assert layer.gamma is layer.beta is None
    assert names() == []
    x = normal(5, 3)
    scaled, centered = nn.BatchNorm(3, center=False), nn.BatchNorm(3, scale=False)
    assert names() == ["batch_norm_1/gamma", "batch_norm_2/beta"]
    expected = layer(x, training).value
    for other in (scaled, centered, nn.BatchNorm(3)):
        np.testing.assert_allclose(other(x, training).value, expected, rtol=1e-6)


def test_a_batch_of_one_example_has_variance_0():
    layer = nn.BatchNorm(3)
    assert not layer(normal(1, 3), training=True).value.any()
    np.testing.assert_array_equal(ps.update_ops()[1].value, np.zeros(3))


# --- wrong calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (lambda: nn.Dense(784, 10), np.zeros((5, 28, 28)), r"\(\.\.\., 784\), but its shape is \(5, 28, 28\)"),
        (lambda: nn.Dense(784, 10), 1.0, r"Dense\('net/dense': 784 -> 10\): x must have .* its shape is \(\)"),
        (lambda: nn.Conv2D(1, 2, 3), np.zeros((5, 28, 28)), r"\(batch, height, width, 1\), .* is \(5, 28, 28\)"),
        (lambda: nn.Conv2D(1, 2, 3), np.zeros((5, 8, 8, 2)), r"Conv2D\('net/conv2d': .*\): .* \(5, 8, 8, 2\)"),
        (lambda: nn.LayerNorm(3), np.zeros((5, 2)), r"LayerNorm\('net/layer_norm': 3\): .* \(\.\.\., 3\)"),
    ],
)
def test_x_of_a_wrong_shape_is_refused_in_the_name_of_the_layer(layer, x, message):
    with ps.variable_scope("net"):
        layer = layer()
    with pytest.raises(ValueError, match=message):
        layer(x)


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_refuses_other_features_and_takes_no_moments_of_nothing(training):
    layer = nn.BatchNorm(3)
    with pytest.raises(ValueError, match=r"BatchNorm\('batch_norm': 3\): x must have shape \(\.\.\., 3\)"):
        layer(np.zeros((5, 1), np.float32), training)
    if training:
        with pytest.raises(ValueError, match="no elements"):
            layer(np.zeros((0, 3), np.float32), training)


@pytest.mark.parametrize("decay", [1, -0.1])
def test_a_decay_that_cannot_be_is_refused(decay):
    with pytest.raises(ValueError, match="BatchNorm: decay must be at least 0 and below 1"):
        nn.BatchNorm(3, decay=decay)


def test_an_embedding_names_its_table_when_an_id_is_not_in_it():
    with pytest.raises(IndexError, match=r"'users/table'.*ids must be in 0 \.\.\. 4, but they span 2 \.\.\. 5"):
        nn.Embedding(5, 2, name="users")([2, 5])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: nn.Dense(3, 4, activation="relu"),
            TypeError,
            "^Dense: activation must be .* ops.relu, or None, .*'relu'",
        ),
        (lambda: nn.Conv2D(1, 2, 3, activation="relu"), TypeError, "^Conv2D: activation must be a function"),
        (lambda: nn.Conv2D(1, 2, 1.5), TypeError, "^Conv2D: kernel_size must be an integer or two"),
        (lambda: nn.Conv2D(1, 2, (3, 3, 3)), ValueError, "^Conv2D: kernel_size must be from 1 up, one number or two"),
        (lambda: nn.Conv2D(1, 2, 0), ValueError, "^Conv2D: kernel_size must be from 1 up"),
        (lambda: nn.Conv2D(1, 2, 3, strides=0), ValueError, "^Conv2D: strides must be from 1 up"),
        (lambda: nn.Conv2D(1, 2, 3, dilations="2"), TypeError, "^Conv2D: dilations must be an integer"),
        (lambda: nn.Dense(3.0, 4), TypeError, r"^kernel: the sizes .* must be integers, but they are \(3.0, 4\)"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_when_the_layer_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []


@pytest.mark.parametrize("which", ["kernel", "bias"])
@pytest.mark.parametrize(
    ("initializer", "error", "message"),
    [
        *((getattr(initializers, name), TypeError, "with brackets") for name in ("he_normal", "zeros", "constant")),
        (initializers.random_normal, TypeError, "with brackets"),
        ("zeros", TypeError, "with brackets"),
        (lambda shape, random: np.zeros((2, 2)), ValueError, r"returned an array of shape \(2, 2\) instead of \("),
        (lambda shape, random: 0.5, ValueError, r"returned an array of shape \(\) instead of"),
        (lambda shape, random: np.zeros(shape, np.int64), TypeError, "returned an array of int64 instead of float32"),
    ],
)
@pytest.mark.parametrize("make", [lambda **given: nn.Dense(3, 4, **given), lambda **given: nn.Conv2D(1, 4, 3, **given)])
def test_an_initializer_that_cannot_be_is_refused_and_no_half_of_the_layer_is_left(
    make, initializer, error, message, which
):
    with pytest.raises(error, match=f"^{which}: .*{message}"):
        make(**{f"{which}_initializer": initializer})
    assert ps.global_variables() == []
    assert make().name in ("dense", "conv2d")  # the name is free, too


@pytest.mark.parametrize(("made", "kept"), [("float16", "float16"), ("float32", "float32"), ("float64", "float32")])
def test_first_values_are_float32_where_an_initializer_makes_float64(made, kept):
    layer = nn.Dense(3, 4, kernel_initializer=lambda shape, random: random.standard_normal(shape).astype(made))
    assert layer.kernel.dtype == kept
    assert nn.Embedding(3, 4, initializer=lambda shape, random: np.ones(shape, made)).table.dtype == kept


@pytest.mark.parametrize("size", [np.int64(3), (3, np.int32(3)), [3, 3]], ids=repr)
def test_any_integer_is_the_size_of_a_kernel(size):
    assert nn.Conv2D(1, 2, size, strides=np.int64(2)).kernel.shape == (3, 3, 1, 2)
    assert nn.Dense(np.int64(3), np.uint8(4)).kernel.shape == (3, 4)


# --- dtypes of x ----------------------------------------------------------------------------------------------------

LAYERS = {
    "dense": lambda: nn.Dense(2, 3),
    "conv2d": lambda: nn.Conv2D(2, 3, 3),
    "batch_norm, training": lambda: partial(nn.BatchNorm(2), training=True),
    "batch_norm": lambda: partial(nn.BatchNorm(2), training=False),
    "layer_norm": lambda: nn.LayerNorm(2),
}


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_x_of_another_dtype_is_computed_with_in_that_of_the_variables(layer, dtype):
    layer = layer()
    x = np.random.default_rng(SEED).integers(0, 9, (3, 4, 5, 2)).astype(dtype)
    expected = layer(x.astype(np.float32))
    for given in (x, ps.Tensor(x), x.tolist()):
        y = layer(given)
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.value, expected.value)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_gradient_flows_back_into_an_x_of_float64(layer):
    layer, values = layer(), normal(3, 4, 5, 2)
    wide, narrow = (ps.Tensor(values.astype(dtype), requires_grad=True) for dtype in (np.float64, np.float32))
    [found], [expected] = (ps.gradients(ops.sum(ops.square(layer(x)) * layer(x)), [x]) for x in (wide, narrow))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["complex64", "U1", "object"])
def test_x_of_no_real_numbers_is_refused_in_the_name_of_the_layer(dtype):
    with pytest.raises(TypeError, match=r"Dense\('net': 3 -> 4\): x must be of real numbers, but its dtype is"):
        nn.Dense(3, 4, name="net")(np.ones((2, 3)).astype(dtype))
