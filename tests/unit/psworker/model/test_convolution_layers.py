"""Layers of convolutions: settings, groups, causal and transposed convolution, names, initial values, errors."""

import numpy as np
import pytest

import psworker as ps
from psworker import initializers, nn, ops
from tests.support.combinations import together

SEED = 20170721


def normal(*shape, seed=SEED):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


#: A layer, the op of its settings, and the shape of x.
LAYERS = {
    "conv1d": (
        lambda **given: nn.Conv1D(4, 6, 3, strides=2, padding="VALID", dilations=2, groups=2, **given),
        lambda x, kernel: ops.conv1d(x, kernel, None, 2, "VALID", 2, groups=2),
        (2, 11, 4),
    ),
    "causal": (
        lambda **given: nn.Conv1D(2, 3, 4, padding="CAUSAL", dilations=3, **given),
        lambda x, kernel: ops.conv1d(np.pad(x, ((0, 0), (9, 0), (0, 0))), kernel, None, 1, "VALID", 3),
        (2, 12, 2),
    ),
    "conv2d in groups": (
        lambda **given: nn.Conv2D(4, 6, (3, 2), strides=(1, 2), padding="VALID", dilations=2, groups=2, **given),
        lambda x, kernel: ops.conv2d(x, kernel, None, (1, 2), "VALID", 2, groups=2),
        (2, 7, 6, 4),
    ),
    "depthwise": (
        lambda **given: nn.DepthwiseConv2D(3, (2, 3), strides=2, padding="VALID", depth_multiplier=2, **given),
        lambda x, kernel: ops.conv2d(x, kernel, None, 2, "VALID", groups=3),
        (2, 5, 6, 3),
    ),
    "transposed": (
        lambda **given: nn.Conv2DTranspose(3, 2, (3, 2), strides=(2, 1), padding="VALID", dilations=2, **given),
        lambda x, kernel: ops.conv2d_transpose(x, kernel, None, (2, 1), "VALID", 2),
        (2, 3, 4, 3),
    ),
}


@pytest.mark.parametrize("activation", [None, ops.relu, ops.tanh])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_convolution_layer_is_its_op_with_its_settings_a_bias_and_an_activation(kind, activation):
    make, op, shape = LAYERS[kind]
    x, layer = normal(*shape), make(activation=activation, bias_initializer=initializers.constant(-0.1))
    linear = op(x, layer.kernel) + layer.bias
    results = layer(x), linear if activation is None else activation(linear)
    np.testing.assert_allclose(results[0].value, results[1].value, rtol=1e-5, atol=1e-6)
    gradients = [ps.gradients(ops.sum(ops.square(y)), [layer.kernel, layer.bias]) for y in results]
    for gradient, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-5)
    plain = make(bias=False, name="plain")
    assert [variable.name for variable in plain.variables] == ["plain/kernel"]
    np.testing.assert_allclose(plain(x).value, op(x, plain.kernel).value, rtol=1e-5, atol=1e-6)


def test_a_step_of_a_causal_convolution_depends_on_no_later_step():
    x, layer = normal(1, 10, 2), nn.Conv1D(2, 3, 3, padding="CAUSAL", dilations=2)
    changed = x.copy()
    changed[:, 6] += 1
    moved = np.any(layer(x).value != layer(changed).value, axis=(0, 2))
    assert moved.tolist() == [False] * 6 + [True, False, True, False]  # steps 6, 8 and, beyond the end, 10
    assert layer(x).shape == (1, 10, 3)


def test_a_transposed_convolution_is_the_gradient_of_the_convolution_with_its_kernel():
    layer, x = nn.Conv2DTranspose(3, 2, 3, strides=2, bias=False), normal(2, 4, 5, 3)
    images = ps.Tensor(np.zeros((2, 8, 10, 2), np.float32), requires_grad=True)
    [expected] = ps.gradients(ops.conv2d(images, layer.kernel.value, strides=2), images, x)
    np.testing.assert_allclose(layer(x).value, expected, rtol=1e-5, atol=1e-6)


def test_convolution_layers_are_named_by_kind_and_describe_themselves():
    layers = [nn.Conv1D(4, 6, 3), nn.Conv2D(4, 6, (3, 2), groups=2), nn.DepthwiseConv2D(3, 5, depth_multiplier=2)]
    layers += [nn.Conv2DTranspose(3, 2, (3, 4)), nn.Conv1D(4, 4, 1, groups=4)]
    assert [repr(layer) for layer in layers] == [
        "Conv1D('conv1d': 4 -> 6, 3)",
        "Conv2D('conv2d': 4 -> 6, 3 x 2, 2 groups)",
        "DepthwiseConv2D('depthwise_conv2d': 3 -> 6, 5 x 5, 3 groups)",
        "Conv2DTranspose('conv2d_transpose': 3 -> 2, 3 x 4)",
        "Conv1D('conv1d_1': 4 -> 4, 1, 4 groups)",
    ]
    kernels = [(3, 4, 6), (3, 2, 2, 6), (5, 5, 1, 6), (3, 4, 2, 3), (1, 1, 4)]
    assert [layer.kernel.shape for layer in layers] == kernels
    assert [layer.bias.shape for layer in layers] == [(6,), (6,), (6,), (2,), (4,)]


def test_the_initializer_of_a_transposed_convolution_sees_its_channels_as_inputs():
    layer = nn.Conv2DTranspose(50, 3, 4, kernel_initializer=initializers.he_uniform())
    limit = (6 / (16 * 50)) ** 0.5
    assert 0.95 * limit < np.abs(layer.kernel.value).max() <= limit
    seen = []
    nn.Conv2DTranspose(4, 3, (2, 1), kernel_initializer=lambda shape, _: seen.append(shape) or np.zeros(shape))
    assert seen == [(2, 1, 4, 3)]


def test_every_gate_gets_an_orthogonal_matrix_from_an_initializer_with_as_many_blocks():
    layer = nn.GRU(3, 5, recurrent_initializer=initializers.orthogonal(blocks=3))
    for gate in np.split(layer.recurrent_kernel.value.astype(np.float64), 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(5), atol=1e-6)


@together(
    ("make", "error", "message"),
    [
        (lambda: nn.Conv1D(4, 6, (3,)), TypeError, r"^Conv1D: kernel_size must be one integer, but it is \(3,\)"),
        (lambda: nn.Conv1D(4, 6, 3, strides=(1, 2)), TypeError, r"^Conv1D: strides must be one integer"),
        (lambda: nn.Conv1D(4, 6, 0), ValueError, "^Conv1D: kernel_size must be at least 1"),
        (lambda: nn.Conv1D(4, 6, 3, padding="causal"), ValueError, '^Conv1D: padding must be .*"CAUSAL", got \'causal'),
        (lambda: nn.Conv2D(4, 6, 3, padding="CAUSAL"), ValueError, '^Conv2D: padding must be "SAME" or "VALID", got'),
        (lambda: nn.Conv2D(4, 6, 3, groups=4), ValueError, r"groups must divide the channels \(4\) .* \(6\), .* is 4"),
        (lambda: nn.Conv2D(4, 6, 3, groups=0), ValueError, "^Conv2D: groups must divide .* but it is 0"),
        (lambda: nn.Conv2D(4, 6, 3, groups=2.0), TypeError, "^Conv2D: groups must be an integer, but it is 2.0"),
        (lambda: nn.Conv2D("4", 6, 3), TypeError, "^Conv2D: channels must be an integer, but it is '4'"),
        (lambda: nn.DepthwiseConv2D(0, 3), ValueError, "^DepthwiseConv2D: channels must be at least 1, but it is 0"),
        (lambda: nn.DepthwiseConv2D(3, 3, depth_multiplier=1.5), TypeError, "depth_multiplier must be one integer"),
        (lambda: nn.Conv2DTranspose(3, 2, 3, strides=0), ValueError, "^Conv2DTranspose: strides must be at least 1"),
        (lambda: nn.Conv2DTranspose(3, 2, 3, activation="relu"), TypeError, "^Conv2DTranspose: activation must be"),
    ],
)
def test_invalid_settings_are_refused_when_the_layer_is_created(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (lambda: nn.Conv1D(4, 6, 3, groups=2), r"4 -> 6, 3, 2 groups\): x must have shape \(batch, length, 4\)"),
        (lambda: nn.Conv2D(4, 6, 3, groups=2), r"\(batch, height, width, 4\), but its shape is \(2, 5\)"),
        (lambda: nn.DepthwiseConv2D(3, 3), r"DepthwiseConv2D\(.* x must have shape \(batch, height, width, 3\)"),
        (lambda: nn.Conv2DTranspose(3, 2, 3), r"Conv2DTranspose\(.* x must have shape \(batch, height, width, 3\)"),
    ],
)
def test_x_of_another_shape_is_refused_in_the_name_of_the_layer(layer, axes):
    with pytest.raises(ValueError, match=axes):
        layer()(normal(2, 5))
