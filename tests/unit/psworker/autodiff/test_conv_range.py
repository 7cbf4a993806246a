"""Convolutions of operands of a wide range, or not finite: where minimal filtering would lose them; and `precise`."""

import threading
import warnings

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.convolution import conv2d as conv
from psworker.autodiff.ops.convolution import dynamic_range, im2col, winograd
from psworker.autodiff.ops.convolution.windows import axes

SEED = 2016
CHANNELS, OUT = 16, 24  # enough of them that minimal filtering pays
SIZE = 12


def normal(*shape):
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(np.float32)


def noise_with_a_bright_pixel(images, depth, bright, noise):
    """Noise; but every third image has a pixel of another magnitude."""
    x = normal(images, SIZE, SIZE, depth) * np.float32(noise)
    x[::3, 4, 5] = bright
    return x


def convolved(x, filters, g, dtype=None):
    """The result of conv2d, the gradient of x and that of the filters."""
    tensors = [Tensor(array.astype(dtype or array.dtype), requires_grad=True) for array in (x, filters)]
    y = ops.conv2d(*tensors)
    return y.value, *gradients(y, tensors, g.astype(dtype or g.dtype))


def sums_of_magnitudes(x, filters, g):
    """Of each result the sum of the magnitudes of its terms, to which a plain convolution's error is in proportion."""
    return convolved(np.abs(x), np.abs(filters), np.abs(g), np.float64)


def assert_every_element_is_near(found, x, filters, g, most):
    """That each is within a share of the magnitudes that are in it, however small these are."""
    wanted, sums = convolved(x, filters, g, np.float64), sums_of_magnitudes(x, filters, g)
    for got, exact, magnitude in zip(found, wanted, sums, strict=False):
        assert got.dtype == np.float32
        assert (np.abs(got - exact) <= most * magnitude).all()


@pytest.mark.parametrize("kernel", [3, 4, 5])
@pytest.mark.parametrize(("bright", "noise"), [(1e4, 1e-3), (1, 1e-9), (1e12, 1)])
def test_small_results_beside_a_bright_pixel_keep_their_digits(kernel, bright, noise):
    x, filters = noise_with_a_bright_pixel(9, CHANNELS, bright, noise), normal(kernel, kernel, CHANNELS, OUT)
    g = noise_with_a_bright_pixel(9, OUT, bright, noise)
    assert_every_element_is_near(convolved(x, filters, g)[:2], x, filters, g, 3e-6)


def test_filters_of_which_one_element_is_far_larger_keep_the_digits_of_results_that_it_has_no_part_in():
    x, filters, g = normal(8, SIZE, SIZE, CHANNELS), normal(5, 5, CHANNELS, OUT), normal(8, SIZE, SIZE, OUT)
    filters[0, 0] *= 1e7  # which at the first rows and columns lies on the padding
    assert_every_element_is_near(convolved(x, filters, g), x, filters, g, 3e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_pixel_that_is_not_finite_reaches_its_own_windows_alone(value):
    x, filters = np.abs(normal(8, SIZE, SIZE, CHANNELS)), np.abs(normal(5, 5, CHANNELS, OUT))
    g = np.ones((8, SIZE, SIZE, OUT), np.float32)
    without = convolved(x, filters, g)
    x[3, 6, 5, 1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of numpy's
        y, x_gradient, filters_gradient = convolved(x, filters, g)
    reached = np.zeros(y.shape, bool)
    reached[3, 4:9, 3:8] = True
    np.testing.assert_array_equal(y[reached], value)
    assert reached[..., 0].sum() == 25
    np.testing.assert_allclose(y[~reached], without[0][~reached], rtol=1e-5)
    np.testing.assert_array_equal(x_gradient, without[1])
    np.testing.assert_array_equal(filters_gradient[:, :, 1], np.full((5, 5, OUT), value))
    np.testing.assert_allclose(np.delete(filters_gradient, 1, 2), np.delete(without[2], 1, 2), rtol=1e-5)


def test_a_gradient_that_is_not_finite_reaches_its_own_windows_alone():
    x, filters = np.abs(normal(8, SIZE, SIZE, CHANNELS)), np.abs(normal(5, 5, CHANNELS, OUT))
    g = np.ones((8, SIZE, SIZE, OUT), np.float32)
    g[3, 6, 5, 1] = np.inf
    _, x_gradient, filters_gradient = convolved(x, filters, g)
    reached = np.zeros((8, SIZE, SIZE), bool)
    reached[3, 4:9, 3:8] = True
    np.testing.assert_array_equal(~np.isfinite(x_gradient).all(axis=3), reached)
    assert np.isinf(filters_gradient[..., 1]).all()
    assert np.isfinite(np.delete(filters_gradient, 1, 3)).all()


def test_a_filter_that_is_not_finite_reaches_its_own_results_alone():
    x, filters = np.abs(normal(8, SIZE, SIZE, CHANNELS)), np.abs(normal(5, 5, CHANNELS, OUT))
    filters[0, 0, 2, 7] = np.inf  # at the first rows and columns on the padding, which has no terms but 0 * inf
    with np.errstate(invalid="ignore"):
        y = ops.conv2d(x, filters).value
    assert np.isfinite(np.delete(y, 7, 3)).all()
    assert np.isinf(y[:, 2:, 2:, 7]).all()


def test_numbers_near_the_end_of_float32_give_what_still_fits():
    x, filters = np.full((8, SIZE, SIZE, CHANNELS), 1e18, np.float32), np.full((5, 5, CHANNELS, OUT), 5e17, np.float32)
    y = ops.conv2d(x, filters).value
    np.testing.assert_allclose(y[:, 2:-2, 2:-2], 25 * CHANNELS * 5e35, rtol=1e-5)


@pytest.mark.parametrize("mean", [0, 100])
def test_batches_of_seven_and_of_eight_images_give_results_that_agree(mean):
    x, filters = noise_with_a_bright_pixel(8, CHANNELS, 1e4, 1e-3), normal(5, 5, CHANNELS, OUT)
    x[1::3] = mean + normal(*x[1::3].shape)
    g = normal(8, SIZE, SIZE, OUT)
    few, many = convolved(x[:7], filters, g[:7]), convolved(x, filters, g)
    for got, wanted, magnitude in zip(few[:2], many, sums_of_magnitudes(x, filters, g), strict=False):
        assert (np.abs(got - wanted[:7]) <= 3e-6 * magnitude[:7]).all()


def test_how_an_image_is_convolved_does_not_depend_on_the_others(monkeypatch):
    x, filters = noise_with_a_bright_pixel(12, CHANNELS, 1e4, 1e-3), normal(5, 5, CHANNELS, OUT)
    seen = []
    plain = im2col.convolve
    monkeypatch.setattr(im2col, "convolve", lambda images, *args: (seen.append(images), plain(images, *args))[1])
    ops.conv2d(x, filters)
    ops.conv2d(np.roll(x, 1, axis=0), filters)
    np.testing.assert_array_equal(seen[0], x[::3])
    np.testing.assert_array_equal(seen[1], x[::3])


def test_each_walk_over_a_graph_looks_at_its_own_gradient():
    x, filters = np.abs(normal(8, SIZE, SIZE, CHANNELS)), np.abs(normal(5, 5, CHANNELS, OUT))
    x, filters = (Tensor(array, requires_grad=True) for array in (x, filters))
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


@pytest.mark.parametrize("wide", [False, True])
def test_a_step_looks_once_at_each_of_filters_images_and_gradient(monkeypatch, wide):
    x, filters, g = usual_operands()
    if wide:
        x[0, 1, 1], g[1, 2, 2] = 1e9, 1e9
    seen = []
    for name in ("narrow_filters", "narrow_images"):
        look = getattr(conv, name)
        monkeypatch.setattr(conv, name, lambda a, *axes, look=look: (seen.append(a), look(a, *axes))[1])
    convolved(x, filters, g)
    assert [array.shape for array in seen] == [filters.shape, x.shape, g.shape]


def usual_operands():
    """Images after relu, filters, and a gradient as it comes back through relu and a pooling: three quarters zeros."""
    x, filters = np.maximum(normal(8, SIZE, SIZE, CHANNELS), 0), normal(5, 5, CHANNELS, OUT)
    x[:, :5] = 0  # a background of nothing
    g = normal(8, SIZE, SIZE, OUT) ** 3
    g[np.abs(g) < np.quantile(np.abs(g), 0.75)] = 0
    return x, filters, g


def test_the_usual_images_and_gradients_do_not_take_the_plain_way(monkeypatch):
    for name in ("convolve", "images_gradient", "filters_gradient"):
        monkeypatch.setattr(im2col, name, lambda *args: pytest.fail("the plain way was taken"))
    convolved(*usual_operands())


def test_without_padding_the_gradient_is_smaller_than_the_images_and_its_bright_pixels_count_too():
    x, filters = normal(8, SIZE, SIZE, CHANNELS), normal(5, 5, CHANNELS, OUT)
    tensors = [Tensor(array, requires_grad=True) for array in (x, filters)]
    g = normal(8, SIZE - 4, SIZE - 4, OUT)
    g[2, 3, 3] = 1e8
    x_gradient, filters_gradient = gradients(ops.conv2d(*tensors, padding="VALID"), tensors, g)
    wide = [Tensor(array.astype(np.float64), requires_grad=True) for array in (x, filters)]
    exact = gradients(ops.conv2d(*wide, padding="VALID"), wide, g.astype(np.float64))
    np.testing.assert_allclose(x_gradient[2, :3], exact[0][2, :3], atol=1e-3)
    np.testing.assert_allclose(filters_gradient, exact[1], rtol=1e-4, atol=1e3)


# When an image is narrow.


@pytest.mark.parametrize(("bright", "narrow"), [(250, True), (262, False), (np.inf, False), (np.nan, False)])
@pytest.mark.parametrize(("images", "filters"), [((9, 7), (5, 3)), ((3, 4), (4, 5))])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("turned", [False, True])
def test_an_image_is_narrow_if_no_pixel_is_more_than_256_times_a_window(
    bright, narrow, images, filters, padding, turned
):
    size = [n + 2 * k for n, k in zip(images, filters, strict=True)]
    rows, columns = axes(size, filters, 1, padding)
    if turned:
        rows, columns = winograd.turned(rows, columns)
    x = np.zeros((3, rows.size, columns.size, 4), np.float32)
    x[:2, :, :, 0] = 3  # the second image is of one magnitude, the third of nothing
    inside = np.pad(np.ones((rows.size, columns.size)), ((rows.before, rows.after), (columns.before, columns.after)))
    windows = [
        inside[i : i + rows.kernel, j : j + columns.kernel].sum()
        for i in range(rows.windows)
        for j in range(columns.windows)
    ]
    x[0, rows.size // 2, columns.size // 2] = bright * 3 * np.sqrt(min(windows)) / 2  # in each of four channels
    assert dynamic_range.narrow_images(x, rows, columns).tolist() == [narrow, True, True]


@pytest.mark.parametrize(("bright", "narrow"), [(250, True), (262, False), (np.inf, False), (np.nan, False)])
def test_filters_are_narrow_if_no_place_is_more_than_256_times_another(bright, narrow):
    filters = np.ones((3, 5, 4, 2), np.float32)
    filters[1, 2] = bright
    filters[0, 0] = 0
    assert dynamic_range.narrow_filters(filters) is narrow


# Precise.


def test_precise_convolutions_and_their_gradients_are_the_plain_ones():
    x, filters, g = usual_operands()
    few = [convolved(x[i : i + 4], filters, g[i : i + 4]) for i in (0, 4)]  # so few go the plain way
    tensors = [Tensor(x, requires_grad=True), Tensor(filters, requires_grad=True)]
    with ops.precise():
        y = ops.conv2d(*tensors)
    x_gradient, filters_gradient = gradients(y, tensors, g)  # also after the block
    for got, wanted in ((y.value, 0), (x_gradient, 1)):
        np.testing.assert_allclose(got, np.concatenate([part[wanted] for part in few]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(filters_gradient, few[0][2] + few[1][2], rtol=1e-6, atol=3e-5)
    assert_every_element_is_near((y.value, x_gradient), x, filters, g, 5e-7)
    assert not np.array_equal(y.value, ops.conv2d(*tensors).value)


def test_precise_is_over_after_its_block_whatever_ends_it_and_nests():
    x, filters, _ = usual_operands()
    before = ops.conv2d(x, filters).value
    with pytest.raises(KeyError), ops.precise():
        raise KeyError
    np.testing.assert_array_equal(ops.conv2d(x, filters).value, before)
    with ops.precise():
        plain = ops.conv2d(x, filters).value
        with ops.precise():
            pass
        np.testing.assert_array_equal(ops.conv2d(x, filters).value, plain)


def test_precise_may_stand_before_a_function():
    x, filters, _ = usual_operands()
    with ops.precise():
        plain = ops.conv2d(x, filters).value
    np.testing.assert_array_equal(ops.precise()(ops.conv2d)(x, filters).value, plain)


def test_precise_is_of_its_own_thread_alone():
    x, filters, _ = usual_operands()
    before, found = ops.conv2d(x, filters).value, []
    with ops.precise():
        thread = threading.Thread(target=lambda: found.append(ops.conv2d(x, filters).value))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(found[0], before)
