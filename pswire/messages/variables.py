"""Variables: registration, pulls, pushes, assigns and new hyperparameters; and the order of changes over shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pswire.messages.membership import Sender
from pswire.messages.minimization import CountedPortions
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec

# --- the order of changes ---------------------------------------------------------------------------------------------
# Where a policy looks at staleness, shard 0 numbers every change, on whichever shards it is made. A message to another
# shard names the changes that must be made there before it (`after`).


@dataclass(frozen=True, slots=True)
class ChangeId:
    """A push or assign that shard 0 has decided. `shards`: the others with a part of it."""

    sender: Sender
    sequence: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The number of changes shard 0 has decided, and those that may not have reached the other shards.

    Values that another shard serves after all undelivered changes include at least the first `decided` changes.
    `proof` is by shard 0, for the other shards, which believe no worker (`psserver.rpc.identity`).
    """

    decided: int
    undelivered: tuple[ChangeId, ...] = ()
    proof: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """A variable with a part on a shard other than 0, and `Frontier.decided` of its gradient's weights there."""

    name: str
    served_at: int


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pushes of several workers that make one update; `number` counts the updates of shard 0.

    `proof` is as in `Frontier`. `pushes` is how many they are, also those that are not among the `members`, as a shard
    notes it that has no part of them; 0: as many as members.
    """

    number: int
    members: tuple[ChangeId, ...]
    proof: bytes = field(default=b"", repr=False, compare=False)
    pushes: int = field(default=0, compare=False)


# --- variables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A variable as one worker declares it.

    Attributes:
        spec: name, shape and dtype; with `part`, those of the rows on this shard.
        value: the initial value; None: the variable exists, and only its optimizer is declared.
        optimizer: handles pushes; None leaves it open. The first one declared wins.
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
        proofs: `Joined.proof` of all shards, in order.
        cut: as in `Push`.
    """

    sender: Sender
    declarations: tuple[Declaration, ...]
    places: tuple[Place, ...] = ()
    dry_run: bool = False
    states: tuple[int, ...] = ()
    cut: int = 0
    proofs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A variable's value at a version, the number of its changes. `array` None: the requester has this version."""

    name: str
    version: int
    array: Array | Packed | None


@dataclass(frozen=True, slots=True)
class Registered:
    """A snapshot of the declared variables' values, in order, without tables. `frontier` is as in `Pushed`."""

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Some rows of a variable, or of its slot of this name: (n,), integers in any order; None: all."""

    name: str
    rows: Array | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Pull:
    """Requests values: a snapshot of the shard.

    Attributes:
        known_versions: for each of `names` the version that the worker has, -1 for none; a value still at it is not
            sent. Empty: none is known.
        encoding: a key of `pswire.specs.encodings.ENCODINGS` for float32 values; "": as they are.
        after, after_proof: as in `Push`.
        of_cut: the values as they were in the cut of this number, which is held (`Cut`); 0: the present ones.
    """

    sender: Sender
    names: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    after: tuple[ChangeId, ...] = ()
    of_cut: int = 0
    after_proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The values of the names, in order, then those of the choices. `frontier` is as in `Pushed`."""

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient (with `MovingAverage`: an observed value), and the version of the weights it was computed with."""

    name: str
    version: int
    array: Array | IndexedSlices | Packed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker's block is trained: all its examples before `position`, with this push and those before it.

    Attributes:
        queue, block: the name of the data queue, and `Block.number`.
        position: in the order of the epoch, above the block's start and at most its stop.
        cost_sum: as in `Finished`, of the examples from the block's start, as this worker got it, to `position`.
    """

    queue: str
    block: int
    position: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """The gradients of one step, one per variable: all are applied once, or none.

    A push goes to shard 0 (first, if that decides for all), and to every shard with a part of it. One without gradients
    on any shard is no step: it is applied at once, and changes only what `progress` and `loss` say.

    Attributes:
        sequence: counts a worker's pushes, assigns and tunes from 1, over all shards; a retry repeats it.
        pull, known_versions, encoding: the values to answer with, as in `Pull`.
        group: shard 0's decision, to the other shards: the pushes that make one update.
        shards: the shards other than 0 that get a part.
        remote: to shard 0, for the staleness of gradients of which it has no part.
        after, after_proof: to the other shards: the undelivered changes of shard 0's last `Frontier`, with its proof.
            Those that have a part there are made before this one.
        global_step: the number of updates before this one as far as the worker knows: for learning rate schedules on
            shards that do not get every push.
        cut: the number of the last cut that this push, on all its shards, comes after (`Cut`).
        progress: to shard 0, for each data queue that the worker reads: the examples that are done with this push. It
            is noted with the push, once: also if the policy drops it.
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
    cut: int = 0
    progress: tuple[Progress, ...] = ()
    after_proof: bytes = b""


class Outcome(Enum):
    """The result of a push."""

    APPLIED = "applied"
    REPEATED = "repeated"  #: it had been applied before
    DROPPED = "dropped"  #: it was refused, for `Pushed.reason`


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push, and the values it requested.

    Attributes:
        staleness: the number of changes of the weights between the moment they were served and this push.
        global_step: the step of the values; they may already include later updates.
        group: the group of pushes that it was applied with, if any.
        frontier: where shard 0 decides for all by staleness: its frontier at the decision, before this push.
        cut: the number of the shard's last cut when the push was decided.
    """

    outcome: Outcome
    staleness: int
    global_step: int
    values: tuple[Value, ...] = ()
    reason: str = ""
    group: UpdateGroup | None = None
    frontier: Frontier | None = None
    cut: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A value to set, or with `Assign.add` to add: of the rows from `first_row` on; None: of the whole variable."""

    name: str
    array: Array
    first_row: int | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """Sets variables, or adds to them, without an optimizer: all or none, once.

    Attributes:
        sequence, shards, after, after_proof, cut: as in `Push`.
        remote: to shard 0, where it decides for all by staleness: names of variables with a part on another shard.
        portions: with `add`: the portions of an evaluation whose gradients the assignments are the sum of. They are
            added to the shard's sum if none of these is in it, and on shard 0 also if they are claims of this worker;
            otherwise the shard drops them.
    """

    sender: Sender
    sequence: int
    assignments: tuple[Assignment, ...]
    add: bool = False
    shards: tuple[int, ...] = ()
    remote: tuple[str, ...] = ()
    after: tuple[ChangeId, ...] = ()
    cut: int = 0
    after_proof: bytes = b""
    portions: CountedPortions | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The new versions, in order of the assignments. `frontier` is as in `Pushed`.

    `reason`: why the sum of an evaluation was dropped (`Assign.portions`), which has no versions.
    """

    outcome: Outcome
    versions: tuple[int, ...]
    global_step: int
    frontier: Frontier | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tune:
    """Gives variables with an optimizer of this kind new values of `fields`, all or none, once; the slots stay.

    Workers may continue to declare the optimizer with its original hyperparameters.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...]
    optimizer: UpdateSpec
    fields: tuple[str, ...]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """Later pushes follow the new hyperparameters."""

    outcome: Outcome
    global_step: int
