"""Convolution and pooling: ties, edges, blocks, a whole network; and operands of a wide range, or not finite.

Values and gradients over many shapes are checked by `cases_convolution.py`, Winograd convolution by `test_winograd.py`.
"""

import threading
import tracemalloc
import warnings

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.convolution import im2col, windows, winograd

from .cases_convolution import numpy_conv2d

SEED = 19890101


def normal(*shape, dtype=np.float32):
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(dtype)


def leaf(array):
    return Tensor(array, requires_grad=True)


def image(rows, dtype=np.float64):
    """One image of one channel, from its rows."""
    return np.array(rows, dtype)[np.newaxis, :, :, np.newaxis]


@pytest.mark.parametrize(("block_bytes", "channels"), [(1, 1), (700, 3), (2500, 1), (1 << 30, 3)])
@pytest.mark.parametrize("options", [{"strides": 2, "activation": "relu"}, {"dilations": 2, "padding": "VALID"}])
def test_the_size_of_a_block_changes_nothing(monkeypatch, block_bytes, channels, options):
    shapes = (5, 7, 6, channels), (3, 2, channels, 4), (4,)
    x, filters, bias = (leaf(normal(*shape, dtype=np.float64)) for shape in shapes)
    whole = ops.conv2d(x, filters, bias, **options)
    expected = gradients(whole, [x, filters, bias], normal(*whole.shape))
    monkeypatch.setattr(im2col, "BLOCK_BYTES", block_bytes)
    y = ops.conv2d(x, filters, bias, **options)
    np.testing.assert_allclose(y.value, numpy_conv2d(x.value, filters.value, bias.value, **options), atol=1e-13)
    for got, wanted in zip(gradients(y, [x, filters, bias], normal(*y.shape)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


def test_an_image_without_gradient_costs_none_and_operands_promote_as_in_numpy(monkeypatch):
    x, filters, bias = leaf(normal(1, 3, 3, 1)), leaf(normal(2, 2, 1, 2, dtype=np.float64)), leaf(normal(2))
    y = ops.conv2d(x, filters, bias)
    assert y.dtype == np.float64
    assert [g.dtype for g in gradients(y, [x, filters, bias])] == [np.float32, np.float64, np.float32]
    y = ops.conv2d(normal(2, 5, 5, 1), filters)
    monkeypatch.setattr(im2col, "images_gradient", lambda *args: pytest.fail("the image's gradient was computed"))
    assert gradients(y, filters)[0].shape == filters.shape


@pytest.mark.parametrize(
    ("x", "filters", "padded"),
    [((2, 40, 40, 8), (5, 5, 8, 8), 2 * 44 * 44 * 8 * 4), ((16, 14, 14, 16), (5, 5, 16, 32), 0)],
    ids=["direct", "winograd"],
)
def test_between_forward_and_backward_no_gathered_windows_are_kept(x, filters, padded):
    x, filters = leaf(normal(*x)), leaf(normal(*filters))
    ops.conv2d(x, filters)  # matrices of Winograd convolution are cached
    tracemalloc.start()
    try:
        y = ops.conv2d(x, filters)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < y.value.nbytes + padded + 10_000


def test_the_first_of_equal_maxima_in_the_order_of_the_window_gets_the_gradient():
    x = leaf(image([[1, 2, 5, 5], [2, 2, 5, 5], [0, 0, 0, 7], [0, 0, 7, 0]]))
    [gradient] = gradients(ops.max_pool2d(x), x, image([[10, 20], [30, 40]]))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 10, 20, 0], [0, 0, 0, 0], [30, 0, 0, 40], [0, 0, 0, 0]])
    x = leaf(image([[0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    [gradient] = gradients(ops.max_pool2d(x, 3), x)
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 0, 1], [0, 0, 0], [0, 0, 0]])
    x = leaf(image([[3, 9, 3], [3, 3, 3], [3, 3, 3]]))  # of overlapping windows, the sum
    [gradient] = gradients(ops.max_pool2d(x, 2, strides=1), x, image([[1, 10], [100, 1000]]))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 11, 0], [100, 1000, 0], [0, 0, 0]])


def test_a_window_may_have_more_elements_than_a_byte_counts():
    x = np.zeros((1, 1, 600, 1))
    x[0, 0, 299] = 1
    tensor = leaf(x)
    np.testing.assert_array_equal(gradients(ops.max_pool2d(tensor, (1, 600)), tensor)[0], x)


# A wide dynamic range, where Winograd convolution would lose digits of small results.

CHANNELS, OUT, SIZE = 16, 24, 12  # large enough for Winograd convolution


def noise_with_a_bright_pixel(images, depth, bright, noise):
    """Noise; but every third image has a pixel of another magnitude."""
    x = normal(images, SIZE, SIZE, depth) * np.float32(noise)
    x[::3, 4, 5] = bright
    return x


def convolved(x, filters, g, dtype=None, **options):
    """The result of conv2d, the gradient of x and that of the filters."""
    tensors = [leaf(array.astype(dtype or array.dtype)) for array in (x, filters)]
    y = ops.conv2d(*tensors, **options)
    return y.value, *gradients(y, tensors, g.astype(dtype or g.dtype))


def magnitudes(x, filters, g):
    """For each result the sum of the magnitudes of its terms, to which direct convolution's error is proportional."""
    return convolved(np.abs(x), np.abs(filters), np.abs(g), np.float64)


def assert_every_element_is_near(found, x, filters, g, most):
    expected = convolved(x, filters, g, np.float64)
    for got, exact, magnitude in zip(found, expected, magnitudes(x, filters, g), strict=False):
        assert got.dtype == np.float32
        assert (np.abs(got - exact) <= most * magnitude).all()


def positive_operands():
    return np.abs(normal(8, SIZE, SIZE, CHANNELS)), np.abs(normal(5, 5, CHANNELS, OUT))


@pytest.mark.parametrize(("kernel", "bright", "noise"), [(3, 1e4, 1e-3), (4, 1, 1e-9), (5, 1e12, 1), (5, 1e4, 1e-3)])
def test_small_results_beside_a_bright_pixel_keep_their_digits(kernel, bright, noise):
    x, filters = noise_with_a_bright_pixel(9, CHANNELS, bright, noise), normal(kernel, kernel, CHANNELS, OUT)
    g = noise_with_a_bright_pixel(9, OUT, bright, noise)
    assert_every_element_is_near(convolved(x, filters, g)[:2], x, filters, g, 3e-6)


def test_results_without_a_part_in_a_far_larger_filter_element_keep_their_digits():
    x, filters, g = normal(8, SIZE, SIZE, CHANNELS), normal(5, 5, CHANNELS, OUT), normal(8, SIZE, SIZE, OUT)
    filters[0, 0] *= 1e7  # on the padding at the first rows and columns
    assert_every_element_is_near(convolved(x, filters, g), x, filters, g, 3e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_pixel_or_gradient_that_is_not_finite_reaches_its_own_windows_only(value):
    x, filters = positive_operands()
    g = np.ones((8, SIZE, SIZE, OUT), np.float32)
    without = convolved(x, filters, g)
    x[3, 6, 5, 1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of numpy's
        y, x_gradient, filters_gradient = convolved(x, filters, g)
    reached = np.zeros(y.shape, bool)
    reached[3, 4:9, 3:8] = True
    np.testing.assert_array_equal(y[reached], value)
    np.testing.assert_allclose(y[~reached], without[0][~reached], rtol=1e-5)
    np.testing.assert_array_equal(x_gradient, without[1])
    np.testing.assert_array_equal(filters_gradient[:, :, 1], np.full((5, 5, OUT), value))
    np.testing.assert_allclose(np.delete(filters_gradient, 1, 2), np.delete(without[2], 1, 2), rtol=1e-5)

    x, filters = positive_operands()
    g[3, 6, 5, 1] = value
    _, x_gradient, filters_gradient = convolved(x, filters, g)
    np.testing.assert_array_equal(~np.isfinite(x_gradient).all(axis=3), reached[..., 0])
    assert not np.isfinite(filters_gradient[..., 1]).any()
    assert np.isfinite(np.delete(filters_gradient, 1, 3)).all()


def test_a_filter_that_is_not_finite_reaches_its_own_results_only():
    x, filters = positive_operands()
    filters[0, 0, 2, 7] = np.inf  # on the padding at the first rows and columns, where its terms are 0 * inf
    with np.errstate(invalid="ignore"):
        y = ops.conv2d(x, filters).value
    assert np.isfinite(np.delete(y, 7, 3)).all()
    assert np.isinf(y[:, 2:, 2:, 7]).all()
    x, filters = np.full((8, SIZE, SIZE, CHANNELS), 1e18, np.float32), np.full((5, 5, CHANNELS, OUT), 5e17, np.float32)
    y = ops.conv2d(x, filters).value  # near the largest float32
    np.testing.assert_allclose(y[:, 2:-2, 2:-2], 25 * CHANNELS * 5e35, rtol=1e-5)


def test_each_backward_pass_checks_its_own_gradient():
    x, filters = map(leaf, positive_operands())
    y, g = ops.conv2d(x, filters), np.ones((8, SIZE, SIZE, OUT), np.float32)
    infinite = g.copy()
    infinite[3, 6, 5, 1] = np.inf

    def assert_one_filter_is_reached(g):
        [filters_gradient] = gradients(y, filters, g, retain_graph=True)
        assert np.isfinite(filters_gradient).all(axis=(0, 1, 2)).tolist() == [channel != 1 for channel in range(OUT)]

    gradients(y, x, g, retain_graph=True)
    assert_one_filter_is_reached(infinite)  # another g than the one before
    gradients(y, [x, filters], g, retain_graph=True)
    g[:] = infinite  # the same array with other elements
    assert_one_filter_is_reached(g)
    [x_gradient] = gradients(y, x, g)
    assert (~np.isfinite(x_gradient).all(axis=3)).sum() == 25


def usual_operands():
    """Images after relu, filters, and a gradient as it comes back through relu and a pooling: three quarters zeros."""
    x, filters = np.maximum(normal(8, SIZE, SIZE, CHANNELS), 0), normal(5, 5, CHANNELS, OUT)
    x[:, :5] = 0  # a background of nothing
    g = normal(8, SIZE, SIZE, OUT) ** 3
    g[np.abs(g) < np.quantile(np.abs(g), 0.75)] = 0
    return x, filters, g


@pytest.mark.parametrize("wide", [False, True])
def test_the_range_is_checked_once_each_and_usual_operands_are_narrow(monkeypatch, wide):
    x, filters, g = usual_operands()
    if wide:
        x[0, 1, 1], g[1, 2, 2] = 1e9, 1e9
    else:
        for name in ("convolve", "images_gradient", "filters_gradient"):
            monkeypatch.setattr(im2col, name, lambda *args: pytest.fail("direct convolution was used"))
    checked = []
    for name in ("filters_have_narrow_range", "has_narrow_range"):
        check = getattr(winograd, name)
        monkeypatch.setattr(winograd, name, lambda a, *axes, check=check: (checked.append(a), check(a, *axes))[1])
    convolved(x, filters, g)
    assert [array.shape for array in checked] == [filters.shape, x.shape, g.shape]


@pytest.mark.parametrize(("bright", "narrow"), [(250, True), (262, False), (np.inf, False), (np.nan, False)])
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "turned"),
    [((19, 13), (5, 3), "SAME", False), ((11, 14), (4, 5), "VALID", False), ((19, 13), (5, 3), "VALID", True)],
)
def test_an_image_is_narrow_if_no_pixel_is_more_than_256_times_a_window(bright, narrow, size, kernel, padding, turned):
    rows, columns = windows.axes(size, kernel, 1, padding)
    if turned:
        rows, columns = winograd.transposed_axes(rows, columns)
    x = np.zeros((3, rows.size, columns.size, 4), np.float32)
    x[:2, :, :, 0] = 3  # the second image is of one magnitude, the third is zero
    inside = np.pad(np.ones((rows.size, columns.size)), ((rows.before, rows.after), (columns.before, columns.after)))
    smallest = min(
        inside[i : i + rows.kernel, j : j + columns.kernel].sum()
        for i in range(rows.windows)
        for j in range(columns.windows)
    )
    x[0, rows.size // 2, columns.size // 2] = bright * 3 * np.sqrt(smallest) / 2  # in each of four channels
    assert winograd.has_narrow_range(x, rows, columns).tolist() == [narrow, True, True]
    filters = np.ones((3, 5, 4, 2), np.float32)
    filters[1, 2], filters[0, 0] = bright, 0
    assert winograd.filters_have_narrow_range(filters) is narrow


def test_precise_convolutions_and_their_gradients_are_direct():
    x, filters, g = usual_operands()
    few = [convolved(x[i : i + 4], filters, g[i : i + 4]) for i in (0, 4)]  # so few images are convolved directly
    tensors = [leaf(x), leaf(filters)]
    with ops.precise():
        y = ops.conv2d(*tensors)
    x_gradient, filters_gradient = gradients(y, tensors, g)  # also after the block
    for got, number in ((y.value, 0), (x_gradient, 1)):
        np.testing.assert_allclose(got, np.concatenate([part[number] for part in few]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(filters_gradient, few[0][2] + few[1][2], rtol=1e-6, atol=3e-5)
    assert_every_element_is_near((y.value, x_gradient), x, filters, g, 5e-7)


def test_precise_nests_decorates_ends_with_an_exception_and_is_of_its_own_thread():
    x, filters, _ = usual_operands()
    fast, in_thread = ops.conv2d(x, filters).value, []
    with pytest.raises(KeyError), ops.precise():
        raise KeyError
    np.testing.assert_array_equal(ops.conv2d(x, filters).value, fast)
    with ops.precise():
        direct = ops.conv2d(x, filters).value
        with ops.precise():
            pass
        np.testing.assert_array_equal(ops.conv2d(x, filters).value, direct)
        thread = threading.Thread(target=lambda: in_thread.append(ops.conv2d(x, filters).value))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(in_thread[0], fast)
    assert not np.array_equal(direct, fast)
    np.testing.assert_array_equal(ops.precise()(ops.conv2d)(x, filters).value, direct)
