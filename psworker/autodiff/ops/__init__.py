"""The ops: functions on tensors, arrays and numbers, each beside its derivative.

`from psworker import ops`, then `ops.matmul(x, W)`. The operators and methods of `Tensor` are bound to them here. To
add an op, write a function with `@op` in its family's file, name it in that file's `__all__`, and add rows to
tests/unit/psworker/autodiff/cases.py. Ops import numpy, `pswire.tensors`, the tape and each other only.
"""

from collections.abc import Callable, Sequence
from typing import SupportsIndex

from psworker.autodiff.ops import (
    activations,
    arrays,
    elementary,
    indexing,
    linear_algebra,
    losses,
    math,
    normalization,
    ordering,
    reductions,
    segments,
)
from psworker.autodiff.ops.activations import *  # noqa: F403
from psworker.autodiff.ops.arrays import *  # noqa: F403
from psworker.autodiff.ops.convolution.conv1d import conv1d
from psworker.autodiff.ops.convolution.conv2d import conv2d, precise
from psworker.autodiff.ops.convolution.conv2d_transpose import conv2d_transpose
from psworker.autodiff.ops.convolution.pooling import avg_pool2d, max_pool2d
from psworker.autodiff.ops.elementary import *  # noqa: F403
from psworker.autodiff.ops.indexing import *  # noqa: F403
from psworker.autodiff.ops.linear_algebra import *  # noqa: F403
from psworker.autodiff.ops.losses import *  # noqa: F403
from psworker.autodiff.ops.math import *  # noqa: F403
from psworker.autodiff.ops.normalization import *  # noqa: F403
from psworker.autodiff.ops.ordering import *  # noqa: F403
from psworker.autodiff.ops.reductions import *  # noqa: F403
from psworker.autodiff.ops.segments import *  # noqa: F403
from psworker.autodiff.tensor import Tensor, TensorLike

__all__ = ["avg_pool2d", "conv1d", "conv2d", "conv2d_transpose", "max_pool2d", "precise"]
_FAMILIES = [activations, arrays, elementary, indexing, linear_algebra, losses, math, normalization, ordering]
_FAMILIES += [reductions, segments]
for _family in _FAMILIES:
    __all__ += _family.__all__


def __dir__() -> list[str]:
    """The ops, without the modules that they are in and what these import."""
    return sorted(__all__)


def _reflected(function: Callable[[TensorLike, TensorLike], Tensor]) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda self, other: function(other, self)


def _reshape(self: Tensor, *shape: SupportsIndex | Sequence[int]) -> Tensor:
    """`x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return arrays.reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[arg-type]


_OPERATORS = {"add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "pow": math.power}
for _name, _operator in {**_OPERATORS, "matmul": linear_algebra.matmul}.items():
    setattr(Tensor, f"__{_name}__", _operator)
    setattr(Tensor, f"__r{_name}__", _reflected(_operator))
_METHODS = {"__neg__": math.negative, "__abs__": math.abs, "__getitem__": indexing.getitem, "reshape": _reshape}
_REDUCTIONS = {"sum": reductions.sum, "mean": reductions.mean, "max": reductions.max, "min": reductions.min}
for _name, _method in {**_METHODS, **_REDUCTIONS, "T": property(arrays.transpose)}.items():
    setattr(Tensor, _name, _method)
