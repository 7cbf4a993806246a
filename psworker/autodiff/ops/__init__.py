"""The ops: functions on tensors, arrays and numbers, each beside its derivative.

`from psworker import ops`, then `ops.matmul(x, W)`. The operators and methods of `Tensor` are bound to them here. To
add an op, write a function with `@op` in its family's file, name it in that file's `__all__`, and add rows to cases.py
or numpy_cases.py in tests/unit/psworker/autodiff/. Ops import numpy, `pswire.tensors`, the tape and each other only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from numpy.typing import DTypeLike

from psworker import familiar_names
from psworker.autodiff.ops import losses, normalization, reductions
from psworker.autodiff.ops.arrays import creation, joining, shapes
from psworker.autodiff.ops.arrays.creation import *  # noqa: F403
from psworker.autodiff.ops.arrays.joining import *  # noqa: F403
from psworker.autodiff.ops.arrays.shapes import *  # noqa: F403
from psworker.autodiff.ops.convolution.conv1d import conv1d
from psworker.autodiff.ops.convolution.conv2d import conv2d, precise
from psworker.autodiff.ops.convolution.conv2d_transpose import conv2d_transpose
from psworker.autodiff.ops.convolution.pooling import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from psworker.autodiff.ops.elementwise import activations, comparisons, elementary, math
from psworker.autodiff.ops.elementwise.activations import *  # noqa: F403
from psworker.autodiff.ops.elementwise.comparisons import *  # noqa: F403
from psworker.autodiff.ops.elementwise.elementary import *  # noqa: F403
from psworker.autodiff.ops.elementwise.math import *  # noqa: F403
from psworker.autodiff.ops.linear_algebra import matrices, products, systems
from psworker.autodiff.ops.linear_algebra.einsum import einsum
from psworker.autodiff.ops.linear_algebra.matrices import *  # noqa: F403
from psworker.autodiff.ops.linear_algebra.products import *  # noqa: F403
from psworker.autodiff.ops.linear_algebra.systems import *  # noqa: F403
from psworker.autodiff.ops.losses import *  # noqa: F403
from psworker.autodiff.ops.normalization import *  # noqa: F403
from psworker.autodiff.ops.reductions import *  # noqa: F403
from psworker.autodiff.ops.selection import indexing, ordering, segments
from psworker.autodiff.ops.selection.indexing import *  # noqa: F403
from psworker.autodiff.ops.selection.ordering import *  # noqa: F403
from psworker.autodiff.ops.selection.segments import *  # noqa: F403
from psworker.autodiff.tensor import Tensor, TensorLike

__all__ = ["avg_pool1d", "avg_pool2d", "conv1d", "conv2d", "conv2d_transpose", "einsum", "max_pool1d", "max_pool2d"]
__all__ += ["precise"]
__all__ += activations.__all__
__all__ += comparisons.__all__
__all__ += creation.__all__
__all__ += elementary.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += matrices.__all__
__all__ += normalization.__all__
__all__ += ordering.__all__
__all__ += products.__all__
__all__ += reductions.__all__
__all__ += segments.__all__
__all__ += shapes.__all__
__all__ += systems.__all__


for _name in __all__:
    if not hasattr(globals()[_name], "__wrapped__"):  # as ops have, whose errors have hints
        globals()[_name] = familiar_names.hint_keywords(globals()[_name])


def __dir__() -> list[str]:
    """The ops, without the modules that they are in and what these import."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("ops", name)


def _reflected(function: Callable[[TensorLike, TensorLike], Tensor]) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda self, other: function(other, self)


def _reshape(self: Tensor, *shape: SupportsIndex | Sequence[int]) -> Tensor:
    """`x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return shapes.reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[arg-type]


def _transpose(self: Tensor, *axes: SupportsIndex | Sequence[int] | None) -> Tensor:
    """`x.transpose()`, `x.transpose(1, 0)` or `x.transpose((1, 0))`."""
    return shapes.transpose(self, axes[0] if len(axes) == 1 else axes or None)  # type: ignore[arg-type]


def _astype(self: Tensor, dtype: DTypeLike) -> Tensor:
    """`ops.cast`."""
    return shapes.cast(self, dtype)  # type: ignore[no-untyped-call, no-any-return]


# Functions of the same name and arguments as numpy's methods, but for those above.
_OPERATORS = {"add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "pow": math.power}
_OPERATORS |= {"matmul": products.matmul, "mod": elementary.mod}
for _name, _operator in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", _operator)
    setattr(Tensor, f"__r{_name}__", _reflected(_operator))
_METHODS = {"__neg__": math.negative, "__abs__": math.abs, "__getitem__": indexing.getitem, "reshape": _reshape}
_METHODS |= {"__lt__": comparisons.less, "__le__": comparisons.less_equal, "__gt__": comparisons.greater}
_METHODS |= {"__ge__": comparisons.greater_equal, "transpose": _transpose, "astype": _astype, "flatten": shapes.ravel}
for _name in [
    *["all", "any", "argmax", "argmin", "clip", "cumsum", "dot", "max", "mean", "min", "prod", "ravel", "round"],
    *["squeeze", "std", "sum", "swapaxes", "var"],
]:
    _METHODS[_name] = globals()[_name]
for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
Tensor.T = property(shapes.transpose)  # type: ignore[assignment, method-assign]
familiar_names.hint_attributes(
    Tensor, {_name: f"`ops.{_name}`, a function" for _name in __all__ if _name not in familiar_names.TENSOR}
)
