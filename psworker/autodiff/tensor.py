"""The tensor: a numpy array with its node in the graph that `tape.py` records. `ops` binds its operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pswire.tensors.values import Array as Array
from pswire.tensors.values import IndexedSlices
from psworker.familiar_names import TENSOR, hint_attributes

Axis: TypeAlias = int | tuple[int, ...] | None
Index: TypeAlias = Any  # any numpy index
Gradient: TypeAlias = Array | IndexedSlices
#: A gradient as programs get it: an array; `IndexedSlices` of an embedding; None if there is none. With `Any` a program
#: whose gradients are arrays passes a type checker without a check of each, as with `re.Match.group`.
FoundGradient: TypeAlias = Array | Any
Vjp: TypeAlias = Callable[[Array], Gradient]  # the gradient of an op's value -> the gradient of one of its inputs
Edge: TypeAlias = "tuple[Node, Vjp]"

_creation = itertools.count()  # atomic, so threads share it; results are newer than inputs


def next_order() -> int:
    """A number that later nodes are above, and earlier ones below."""
    return next(_creation)


class Node:
    """A tensor's node in the graph: shape, dtype and edges to inputs. Only vjps that use values keep them."""

    __slots__ = ("dtype", "edges", "op", "order", "shape")

    def __init__(self, value: Array | Tensor, edges: Sequence[Edge] = (), op: str = "") -> None:
        self.shape = value.shape
        self.dtype = value.dtype
        self.edges = edges  # to inputs that need a gradient; none for a leaf
        self.op = op  # its name, for people
        self.order = next(_creation)


class Tensor:
    """A numpy array of any shape and dtype in `.value`, with an optional node in the graph.

    The array is shared, not copied. `.value` may be replaced by an array of the same shape and dtype; writing into an
    array that a recorded op has used makes its gradients wrong. Operators are ops, with numpy arrays and numbers on
    either side; `<`, `<=`, `>` and `>=` give numpy arrays of booleans, and `==` is identity (see `ops.equal`). Methods
    are the ops of their names, with the arguments of numpy's methods.

    Raises TypeError when a gradient is required and the dtype is not floating point.
    """

    __slots__ = ("_node", "value")
    __array_ufunc__ = None  # sends `array + tensor` to __radd__, and makes np.exp(tensor) an error

    value: Array
    _node: Node | None

    def __init__(self, value: TensorLike, requires_grad: bool = False) -> None:
        self.value = value if type(value) is np.ndarray else as_array(value)
        self._node = Node(self.value) if requires_grad else None
        if requires_grad and self.value.dtype.kind != "f":
            raise TypeError(f"Tensor: only floating point has gradients, but the value is {self.value.dtype}")

    @property
    def requires_grad(self) -> bool:
        """True if it has a gradient."""
        return self._node is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the value."""
        return self.value.dtype

    @property
    def ndim(self) -> int:
        """The number of axes of the value."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The number of elements of the value."""
        return self.value.size

    def tolist(self) -> Any:  # noqa: ANN401 - a number, or lists in lists
        """The value as a Python number or nested lists."""
        return self.value.tolist()

    def item(self) -> float:
        """The only element as a Python number; ValueError when there are several."""
        return self.value.item()  # type: ignore[no-any-return]

    def __float__(self) -> float:
        return float(self.item())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (np.ndarray, np.generic, int, float)):  # a silent False would be a trap
            raise TypeError("a Tensor equals only itself: compare its .value, or use ops.equal")
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        if self.requires_grad:  # np.concatenate([tensor, ...]) would silently lose the gradient
            raise TypeError("a Tensor that requires a gradient is not converted to an array implicitly: use its .value")
        return np.array(self.value, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r}{', requires_grad=True' if self.requires_grad else ''})"

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else repr(self)

    if not TYPE_CHECKING:  # a type checker refuses it by itself

        def __setitem__(self, index: Index, value: TensorLike) -> None:
            raise TypeError(
                f"the elements of a {type(self).__name__} cannot be set: a variable is changed as a whole, by "
                "variable.assign(value), and ops.where(condition, value, x) makes another tensor"
            )

    if TYPE_CHECKING:  # bound in ops/__init__.py

        def _operator(self, other: TensorLike) -> Tensor: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
        __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __mod__ = __rmod__ = _operator

        def _comparison(self, other: TensorLike) -> Array: ...

        __lt__ = __le__ = __gt__ = __ge__ = _comparison

        def __neg__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __getitem__(self, index: Index) -> Tensor: ...

        def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
            """`ops.sum`: the sum over axes."""

        def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
            """`ops.mean`: the mean over axes."""

        def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
            """`ops.max`: the largest element over axes."""

        def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
            """`ops.min`: the smallest element over axes."""

        def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
            """`ops.prod`: the product over axes."""

        def var(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
            """`ops.var`: the variance over axes."""

        def std(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
            """`ops.std`: the standard deviation over axes."""

        def all(self, axis: Axis = None, keepdims: bool = False) -> Array:
            """`ops.all`: whether all elements over axes are true."""

        def any(self, axis: Axis = None, keepdims: bool = False) -> Array:
            """`ops.any`: whether any element over axes is true."""

        def argmax(self, axis: int | None = None, keepdims: bool = False) -> Array:
            """`ops.argmax`: the index of the largest element."""

        def argmin(self, axis: int | None = None, keepdims: bool = False) -> Array:
            """`ops.argmin`: the index of the smallest element."""

        def cumsum(self, axis: int | None = None, reverse: bool = False) -> Tensor:
            """`ops.cumsum`: the running sum along an axis, or over the flattened tensor."""

        def clip(self, low: float | None = None, high: float | None = None) -> Tensor:
            """`ops.clip`: elements clipped to low ... high."""

        def dot(self, b: TensorLike) -> Tensor:
            """`ops.dot`: the sum of products, of matrices their product."""

        def round(self, decimals: int = 0) -> Array:
            """`ops.round`: elements rounded to `decimals` places, without a derivative."""

        def ravel(self) -> Tensor:
            """`ops.ravel`: the same elements along one axis."""

        def squeeze(self, axis: Axis = None) -> Tensor:
            """`ops.squeeze`: without axes of size 1."""

        def swapaxes(self, axis1: int, axis2: int) -> Tensor:
            """`ops.swapaxes`: two axes exchanged."""

        def flatten(self) -> Tensor:
            """`ops.ravel`: the same elements along one axis."""

        def astype(self, dtype: DTypeLike) -> Tensor:
            """`ops.cast`."""

        def reshape(self, *shape: SupportsIndex | Sequence[int]) -> Tensor:
            """`ops.reshape`, with sizes as arguments or one tuple."""

        def transpose(self, *axes: SupportsIndex | Sequence[int] | None) -> Tensor:
            """`ops.transpose`, with axes as arguments or one tuple; without any, they are reversed."""

        @property
        def T(self) -> Tensor:  # noqa: N802
            """`ops.transpose`: the axes reversed."""


hint_attributes(Tensor, TENSOR)

TensorLike: TypeAlias = Tensor | ArrayLike


def as_array(x: TensorLike) -> Array:
    """The array of a tensor, or np.asarray of anything else."""
    return x.value if isinstance(x, Tensor) else np.asarray(x)
