"""The parts of messages that have arrays; the others are written from protos/ (`pswire.messages.generated`)."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A variable as one worker declares it.

    Attributes:
        spec: name, shape and dtype; with `part`, of the rows on this shard.
        value: the initial value; None: the variable exists, and only its optimizer is declared.
        optimizer: handles pushes; None leaves it open. The first one of the latest stage wins.
        initial: makes the variable a table, whose first values the shard computes from row numbers.
        part: the rows of the variable that are on this shard; None: all.
        stage: how far the program is that declares the optimizer: the data queues that it has read from, and the
            optimizers that it gave the variable before this one.
    """

    spec: TensorSpec
    value: Array | None = None
    optimizer: UpdateSpec | None = None
    initial: RowInitializer | None = None
    part: Part | None = None
    stage: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A variable's value at a version, the number of its changes. `array` None: the requester has this version."""

    name: str
    version: int
    array: Array | Packed | None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Some rows of a variable, or of its slot of this name: (n,), integers in any order; None: all."""

    name: str
    rows: Array | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient (with `MovingAverage`: an observed value), and the version of the weights it was computed with."""

    name: str
    version: int
    array: Array | IndexedSlices | Packed


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A value to set, or with `Assign.add` to add: of the rows from `first_row` on; None: of the whole variable."""

    name: str
    array: Array
    first_row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """Weights of a variable that were last served to a worker, for delay compensation; None: all rows."""

    worker: str
    name: str
    version: int
    array: Array | Packed
    rows: Array | None = None
