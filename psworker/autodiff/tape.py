"""The tape: records ops as they run, and runs their derivatives backward in one pass.

`op` makes an op of a function on arrays, `gradients` walks from results back to what they depend on. No op, no
server and no optimizer is known here, and nothing is shared between threads. Imports numpy, `tensor.py`,
`IndexedSlices` and `pswire.tensors.sums` alone.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeAlias, overload

import numpy as np

from pswire.tensors.sums import add_over, sum_dtype, widened
from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tensor import Array, Edge, Gradient, Node, Tensor, TensorLike, Vjp, as_array

Result: TypeAlias = tuple[Array | np.generic, Sequence[Vjp]]  # what a function under @op returns
P = ParamSpec("P")


class _Recording(threading.local):
    on = True


_recording = _Recording()


@contextmanager
def no_grad() -> Iterator[None]:
    """Switches recording off in this thread, for a `with` block or, as `@no_grad()`, for a function."""
    before, _recording.on = _recording.on, False
    try:
        yield
    finally:
        _recording.on = before


def is_recording() -> bool:
    """Whether ops are recorded in this thread: not within `no_grad`."""
    return _recording.on


def stop_gradient(x: TensorLike) -> Tensor:
    """The same value (shared, of any shape) as a constant: no gradient flows back through it."""
    return Tensor(as_array(x))


@overload
def op(
    function: Callable[Concatenate[Array, Array, P], Result],
) -> Callable[Concatenate[TensorLike, TensorLike, P], Tensor]: ...
@overload
def op(function: Callable[Concatenate[Array, P], Result]) -> Callable[Concatenate[TensorLike, P], Tensor]: ...
@overload
def op(function: Callable[..., Result]) -> Callable[..., Tensor]: ...
def op(function: Callable[..., Result]) -> Callable[..., Tensor]:
    """Makes an op of a function on arrays that returns its value and its derivatives.

        @op
        def scale(x: Array, factor: Array, /) -> Result:
            return x * factor, (lambda g: g * factor, lambda g: g * x)

    Parameters before the `/`, or all of `*xs`, are tensors: they arrive as arrays, or as Python numbers when called
    with such or with a np.float64, so that numpy does not promote float32 on account of a 2.0; one that may be left out
    arrives as None. Beside a Tensor of floating point, arrays and lists that are no Tensors, and all integers, arrive
    in its dtype. Those after it are constants. There is one vjp (vector-Jacobian product) a tensor, called only when
    that tensor needs a gradient. Its `g` has the value's shape and dtype and is borrowed: a vjp does not write into it,
    and returns a new array, or `g` itself, or a view of it, but never an array that it keeps; or `IndexedSlices`, when
    most rows of the gradient are zero. Broadcasting is the tape's business: where numpy has stretched or promoted an
    operand, its gradient is summed to its shape and cast to its dtype.

    ValueError, TypeError and IndexError out of the function reach the caller with the op's name and its arguments. The
    name is without a leading underscore, which a function has whose op is called in another form, such as
    `einsum(subscripts, a, b)`.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    any_number = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    tensors = sys.maxsize if any_number else len(names)

    @functools.wraps(function)
    def apply(*args: object, **constants: object) -> Tensor:
        if constants and not constants.keys().isdisjoint(names):
            args = (*args, *_taken(constants, names[len(args) :]))
        try:
            values = [a.value if isinstance(a, Tensor) else _operand(a) for a in args[:tensors]]
            if len(values) > 1 and not _of_one_dtype(values):
                values = _in_dtype_of_tensors(values, args)
            if constants or len(args) > tensors:
                values += [_constant(a) for a in args[tensors:]]
                constants = {name: _constant(a) for name, a in constants.items()}
            value, vjps = function(*values, **constants)
        except (IndexError, TypeError, ValueError) as error:
            raise _in_op(error, function, args, constants) from error
        result = Tensor(value)
        if _recording.on:
            edges = [
                (a._node, vjp)
                for a, vjp in zip(args, vjps, strict=False)
                if isinstance(a, Tensor) and a._node is not None
            ]
            if edges:
                result._node = Node(result.value, edges)
        return result

    return apply


def _taken(constants: dict[str, object], names: list[str]) -> Iterator[object]:
    """Tensors that were passed by keyword, in the order of their parameters, taken out of the constants."""
    for name in itertools.takewhile(constants.__contains__, names):
        yield constants.pop(name)


_AS_THEY_ARE = frozenset((np.ndarray, float, int, bool, type(None)))


def _operand(x: object) -> object:
    if type(x) in _AS_THEY_ARE:
        return x
    if isinstance(x, (np.float64, np.integer)):  # as weak as a Python number; numpy would promote float32 to its dtype
        return x.item()
    if isinstance(x, IndexedSlices):
        raise TypeError("these are rows of a gradient, no array: use psworker.clip_by_value or its like, or to_dense()")
    return x if isinstance(x, (float, int)) else np.asarray(x)


def _of_one_dtype(values: list[Any]) -> bool:
    """Whether all arrays among the values have the same dtype."""
    first = None
    for value in values:
        if type(value) is np.ndarray:
            if first is None:
                first = value.dtype
            elif value.dtype is not first and value.dtype != first:  # comparing takes longer
                return False
    return True


def _in_dtype_of_tensors(values: list[Any], args: tuple[object, ...]) -> list[Any]:
    """The values of an op's tensors, where those that do not decide on a dtype are cast to that of those that do.

    Tensors of floating point decide, by numpy's promotion if there are several. Arrays and lists that are no Tensors do
    not, nor do integers and booleans (PyTorch's rule for numbers, and for categories of dtypes). Where no Tensor is of
    floating point, numpy's own promotion stays.
    """
    deciding = [_decides(a) for a in args[: len(values)]]
    if True not in deciding:
        return values
    dtype = np.result_type(*itertools.compress(values, deciding))
    return [
        value.astype(dtype, copy=False)
        if not decides and isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        else value
        for value, decides in zip(values, deciding, strict=True)
    ]


def _decides(x: object) -> bool:
    return isinstance(x, Tensor) and x.value.dtype.kind == "f"


def _constant(x: object) -> object:
    if not isinstance(x, Tensor):
        number = isinstance(x, np.generic) or (type(x) is np.ndarray and x.ndim == 0 and x.dtype.kind == "f")
        return x.item() if number else x  # type: ignore[attr-defined]
    if x.requires_grad:
        raise TypeError("a constant of this op is a Tensor that requires a gradient; pass stop_gradient(...) of it")
    return x.value


def _in_op(
    error: Exception, function: Callable[..., Result], args: tuple[object, ...], constants: dict[str, object]
) -> Exception:
    """The same error, led by the op and what it was given: `matmul(a: float32 (2, 3), b: float32 (2, 3)): ...`."""

    def described(name: str, x: object) -> str:
        if isinstance(x, tuple) and any(isinstance(part, (Tensor, np.ndarray)) for part in x):
            return f"{name}: [{', '.join(tensor(part) for part in x)}]"
        return f"{name}: {tensor(x)}" if isinstance(x, (Tensor, np.ndarray)) else f"{name}={x!r:.80}"

    def tensor(x: object) -> str:
        if not isinstance(x, (Tensor, np.ndarray)):
            return f"{x!r:.80}"
        variable = getattr(x, "name", None)  # a leaf may have a name, as variables do
        return f"{x.dtype} {x.shape}" + (f" {variable!r}" if variable else "")

    try:
        given = inspect.signature(function).bind_partial(*args, **constants).arguments
    except TypeError:  # the call does not fit the op's parameters, and Python has said how
        return error
    call = ", ".join(described(name, x) for name, x in given.items())
    kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
    return kind(f"{function.__name__.lstrip('_')}({call}): {error}")


def gradients(
    ys: Tensor | Iterable[Tensor],
    xs: Tensor | Iterable[Tensor],
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    *,
    retain_graph: bool = False,
) -> list[Gradient | None]:
    """The gradient of the sum of all elements of all `ys` with respect to each of `xs`, in one backward pass.

    `grad_ys`: weights for that sum, one array a y (an array alone if `ys` is one Tensor), of the y's shape; None
    means ones. Returns for each x an array of its shape and dtype, C-contiguous and the caller's own to write into;
    `IndexedSlices` where the ops made one (an embedding's table); or None where no y depends on it. A node between xs
    and ys runs its backward once, however many they are, and other nodes not at all. There are no second derivatives.

    What a node holds is freed as soon as its backward has run, so that memory falls while gradients come; with
    `retain_graph` the graph stays and can be walked again.

    Raises TypeError when a y or an x is not a Tensor, ValueError when `grad_ys` does not fit `ys`, RuntimeError when
    something between them was freed by an earlier walk.
    """
    weights: Any = [grad_ys] if isinstance(ys, Tensor) else grad_ys
    ys, xs = _tensors("ys", ys), _tensors("xs", xs)
    path, leading = _path(ys, xs)
    wanted = {x._node for x in xs}
    totals: dict[Node, Gradient] = {}  # the gradient of each node, as far as it has come; of float16 often float32
    owned: set[Node] = set()  # nodes whose total is, or was, nobody else's array, so that it may be written into
    for y, seed in zip(ys, _seeds(ys, weights), strict=True):
        node = y._node
        if node is not None and node in leading:
            totals[node] = _plus(totals[node], seed) if node in totals else seed
    while path:
        node, edges = path.pop()
        g = totals[node] if node in wanted else totals.pop(node)
        if isinstance(g, IndexedSlices):
            g = g.to_dense()
        if g.dtype is not node.dtype:
            g = g.astype(node.dtype)
        if not retain_graph:
            node.edges = [(x, _freed) for x, _ in node.edges]
        for x, vjp in edges:
            gradient = vjp(g)
            if gradient.shape != x.shape or gradient.dtype is not x.dtype:
                gradient = _fitted(gradient, x, vjp)
            if x not in totals:  # the first is borrowed, unless it is a new array
                totals[x] = gradient
                if gradient is not g and not isinstance(gradient, IndexedSlices) and gradient.base is None:
                    owned.add(x)
            elif x in owned and not isinstance(gradient, IndexedSlices) and totals[x].dtype.char != "e":
                totals[x] += gradient
            else:
                totals[x] = _plus(totals[x], gradient)
                if isinstance(totals[x], np.ndarray):
                    owned.add(x)
    return [None if x._node is None else _given_away(x._node, totals, owned) for x in xs]


def _freed(g: Array) -> Gradient:
    """The vjp of an op whose backward has run."""
    raise RuntimeError(
        "gradients: this graph was walked before, which freed what its ops held: pass retain_graph=True to the first "
        "walk, or ask for all gradients in one"
    )


def _tensors(name: str, given: Tensor | Iterable[Tensor]) -> list[Tensor]:
    tensors = [given] if isinstance(given, Tensor) else list(given)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"gradients: {name} must be Tensors, but one of them is {type(tensor).__name__}")
    return tensors


def _path(ys: list[Tensor], xs: list[Tensor]) -> tuple[list[tuple[Node, list[Edge]]], set[Node]]:
    """The nodes between xs and ys, each with those of its edges that lead on to xs; and all nodes that lead there.

    The newest node comes last. What consumes a node is newer than the node, so its gradient is complete when it is
    reached from the end. No recursion: a graph may be deeper than Python's stack.
    """
    reached = {y._node for y in ys if y._node is not None}
    stack = list(reached)
    while stack:
        for x, _ in stack.pop().edges:
            if x not in reached:
                reached.add(x)
                stack.append(x)
    leading = {x._node for x in xs if x._node is not None and x._node in reached}
    path = []
    for node in sorted(reached, key=attrgetter("order")):
        edges = [edge for edge in node.edges if edge[0] in leading]
        if edges:
            leading.add(node)
            path.append((node, edges))
    return path, leading


def _seeds(ys: list[Tensor], grad_ys: Sequence[TensorLike | None] | None) -> Iterator[Array]:
    given = [None] * len(ys) if grad_ys is None else grad_ys
    if len(given) != len(ys):
        raise ValueError(f"gradients: there are {len(given)} grad_ys for {len(ys)} ys")
    for y, grad_y in zip(ys, given, strict=True):
        seed = np.ones(y.shape, y.dtype) if grad_y is None else as_array(grad_y).astype(y.dtype, copy=False)
        if seed.shape != y.shape:
            raise ValueError(f"gradients: one of grad_ys has shape {seed.shape}, and its y has shape {y.shape}")
        yield seed


def _fitted(gradient: Gradient, value: Node, vjp: Vjp) -> Gradient:
    """The gradient of an operand that numpy stretched or promoted: summed to its shape, cast to its dtype.

    Or, if that is float16, to the dtype in which such gradients are added up.
    """
    fitted = gradient if isinstance(gradient, IndexedSlices) else _summed(gradient, value.shape)
    if fitted.shape != value.shape:
        raise ValueError(
            f"{vjp.__qualname__} gave a gradient of shape {gradient.shape} for an input of shape {value.shape}"
        )
    dtype = value.dtype if fitted.dtype == value.dtype else sum_dtype(value.dtype)
    return fitted.astype(dtype, copy=False)


def _plus(total: Gradient, gradient: Gradient) -> Gradient:
    """The sum of two gradients of a node, a new array unless both are rows; of float16 it is float32."""
    if isinstance(total, IndexedSlices) and isinstance(gradient, IndexedSlices):
        return total + gradient  # type: ignore[no-any-return]
    total, gradient = (x if isinstance(x, IndexedSlices) else widened(x) for x in (total, gradient))
    return total + gradient


def _summed(gradient: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes along which an operand of `shape` was stretched."""
    if gradient.ndim > len(shape):
        extra = gradient.ndim - len(shape)
        gradient = np.asarray(add_over(gradient, 0 if extra == 1 else tuple(range(extra))))
    if gradient.ndim < len(shape):
        return gradient
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1 != gradient.shape[axis])
    return add_over(gradient, stretched, keepdims=True) if stretched else gradient


def _given_away(x: Node, totals: dict[Node, Gradient], owned: set[Node]) -> Gradient | None:
    total = totals.get(x)
    if total is None:
        return None
    if isinstance(total, IndexedSlices):
        return total.copy().astype(x.dtype, copy=False)
    if x not in owned:
        return np.array(total, x.dtype, order="C")
    owned.remove(x)  # an x that is asked for twice gets a copy the second time
    return np.asarray(total, x.dtype, order="C")
