"""Geometry of the windows of a convolution or pooling over images (batch, height, width, channels)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from psworker.autodiff.tensor import Array

Padding: TypeAlias = Literal["SAME", "VALID"]
Pair: TypeAlias = int | Sequence[int]  # (height, width), or one number for both


class Axis(NamedTuple):
    """Height or width of an image with its windows.

    Of the padded axis (`before` + `size` + `after` elements), window i covers the elements i * stride + k * dilation,
    k = 0 ... kernel - 1.
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
        """The length with padding."""
        return self.before + self.size + self.after

    @property
    def inside(self) -> slice:
        """The image within the padding."""
        return slice(self.before, self.before + self.size)

    @property
    def transposed(self) -> "Axis":
        """The axis of the transposed convolution, for stride and dilation 1: windows and elements change roles."""
        reach = self.kernel - 1
        return self._replace(size=self.windows, windows=self.size, before=reach - self.before, after=reach - self.after)

    def taps(self, k: int) -> slice:
        """The k-th elements of all windows, as a slice of the padded axis."""
        start = k * self.dilation
        return slice(start, start + self.windows * self.stride, self.stride)


def axes(
    image: Sequence[int], kernel: Sequence[int], strides: Pair, padding: Padding, dilations: Pair = 1
) -> tuple[Axis, Axis]:
    """The two axes of an image (height, width) under windows of `kernel` (height, width), by TensorFlow's rules.

    Raises ValueError when a number is below 1 or no window fits, TypeError for a non-integer.
    """
    if padding not in ("SAME", "VALID"):
        raise ValueError(f'padding must be "SAME" or "VALID", but it is {padding!r}')
    strides, dilations = pair("strides", strides), pair("dilations", dilations)
    found = []
    for size, length, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        reach = (length - 1) * dilation + 1
        if padding == "VALID" and reach > size:
            raise ValueError(
                f"no window fits: x is {image[0]} x {image[1]}, and a window spans {reach} elements; pad "
                f'(padding="SAME") or take a smaller window'
            )
        windows = -(-size // stride) if padding == "SAME" else (size - reach) // stride + 1
        missing = max((windows - 1) * stride + reach - size, 0)
        found.append(Axis(size, length, stride, dilation, windows, missing // 2, missing - missing // 2))
    return found[0], found[1]


def pair(name: str, given: Pair) -> tuple[int, int]:
    """A pair (height, width) of positive integers, from a pair or one number for both."""
    numbers = tuple(given) if isinstance(given, Sequence) else (given, given)
    if not all(isinstance(number, (int, np.integer)) for number in numbers):
        raise TypeError(f"{name} must be an integer or two (height, width), but it is {given!r}")
    if len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(f"{name} must be at least 1, as one number or a pair (height, width), but it is {given!r}")
    return int(numbers[0]), int(numbers[1])


def checked_padding(kind: str, padding: Padding) -> Padding:
    """The padding; ValueError, with the layer's class, for another one."""
    if padding not in ("SAME", "VALID"):
        raise ValueError(f'{kind}: padding must be "SAME" or "VALID", got {padding!r}')
    return padding


def single(name: str, given: int) -> int:
    """One positive integer; TypeError for anything else, ValueError below 1."""
    if not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name} must be one integer, but it is {given!r}")
    if given < 1:
        raise ValueError(f"{name} must be at least 1, but it is {given}")
    return int(given)


def pad(x: Array, rows: Axis, columns: Axis, value: float = 0) -> Array:
    """The images with padding of `value`; the same array when there is none."""
    if rows.padded == rows.size and columns.padded == columns.size:
        return x
    padded = np.full((x.shape[0], rows.padded, columns.padded, x.shape[3]), value, x.dtype)
    padded[:, rows.inside, columns.inside] = x
    return padded


def check_filters_and_bias(filters: Array, bias: Array | None, out: int) -> None:
    """Raise ValueError unless a bias is for `out` results, TypeError unless filters are floating point."""
    if bias is not None and np.shape(bias) != (out,):
        raise ValueError(f"bias must have the shape {(out,)}, but it is {np.shape(bias)}")
    if filters.dtype.kind != "f":
        raise TypeError(f"filters must be floating point, but their dtype is {filters.dtype}")


def in_one_dtype(x: Array, filters: Array, bias: Array | None) -> tuple[Array, Array]:
    """X and contiguous filters in the dtype that holds them and the bias."""
    dtype = np.result_type(*(a for a in (x, filters, bias) if a is not None))
    return x.astype(dtype, copy=False), np.ascontiguousarray(filters, dtype)


def check_images(x: Array) -> None:
    """Raise ValueError unless x has four axes, TypeError unless it is floating point."""
    if np.ndim(x) != 4:
        raise ValueError(f"x must have the axes (batch, height, width, channels), but its shape is {np.shape(x)}")
    if x.dtype.kind != "f":
        raise TypeError(f"x must be floating point, but its dtype is {x.dtype}")
