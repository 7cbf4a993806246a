"""Convolution and pooling: blocks, ties, memory; Winograd convolution, its error bound, and when it is used.

Values and gradients over many shapes are checked by `cases.py`.
"""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.convolution import windows
from psworker.autodiff.ops.convolution.algorithms import im2col, winograd

CHANNELS, OUT, SIZE = 16, 24, 12  # with these and eight images, conv2d uses Winograd convolution
X_SHAPE, FILTERS_SHAPE, Y_SHAPE = (8, SIZE, SIZE, CHANNELS), (5, 5, CHANNELS, OUT), (8, SIZE, SIZE, OUT)


def normal(*shape, dtype=np.float32):
    return np.random.default_rng([19890101, *shape]).standard_normal(shape).astype(dtype)


def leaf(array):
    return Tensor(array, requires_grad=True)


def image(rows):
    """One image of one channel, from its rows."""
    return np.array(rows, np.float64)[np.newaxis, :, :, np.newaxis]


def convolved(x, filters, g, dtype=None, **options):
    """The result of conv2d, the gradient of x and that of the filters."""
    tensors = [leaf(array.astype(dtype or array.dtype)) for array in (x, filters)]
    y = ops.conv2d(*tensors, **options)
    return y.value, *gradients(y, tensors, g.astype(dtype or g.dtype))


def by_winograd(x, filters, g, padding="SAME"):
    """The same three by Winograd convolution."""
    rows, columns = windows.axes(x.shape[1:3], filters.shape[:2], 1, padding)
    return (
        winograd.convolve(x, filters, rows, columns),
        winograd.images_gradient(g, filters, rows, columns),
        winograd.filters_gradient(x, g, rows, columns),
    )


@pytest.mark.parametrize("block_bytes", [1, 700, 2500, 1 << 30])
@pytest.mark.parametrize(
    ("channels", "options"), [(1, {"strides": 2, "activation": "relu"}), (3, {"dilations": 2, "padding": "VALID"})]
)
def test_the_size_of_a_block_changes_nothing(monkeypatch, block_bytes, channels, options):
    tensors = [leaf(normal(*s, dtype=np.float64)) for s in ((5, 7, 6, channels), (3, 2, channels, 4), (4,))]
    found = []
    for number in (im2col.BLOCK_BYTES, block_bytes):
        monkeypatch.setattr(im2col, "BLOCK_BYTES", number)
        y = ops.conv2d(*tensors, **options)
        found.append([y.value, *gradients(y, tensors, normal(*y.shape))])
    for whole, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, whole, rtol=1e-12, atol=1e-13)


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


@pytest.mark.parametrize(
    ("x", "options", "g", "expected"),
    [
        ([[1, 2], [2, 2]], {}, [[10]], [[0, 10], [0, 0]]),
        ([[0, 0, 1], [0, 1, 0], [1, 0, 0]], {"size": 3}, [[1]], [[0, 0, 1], [0] * 3, [0] * 3]),
        ([[3, 9, 3], [3] * 3, [3] * 3], {"strides": 1}, [[1, 10], [100, 1000]], [[0, 11, 0], [100, 1000, 0], [0] * 3]),
        ([[0] * 299 + [1] + [0] * 300], {"size": (1, 600)}, [[1]], [[0] * 299 + [1] + [0] * 300]),
    ],
)
def test_the_first_of_equal_maxima_in_the_order_of_the_window_gets_the_gradient(x, options, g, expected):
    x = leaf(image(x))
    np.testing.assert_array_equal(gradients(ops.max_pool2d(x, **options), x, image(g))[0], image(expected))


def assert_errors_are_as_measured(x, filters, g, padding="SAME", measured=2):
    """No error exceeds `measured` times float32's rounding of as many terms as an element has, as large as the largest.

    See docs/reference/convolution.md, whose bound is far above.
    """
    x_size, filters_size, g_size = (np.abs(array).max() for array in (x, filters, g))
    area, (channels, out) = np.prod(filters.shape[:2]), filters.shape[2:]
    terms = (
        area * channels * x_size * filters_size,
        area * out * g_size * filters_size,
        g[..., 0].size * x_size * g_size,
    )
    exact = convolved(x, filters, g, np.float64, padding=padding)
    for got, wanted, term in zip(by_winograd(x, filters, g, padding), exact, terms, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, np.float32)
        assert np.abs(got - wanted).max() <= measured * 2.0**-24 * term


@pytest.mark.parametrize(
    ("x", "filters", "padding"),
    [
        ((1, 5, 5, 1), (5, 5, 1, 1), "VALID"),
        ((1, 14, 14, 32), (5, 5, 32, 64), "SAME"),
        ((3, 7, 9, 2), (5, 5, 2, 3), "VALID"),
        ((1, 6, 17, 1), (3, 3, 1, 7), "SAME"),
        ((4, 11, 8, 3), (3, 3, 3, 1), "VALID"),
        ((2, 9, 4, 96), (3, 3, 96, 16), "SAME"),
        ((2, 10, 7, 4), (4, 4, 4, 5), "VALID"),
        ((3, 8, 12, 4), (3, 5, 4, 6), "SAME"),
        ((2, 6, 5, 3), (4, 3, 3, 2), "VALID"),
        *(((2, size, size, 3), (kernel, kernel, 3, 2), "SAME") for size, kernel in ((1, 5), (2, 3), (3, 4), (4, 5))),
    ],
)
def test_values_and_gradients_of_any_shape_are_those_of_direct_convolution(x, filters, padding):
    x, filters = normal(*x), normal(*filters)
    assert_errors_are_as_measured(x, filters, normal(*ops.conv2d(x, filters, padding=padding).shape), padding, 16)


@pytest.mark.parametrize(("name", "number"), [("BLOCK_BYTES", 1), ("BLOCK_BYTES", 1 << 30), ("TILES", 1), ("TILES", 5)])
def test_the_size_of_blocks_and_patches_changes_no_more_than_rounding(monkeypatch, request, name, number):
    monkeypatch.setattr(winograd, name, number)
    request.addfinalizer(winograd.patches.cache_clear)
    winograd.patches.cache_clear()
    assert_errors_are_as_measured(normal(19, 11, 8, 3), normal(3, 5, 3, 4), normal(19, 11, 8, 4))


@pytest.mark.parametrize(("kernel", "of_results", "of_filters"), [(3, 51.4, 39.9), (4, 39.9, 51.4), (5, 98.7, 173.9)])
def test_the_transforms_amplify_magnitudes_as_in_the_guide(kernel, of_results, of_filters):
    """Amplification of a tile's terms relative to direct convolution (docs/reference/convolution.md)."""
    results = winograd.RESULTS[kernel]
    a, g, b = (np.abs(matrix) for matrix in winograd.matrices(results, kernel))
    of_image = b.sum(axis=1)
    assert (a.T @ (g.sum(axis=1) * of_image)).max() <= kernel * np.sqrt(of_results)
    assert (g.T @ (a.sum(axis=1) * of_image)).max() <= results * np.sqrt(of_filters)


OPERANDS = {  # each with the measured error
    "random": (normal, 2),
    "positive": (lambda *shape: np.abs(normal(*shape)), 2),
    "constant": (lambda *shape: np.full(shape, 1 / 3, np.float32), 128),  # rounding errors that are all alike
    "of one sign a channel": (lambda *shape: np.broadcast_to(np.sign(normal(shape[-1])), shape) * np.float32(0.3), 128),
}


@pytest.mark.parametrize("kernel", sorted(winograd.RESULTS))
@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("channels", [2, 96])
def test_errors_are_as_measured_for_all_operands(kernel, operands, channels):
    make, measured = OPERANDS[operands]
    x, g, filters = make(4, 10, 10, channels), make(4, 10, 10, 8), make(kernel, kernel, channels, 8)
    assert_errors_are_as_measured(x, filters, g, measured=measured)


def usual_operands():
    """Images after relu, filters, and a gradient as it comes back through relu and a pooling: three quarters zeros."""
    x, filters, g = np.maximum(normal(*X_SHAPE), 0), normal(*FILTERS_SHAPE), normal(*Y_SHAPE) ** 3
    x[:, :5] = 0  # a background of nothing
    g[np.abs(g) < np.quantile(np.abs(g), 0.75)] = 0
    return x, filters, g


def test_conv2d_uses_it_for_usual_operands_with_bias_and_relu_and_the_gradients_of_direct_convolution(monkeypatch):
    x, filters, g = usual_operands()
    tensors = [leaf(array) for array in (x, filters, normal(OUT))]
    monkeypatch.setattr(im2col, "_windows", lambda *args: pytest.fail("direct convolution was used"))
    y = ops.conv2d(*tensors, activation="relu")
    found = gradients(y, tensors, g)
    monkeypatch.undo()
    exact = [leaf(tensor.value.astype(np.float64)) for tensor in tensors]
    direct = ops.conv2d(*exact)
    # By the y that was found: relu's derivative jumps where an error may take y to the other side of zero.
    wanted = gradients(direct, exact, np.where(y.value > 0, g, 0).astype(np.float64))
    for got, one in zip((y.value, *found), (np.maximum(direct.value, 0), *wanted), strict=True):
        assert (got.shape, got.dtype) == (one.shape, np.float32)
        np.testing.assert_allclose(got, one, rtol=0, atol=6e-6 * np.abs(one).max())  # see docs/reference/convolution.md


def test_winograd_convolution_is_used_where_it_applies_and_is_faster():
    def is_used(images=16, size=(14, 14), kernel=(5, 5), strides=1, dilations=1, channels=32, dtype="float32"):
        rows, columns = windows.axes(size, kernel, strides, "SAME", dilations)
        return winograd.is_faster(images, channels, 64, rows, columns, np.dtype(dtype))

    assert is_used()
    for change in ({"dtype": "float64"}, {"strides": (1, 2)}, {"dilations": 2}, {"kernel": (1, 5)}, {"images": 7}):
        assert not is_used(**change), change
    for change in ({"images": 0}, {"size": (0, 14)}, {"channels": 0}, {"channels": 1}):
        assert not is_used(**change), change  # with one channel, transforms cost more than they save


@pytest.mark.parametrize(("bright", "narrow"), [(250, True), (262, False), (np.inf, False), (np.nan, False)])
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "turned"),
    [((19, 13), (5, 3), "SAME", False), ((11, 14), (4, 5), "VALID", False), ((19, 13), (5, 3), "VALID", True)],
)
def test_an_image_is_narrow_if_no_pixel_is_more_than_256_times_a_window(bright, narrow, size, kernel, padding, turned):
    rows, columns = windows.axes(size, kernel, 1, padding)
    if turned:
        rows, columns = rows.transposed, columns.transposed
    x = np.zeros((3, rows.size, columns.size, 4), np.float32)
    x[:2, :, :, 0] = 3  # the second image is of one magnitude, the third is zero
    inside = np.pad(np.ones((rows.size, columns.size)), ((rows.before, rows.after), (columns.before, columns.after)))
    smallest = np.lib.stride_tricks.sliding_window_view(inside, (rows.kernel, columns.kernel)).sum((2, 3)).min()
    x[0, rows.size // 2, columns.size // 2] = bright * 3 * np.sqrt(smallest) / 2  # in each of four channels
    assert winograd.has_narrow_range(x, rows, columns).tolist() == [narrow, True, True]
    filters = np.ones((3, 5, 4, 2), np.float32)
    filters[1, 2], filters[0, 0] = bright, 0
    assert winograd.filters_have_narrow_range(filters) is narrow


def assert_every_element_is_near(found, x, filters, g, most):
    """The error is proportional to the sum of the magnitudes of terms, as that of direct convolution."""
    exact = convolved(x, filters, g, np.float64)
    magnitudes = convolved(np.abs(x), np.abs(filters), np.abs(g), np.float64)
    for got, wanted, magnitude in zip(found, exact, magnitudes, strict=False):
        assert got.dtype == np.float32
        assert (np.abs(got - wanted) <= most * magnitude).all()


@pytest.mark.parametrize(("kernel", "bright", "noise"), [(3, 1e4, 1e-3), (4, 1, 1e-9), (5, 1e12, 1), (5, 1e4, 1e-3)])
def test_small_results_beside_a_bright_pixel_or_filter_element_keep_their_digits(kernel, bright, noise):
    x, g = (normal(9, SIZE, SIZE, depth) * np.float32(noise) for depth in (CHANNELS, OUT))
    x[::3, 4, 5] = g[::3, 4, 5] = bright
    filters = normal(kernel, kernel, CHANNELS, OUT)
    assert_every_element_is_near(convolved(x, filters, g)[:2], x, filters, g, 3e-6)
    x, g = normal(*X_SHAPE), normal(*Y_SHAPE)
    filters[0, 0] *= 1e7  # on the padding at the first rows and columns
    assert_every_element_is_near(convolved(x, filters, g), x, filters, g, 3e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_pixel_or_gradient_that_is_not_finite_reaches_its_own_windows_only(value):
    x, filters, g = np.abs(normal(*X_SHAPE)), np.abs(normal(*FILTERS_SHAPE)), np.ones(Y_SHAPE, np.float32)
    without = convolved(x, filters, g)
    bright, infinite = x.copy(), g.copy()
    bright[3, 6, 5, 1] = infinite[3, 6, 5, 1] = value
    reached = np.zeros(Y_SHAPE, bool)
    reached[3, 4:9, 3:8] = True
    y, x_gradient, filters_gradient = convolved(bright, filters, g)  # without a warning of numpy
    np.testing.assert_array_equal(y[reached], value)
    np.testing.assert_allclose(y[~reached], without[0][~reached], rtol=1e-5)
    np.testing.assert_array_equal(x_gradient, without[1])
    np.testing.assert_array_equal(filters_gradient[:, :, 1], np.full((5, 5, OUT), value))
    np.testing.assert_allclose(np.delete(filters_gradient, 1, 2), np.delete(without[2], 1, 2), rtol=1e-5)

    _, x_gradient, filters_gradient = convolved(x, filters, infinite)
    np.testing.assert_array_equal(~np.isfinite(x_gradient).all(axis=3), reached[..., 0])
    assert np.isfinite(filters_gradient).all((0, 1, 2)).tolist() == [channel != 1 for channel in range(OUT)]


def test_a_filter_that_is_not_finite_reaches_its_own_results_only():
    x, filters = np.abs(normal(*X_SHAPE)), np.abs(normal(*FILTERS_SHAPE))
    filters[0, 0, 2, 7] = np.inf  # on the padding at the first rows and columns, where its terms are 0 * inf
    with np.errstate(invalid="ignore"):
        y = ops.conv2d(x, filters).value
    assert np.isfinite(np.delete(y, 7, 3)).all()
    assert np.isinf(y[:, 2:, 2:, 7]).all()
    x, filters = np.full(X_SHAPE, 1e18, np.float32), np.full(FILTERS_SHAPE, 5e17, np.float32)
    y = ops.conv2d(x, filters).value  # near the largest float32
    np.testing.assert_allclose(y[:, 2:-2, 2:-2], 25 * CHANNELS * 5e35, rtol=1e-5)


def test_precise_convolutions_and_their_gradients_are_direct():
    x, filters, g = usual_operands()
    tensors = [leaf(x), leaf(filters)]
    with ops.precise():
        y = ops.conv2d(*tensors)
    found = y.value, *gradients(y, tensors, g)  # also after the block
    few = [convolved(x[i : i + 4], filters, g[i : i + 4]) for i in (0, 4)]  # so few images are convolved directly
    for got, parts in zip(found[:2], zip(*few, strict=True), strict=False):
        np.testing.assert_allclose(got, np.concatenate(parts), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[2], few[0][2] + few[1][2], rtol=1e-6, atol=3e-5)
    assert_every_element_is_near(found[:2], x, filters, g, 5e-7)


def test_precise_ends_with_its_block_also_by_an_exception_and_is_of_its_own_thread():
    x, filters, _ = usual_operands()

    def result():
        return ops.conv2d(x, filters).value.tobytes()

    fast = result()
    with ops.precise(), ThreadPoolExecutor(1) as pool:
        direct = result()
        assert pool.submit(result).result() == fast != direct == ops.precise()(result)() == result()
    with pytest.raises(KeyError), ops.precise():
        raise KeyError
    assert result() == fast
