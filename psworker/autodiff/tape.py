"""The tape: `op` records differentiable functions as they run, `gradients` runs their vjps backward in one pass.

A vjp is the vector-Jacobian product of an op with respect to one input. Recording is per thread.
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
from weakref import WeakKeyDictionary

import numpy as np

from pswire.tensors.sums import HALF, add_over, sum_dtype, widened
from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tensor import (
    Array,
    Edge,
    FoundGradient,
    Gradient,
    Node,
    Tensor,
    TensorLike,
    Vjp,
    as_array,
    next_order,
)
from psworker.familiar_names import wrong_arguments

Result: TypeAlias = tuple[Array | np.generic, Sequence[Vjp]]  # value and vjps
P = ParamSpec("P")


class _Recording(threading.local):
    on = True
    since: int | None = None  # the order of the first node of the function that `differentiating` is within


_recording = _Recording()


@contextmanager
def no_grad() -> Iterator[None]:
    """Disable recording in this thread, in a `with` block or, as `@no_grad()`, in a function."""
    before, _recording.on = _recording.on, False
    try:
        yield
    finally:
        _recording.on = before


@contextmanager
def differentiating() -> Iterator[None]:
    """Within it runs a function whose gradient is computed afterwards.

    A gradient that is computed within it is a constant for the function's own, which would be wrong if that constant
    came from the function's arguments or from variables: `gradients` refuses these.
    """
    before, _recording.since = _recording.since, next_order()
    try:
        yield
    finally:
        _recording.since = before


def is_recording() -> bool:
    """True if this thread records ops, that is, is not within `no_grad`."""
    return _recording.on


def stop_gradient(x: TensorLike) -> Tensor:
    """A constant that shares the value of x: no gradient flows back through it."""
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
    """Decorate a function on arrays that returns its value and one vjp per tensor to make it an op.

        @op
        def scale(x: Array, factor: Array, /) -> Result:
            return x * factor, (lambda g: g * factor, lambda g: g * x)

    Parameters before the `/`, or all of `*xs`, are tensors, the others constants. A tensor arrives as an array, an
    np.float64 or NumPy integer as a Python number (which promotes no dtype), an omitted optional one as None. Next to a
    floating-point Tensor, integers, and arrays and lists that are not Tensors, arrive in its dtype.

    A vjp is called only if its tensor needs a gradient. It borrows `g`, of the value's shape and dtype: it does not
    write into it, and returns a new array, `g` or a view of it, or `IndexedSlices` if most rows are zero. The tape sums
    the gradient of a broadcast operand to its shape, and casts the gradient of a promoted one to its dtype.

    ValueError, TypeError and IndexError of the function are raised with the op's name, without a leading underscore,
    and its arguments.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    tensors = sys.maxsize if variadic else len(names)
    op_name = function.__name__.lstrip("_")

    original = function

    def rewrap() -> None:
        nonlocal function
        function = original if _wrapping is None else _wrapping(original, op_name)

    @functools.wraps(function)
    def apply(*args: object, **constants: object) -> Tensor:
        if constants and not constants.keys().isdisjoint(names):
            given = itertools.takewhile(constants.__contains__, names[len(args) :])
            args = (*args, *[constants.pop(name) for name in given])
        try:
            values = [a.value if isinstance(a, Tensor) else _operand(a) for a in args[:tensors]]
            if len(values) > 1 and not _of_one_dtype(values):
                values = _in_dtype_of_tensors(values, args)
            if constants or len(args) > tensors:
                values += [_constant(a) for a in args[tensors:]]
                constants = {name: _constant(a) for name, a in constants.items()}
            value, vjps = function(*values, **constants)
        except (IndexError, TypeError, ValueError) as error:
            raise _with_arguments(error, function, args, constants) from error
        result = Tensor(value)
        if _recording.on:
            edges = [
                (a._node, vjp)
                for a, vjp in zip(args, vjps, strict=False)
                if isinstance(a, Tensor) and a._node is not None
            ]
            if edges:
                result._node = Node(result.value, edges, op_name)
        return result

    apply.__signature__ = _of_tensors(signature)  # type: ignore[attr-defined]  # for help and notebooks
    _rewrapping[apply] = rewrap
    rewrap()
    return apply


Wrapping: TypeAlias = Callable[[Callable[..., Result], str], Callable[..., Result]]
_wrapping: Wrapping | None = None  # of `wrapped_ops`; no call of an op asks for it
_rewrapping: WeakKeyDictionary[Callable[..., Tensor], Callable[[], None]] = WeakKeyDictionary()  # by op


@contextmanager
def wrapped_ops(wrapping: Wrapping) -> Iterator[None]:
    """Within the block the function of each op is what `wrapping` makes of it and its name. For profiles."""
    _wrap(wrapping)
    try:
        yield
    finally:
        _wrap(None)


def _wrap(wrapping: Wrapping | None) -> None:
    global _wrapping
    _wrapping = wrapping
    for rewrap in list(_rewrapping.values()):
        rewrap()


def _of_tensors(signature: inspect.Signature) -> inspect.Signature:
    """The signature of an op, on tensors, made from its function's, on arrays."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL
    parameters = [
        one.replace(annotation="TensorLike" if one.default is not None else "TensorLike | None")
        if one.kind in kinds
        else one
        for one in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation="Tensor")


_UNCHANGED = frozenset((np.ndarray, float, int, bool, type(None)))


def _operand(x: object) -> object:
    if type(x) in _UNCHANGED:
        return x
    if isinstance(x, (np.float64, np.integer)):  # a Python number does not promote float32
        return x.item()
    if isinstance(x, IndexedSlices):
        raise TypeError("ops do not take IndexedSlices: use psworker.clip_by_value or similar, or to_dense()")
    return x if isinstance(x, (float, int)) else np.asarray(x)


def _of_one_dtype(values: list[Any]) -> bool:
    """True if all arrays among the values have the same dtype."""
    first = None
    for value in values:
        if type(value) is np.ndarray:
            if first is None:
                first = value.dtype
            elif value.dtype is not first and value.dtype != first:  # identity is the faster test
                return False
    return True


def _in_dtype_of_tensors(values: list[Any], args: tuple[object, ...]) -> list[Any]:
    """The values cast to the promoted dtype of the floating-point Tensors among them, if there is one (as PyTorch)."""
    deciding = [isinstance(a, Tensor) and a.value.dtype.kind == "f" for a in args[: len(values)]]
    if True not in deciding:
        return values
    dtype = np.result_type(*itertools.compress(values, deciding))
    return [
        value.astype(dtype, copy=False)
        if not decides and isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        else value
        for value, decides in zip(values, deciding, strict=True)
    ]


def _constant(x: object) -> object:
    if not isinstance(x, Tensor):
        number = isinstance(x, np.generic) or (type(x) is np.ndarray and x.ndim == 0 and x.dtype.kind == "f")
        return x.item() if number else x  # type: ignore[attr-defined]
    if x.requires_grad:
        raise TypeError("a constant of this op is a Tensor that requires a gradient; use stop_gradient(...)")
    return x.value


def floating(x: Array) -> Array:
    """Integers and booleans as float32, for functions of real numbers; numpy converts small integers to float16."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind in "iub" else x


def float16_in_float32(function: Callable[P, Result], as_first: bool = False) -> Callable[P, Result]:
    """Decorate a function under `@op` to compute float16 tensors in float32; other dtypes pass through.

    float16 overflows at 65504, and a running count in it stalls at 2048. The result is float16 if all floating-point
    tensors are, or with `as_first` if the first is.
    """
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    tensors = kinds.count(inspect.Parameter.POSITIONAL_ONLY)

    @functools.wraps(function)
    def in_float32(*args: P.args, **constants: P.kwargs) -> Result:
        if True not in [_is_half(x) for x in args[:tensors]]:
            return function(*args, **constants)
        wide: Any = (x.astype(np.float32) if _is_half(x) else x for x in args)  # type: ignore[attr-defined]
        value, vjps = function(*wide, **constants)
        deciding = args[:1] if as_first else args[:tensors]
        half = all(_is_half(x) for x in deciding if isinstance(x, np.ndarray) and x.dtype.kind == "f")
        wide_vjps = [lambda g, vjp=vjp: vjp(g.astype(np.float32)) for vjp in vjps]  # the tape casts back
        return value.astype(HALF) if half else value, wide_vjps

    return in_float32


def _is_half(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.char == "e"


def _with_arguments(
    error: Exception, function: Callable[..., Result], args: tuple[object, ...], constants: dict[str, object]
) -> Exception:
    """The error with the op and its arguments in front: `matmul(a: float32 (2, 3), b: float32 (2, 3)): ...`."""
    try:
        given = inspect.signature(function).bind_partial(*args, **constants).arguments
    except TypeError:  # the call does not fit the op's parameters
        hint = wrong_arguments(function.__name__.lstrip("_"), function, args, constants)
        return TypeError(hint) if hint else error
    call = ", ".join(name + _described(x) for name, x in given.items())
    kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
    return kind(f"{function.__name__.lstrip('_')}({call}): {error}")


def _described(x: object) -> str:
    """`: float32 (2, 3)`, with the name of a variable, `: [...]` for several tensors, `=2.0` for anything else."""
    if isinstance(x, (Tensor, np.ndarray)):
        variable = getattr(x, "name", None)
        return f": {x.dtype} {x.shape}" + (f" {variable!r}" if variable else "")
    if isinstance(x, tuple) and any(isinstance(part, (Tensor, np.ndarray)) for part in x):
        return f": [{', '.join(_described(part).lstrip(':= ') for part in x)}]"
    return f"={x!r:.80}"


def gradients(
    ys: Tensor | Iterable[Tensor],
    xs: Tensor | Iterable[Tensor],
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    *,
    retain_graph: bool = False,
) -> list[FoundGradient]:
    """The gradient of the sum of all elements of `ys` with respect to each of `xs`, in one backward pass.

    `grad_ys`: weights of that sum, one array per y and of its shape (for a single y, an array); None means ones.

    Returns for each x a C-contiguous array of its shape and dtype that the caller owns, `IndexedSlices` if its ops made
    one (embedding), or None if no y depends on it. Only nodes between xs and ys run their backward, and are freed
    after it unless `retain_graph`. There are no second derivatives.

    Raises TypeError when a y or an x is not a Tensor, ValueError when `grad_ys` does not fit `ys`, RuntimeError when
    a node between them was freed by an earlier pass, or when it is called within a function of `value_and_grad`, or a
    loss function of `session.minimize`, for what depends on that function's arguments or on variables.
    """
    weights: Any = [grad_ys] if isinstance(ys, Tensor) else grad_ys
    ys, xs = ([given] if isinstance(given, Tensor) else list(given) for given in (ys, xs))
    for name, given in (("ys", ys), ("xs", xs)):
        for tensor in given:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"gradients: {name} must be Tensors, but one of them is {type(tensor).__name__}")
    path, leading = _path(ys, xs)
    requested = {x._node for x in xs}
    totals: dict[Node, Gradient] = {}  # accumulated gradients, of float16 often in float32
    owned: set[Node] = set()  # nodes whose total is an array of its own, which may be written into
    for y, seed in zip(ys, _seeds(ys, weights), strict=True):
        node = y._node
        if node is not None and node in leading:
            totals[node] = _plus(totals[node], seed) if node in totals else seed
    while path:
        node, edges = path.pop()
        g = totals[node] if node in requested else totals.pop(node)
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
            if x not in totals:  # the first gradient is borrowed, unless it is a new array
                totals[x] = gradient
                if gradient is not g and not isinstance(gradient, IndexedSlices) and gradient.base is None:
                    owned.add(x)
            elif x in owned and not isinstance(gradient, IndexedSlices) and totals[x].dtype.char != "e":
                totals[x] += gradient
            else:
                totals[x] = _plus(totals[x], gradient)
                if isinstance(totals[x], np.ndarray):
                    owned.add(x)
    return [None if x._node is None else _result(x._node, totals, owned) for x in xs]


_SECOND = (
    "gradients: there are no second derivatives: within a function that is differentiated itself, this gradient would "
    "be a constant, and the function's own gradient wrong. Compute it before, outside of the function; or, for a "
    "constant, of stop_gradient(...) of the function's arguments"
)


def _freed(g: Array) -> Gradient:
    """The vjp of an op whose backward has run."""
    raise RuntimeError(
        "gradients: an earlier backward pass has freed this graph: pass retain_graph=True to that earlier call, which "
        "may be of gradients, compute_gradients, minimize or optimize_loss; or request all gradients in one call"
    )


def _path(ys: list[Tensor], xs: list[Tensor]) -> tuple[list[tuple[Node, list[Edge]]], set[Node]]:
    """The nodes between xs and ys, oldest first, each with its edges that lead to xs; and all nodes that lead there.

    Consumers of a node are newer: its gradient is complete when it is reached from the end. A graph may be deeper than
    Python's stack, hence no recursion.
    """
    reached = {y._node for y in ys if y._node is not None}
    stack = list(reached)
    while stack:
        for x, _ in stack.pop().edges:
            if x not in reached:
                reached.add(x)
                stack.append(x)
    since = _recording.since
    if since is not None and any(node.order < since for node in reached):
        raise RuntimeError(_SECOND)
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
    """The gradient of a broadcast or promoted operand, summed to its shape and cast to its dtype (float16: float32)."""
    fitted, extra = gradient, len(gradient.shape) - len(value.shape)
    if isinstance(fitted, np.ndarray) and extra >= 0:
        sizes = zip(value.shape, fitted.shape[extra:], strict=True)
        axes = [*range(extra), *(axis for axis, (size, wide) in enumerate(sizes, extra) if size == 1 != wide)]
        if axes:
            total = add_over(fitted, axes[0] if len(axes) == 1 else tuple(axes), keepdims=True)
            fitted = total.reshape(total.shape[extra:])
    if fitted.shape != value.shape:
        raise ValueError(
            f"{vjp.__qualname__} gave a gradient of shape {gradient.shape} for an input of shape {value.shape}"
        )
    dtype = value.dtype if fitted.dtype == value.dtype else sum_dtype(value.dtype)
    return fitted.astype(dtype, copy=False)


def _plus(total: Gradient, gradient: Gradient) -> Gradient:
    """The sum of two gradients of a node: `IndexedSlices` if both are, otherwise a new array (float16: float32)."""
    if isinstance(total, IndexedSlices) and isinstance(gradient, IndexedSlices):
        return total + gradient  # type: ignore[no-any-return]
    total, gradient = (x if isinstance(x, IndexedSlices) else widened(x) for x in (total, gradient))
    return total + gradient


def _result(x: Node, totals: dict[Node, Gradient], owned: set[Node]) -> Gradient | None:
    total = totals.get(x)
    if total is None:
        return None
    if isinstance(total, IndexedSlices):
        return total.copy().astype(x.dtype, copy=False)
    if x not in owned:
        return np.array(total, x.dtype, order="C")
    owned.remove(x)  # an x that is requested twice gets a copy the second time
    return np.asarray(total, x.dtype, order="C")
