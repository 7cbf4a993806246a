"""Messages that declare, read and change variables.

Arrays are borrowed, never copied here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pswire.messages.membership import Sender
from pswire.messages.order import ChangeId, Frontier, RemoteWeights, UpdateGroup
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A variable as one worker declares it.

    Attributes:
        spec: name, shape and dtype; with `part`, those of the rows on this shard.
        value: the initial value; None: the variable exists, and only its optimizer is declared.
        optimizer: the optimizer that handles pushes, or `MovingAverage`; None leaves it open. The first one declared
            wins.
        initial: makes the variable a table, whose first values the shard computes from row numbers.
        part: the rows of the variable that are on this shard; None: all.
    """

    spec: TensorSpec
    value: Array | None = None
    optimizer: UpdateSpec | None = None
    initial: RowInitializer | None = None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The shard of a variable, or of its first rows."""

    name: str
    shard: int


@dataclass(frozen=True, slots=True)
class Register:
    """Declares variables. The first registration of a name wins; later ones must agree, and get its value.

    Attributes:
        places: to shard 0 of several, which is asked first: the worker's placement, equal for all workers.
        dry_run: only check; the answer has no values, and values of new variables may be left out.
        states: `Joined.state` of all shards, in order. A shard keeps the first list it gets and refuses workers with a
            different one, so that no worker trains a model that has lost a part.
    """

    sender: Sender
    declarations: tuple[Declaration, ...]
    places: tuple[Place, ...] = ()
    dry_run: bool = False
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A variable's value at a version, the number of its changes. `array` None: the requester has this version."""

    name: str
    version: int
    array: Array | Packed | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The values of the declared variables, in order, as one cut; without tables. `frontier` is as in `Pushed`."""

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Some rows of a variable, or of one of its slots.

    Attributes:
        rows: row numbers, (n,), integers in any order; None: all.
        slot: a slot's name; "": the value.
    """

    name: str
    rows: Array | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Pull:
    """Requests values, as one cut of the shard.

    Attributes:
        known_versions: for each of `names` the version that the worker has, -1 for none; a value still at it is not
            sent. Empty: none is known.
        encoding: a key of `pswire.specs.encodings.ENCODINGS` for float32 values; "": as they are.
        after: as in `Push`.
    """

    sender: Sender
    names: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    after: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulled:
    """The values of the names, in order, then those of the choices. `frontier` is as in `Pushed`."""

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient, whole or by rows, and the version of the weights that it was computed with.

    For a variable with `MovingAverage` it is an observed value.
    """

    name: str
    version: int
    array: Array | IndexedSlices | Packed


@dataclass(frozen=True, slots=True)
class Push:
    """The gradients of one step, one a variable: applied together and once, or not at all.

    A push goes to shard 0 and to every shard that has part of it. Where shard 0 decides for all, it is asked first.

    Attributes:
        sequence: counts a worker's pushes, assigns and tunes from 1, over all shards; a retry repeats it.
        pull, known_versions, encoding: the values to answer with, as in `Pull`.
        group: shard 0's decision, to the other shards: the pushes that make one update.
        shards: the shards other than 0 that get a part.
        remote: to shard 0, for the staleness of gradients of which it has no part.
        after: to the other shards: changes to be made before this one (`Frontier`).
        global_step: the number of updates before this one as far as the worker knows; shards that do not get every
            push evaluate learning rate schedules by it.
    """

    sender: Sender
    sequence: int
    gradients: tuple[Gradient, ...]
    loss: float | None = None
    pull: tuple[str, ...] = ()
    group: UpdateGroup | None = None
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    shards: tuple[int, ...] = ()
    remote: tuple[RemoteWeights, ...] = ()
    after: tuple[ChangeId, ...] = ()
    global_step: int = 0


class Outcome(Enum):
    """The result of a push."""

    APPLIED = "applied"
    REPEATED = "repeated"  #: it had been applied before
    DROPPED = "dropped"  #: the policy refused it, for `Pushed.reason`


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push, and the values it requested.

    Attributes:
        staleness: the number of changes of the weights between the moment they were served and this push.
        global_step: the step of the values; they may already include later updates.
        group: the group of pushes that it was applied with, if any.
        frontier: where shard 0 decides for all by staleness: its frontier at the decision, before this push.
    """

    outcome: Outcome
    staleness: int
    global_step: int
    values: tuple[Value, ...] = ()
    reason: str = ""
    group: UpdateGroup | None = None
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A value to set, or with `Assign.add` to add."""

    name: str
    array: Array


@dataclass(frozen=True, slots=True)
class Assign:
    """Sets variables, or adds to them, without an optimizer: all or none, once.

    Attributes:
        sequence, shards, after: as in `Push`.
        remote: to shard 0, where it decides for all by staleness: names of variables with a part on another shard.
    """

    sender: Sender
    sequence: int
    assignments: tuple[Assignment, ...]
    add: bool = False
    shards: tuple[int, ...] = ()
    remote: tuple[str, ...] = ()
    after: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Assigned:
    """The new versions, in order of the assignments. `frontier` is as in `Pushed`."""

    outcome: Outcome
    versions: tuple[int, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True)
class Tune:
    """Gives variables with an optimizer of this kind new hyperparameters, all or none, once.

    Only `fields` of `optimizer` change; other fields and the slots stay. Workers may continue to declare the optimizer
    with its original hyperparameters.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...]
    optimizer: UpdateSpec
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Later pushes follow the new hyperparameters."""

    outcome: Outcome
    global_step: int
