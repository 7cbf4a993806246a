"""Late changes: those that belong to a cut, but arrive after its snapshot. They are kept beside it.

`psserver.core.late_steps` makes them again in the variables of the cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pswire import messages as ms
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices

#: A change that belongs to a cut, although it arrived after the snapshot.
Late = ms.Push | ms.Assign | ms.Tune | ms.Register | ms.Compute | ms.Evaluate


def owned(change: Late, version_of: Callable[[str], int]) -> Late:
    """A copy of the change that owns its arrays (a message's arrays are borrowed until its answer).

    Gradients of weights that were read after the snapshot get the version at the snapshot: the cut has no later one.
    The order of late changes is that in which they were made, so they wait for no others (`after`), which the cut may
    not have.
    """
    match change:
        case ms.Push():
            gradients = []
            for one in change.gradients:
                version = min(one.version, version_of(one.name))
                gradients.append(dataclasses.replace(one, version=version, array=_copied(one.array)))
            return dataclasses.replace(change, gradients=tuple(gradients), after=())
        case ms.Assign():
            assignments = [dataclasses.replace(one, array=one.array.copy()) for one in change.assignments]
            return dataclasses.replace(change, assignments=tuple(assignments), after=())
        case ms.Register():
            values = [None if one.value is None else one.value.copy() for one in change.declarations]
            pairs = zip(change.declarations, values, strict=True)
            declarations = [dataclasses.replace(one, value=value) for one, value in pairs]
            return dataclasses.replace(change, declarations=tuple(declarations))
        case _:
            return change


def _copied(array: Array | IndexedSlices | Packed) -> Array | IndexedSlices | Packed:
    match array:
        case IndexedSlices():
            values = _copied(array.values)
            return IndexedSlices(values, array.indices.copy(), array.shape, check_range=False)  # type: ignore[arg-type]
        case Packed():
            return Packed(array.form, array.shape, tuple([part.copy() for part in array.parts]))
        case _:
            return array.copy()
