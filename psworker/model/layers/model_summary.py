"""The summary of a model: a line for each layer, with the shape of its result, parameters and bytes; and totals.

No layer is here: `Layer.summary` makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from psworker.model.base_variable import BaseVariable
from psworker.model.tables import Table

#: Where a layer's variables are: tables on servers alone, others in each worker too.
ON_SERVERS, IN_WORKERS = "servers", "workers, servers"
_HEAD = "layer", "kind", "output", "parameters", "bytes", "where"


@dataclass(frozen=True)
class LayerSummary:
    """A layer without the layers in it.

    Attributes:
        name: the scope of its variables, "" for a layer without one; `kind`: the name of its class.
        depth: how many layers it is in.
        output: the shape of its result, or a tuple with the shape of each of several; None: not known.
        variables: those of this layer itself, each in the first layer that has it.
    """

    name: str
    kind: str
    depth: int
    output: tuple[Any, ...] | None
    variables: tuple[BaseVariable, ...]

    @property
    def parameters(self) -> int:
        """Elements of its variables."""
        return _elements(self.variables)

    @property
    def nbytes(self) -> int:
        """Bytes of these, without the slots of an optimizer."""
        return _bytes(self.variables)

    @property
    def where(self) -> str:
        """`ON_SERVERS` for tables, `IN_WORKERS` for other variables, or both; "" without variables."""
        kinds = [isinstance(one, Table) for one in self.variables]
        return " + ".join([IN_WORKERS] * (False in kinds) + [ON_SERVERS] * (True in kinds))


@dataclass(frozen=True, repr=False)
class ModelSummary:
    """The layers of a model, the outermost first; as a text it is a table with totals.

    A variable counts once. Bytes are those of the values, without the slots that an optimizer keeps on the servers.
    """

    layers: tuple[LayerSummary, ...]

    @property
    def variables(self) -> tuple[BaseVariable, ...]:
        """All variables and tables."""
        return tuple([variable for layer in self.layers for variable in layer.variables])

    @property
    def parameters(self) -> int:
        """Elements of all variables."""
        return _elements(self.variables)

    @property
    def trainable_parameters(self) -> int:
        """Elements of those that are trained by default."""
        return _elements([one for one in self.variables if one.trainable])

    @property
    def nbytes(self) -> int:
        """Bytes of all variables, which are on the servers."""
        return _bytes(self.variables)

    @property
    def worker_nbytes(self) -> int:
        """Bytes of those of which each worker has a copy: all but tables."""
        return _bytes([one for one in self.variables if not isinstance(one, Table)])

    def __str__(self) -> str:
        rows = [_HEAD, *map(_cells, self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [
                cell.rjust(width) if name in ("parameters", "bytes") else cell.ljust(width)
                for name, cell, width in zip(_HEAD, row, widths, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        fixed = self.parameters - self.trainable_parameters
        return "\n".join(
            [
                *lines,
                "",
                f"parameters: {self.parameters:,}, trainable {self.trainable_parameters:,}, others {fixed:,}",
                f"bytes: {self.nbytes:,} on servers, without slots; {self.worker_nbytes:,} in each worker",
            ]
        )

    __repr__ = __str__  # for notebooks


def _cells(layer: LayerSummary) -> tuple[str, ...]:
    output = "unknown" if layer.output is None else str(layer.output)
    name = "  " * layer.depth + (layer.name or "–")
    return name, layer.kind, output, f"{layer.parameters:,}", f"{layer.nbytes:,}", layer.where


def _elements(variables: Sequence[BaseVariable]) -> int:
    return sum(prod(one.shape) for one in variables)


def _bytes(variables: Sequence[BaseVariable]) -> int:
    return sum(prod(one.shape) * one.dtype.itemsize for one in variables)
