"""Winograd convolution against direct convolution in float64: matrices, shapes, error bounds, and when it is used."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.convolution import im2col, winograd
from psworker.autodiff.ops.convolution.windows import axes

SEED = 1980
BOUND = 6e-6  # of the largest element, for random terms; see docs/performance.md
UNIT = 2.0**-24  # the unit roundoff of float32
AMPLIFICATION = {3: (51.4, 39.9), 4: (39.9, 51.4), 5: (98.7, 173.9)}  # of results, of filters' gradients: the same page
ROUNDING = 3e-5  # of the typical sum of terms of random signs: float32's 6e-8 times 500
LENGTHS = sorted(winograd.RESULTS)


def normal(*shape, dtype=np.float32):
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(dtype)


def leaf(array):
    return Tensor(array, requires_grad=True)


def assert_near(got, exact, most):
    """No element is further off than `most`."""
    assert (got.shape, got.dtype) == (exact.shape, np.float32)
    np.testing.assert_allclose(got, exact, rtol=0, atol=most)


def largest(array):
    return np.abs(array).max()


def by_winograd(x, filters, g, padding):
    """The result, the gradient of the filters and that of the images."""
    rows, columns = axes(x.shape[1:3], filters.shape[:2], 1, padding)
    return (
        winograd.convolve(x, filters, rows, columns),
        winograd.filters_gradient(x, g, rows, columns),
        winograd.images_gradient(g, filters, rows, columns),
    )


def directly(x, filters, g, padding):
    """The same three by direct convolution in float64."""
    tensors = [leaf(array.astype(np.float64)) for array in (filters, x)]
    y = ops.conv2d(tensors[1], tensors[0], padding=padding)
    return y.value, *gradients(y, tensors, g.astype(np.float64))


def assert_right(images, filters, padding):
    """All three are right for random arrays of these shapes.

    The bound is for random terms: the root of the sum of their squares, with the largest filter element everywhere, as
    a tile may extend beyond the image.
    """
    x, filters = normal(*images), normal(*filters)
    rows, columns = axes(x.shape[1:3], filters.shape[:2], 1, padding)
    g = normal(len(x), rows.windows, columns.windows, filters.shape[3])
    squares = directly(x**2, np.full_like(filters, (filters**2).max()), g**2, padding)
    found, exact = by_winograd(x, filters, g, padding), directly(x, filters, g, padding)
    for got, wanted, square in zip(found, exact, squares, strict=True):
        assert_near(got, wanted, ROUNDING * np.sqrt(square.max()))


@pytest.mark.parametrize(
    ("images", "filters", "padding"),
    [
        ((1, 5, 5, 1), (5, 5, 1, 1), "VALID"),
        ((1, 14, 14, 32), (5, 5, 32, 64), "SAME"),
        ((3, 7, 9, 2), (5, 5, 2, 3), "VALID"),
        ((2, 13, 6, 5), (5, 5, 5, 4), "SAME"),
        ((1, 6, 17, 1), (3, 3, 1, 7), "SAME"),
        ((4, 11, 8, 3), (3, 3, 3, 1), "VALID"),
        ((2, 9, 4, 96), (3, 3, 96, 16), "SAME"),
        ((2, 10, 7, 4), (4, 4, 4, 5), "VALID"),
        ((3, 8, 12, 4), (3, 5, 4, 6), "SAME"),
        ((2, 6, 5, 3), (4, 3, 3, 2), "VALID"),
        *(((2, size, size, 3), (kernel, kernel, 3, 2), "SAME") for size, kernel in ((1, 5), (2, 3), (3, 4), (4, 5))),
    ],
)
def test_values_and_gradients_of_any_shape_are_those_of_direct_convolution(images, filters, padding):
    assert_right(images, filters, padding)


def amplified(kernel):
    """How far the magnitudes of a tile's terms exceed those of direct convolution, for results and for filters."""
    results = winograd.RESULTS[kernel]
    a, g, b = (np.abs(matrix) for matrix in winograd.matrices(results, kernel))
    of_image = b.sum(axis=1)
    one = (a.T @ (g.sum(axis=1) * of_image)).max() / kernel, (g.T @ (a.sum(axis=1) * of_image)).max() / results
    return one[0] ** 2, one[1] ** 2


OPERANDS = {  # each with the measured error, in units of the amplified rounding
    "random": (normal, 2),
    "positive": (lambda *shape: np.abs(normal(*shape)), 2),
    "constant": (lambda *shape: np.full(shape, 1 / 3, np.float32), 128),  # rounding errors that are all alike
    "of one sign a channel": (lambda *shape: np.broadcast_to(np.sign(normal(shape[-1])), shape) * np.float32(0.3), 128),
}


@pytest.mark.parametrize("kernel", LENGTHS)
@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("channels", [2, 96])
def test_errors_are_within_the_bound_of_the_guide_for_all_operands(kernel, operands, channels):
    make, measured = OPERANDS[operands]
    results, out, images, size = winograd.RESULTS[kernel], 8, 4, 10
    x, g = (make(images, size, size, depth) for depth in (channels, out))
    filters = make(kernel, kernel, channels, out)
    of_results, of_filters = amplified(kernel)
    assert (of_results, of_filters) <= AMPLIFICATION[kernel]
    tiles = (-(-size // results)) ** 2
    transforms = 4 * (results + kernel)
    cases = (  # the roundings of a term, how far it is amplified, how many there are, and how large
        (2 * kernel + 2 + transforms + channels, of_results, kernel**2 * channels, largest(x) * largest(filters)),
        (2 * results + 2 + transforms + images * tiles, of_filters, images * size**2, largest(x) * largest(g)),
        (2 * kernel + 2 + transforms + out, of_results, kernel**2 * out, largest(g) * largest(filters)),
    )
    found, exact = by_winograd(x, filters, g, "SAME"), directly(x, filters, g, "SAME")
    for got, wanted, (roundings, amplification, terms, term) in zip(found, exact, cases, strict=True):
        error = largest(got - wanted)
        assert error <= UNIT * roundings * amplification * terms * term
        assert error <= UNIT * measured * terms * term


def test_an_error_depends_only_on_the_elements_that_the_tile_reads():
    x, filters = normal(2, 12, 12, 3), normal(5, 5, 3, 4)
    rows, columns = axes((12, 12), (5, 5), 1, "SAME")
    without = winograd.convolve(x, filters, rows, columns)
    x[0, 0, 0] = 1e12
    bright = winograd.convolve(x, filters, rows, columns)
    assert not np.array_equal(bright[0, :3, :3], without[0, :3, :3])
    np.testing.assert_array_equal(bright[0, 3:], without[0, 3:])
    np.testing.assert_array_equal(bright[0, :, 3:], without[0, :, 3:])
    np.testing.assert_array_equal(bright[1], without[1])
    y, of_filters, _ = by_winograd(np.zeros_like(x), filters, normal(2, 12, 12, 4), "SAME")
    assert not y.any()
    assert not of_filters.any()


@pytest.mark.parametrize(("name", "number"), [("BLOCK_BYTES", 1), ("BLOCK_BYTES", 1 << 30), ("TILES", 1), ("TILES", 5)])
def test_the_size_of_blocks_and_patches_changes_no_more_than_rounding(monkeypatch, name, number):
    monkeypatch.setattr(winograd, name, number)
    winograd.patches.cache_clear()
    try:
        assert_right((19, 11, 8, 3), (3, 5, 3, 4), "SAME")
    finally:
        winograd.patches.cache_clear()


def test_conv2d_uses_it_with_bias_and_relu_and_the_gradients_of_direct_convolution(monkeypatch):
    tensors = [leaf(normal(*shape)) for shape in ((8, 10, 10, 32), (5, 5, 32, 32), (32,))]
    monkeypatch.setattr(im2col, "_windows", lambda *args: pytest.fail("direct convolution was used"))
    y = ops.conv2d(*tensors, activation="relu")
    g = normal(*y.shape)
    found = gradients(y, tensors, g)
    monkeypatch.undo()
    exact = [leaf(tensor.value.astype(np.float64)) for tensor in tensors]
    direct = ops.conv2d(*exact)
    assert_near(y.value, np.maximum(direct.value, 0), BOUND * largest(direct.value))
    # By the y that was found: relu's derivative jumps where an error may take y to the other side of zero.
    passed = gradients(direct, exact, np.where(y.value > 0, g, 0).astype(np.float64))
    for got, wanted in zip(found, passed, strict=True):
        assert_near(got, wanted, BOUND * largest(wanted))


@pytest.mark.parametrize(
    ("images", "filters", "options", "why"),
    [
        ((16, 14, 14, 32), (5, 5, 32, 64), {"dtype": np.float64}, "float64"),
        ((16, 14, 14, 32), (5, 5, 32, 64), {"strides": (1, 2)}, "a stride"),
        ((16, 14, 14, 32), (5, 5, 32, 64), {"dilations": 2}, "a dilation"),
        ((16, 14, 14, 32), (1, 5, 32, 64), {}, "a length that has no tile"),
        ((7, 14, 14, 32), (5, 5, 32, 64), {}, "few images"),
        ((50, 28, 28, 1), (5, 5, 1, 32), {}, "one channel: more multiplications than otherwise"),
        ((16, 14, 14, 0), (5, 5, 0, 64), {}, "no channels"),
        ((0, 14, 14, 32), (5, 5, 32, 64), {}, "no images"),
        ((16, 0, 14, 32), (5, 5, 32, 64), {}, "no rows"),
    ],
)
def test_direct_convolution_is_used_for(images, filters, options, why):
    rows, columns = axes(images[1:3], filters[:2], options.get("strides", 1), "SAME", options.get("dilations", 1))
    dtype = np.dtype(options.get("dtype", np.float32))
    assert not winograd.is_faster(images[0], images[3], filters[3], rows, columns, dtype), why
