"""What a worker says to a shard, and what it hears: frozen dataclasses, read this file first.

A conversation: `Join` gives the worker its incarnation; `Register` brings variables and returns the server's
values; then `Take` a block of examples, `Push` gradients and get fresh weights back, and at the end `Leave`.
Arrays are borrowed, never copied here. Pure: how a message becomes bytes is `pswire.codec`'s business. What a data
queue hands out is in `queues`, what a status says in `status`, who belongs to the job in `membership`; their names can
be had from here.

Every request has its answer's class in `ANSWERS`. Requests that change the shard carry a `Sender`, and those that
must not happen twice a sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from pswire.errors import ParamServerError
from pswire.messages.data_queue import Block as Block
from pswire.messages.data_queue import EpochReport as EpochReport
from pswire.messages.data_queue import Finished as Finished
from pswire.messages.data_queue import QueueSpec as QueueSpec
from pswire.messages.membership import Join as Join
from pswire.messages.membership import Joined as Joined
from pswire.messages.membership import Leave as Leave
from pswire.messages.membership import Left as Left
from pswire.messages.membership import Renew as Renew
from pswire.messages.membership import Renewed as Renewed
from pswire.messages.membership import Sender as Sender
from pswire.messages.order import ChangeId as ChangeId
from pswire.messages.order import Frontier as Frontier
from pswire.messages.order import RemoteWeights as RemoteWeights
from pswire.messages.order import UpdateGroup as UpdateGroup
from pswire.messages.status import Change as Change
from pswire.messages.status import LastPush as LastPush
from pswire.messages.status import Staleness as Staleness
from pswire.messages.status import StatusReport as StatusReport
from pswire.messages.status import Traffic as Traffic
from pswire.messages.status import VariableStatus as VariableStatus
from pswire.messages.status import WorkerStatus as WorkerStatus
from pswire.optimizers import UpdateSpec
from pswire.specs.row_initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec

# --- variables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A variable as one worker knows it.

    `value` is its initial value, or None when it is known to exist and only an optimizer is declared for it.
    `optimizer` says what is done with what is pushed for it, `MovingAverage` too. None makes no claim: a variable gets
    its optimizer when first one is declared for it.

    With `initial` it is a table, of which only rows travel: its first value is made by the shard, from the numbers of
    its rows. With `part` the spec is that of some rows of a larger whole, of which other shards have the others.
    """

    spec: TensorSpec
    value: Array | None = None
    optimizer: UpdateSpec | None = None
    initial: RowInitializer | None = None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The shard that a variable is on, or its first rows."""

    name: str
    shard: int


@dataclass(frozen=True, slots=True)
class Register:
    """Declares variables. The first registration of a name wins; later ones must agree and get its value.

    Of several shards, shard 0 is asked first and told with `places` where the worker places each variable: all workers
    must place them alike. With `dry_run` it only checks: nothing is registered, and the answer has no values. So all
    shards
    can be asked before one has done its part; the values of new variables may be left out then. `states` are those of
    all shards as the worker met them (`Joined.state`), in their order: a shard holds all workers to the first that it
    is told, so that none trains a model of which a part was lost.
    """

    sender: Sender
    declarations: tuple[Declaration, ...]
    places: tuple[Place, ...] = ()
    dry_run: bool = False
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A variable's value at a version: the number of times it was changed. `array` None: it is what the asker has."""

    name: str
    version: int
    array: Array | Packed | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The server's values of the declared variables, in their order, of one moment; those of tables are left out.

    `frontier` is as in `Pushed`.
    """

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What else can be pulled than a variable's whole value: some of its rows, or one of its optimizer's slots.

    `rows` are numbers of rows, (n,), integers in any order; None: all. `slot` is a slot's name; "": the value.
    """

    name: str
    rows: Array | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for values; all of them belong to one moment of the shard.

    `known_versions` has for each of the names the version that the worker has, -1 for none: a value that is still at
    it does not
    come again. Empty: nothing is known of any. `encoding` is a form of `pswire.specs.encodings.ENCODINGS`, in which
    values of float32 shall come; "": as they are. `after` is as in `Push`.
    """

    sender: Sender
    names: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    after: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulled:
    """The values of the names, in their order, and then those of the choices. `frontier` is as in `Pushed`."""

    values: tuple[Value, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient, whole or by rows, and the version that the variable had in the worker when it was computed.

    For a variable that keeps a moving average (`specs.MovingAverage`) it is what the worker saw of it instead.
    """

    name: str
    version: int
    array: Array | IndexedSlices | Packed


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients of one step, and what was seen in it: applied together, once, or not at all; one entry a variable.

    The answer brings the values of `pull`; `known_versions` and `encoding` are as in `Pull`.

    `sequence` counts a worker's pushes, assigns and tunes from 1, over all shards; a retry repeats it. A push goes to
    shard 0 and to those that have something to do for it: `shards` are these others.

    Where shard 0 decides for all, it is asked first, and the others are told its decision: `group`, if several pushes
    make one update, and `after`, the changes to be made before this one (`Frontier`). By `remote` shard 0 knows the
    staleness of gradients of which it has no part. `global_step` is the number of updates before this one, as far as
    the worker knows: shards that do not get every push evaluate learning rate schedules by it.
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
    """What became of a push."""

    APPLIED = "applied"
    REPEATED = "repeated"  #: it had been applied before
    DROPPED = "dropped"  #: the policy refused it; `Pushed.reason` says why


@dataclass(frozen=True, slots=True)
class Pushed:
    """`staleness`: how many changes the weights had seen between their serving and this push.

    `global_step` is that of the values: there may have been updates after this one. `group` is there when the push was
    applied as one of several. Where shard 0 decides for all by staleness, its answers have a `frontier`: that of the
    decision, before this push.
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
    """Sets variables (or adds to them), all or none, once; no optimizer takes part.

    Where shard 0 decides for all by staleness it is asked first, with the names of variables `remote`, and the
    others are told `after`; `shards` is as in `Push`.
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
    """The versions after it, in order of the assignments. `frontier` is as in `Pushed`."""

    outcome: Outcome
    versions: tuple[int, ...]
    global_step: int
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True)
class Tune:
    """Gives variables that have an optimizer of this kind new hyperparameters, all or none, once.

    Those are the `fields` of `optimizer`; others stay as they are on the server, and so do the slots. Workers that
    declare the optimizer as it was at first are not refused.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...]
    optimizer: UpdateSpec
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Pushes after it follow the new hyperparameters."""

    outcome: Outcome
    global_step: int


# --- the data queue (shard 0) -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Take:
    """Asks for the next block; `finished` gives the last one back as done, `heard` counts the reports that have come.

    A worker holds one block of a queue at a time: a Take that repeats itself gets the same block again. With
    `give_back` it asks for none, and what it holds is for others.
    """

    sender: Sender
    queue: QueueSpec
    finished: Finished | None = None
    heard: int = 0
    give_back: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """The next block; or None: either all is `done`, or others hold what is left, as `waiting_for` says: ask again.

    `reports` has the epochs that are complete, in order, without those that the worker has heard. `chief` is as in
    `Joined`, at the moment of the answer. The block that a chief held when it died is handed out again only when it is
    known to be lost, so whoever hears that the block's epoch is complete knows by then who the chief is.
    """

    block: Block | None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()
    chief: bool = False


# --- what is going on ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """Asks how the shard is; needs no membership."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent by the server to its own shard, never over the wire."""


Request: TypeAlias = Join | Renew | Leave | Register | Pull | Push | Assign | Tune | Take | Status
Message: TypeAlias = Request | Tick
Answer: TypeAlias = Joined | Renewed | Left | Registered | Pulled | Pushed | Assigned | Tuned | Taken | StatusReport


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the ticket of the message that it answers; or the error with which a call that waited ends."""

    ticket: int
    answer: Answer | ParamServerError


#: The answer that each request gets.
ANSWERS: dict[type[Request], type[Answer]] = {
    Join: Joined,
    Renew: Renewed,
    Leave: Left,
    Register: Registered,
    Pull: Pulled,
    Push: Pushed,
    Assign: Assigned,
    Tune: Tuned,
    Take: Taken,
    Status: StatusReport,
}
