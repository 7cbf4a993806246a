"""Where the windows of a convolution or a pooling lie on an image: the geometry alone, for `conv.py` and `pool.py`.

Images are (batch, height, width, channels); each of the two axes between is described by an `Axis`. Only numpy may be
imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from psworker.autodiff.tensor import Array

Padding: TypeAlias = Literal["SAME", "VALID"]
Pair: TypeAlias = int | Sequence[int]  # (height, width), or one number for both


class Axis(NamedTuple):
    """One axis of an image and its windows: window i covers before + i * stride + k * dilation, k = 0 ... kernel - 1.

    `before` and `after` are the elements of padding on either side of the `size` elements of the image; positions count
    from the start of the padding.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    windows: int
    before: int
    after: int

    @property
    def padded(self) -> int:
        """The length with its padding."""
        return self.before + self.size + self.after

    @property
    def inside(self) -> slice:
        """The image in its padding."""
        return slice(self.before, self.before + self.size)

    def taps(self, k: int) -> slice:
        """The k-th elements of all windows, as a slice of the padded axis."""
        start = k * self.dilation
        return slice(start, start + self.windows * self.stride, self.stride)


def axes(
    image: Sequence[int], kernel: Sequence[int], strides: Pair, padding: Padding, dilations: Pair = 1
) -> tuple[Axis, Axis]:
    """The two axes of an image (height, width) under windows of `kernel` (height, width).

    "VALID" takes the windows that lie inside the image. "SAME" pads so that a window starts at every `stride`-th
    element: ceil(size / stride) of them, and what is odd of the padding goes to the end (TensorFlow's rule).

    Raises ValueError when a number is below 1 or no window fits, TypeError when a number is not an integer.
    """
    if padding not in ("SAME", "VALID"):
        raise ValueError(f'padding must be "SAME" or "VALID", but it is {padding!r}')
    strides, dilations = pair("strides", strides), pair("dilations", dilations)
    found = []
    for size, length, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        reach = (length - 1) * dilation + 1
        if padding == "SAME":
            windows = -(-size // stride)
            missing = max((windows - 1) * stride + reach - size, 0)
        else:
            windows = (size - reach) // stride + 1
            missing = 0
            if reach > size:
                raise ValueError(
                    f"no window fits: x is {image[0]} x {image[1]}, and a window reaches over {reach} elements; pad "
                    f'(padding="SAME") or take a smaller window'
                )
        found.append(Axis(size, length, stride, dilation, windows, missing // 2, missing - missing // 2))
    return found[0], found[1]


def pair(name: str, given: Pair) -> tuple[int, int]:
    """(height, width), from such a pair or one number for both; each an integer from 1 up."""
    numbers = tuple(given) if isinstance(given, Sequence) else (given, given)
    if not all(isinstance(number, (int, np.integer)) for number in numbers):
        raise TypeError(f"{name} must be an integer or two (height, width), but it is {given!r}")
    if len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(f"{name} must be from 1 up, one number or two (height, width), but it is {given!r}")
    return int(numbers[0]), int(numbers[1])


def pad(x: Array, rows: Axis, columns: Axis, value: float = 0) -> Array:
    """The images with their padding filled with a number; the images themselves when there is no padding."""
    if rows.padded == rows.size and columns.padded == columns.size:
        return x
    padded = np.full((x.shape[0], rows.padded, columns.padded, x.shape[3]), value, x.dtype)
    padded[:, rows.inside, columns.inside] = x
    return padded


def blocks(images: int, rows: int, row_bytes: int, block_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cuts a batch into (images, rows) that need at most `block_bytes`: several images, or some rows of one.

    An image that is in cache when it is used costs far less than one that is not; how much fits is measured, see
    docs/performance.md. A single row is never cut.
    """
    at_once = max(block_bytes // max(row_bytes, 1), 1)
    if at_once >= rows:
        step = at_once // max(rows, 1)
        for image in range(0, images, step):
            yield slice(image, min(image + step, images)), slice(0, rows)
    else:
        for image in range(images):
            for row in range(0, rows, at_once):
                yield slice(image, image + 1), slice(row, min(row + at_once, rows))
