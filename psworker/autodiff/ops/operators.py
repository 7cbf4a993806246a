"""What `x + y`, `x @ W`, `x[0]`, `x.T` and `x.sum()` mean: binds the operators of `Tensor` to the ops.

Kept out of `tape.py`, which knows no op; `Tensor` declares there what is bound here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

from psworker.autodiff.ops import array, indexing, math, products, reductions
from psworker.autodiff.tensor import Tensor, TensorLike


def _reflected(function: Callable[[TensorLike, TensorLike], Tensor]) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda self, other: function(other, self)


def _reshape(self: Tensor, *shape: SupportsIndex | Sequence[int]) -> Tensor:
    """`x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return array.reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[arg-type]


def bind() -> None:
    """Gives `Tensor` its operators; done once, when `ops` is imported."""
    binary = {
        "add": math.add,
        "sub": math.subtract,
        "mul": math.multiply,
        "truediv": math.divide,
        "pow": math.power,
        "matmul": products.matmul,
    }
    for name, function in binary.items():
        setattr(Tensor, f"__{name}__", function)
        setattr(Tensor, f"__r{name}__", _reflected(function))
    others: dict[str, object] = {
        "__neg__": math.negative,
        "__abs__": math.abs,
        "__getitem__": indexing.getitem,
        "sum": reductions.sum,
        "mean": reductions.mean,
        "max": reductions.max,
        "min": reductions.min,
        "reshape": _reshape,
        "T": property(array.transpose),
    }
    for name, value in others.items():
        setattr(Tensor, name, value)
