"""Sums of products over axes named by letters, beside their derivatives."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.linear_algebra.matrices import diagonal
from psworker.autodiff.ops.linear_algebra.products import in_one_dtype
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["einsum"]

Labelled: TypeAlias = tuple[Array, list[str]]  # an array, and a label per axis


@op
@float16_in_float32
def _einsum(a: Array, b: Array, /, subscripts: str) -> Result:
    a, b = in_one_dtype(a, b)
    a_labels, b_labels, result = _labels(subscripts, a.ndim, b.ndim)
    b_sizes = dict(zip(b_labels, b.shape, strict=True))
    for label, size in zip(a_labels, a.shape, strict=True):
        if b_sizes.get(label, size) != size and 1 not in (size, b_sizes[label]):
            raise ValueError(f"axis {label!r} has size {size} in a, and {b_sizes[label]} in b")
    left, right = _narrowed((a, a_labels), (b, b_labels)), _narrowed((b, b_labels), (a, a_labels))

    def gradient(g: Array, shape: tuple[int, ...], labels: list[str], of: Labelled, other: Labelled) -> Array:
        """The product of g and the other operand, over the labels of `of`."""
        common = [label for label in of[1] if label in result or label in other[1]]
        product = _contracted((g, result), other, common)
        kept = [size if label in common else 1 for label, size in zip(labels, shape, strict=True)]
        return np.broadcast_to(product.reshape(kept), shape)  # constant along axes that only this operand has

    return _contracted(left, right, result), (
        lambda g: gradient(g, a.shape, a_labels, left, right),
        lambda g: gradient(g, b.shape, b_labels, right, left),
    )


def einsum(subscripts: str, *operands: TensorLike) -> Tensor:
    """np.einsum, computed by matrix products.

    `subscripts`: one letter per axis, as in "bij,bjk->bik"; "..." for any number of broadcast axes; without "->" the
    result has the letters that occur once, in alphabetical order. More than two operands are multiplied from left to
    right: order them so that what is in between is small. A letter that an operand has twice stands for its diagonal.

    Raises ValueError when the subscripts do not fit the operands, or the sizes of an axis differ and neither is 1.
    """
    terms, result = _terms(subscripts, len(operands))
    pairs = [_without_repeats(x, term) for x, term in zip(operands, terms, strict=True)]
    operands, terms = tuple(x for x, _ in pairs), [term for _, term in pairs]
    if len(operands) == 1:
        return _einsum(operands[0], 1, f"{terms[0]},->{result}")
    dtypes = [x.dtype for x in operands if isinstance(x, Tensor) and x.dtype.kind == "f"]
    if dtypes:  # or a product of arrays in between would count as a Tensor, and promote the others
        operands = tuple(x if isinstance(x, Tensor) else np.asarray(x, np.result_type(*dtypes)) for x in operands)
    product, term = operands[0], terms[0]
    for place in range(1, len(operands) - 1):
        later = "".join(terms[place + 1 :]) + result
        letters = [letter for letter in dict.fromkeys(term + terms[place]) if letter != "." and letter in later]
        between = ("..." if "..." in term + terms[place] else "") + "".join(letters)
        product = _einsum(product, operands[place], f"{term},{terms[place]}->{between}")
        term = between
    return _einsum(product, operands[-1], f"{term},{terms[-1]}->{result}")


def _terms(subscripts: str, operands: int) -> tuple[list[str], str]:
    """The letters of each operand, and of the result."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != operands or not operands:
        raise ValueError(
            f"einsum: the subscripts {subscripts!r} name the axes of {len(terms)} operands, but there are {operands}"
        )
    if not arrow:
        letters = given.replace(",", "").replace(".", "")
        dots = "..." if "..." in given else ""
        result = dots + "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    return terms, result


def _without_repeats(x: TensorLike, term: str) -> tuple[TensorLike, str]:
    """The diagonal over axes that have the same letter, as the last axis, and the letters of its axes."""
    letters = term.replace("...", "")
    if len(set(letters)) == len(letters) or len(letters) > np.ndim(as_array(x)):
        return x, term
    labels = _labels_of("the operand", term, np.ndim(as_array(x)))
    while len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        sizes = as_array(x).shape
        if sizes[first] != sizes[second]:
            raise ValueError(
                f"einsum: {term!r} has axis {twice!r} twice, with sizes {sizes[first]} and {sizes[second]}"
            )
        x = diagonal(x, 0, first, second) if isinstance(x, Tensor) else np.diagonal(as_array(x), 0, first, second)
        labels = [label for axis, label in enumerate(labels) if axis not in (first, second)] + [twice]
    return x, "".join(dict.fromkeys("..." if label.startswith("...") else label for label in labels))


def _labels(subscripts: str, a_ndim: int, b_ndim: int) -> tuple[list[str], list[str], list[str]]:
    """Labels of the axes of a, b and the result."""
    operands, _, result = subscripts.partition("->")
    a_term, b_term = operands.split(",")
    a, b = _labels_of("a", a_term, a_ndim), _labels_of("b", b_term, b_ndim)
    dots = max(([label for label in labels if label.startswith("...")] for labels in (a, b)), key=len)
    head, found, tail = result.partition("...")
    if dots and not found:
        raise ValueError(f"the result {result!r} must have the '...' that stands for axes of the operands")
    for letter in head + tail:
        if (head + tail).count(letter) > 1 or letter not in a + b:
            raise ValueError(f"the result {result!r} must have letters of the operands, each once")
    return a, b, [*head, *dots, *tail]


def _labels_of(operand: str, term: str, ndim: int) -> list[str]:
    """One label per axis: its letter, or `...n` for the n-th from the end of the axes that "..." covers."""
    head, found, tail = term.partition("...")
    letters = head + tail
    if letters and not letters.isalpha():
        raise ValueError(f"{term!r} must consist of letters, and '...' at most once")
    if ndim < len(letters) or (ndim > len(letters) and not found):
        raise ValueError(f"{term!r} names {len(letters)} axes, but {operand} has {ndim}")
    return [*head, *(f"...{place}" for place in range(ndim - len(letters), 0, -1)), *tail]


def _narrowed(x: Labelled, other: Labelled) -> Labelled:
    """An operand without its broadcast axes, of size 1 where the other operand is longer."""
    array, labels = x
    longer = {label for label, size in zip(other[1], other[0].shape, strict=True) if size != 1}
    kept = {label: n for label, n in zip(labels, array.shape, strict=True) if n != 1 or label not in longer}
    return array.reshape(tuple(kept.values())), list(kept)


def _contracted(a: Labelled, b: Labelled, result: list[str]) -> Array:
    """The contraction as matrix products: (both..., rows, inner) @ (both..., inner, columns)."""
    a, b = _summed_out(a, b[1] + result), _summed_out(b, a[1] + result)
    if next((label in b[1] for label in result if (label in a[1]) != (label in b[1])), False):
        a, b = b, a  # the product then has the axis order of the result
    both = [label for label in result if label in a[1] and label in b[1]]
    rows = [label for label in a[1] if label not in b[1]]
    inner = [label for label in a[1] if label in b[1] and label not in result]
    columns = [label for label in b[1] if label not in a[1]]
    left, right = _matrices(a, both, rows, inner), _matrices(b, both, inner, columns)
    product = np.matmul(left, right) if inner else left * right
    sizes = dict(zip(a[1] + b[1], a[0].shape + b[0].shape, strict=True))
    order = [*both, *rows, *columns]
    return product.reshape([sizes[label] for label in order]).transpose([order.index(label) for label in result])


def _summed_out(x: Labelled, kept: list[str]) -> Labelled:
    """The operand summed over axes whose labels are not in `kept`."""
    array, labels = x
    summed = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not summed:
        return x
    return add_over(array, summed), [label for label in labels if label in kept]


def _matrices(x: Labelled, stacked: list[str], rows: list[str], columns: list[str]) -> Array:
    array, labels = x
    ordered = array.transpose([labels.index(label) for label in (*stacked, *rows, *columns)])
    sizes = ordered.shape
    first, last = len(stacked), len(stacked) + len(rows)
    matrices = ordered.reshape(*sizes[:first], math.prod(sizes[first:last]), math.prod(sizes[last:]))
    # BLAS needs contiguous rows or columns; numpy's loop for other layouts is slow
    return matrices if matrices.itemsize in matrices.strides[-2:] else np.ascontiguousarray(matrices)
