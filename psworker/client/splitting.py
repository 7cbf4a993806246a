"""Splits arrays along the partitions of a variable; the parts are views. `push_pull.py` joins them.

May import placement, messages, values and numpy.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch
from pswire.messages import Declaration
from pswire.tensors.values import Array, IndexedSlices, not_finite
from psworker.client.placement import PlacedVariable


def split_array(variable: PlacedVariable, array: Array) -> list[Array]:
    """The rows of each partition; views."""
    return np.split(array, _firsts(variable)[1:]) if len(variable.partitions) > 1 else [array]


def split_declaration(variable: PlacedVariable, declaration: Declaration) -> list[Declaration]:
    """One declaration for each partition. Raises `ShapeMismatch` when the initial value does not fit."""
    partitions, value = variable.partitions, declaration.value
    values: list[Array | None] = [None] * len(partitions)
    if value is not None:
        variable.check(value, "initial value")
        values = [*split_array(variable, value)]
    return [
        replace(declaration, spec=partition.spec, value=part, part=partition.part)
        for partition, part in zip(partitions, values, strict=True)
    ]


def split_gradient(variable: PlacedVariable, array: Array | IndexedSlices) -> list[Array | IndexedSlices]:
    """The gradient of each partition, also for partitions without any of its rows, because they count the update too.

    Raises `InvalidMessage` if a row of `IndexedSlices` does not exist.
    """
    if not isinstance(array, IndexedSlices):
        return [*split_array(variable, array)]
    try:
        array.check_indices()  # otherwise one shard would apply its part while another refuses
    except ValueError as error:
        raise InvalidMessage(f"gradient for {variable.spec.name!r}: {error}") from None
    rows = array.summed()
    indices = rows.indices.astype(np.int64, copy=False)
    return [
        IndexedSlices(rows.values[run], indices[run] - first, partition.spec.shape, check_range=False)
        for partition, run, first in zip(variable.partitions, _runs(variable, indices), _firsts(variable), strict=True)
    ]


def check_finite(name: str, array: Array | IndexedSlices, kind: str = "gradient") -> None:
    """Raises `NotFinite`, naming the variable, if an element of this `kind` of array is NaN or infinite."""
    elements = array.values if isinstance(array, IndexedSlices) else array
    bad = not_finite(elements)
    if bad:
        raise NotFinite(
            f"{kind} for {name!r} has {bad:,} of {elements.size:,} elements that are NaN or infinite: nothing was sent"
        )


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Numbers of rows, split along the partitions that hold these rows.

    Attributes:
        rows: for each partition the numbers, (n,), int64, counted from the partition's first row; repeats stay.
        positions: for each partition the positions of its rows among those asked for.
    """

    rows: list[Array]
    positions: list[slice | Array]

    def join(self, arrays: list[Array]) -> Array:
        """The rows of all partitions, in the order asked for; read-only."""
        if len(arrays) == 1:
            return arrays[0]
        joined = np.empty((sum(map(len, self.rows)), *arrays[0].shape[1:]), arrays[0].dtype)
        for position, part in zip(self.positions, arrays, strict=True):
            joined[position] = part
        joined.flags.writeable = False
        return joined


def split_rows(variable: PlacedVariable, rows: Array) -> SplitRows:
    """Splits numbers of rows, (n,), in any order and with repeats, along the partitions.

    Raises:
        TypeError: they are not integers.
        ShapeMismatch: they are not of shape (n,), or the variable has no rows.
        InvalidMessage: there is no such row.
    """
    spec = variable.spec
    if rows.dtype.kind not in "iu":
        raise TypeError(f"rows of variable {spec.name!r}: their numbers must be integers, but they are {rows.dtype}")
    if rows.ndim != 1 or not spec.shape:
        raise ShapeMismatch(f"rows of variable {spec}: expected a list of row numbers, got shape {rows.shape}")
    if rows.size and not 0 <= rows.min() <= rows.max() < spec.shape[0]:
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise InvalidMessage(
            f"variable {spec.name!r} has no row {wrong}: its rows are 0 ... {spec.shape[0] - 1}; check the ids"
        )
    rows = rows.astype(np.int64, copy=False)
    if len(variable.partitions) == 1:
        return SplitRows([rows], [slice(None)])
    order = None
    if np.any(rows[1:] < rows[:-1]):
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
    runs = _runs(variable, rows)
    positions = [run if order is None else order[run] for run in runs]
    return SplitRows([rows[run] - first for run, first in zip(runs, _firsts(variable), strict=True)], positions)


def _runs(variable: PlacedVariable, ascending: Array) -> list[slice]:
    """For each partition the slice of its rows among ascending numbers of rows."""
    cuts = [0, *np.searchsorted(ascending, _firsts(variable)[1:]).tolist(), len(ascending)]
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


def _firsts(variable: PlacedVariable) -> list[int]:
    """The first row of each partition."""
    return [0 if partition.part is None else partition.part.first for partition in variable.partitions]
