"""The variables of a worker with their partitions, and how arrays are split; `push_pull.py` joins them. Pure.

Where partitions are is `pswire.placement`. May import values, numpy, errors and that.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from pswire.errors import AlreadyRegistered, InvalidMessage, ShapeMismatch, UnknownVariable
from pswire.placement import Partition, place
from pswire.tensors.values import Array, IndexedSlices, TensorSpec


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A variable and its partitions, in the order of their shards and of their rows."""

    spec: TensorSpec
    partitions: tuple[Partition, ...]

    def check(self, array: Array | IndexedSlices, kind: str) -> None:
        """Raises `ShapeMismatch` unless `array`, a `kind` of value, has the variable's shape and dtype."""
        spec = self.spec
        if not spec.matches(array):
            raise ShapeMismatch(
                f"{kind} for {spec.name!r} is {array.dtype.name}{list(array.shape)}, the variable is "
                f"{spec.dtype}{list(spec.shape)}: nothing was sent"
            )

    def split(self, array: Array) -> list[Array]:
        """The rows of each partition; views."""
        return np.split(array, self._firsts[1:]) if len(self.partitions) > 1 else [array]

    def split_stretch(self, array: Array, first: int) -> list[tuple[Partition, Array, int]]:
        """Of successive rows from number `first` on: each partition that holds some, these, and their first row there.

        Raises `ShapeMismatch` unless they are rows of the variable.
        """
        spec = self.spec
        rows = TensorSpec(spec.name, (len(array), *spec.shape[1:]), spec.dtype)
        if not (spec.shape and rows.matches(array) and 0 <= first <= spec.shape[0] - len(array)):
            raise ShapeMismatch(
                f"variable {spec} has no rows {array.dtype.name}{list(array.shape)} from row {first} on: nothing was "
                "sent"
            )
        found = []
        for partition, start in zip(self.partitions, self._firsts, strict=True):
            begin, end = max(first, start), min(first + len(array), start + partition.spec.shape[0])
            if begin < end:
                found.append((partition, array[begin - first : end - first], begin - start))
        return found

    def split_gradient(self, array: Array | IndexedSlices) -> list[Array | IndexedSlices]:
        """The gradient of each partition, also of those without any of its rows, because they count the update too.

        Raises `InvalidMessage` if a row of `IndexedSlices` does not exist.
        """
        if not isinstance(array, IndexedSlices):
            return [*self.split(array)]
        try:
            array.check_indices()  # otherwise one shard would apply its part while another refuses
        except ValueError as error:
            raise InvalidMessage(f"gradient for {self.spec.name!r}: {error}") from None
        rows = array.summed()
        indices = rows.indices.astype(np.int64, copy=False)
        return [
            IndexedSlices(rows.values[run], indices[run] - first, partition.spec.shape, check_range=False)
            for partition, run, first in zip(self.partitions, self._runs(indices), self._firsts, strict=True)
        ]

    def split_rows(self, rows: Array) -> tuple[list[Array], list[slice | Array]]:
        """Row numbers, (n,), in any order and with repeats, by partition: those that it holds, and their positions.

        Numbers are int64 and count from the partition's first row; positions are those among `rows`. Raises `TypeError`
        if they are not integers, `ShapeMismatch` if they are not of shape (n,) or the variable has no rows, and
        `InvalidMessage` if there is no such row.
        """
        spec = self.spec
        if rows.dtype.kind not in "iu":
            raise TypeError(
                f"rows of variable {spec.name!r}: their numbers must be integers, but they are {rows.dtype}"
            )
        if rows.ndim != 1 or not spec.shape:
            raise ShapeMismatch(f"rows of variable {spec}: expected a list of row numbers, got shape {rows.shape}")
        if rows.size and not 0 <= rows.min() <= rows.max() < spec.shape[0]:
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise InvalidMessage(
                f"variable {spec.name!r} has no row {wrong}: its rows are 0 ... {spec.shape[0] - 1}; check the ids"
            )
        rows = rows.astype(np.int64, copy=False)
        if len(self.partitions) == 1:
            return [rows], [slice(None)]
        order = None
        if np.any(rows[1:] < rows[:-1]):
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
        runs = self._runs(rows)
        positions = [run if order is None else order[run] for run in runs]
        return [rows[run] - first for run, first in zip(runs, self._firsts, strict=True)], positions

    @property
    def _firsts(self) -> list[int]:
        """The first row of each partition."""
        return [0 if partition.part is None else partition.part.first for partition in self.partitions]

    def _runs(self, ascending: Array) -> list[slice]:
        """For each partition the slice of its rows among ascending row numbers."""
        cuts = [0, *np.searchsorted(ascending, self._firsts[1:]).tolist(), len(ascending)]
        return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


class Placement(dict[str, PlacedVariable]):
    """The placed variables by name; never changed once it is made. An unknown name raises `UnknownVariable`."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.shards = shards

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownVariable(f"variable {name!r} has not been registered by this worker: register it first")

    def extended(self, specs: Iterable[TensorSpec]) -> "Placement":
        """A copy with new variables; `AlreadyRegistered` if one is placed already, with another shape or dtype."""
        new = {}
        for spec in specs:
            known = self.get(spec.name)
            if known is None:
                new[spec.name] = spec
            elif known.spec != spec:
                raise AlreadyRegistered(
                    f"variable {known.spec} is already registered by this worker, but is now declared as {spec}"
                )
        placed = [partition for variable in self.values() for partition in variable.partitions]
        placement = Placement(self.shards)
        placement.update(self)
        for name, partitions in place(new.values(), self.shards, placed).items():
            placement[name] = PlacedVariable(new[name], partitions)
        return placement
