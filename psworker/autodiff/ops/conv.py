"""Convolution of images, beside its derivatives, and the choice between the two ways to compute it.

`im2col.py` is the plain one; `winograd.py` takes less time where it can be used, and `dynamic_range.py` says for which
images it keeps enough digits. Only numpy, `pswire.tensors.sums`, the tape, `precise`, `precision`, relu's derivative,
the windows and these three may be imported here.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops import im2col, winograd
from psworker.autodiff.ops.dynamic_range import narrow_filters, narrow_images
from psworker.autodiff.ops.nn import relu_vjp
from psworker.autodiff.ops.precision import float16_in_float32
from psworker.autodiff.ops.windows import Padding, Pair, axes
from psworker.autodiff.precise import is_precise
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike

__all__ = ["conv2d"]


def conv2d(
    x: TensorLike,
    filters: TensorLike,
    bias: TensorLike | None = None,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
    activation: Literal["relu"] | None = None,
) -> Tensor:
    """y[n, i, j, o] = sum over u, v, c of filters[u, v, c, o] * x[n, i*s + u*d, j*s + v*d, c]; stride s, dilation d.

    `x`: (batch, height, width, channels); `filters`: (height, width, channels, out), any size; `bias`: (out,), added to
    each y. `strides` and `dilations`: one integer or two (height, width). The result is (batch, rows, columns, out),
    with ceil(size / stride) rows and columns for "SAME", which pads x with zeros (what is odd of them at the end, as
    TensorFlow does), and ceil((size - (kernel - 1) * dilation) / stride) for "VALID", which does not. It is the
    cross-correlation that the field calls convolution (Goodfellow, Bengio and Courville, Deep Learning, 2016,
    equation 9.6). `activation="relu"` gives `relu` of all that, for less time and memory than a relu after it.

    In float32, batches of eight images and more are convolved by minimal filtering where that is faster. Its errors are
    some ten times those of plain convolution, about 1e-5 of the largest element of the result, or of a gradient,
    unless terms cancel; docs/performance.md has the bound. An image takes the plain way if its magnitudes differ so
    much that small results would be lost, or if it is not finite; `precise()` makes all take it, and so does float64.

    Raises ValueError when shapes do not fit or an option is unknown, TypeError when something is not floating point.
    """
    y = _conv2d(x, filters, bias, strides, padding, dilations, activation)  # type: ignore[arg-type]
    return y if activation is None else ACTIVATIONS[activation].derivative(y)


@op
@float16_in_float32
def _conv2d(
    x: Array,
    filters: Array,
    bias: Array | None = None,
    /,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
    activation: str | None = None,
) -> Result:
    """The value of `conv2d`, activated, and the derivatives of what was activated."""
    x, filters = np.asarray(x), np.asarray(filters)
    _check(x, filters, bias, activation)
    rows, columns = axes(x.shape[1:3], filters.shape[:2], strides, padding, dilations)
    dtype = np.result_type(*(a for a in (x, filters, bias) if a is not None))
    x, filters = x.astype(dtype, copy=False), np.ascontiguousarray(filters, dtype)
    channels, out = filters.shape[2:]

    def finish(part: Array) -> None:
        if bias is not None:
            np.add(part, bias, out=part)
        if activation is not None:
            ACTIVATIONS[activation].apply(part)

    pays = winograd.pays(len(x), channels, out, rows, columns, dtype)
    faster = pays and not is_precise() and narrow_filters(filters)
    narrow_x = narrow_images(x, rows, columns) if faster else np.zeros(len(x), bool)

    def look(g: Array) -> Array:
        return narrow_images(g, *winograd.turned(rows, columns)) if faster else narrow_x

    narrow_g, narrow_same_g = _shared(look)

    def x_gradient(g: Array) -> Array:
        ways = _ways(narrow_g(g))
        return _joined([(some, way.images_gradient(g[some], filters, rows, columns)) for way, some in ways])

    def filters_gradient(g: Array) -> Array:
        ways = _ways(narrow_x & narrow_same_g(g))
        first, *others = (way.filters_gradient(x[some], g[some], rows, columns) for way, some in ways)
        total: Array = sum(others, first)
        return total

    def bias_gradient(g: Array) -> Array:
        sums: Array = add_over(g.reshape(math.prod(g.shape[:3]), out), 0)
        return sums

    y = _joined([(some, way.convolve(x[some], filters, rows, columns, finish)) for way, some in _ways(narrow_x)])
    return y, (x_gradient, filters_gradient, bias_gradient)


Some: TypeAlias = slice | Array  # of the images of a batch: all, or those for which an array of booleans is true


Look: TypeAlias = Callable[[Array], Array]


def _shared(look: Look) -> tuple[Look, Look]:
    """One look at a convolution's g for both of its gradients, which the tape asks for one after the other.

    The first function looks. So does the second, but at the g of the first, of which the result is kept until then.
    """
    last: list[tuple[weakref.ref[Array], Array]] = []

    def first(g: Array) -> Array:
        found = look(g)
        last[:] = [(weakref.ref(g), found)]
        return found

    def second(g: Array) -> Array:
        of, found = last.pop() if last else (None, g)
        return found if of is not None and of() is g else look(g)

    return first, second


def _ways(narrow: Array) -> list[tuple[ModuleType, Some]]:
    """The modules that compute a convolution, each with the images that it is for."""
    if not narrow.any():
        return [(im2col, slice(None))]
    if narrow.all():
        return [(winograd, slice(None))]
    return [(winograd, narrow), (im2col, ~narrow)]


def _joined(parts: list[tuple[Some, Array]]) -> Array:
    """The results of some images each, as one batch."""
    if len(parts) == 1:
        return parts[0][1]
    images = sum(len(part) for _, part in parts)
    joined = np.empty((images, *parts[0][1].shape[1:]), parts[0][1].dtype)
    for some, part in parts:
        joined[some] = part
    return joined


class Activation(NamedTuple):
    """A function that is applied in place to a block of results while it is in cache, and its derivative as an op.

    The op's value is its argument: what comes in is activated already.
    """

    apply: Callable[[Array], object]
    derivative: Callable[[TensorLike], Tensor]


def _relu(y: Array) -> None:
    np.clip(y, 0, np.inf, out=y)


def _rectified(y: Array, /) -> Result:
    return y, (relu_vjp(y),)


ACTIVATIONS = {"relu": Activation(_relu, op(_rectified))}


def _check(x: Array, filters: Array, bias: Array | None, activation: str | None) -> None:
    """Raises ValueError or TypeError that says which argument does not fit."""
    if x.ndim != 4:
        raise ValueError(f"x must have the axes (batch, height, width, channels), but its shape is {x.shape}")
    if filters.ndim != 4 or 0 in filters.shape[:2]:
        raise ValueError(f"filters must be (height, width, channels, out), but their shape is {filters.shape}")
    if x.shape[3] != filters.shape[2]:
        raise ValueError(f"x has {x.shape[3]} channels, but the filters are for {filters.shape[2]}")
    if bias is not None and np.shape(bias) != filters.shape[3:]:
        raise ValueError(f"bias must have the shape {filters.shape[3:]}, but it is {np.shape(bias)}")
    for name, array in (("x", x), ("filters", filters)):
        if array.dtype.kind != "f":
            raise TypeError(f"{name} must be floating point, but its dtype is {array.dtype}")
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(f'activation must be None or "{", ".join(ACTIVATIONS)}", but it is {activation!r}')
