"""Arrays cut along the pieces that shards have of a variable, and put together again. Pure.

What is cut off is a view; what is put together is a new array, into which each part is copied, or unpacked, once. A
variable that is in one piece is neither cut nor copied. May import placement, messages, compression and numpy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pswire.errors import InvalidMessage, Malformed, NotFinite, ShapeMismatch
from pswire.messages import Declaration, Gradient, Value
from pswire.tensors.compression import BLOCK, Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, not_finite
from psworker.client.placement import Piece, Placed, Whole


def split_array(variable: Placed, array: Array) -> list[Array]:
    """The rows of each piece; views."""
    if len(variable.pieces) == 1:
        return [array]
    return np.split(array, _firsts(variable)[1:])


def check_finite(name: str, array: Array | IndexedSlices, what: str) -> None:
    """Raises `NotFinite`, naming the variable, if an element is NaN or infinite: of several shards each sees its part.

    So one would have done its own already when another refuses.
    """
    elements = array.values if isinstance(array, IndexedSlices) else array
    bad = not_finite(elements)
    if bad:
        raise NotFinite(
            f"{what} for {name!r} has {bad:,} of {elements.size:,} elements that are NaN or infinite: nothing was sent"
        )


def check_packed(gradients: Iterable[Gradient]) -> None:
    """Raises `NotFinite`, naming the variable, for elements that were finite until they were packed."""
    for gradient in gradients:
        array: Array | IndexedSlices | Packed = gradient.array
        if isinstance(array, IndexedSlices):
            array = array.values
        if isinstance(array, Packed):
            try:
                array.check()
            except FloatingPointError:
                raise NotFinite(
                    f"gradient for {gradient.name!r} has elements that are too large for {array.form}: nothing was "
                    "sent; clip gradients, or choose another form for what travels"
                ) from None


def split_declaration(variable: Placed, declaration: Declaration) -> list[Declaration]:
    """One declaration for each piece. Raises `ShapeMismatch` when the value does not fit."""
    pieces, value = variable.pieces, declaration.value
    if value is not None:
        variable.check(value, "initial value")
    values = [None] * len(pieces) if value is None else split_array(variable, value)
    return [
        replace(declaration, spec=piece.spec, value=mine, part=piece.part)
        for piece, mine in zip(pieces, values, strict=True)
    ]


def split_gradient(variable: Placed, gradient: Whole) -> list[Gradient]:
    """One gradient for each piece. Raises `ShapeMismatch` when it does not fit.

    A piece gets its gradient also when it has none of the rows: it counts the updates of its variable as the others do.
    """
    name, versions, array = gradient.name, gradient.versions, gradient.array
    variable.check(array, "gradient")
    if len(versions) != len(variable.pieces):
        raise InvalidMessage(
            f"gradient for {name!r} has {len(versions)} versions, but the variable is in {len(variable.pieces)} parts: "
            "give the versions of the value that it was computed with"
        )
    if len(versions) == 1:
        return [Gradient(name, versions[0], array)]
    parts: list[Array | IndexedSlices] = []
    parts += _split_rows(variable, array) if isinstance(array, IndexedSlices) else split_array(variable, array)
    return [Gradient(name, version, part) for version, part in zip(versions, parts, strict=True)]


def join(variable: Placed, values: Sequence[Value], old: Whole | None = None) -> Array:
    """The whole of the values of all pieces, in their order; read-only.

    Args:
        variable: what they are pieces of.
        values: one for each piece; where the array is None, the piece is as `old` has it.
        old: what the shards were told that the worker has; it is never written. When no piece has changed, its array is
            given back.

    Raises:
        Malformed: a value is not what the piece's shard was asked for.
    """
    if len(values) != len(variable.pieces):
        raise Malformed(
            f"{len(values)} values of {variable.spec.name!r} have come, which is in {len(variable.pieces)} parts"
        )
    known = None if old is None else old.array
    assert not isinstance(known, IndexedSlices), "a value is whole"
    changed = False
    for index, value in enumerate(values):
        _check_value(value, variable.pieces[index], -1 if old is None else old.versions[index])
        changed = changed or value.array is not None
    if known is not None and not changed:
        return known
    if len(values) == 1:
        return _unpacked(values[0])
    array = np.empty(variable.spec.shape, DTYPES[variable.spec.dtype])
    rooms = split_array(variable, array)
    rest = rooms if known is None else split_array(variable, known)
    for value, room, mine in zip(values, rooms, rest, strict=True):
        _put(mine if value.array is None else value.array, room)
    array.flags.writeable = False
    return array


def concatenated(values: Sequence[Value]) -> Array:
    """What all pieces have, one after the other: of a slot, say, whose dtype may be its own. Read-only."""
    arrays = [_unpacked(value) for value in values]
    if len(arrays) == 1:
        return arrays[0]
    array = np.concatenate(arrays)
    array.flags.writeable = False
    return array


def _check_value(value: Value, piece: Piece, named: int) -> None:
    """Raises `Malformed` unless it fits the piece; or is said to be at the version that was named, -1 for none."""
    if value.array is None:
        if named < 0 or value.version != named:
            raise Malformed(
                f"shard {piece.shard} says that {value.name!r} is still at version {value.version}: this worker named "
                f"{'none' if named < 0 else f'version {named}'}"
            )
    elif not piece.spec.matches(value.array):
        got = f"{value.array.dtype.name}{list(value.array.shape)}"
        raise Malformed(f"shard {piece.shard} has sent {got} for variable {piece.spec}")


def _unpacked(value: Value) -> Array:
    """The array of a value; read-only."""
    if not isinstance(value.array, Packed):
        assert value.array is not None, "it has changed, or was chosen"
        return value.array
    array = value.array.unpacked()
    array.flags.writeable = False
    return array


def _put(part: Array | Packed, room: Array) -> None:
    """Writes a part to where it belongs in the whole, C-contiguous; what is packed by blocks that stay in the cache."""
    if not isinstance(part, Packed):
        room[...] = part
        return
    flat = room.reshape(-1)
    for start in range(0, part.size, BLOCK):
        stop = min(start + BLOCK, part.size)
        flat[start:stop] = part.elements(start, stop)


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Rows that were asked for, by the piece that has them. Made by `split_rows`.

    Attributes:
        rows: for each piece the numbers of rows, (n,), int64, counted from the piece's first; repeats stay.
        places: for each piece where its rows belong among those that were asked for.
    """

    rows: list[Array]
    places: list[slice | Array]

    def join(self, values: Sequence[Value]) -> Array:
        """The rows of all pieces, in the order in which they were asked for. The array is read-only."""
        arrays = [_unpacked(value) for value in values]
        if len(arrays) == 1:
            return arrays[0]
        count = sum(map(len, self.rows))
        array = np.empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        for place, part in zip(self.places, arrays, strict=True):
            array[place] = part
        array.flags.writeable = False
        return array


def split_rows(variable: Placed, rows: Array) -> ChosenRows:
    """Shares out numbers of rows, (n,), in any order and with repeats, among the pieces that have them.

    Raises:
        TypeError: they are not integers.
        ShapeMismatch: they are not of shape (n,), or the variable has no rows.
        InvalidMessage: there is no such row.
    """
    rows = _checked(variable, rows)
    if len(variable.pieces) == 1:
        return ChosenRows([rows], [slice(None)])
    order = None
    if np.any(rows[1:] < rows[:-1]):
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
    runs = _runs(variable, rows)
    places = [run if order is None else order[run] for run in runs]
    return ChosenRows([rows[run] - first for run, first in zip(runs, _firsts(variable), strict=True)], places)


def _split_rows(variable: Placed, rows: IndexedSlices) -> list[IndexedSlices]:
    """A run of the rows for each piece, counted from its first; the values are views."""
    try:
        rows.check_indices()  # or one shard would do its part when another refuses
    except ValueError as error:
        raise InvalidMessage(f"gradient for {variable.spec.name!r}: {error}") from None
    rows = rows.summed()
    indices = rows.indices.astype(np.int64, copy=False)
    return [
        IndexedSlices(rows.values[run], indices[run] - first, piece.spec.shape, check_range=False)
        for piece, run, first in zip(variable.pieces, _runs(variable, indices), _firsts(variable), strict=True)
    ]


def _runs(variable: Placed, rising: Array) -> list[slice]:
    """For each piece where its rows are among numbers of rows that rise."""
    cuts = [0, *np.searchsorted(rising, _firsts(variable)[1:]).tolist(), len(rising)]
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


def _firsts(variable: Placed) -> list[int]:
    """The first row of each piece."""
    return [0 if piece.part is None else piece.part.first for piece in variable.pieces]


def _checked(variable: Placed, rows: Array) -> Array:
    spec = variable.spec
    if rows.dtype.kind not in "iu":
        raise TypeError(f"rows of variable {spec.name!r}: their numbers must be integers, but they are {rows.dtype}")
    if rows.ndim != 1 or not spec.shape:
        raise ShapeMismatch(f"rows of variable {spec}: a list of their numbers is wanted, got shape {rows.shape}")
    if rows.size and not 0 <= rows.min() <= rows.max() < spec.shape[0]:
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise InvalidMessage(
            f"variable {spec.name!r} has no row {wrong}: its rows are 0 ... {spec.shape[0] - 1}; check the ids that "
            "were asked for"
        )
    return rows.astype(np.int64, copy=False)
