"""Layers equal those of PyTorch with the same weights: outputs, and gradients of the input.

Skipped without PyTorch, which is no dependency: `pip install torch`, by hand, runs them.
"""

import numpy as np
import pytest

import psworker as ps
from psworker import nn, ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

IMAGES, SEQUENCES = (2, 7, 6, 4), (3, 5, 4)
TO_FILTERS = {3: (2, 1, 0), 4: (3, 2, 0, 1)}  # of a kernel, (..., in, out) -> (out, in, ...)


def normal(*shape, seed=20161125):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def randomize(layer):
    """Values other than 0 and 1 for all variables."""
    for number, variable in enumerate(layer.variables):
        variable.assign(normal(*variable.shape, seed=number) / 2)


def torch_array(x):
    return torch.from_numpy(np.array(x))


def copy_filters(ours, theirs):
    with torch.no_grad():
        theirs.weight.copy_(torch_array(ours.kernel.value.transpose(TO_FILTERS[ours.kernel.ndim])))
        theirs.bias.copy_(torch_array(ours.bias.value))


def channels_first(module):
    """The module as a function of images or sequences with their channels last."""
    return lambda x: module(x.movedim(-1, 1)).movedim(1, -1)


def convolution(ours, theirs):
    randomize(ours)
    copy_filters(ours, theirs)
    return ours, channels_first(theirs)


def recurrent(ours, theirs):
    """`nn.LSTM` has one bias, PyTorch two that are added."""
    randomize(ours)
    recurrent_bias = np.zeros_like(ours.bias.value) if ours.recurrent_bias is None else ours.recurrent_bias.value
    values = ours.kernel.value.T, ours.recurrent_kernel.value.T, ours.bias.value, recurrent_bias
    with torch.no_grad():
        for name, value in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), values, strict=True):
            getattr(theirs, name).copy_(torch_array(value))
    return ours, lambda x: theirs(x)[0]


def attention(heads):
    ours, theirs = nn.MultiHeadAttention(4, heads, 4 // heads), torch.nn.MultiheadAttention(4, heads, batch_first=True)
    randomize(ours)
    projections = ours.query, ours.key, ours.value
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch_array(np.concatenate([part.kernel.value.T for part in projections])))
        theirs.in_proj_bias.copy_(torch_array(np.concatenate([part.bias.value for part in projections])))
        theirs.out_proj.weight.copy_(torch_array(ours.output.kernel.value.T))
        theirs.out_proj.bias.copy_(torch_array(ours.output.bias.value))
    later = torch.triu(torch.ones(SEQUENCES[1], SEQUENCES[1], dtype=torch.bool), 1)
    return lambda x: ours(x, causal=True), lambda x: theirs(x, x, x, attn_mask=later, need_weights=False)[0]


def normalization():
    ours, theirs = nn.LayerNorm(4), torch.nn.LayerNorm(4)
    randomize(ours)
    with torch.no_grad():
        theirs.weight.copy_(torch_array(ours.gamma.value))
        theirs.bias.copy_(torch_array(ours.beta.value))
    return ours, theirs


def convolution2d(filters, size, **settings):
    """With padding of PyTorch as in our VALID, or with SAME of stride 1, which both pad alike for odd kernels."""
    theirs = {"stride": "strides", "dilation": "dilations", "groups": "groups"}
    given = {name: settings[ours] for name, ours in theirs.items() if ours in settings}
    padding = "same" if settings.get("padding") == "SAME" else 0
    return convolution(
        nn.Conv2D(4, filters, size, **settings), torch.nn.Conv2d(4, filters, size, padding=padding, **given)
    )


LAYERS = {
    "Conv2D": (IMAGES, lambda: convolution2d(6, (3, 5), padding="SAME")),
    "Conv2D with strides": (IMAGES, lambda: convolution2d(6, (3, 2), padding="VALID", strides=(2, 1))),
    "Conv2D in groups": (IMAGES, lambda: convolution2d(6, 3, padding="SAME", dilations=2, groups=2)),
    "DepthwiseConv2D": (
        IMAGES,
        lambda: convolution(
            nn.DepthwiseConv2D(4, 3, strides=2, padding="VALID", depth_multiplier=2),
            torch.nn.Conv2d(4, 8, 3, stride=2, groups=4),
        ),
    ),
    "Conv2DTranspose": (
        IMAGES,
        lambda: convolution(
            nn.Conv2DTranspose(4, 3, (3, 4), strides=2, padding="VALID"),
            torch.nn.ConvTranspose2d(4, 3, (3, 4), stride=2),
        ),
    ),
    "Conv1D": (
        SEQUENCES,
        lambda: convolution(
            nn.Conv1D(4, 6, 3, padding="SAME", groups=2), torch.nn.Conv1d(4, 6, 3, padding="same", groups=2)
        ),
    ),
    "GRU": (SEQUENCES, lambda: recurrent(nn.GRU(4, 6, return_sequences=True), torch.nn.GRU(4, 6, batch_first=True))),
    "LSTM": (SEQUENCES, lambda: recurrent(nn.LSTM(4, 6, return_sequences=True), torch.nn.LSTM(4, 6, batch_first=True))),
    "MultiHeadAttention": (SEQUENCES, lambda: attention(2)),
    "LayerNorm": (SEQUENCES, normalization),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_and_its_gradient_equal_those_of_pytorch(kind):
    shape, make = LAYERS[kind]
    ours, theirs = make()
    x = ps.Tensor(normal(*shape), requires_grad=True)
    y, torch_x = ours(x), torch_array(x.value).requires_grad_()
    torch_y = theirs(torch_x)
    np.testing.assert_allclose(y.value, torch_y.detach().numpy(), rtol=1e-4, atol=1e-5)
    weights = normal(*y.shape, seed=1)
    torch_y.backward(torch_array(weights))
    [gradient] = ps.gradients(y, x, weights)
    np.testing.assert_allclose(gradient, torch_x.grad.numpy(), rtol=1e-4, atol=1e-5)


ACTIVATIONS = {
    "elu": torch.nn.functional.elu,
    "gelu": torch.nn.functional.gelu,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "selu": torch.nn.functional.selu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_and_its_slope_equal_those_of_pytorch(name):
    x = ps.Tensor(np.linspace(-30, 30, 121, dtype=np.float32), requires_grad=True)
    y, torch_x = getattr(ops, name)(x), torch_array(x.value).requires_grad_()
    torch_y = ACTIVATIONS[name](torch_x)
    torch_y.sum().backward()
    np.testing.assert_allclose(y.value, torch_y.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ps.gradients(y, x)[0], torch_x.grad.numpy(), rtol=1e-5, atol=1e-6)
