"""Convolution and pooling: ties, edges, blocks, and the gradient of a whole convolutional network.

Values and gradients over many shapes are checked by the rows of `cases_conv.py`.
"""

import tracemalloc

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.convolution import im2col, windows

from .cases_conv import numpy_conv2d, pooled

SEED = 19890101


def normal(*shape, dtype=np.float64):
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(dtype)


def leaf(array):
    return Tensor(array, requires_grad=True)


def image(rows, dtype=np.float64):
    """One image of one channel, from its rows."""
    return np.array(rows, dtype)[np.newaxis, :, :, np.newaxis]


# Where windows lie.


def test_same_puts_what_is_odd_of_the_padding_at_the_end():
    x, filters = image([[1, 2, 3]]), np.array([1.0, 10]).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(ops.conv2d(x, filters).value[0, 0, :, 0], [21, 32, 3])
    np.testing.assert_array_equal(ops.conv2d(x, filters, strides=2).value[0, 0, :, 0], [21, 3])
    np.testing.assert_array_equal(ops.conv2d(x, filters, padding="VALID").value[0, 0, :, 0], [21, 32])


def test_a_filter_is_not_turned_around():
    x = image([[1, 2], [3, 4]])
    filters = np.array([[1.0, 10], [100, 1000]]).reshape(2, 2, 1, 1)
    assert ops.conv2d(x, filters, padding="VALID").item() == 4321


def test_padding_is_never_the_largest_and_does_not_count_for_the_mean():
    x = image([[-1, -2, -3], [-4, -5, -6], [-7, -8, -9]])
    largest, mean = (pool(x, 2, padding="SAME").value[0, :, :, 0] for pool in (ops.max_pool2d, ops.avg_pool2d))
    np.testing.assert_array_equal(largest, [[-1, -3], [-7, -9]])
    np.testing.assert_array_equal(mean, [[-3, -4.5], [-7.5, -9]])


@pytest.mark.parametrize("images", [0, 1, 2, 7])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("block_bytes", [1, 30, 50, 120, 1000])
def test_blocks_cover_every_row_once_and_hold_no_more_than_they_may(images, rows, block_bytes):
    seen = np.zeros((images, rows), int)
    for block in windows.blocks(images, rows, 10, block_bytes):
        seen[block] += 1
        assert 10 * seen[block].size <= max(block_bytes, 10)
    assert np.all(seen == 1)


@pytest.mark.parametrize("block_bytes", [1, 700, 2500, 1 << 30])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"strides": 2, "activation": "relu"}, {"dilations": 2, "padding": "VALID"}])
def test_the_size_of_a_block_changes_nothing(monkeypatch, block_bytes, channels, options):
    x, filters, bias = leaf(normal(5, 7, 6, channels)), leaf(normal(3, 2, channels, 4)), leaf(normal(4))
    whole = ops.conv2d(x, filters, bias, **options)
    expected = gradients(whole, [x, filters, bias], normal(*whole.shape))
    monkeypatch.setattr(im2col, "BLOCK_BYTES", block_bytes)
    y = ops.conv2d(x, filters, bias, **options)
    np.testing.assert_allclose(y.value, whole.value, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(y.value, numpy_conv2d(x.value, filters.value, bias.value, **options), atol=1e-13)
    for got, wanted in zip(gradients(y, [x, filters, bias], normal(*y.shape)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


# Convolution.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bias_and_relu_inside_give_the_very_numbers_of_ops_after_it(dtype):
    tensors = [leaf(normal(*shape, dtype=dtype)) for shape in ((3, 6, 5, 2), (3, 3, 2, 4), (4,))]
    x, filters, bias = tensors
    inside = ops.conv2d(x, filters, bias, activation="relu")
    after = ops.relu(ops.conv2d(x, filters) + bias)
    np.testing.assert_array_equal(inside.value, after.value)
    assert 0.2 < np.mean(inside.value > 0) < 0.8
    weights = normal(*inside.shape, dtype=dtype)
    one, other = gradients(inside, tensors, weights), gradients(after, tensors, weights)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_allclose(one[2], other[2], rtol=1e-5)


def test_an_image_that_needs_no_gradient_costs_none(monkeypatch):
    filters = leaf(normal(3, 3, 2, 4))
    y = ops.conv2d(normal(2, 5, 5, 2), filters)
    monkeypatch.setattr(im2col, "images_gradient", lambda *args: pytest.fail("the image's gradient was worked out"))
    assert gradients(y, filters)[0].shape == filters.shape


def test_between_forward_and_backward_no_gathered_windows_are_kept():
    x, filters = leaf(normal(2, 40, 40, 8)), leaf(normal(5, 5, 8, 8))
    tracemalloc.start()
    try:
        y = ops.conv2d(x, filters)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    padded = 2 * 44 * 44 * 8 * 8
    assert held < y.value.nbytes + padded + 10_000  # 25 times as much they would be


def test_operands_promote_as_in_numpy_and_each_gets_a_gradient_of_its_dtype():
    x, filters, bias = leaf(normal(1, 3, 3, 1, dtype=np.float32)), leaf(normal(2, 2, 1, 2)), leaf(np.float32([1, 2]))
    y = ops.conv2d(x, filters, bias)
    assert y.dtype == np.float64
    assert [g.dtype for g in gradients(y, [x, filters, bias])] == [np.float32, np.float64, np.float32]


# Pooling.


def test_the_first_of_equal_maxima_in_the_order_of_the_window_gets_the_gradient():
    x = leaf(image([[1, 2, 5, 5], [2, 2, 5, 5], [0, 0, 0, 7], [0, 0, 7, 0]]))
    [gradient] = gradients(ops.max_pool2d(x), x, image([[10, 20], [30, 40]]))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 10, 20, 0], [0, 0, 0, 0], [30, 0, 0, 40], [0, 0, 0, 0]])
    x = leaf(image([[0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    [gradient] = gradients(ops.max_pool2d(x, 3), x)
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 0, 1], [0, 0, 0], [0, 0, 0]])


def test_where_windows_overlap_the_gradient_is_the_sum_of_all_that_chose_an_element():
    x = leaf(image([[3, 9, 3], [3, 3, 3], [3, 3, 3]]))
    [gradient] = gradients(ops.max_pool2d(x, 2, strides=1), x, image([[1, 10], [100, 1000]]))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 11, 0], [100, 1000, 0], [0, 0, 0]])


def test_a_window_may_have_more_elements_than_a_byte_counts():
    x = np.zeros((1, 1, 600, 1))
    x[0, 0, 299] = 1
    tensor = leaf(x)
    y = ops.max_pool2d(tensor, (1, 600))
    assert y.item() == 1
    np.testing.assert_array_equal(gradients(y, tensor)[0], x)


# A whole network: Deep MNIST, with everything smaller.

SHAPES = {
    "W_conv1": (5, 5, 1, 3),
    "b_conv1": (3,),
    "W_conv2": (5, 5, 3, 2),
    "b_conv2": (2,),
    "W_fc1": (8, 5),
    "b_fc1": (5,),
    "W_fc2": (5, 4),
    "b_fc2": (4,),
}
IMAGES, LABELS = normal(3, 8, 8, 1), np.array([3, 0, 1])


def network(parameters, images):
    h = ops.max_pool2d(ops.conv2d(images, parameters["W_conv1"], parameters["b_conv1"], activation="relu"))
    h = ops.max_pool2d(ops.conv2d(h, parameters["W_conv2"], parameters["b_conv2"], activation="relu"))
    h = ops.relu(ops.matmul(ops.reshape(h, (-1, 8)), parameters["W_fc1"]) + parameters["b_fc1"])
    return ops.softmax_cross_entropy(ops.matmul(h, parameters["W_fc2"]) + parameters["b_fc2"], LABELS)


def numpy_network(parameters, images):
    """The same loss by loops over windows."""
    pool = pooled(np.max)
    h = pool(numpy_conv2d(images, parameters["W_conv1"], parameters["b_conv1"], activation="relu"))
    h = pool(numpy_conv2d(h, parameters["W_conv2"], parameters["b_conv2"], activation="relu"))
    h = np.maximum(h.reshape(3, 8) @ parameters["W_fc1"] + parameters["b_fc1"], 0)
    exponentials = np.exp(h @ parameters["W_fc2"] + parameters["b_fc2"])
    return -np.mean([np.log(row[label] / row.sum()) for row, label in zip(exponentials, LABELS, strict=True)])


def trained(dtype):
    """The loss and the gradient of every parameter."""
    parameters = {name: leaf((normal(*shape) / 2).astype(dtype)) for name, shape in SHAPES.items()}
    loss = network(parameters, IMAGES.astype(dtype))
    assert loss.dtype == dtype
    return loss.item(), dict(zip(SHAPES, gradients(loss, parameters.values()), strict=True))


def test_the_gradient_of_a_whole_network_equals_differences_of_plain_numpy():
    loss, found = trained(np.float64)
    parameters = {name: normal(*shape) / 2 for name, shape in SHAPES.items()}
    np.testing.assert_allclose(loss, numpy_network(parameters, IMAGES), rtol=1e-14)
    step = 1e-5
    for name, value in parameters.items():
        for index in list(np.ndindex(value.shape))[::3]:
            losses = []
            for sign in (-1, 1):
                moved = value.copy()
                moved[index] += sign * step
                losses.append(numpy_network({**parameters, name: moved}, IMAGES))
            difference = (losses[1] - losses[0]) / (2 * step)
            np.testing.assert_allclose(found[name][index], difference, rtol=1e-6, atol=1e-9, err_msg=f"{name}{index}")


def test_the_gradient_of_a_whole_network_in_float32_is_that_in_float64():
    loss, exact = trained(np.float64)
    loss32, rounded = trained(np.float32)
    np.testing.assert_allclose(loss32, loss, rtol=1e-6)
    for name, gradient in rounded.items():
        assert gradient.dtype == np.float32
        np.testing.assert_allclose(gradient, exact[name], rtol=1e-4, atol=1e-6, err_msg=name)


# Wrong calls.

X, FILTERS = np.zeros((2, 4, 5, 3), np.float32), np.zeros((3, 3, 3, 6), np.float32)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ops.conv2d(X[0], FILTERS), ValueError, r"x must have the axes \(batch, .*its shape is \(4, 5, 3\)"),
        (lambda: ops.conv2d(X, FILTERS[0]), ValueError, r"filters must be \(height, .* their shape is \(3, 3, 6\)"),
        (lambda: ops.conv2d(X, FILTERS[:0]), ValueError, r"filters must be .* their shape is \(0, 3, 3, 6\)"),
        (lambda: ops.conv2d(X[..., :2], FILTERS), ValueError, "x has 2 channels, but the filters are for 3"),
        (lambda: ops.conv2d(X, FILTERS, X[0, 0, 0]), ValueError, r"bias must have the shape \(6,\), but it is \(3,\)"),
        (lambda: ops.conv2d(X, FILTERS, padding="same"), ValueError, "padding must be \"SAME\" or .* it is 'same'"),
        (lambda: ops.conv2d(X, FILTERS, strides=0), ValueError, "strides must be from 1 up, .* but it is 0"),
        (lambda: ops.conv2d(X, FILTERS, dilations=(1, 2, 1)), ValueError, r"dilations must be .* is \(1, 2, 1\)"),
        (lambda: ops.conv2d(X, FILTERS, strides=1.5), TypeError, "strides must be an integer .* but it is 1.5"),
        (
            lambda: ops.conv2d(X, FILTERS, padding="VALID", dilations=2),
            ValueError,
            r"no window fits: x is 4 x 5, and a window reaches over 5 elements; pad \(padding=\"SAME\"\)",
        ),
        (
            lambda: ops.conv2d(X, FILTERS, activation="tanh"),
            ValueError,
            'activation must be None or "relu", but .*tanh',
        ),
        (lambda: ops.conv2d(X.astype(int), FILTERS), TypeError, "x must be floating point, but its dtype is int64"),
        (lambda: ops.max_pool2d(X[0]), ValueError, r"x must have the axes .* its shape is \(4, 5, 3\)"),
        (lambda: ops.max_pool2d(X, 5), ValueError, "no window fits: x is 4 x 5, .* over 5 elements"),
        (lambda: ops.avg_pool2d(X, (2, 0)), ValueError, r"size must be from 1 up, .* but it is \(2, 0\)"),
        (lambda: ops.avg_pool2d(X.astype(int)), TypeError, "x must be floating point, but its dtype is int64"),
    ],
)
def test_a_wrong_call_says_which_argument_what_it_got_and_what_it_wants(call, kind, message):
    with pytest.raises(kind, match=rf"^(conv2d|max_pool2d|avg_pool2d)\(x: .*\): {message}"):
        call()
