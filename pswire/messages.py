"""What a worker says to a shard, and what it hears: frozen dataclasses, read this file first.

A conversation: `Join` gives the worker its incarnation; `Register` brings variables and returns the server's
values; then `Take` a block of examples, `Push` gradients and get fresh weights back, and at the end `Leave`.
Arrays are borrowed, never copied here. Pure: how a message becomes bytes is `pswire.codec`'s business.

Every request has its answer's class in `ANSWERS`. Requests that change the shard carry a `Sender`, and those that
must not happen twice a sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from pswire.specs import UpdateSpec
from pswire.values import Array, IndexedSlices, TensorSpec


@dataclass(frozen=True, slots=True)
class Sender:
    """Who speaks: a worker's name, and which life of it (`Joined.incarnation`)."""

    worker: str
    incarnation: int


# --- membership -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """A worker starts, or starts again. All its older incarnations are zombies from now on.

    Shard 0 counts the incarnations (`incarnation` 0 asks for the next one); the worker then joins the other shards
    with the one it got. `shard` of `shards` is the place that this shard has in the worker's list of servers. `life` is
    a number that the worker drew for this life, so that a Join that arrives twice counts once; 0 is none.
    """

    worker: str
    incarnation: int = 0
    shard: int = 0
    shards: int = 1
    life: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """`number` is 0 for the first worker that ever joined; a worker that joins again keeps its number.

    `lease` is in seconds: a worker that says nothing for so long is taken for dead.
    """

    incarnation: int
    number: int
    lease: float
    global_step: int


@dataclass(frozen=True, slots=True)
class Renew:
    """A heartbeat: I live. Every other message of a worker renews its lease too."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease runs from now."""

    global_step: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends in good order; what it had taken and not finished is handed out again."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member."""


# --- variables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A variable as one worker knows it.

    `value` is its initial value, or None when it is known to exist and only an optimizer is declared for it.
    `optimizer` says what is done with what is pushed for it, `MovingAverage` too. None makes no claim: a variable gets
    its optimizer when first one is declared for it.
    """

    spec: TensorSpec
    value: Array | None = None
    optimizer: UpdateSpec | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The shard that a variable is on."""

    name: str
    shard: int


@dataclass(frozen=True, slots=True)
class Register:
    """Declares variables. The first registration of a name wins; later ones must agree and get its value.

    Of several shards, shard 0 is asked first and told with `places` where the worker places each variable: all workers
    must place them alike.
    """

    sender: Sender
    declarations: tuple[Declaration, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A variable's value at a version: the number of times it was changed."""

    name: str
    version: int
    array: Array


@dataclass(frozen=True, slots=True)
class Registered:
    """The server's values of the declared variables, in their order, of one moment."""

    values: tuple[Value, ...]
    global_step: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for values; all of them belong to one moment of the shard."""

    sender: Sender
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """The values asked for, in their order."""

    values: tuple[Value, ...]
    global_step: int


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient, whole or by rows, and the version that the variable had in the worker when it was computed.

    For a variable that keeps a moving average (`specs.MovingAverage`) it is what the worker saw of it instead.
    """

    name: str
    version: int
    array: Array | IndexedSlices


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients of one step, and what was seen in it: applied together, once, or not at all; one entry a variable.

    The answer brings the values of `pull`.

    `sequence` counts a worker's pushes and assigns from 1, over all shards; a retry repeats it.
    """

    sender: Sender
    sequence: int
    gradients: tuple[Gradient, ...]
    loss: float | None = None
    pull: tuple[str, ...] = ()


class Outcome(Enum):
    """What became of a push."""

    APPLIED = "applied"
    REPEATED = "repeated"  #: it had been applied before
    DROPPED = "dropped"  #: the policy refused it; `Pushed.reason` says why


@dataclass(frozen=True, slots=True)
class Pushed:
    """`staleness`: how many changes the weights had seen between their serving and this push."""

    outcome: Outcome
    staleness: int
    global_step: int
    values: tuple[Value, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A value to set, or with `Assign.add` to add."""

    name: str
    array: Array


@dataclass(frozen=True, slots=True)
class Assign:
    """Sets variables (or adds to them), all or none, once; no optimizer takes part."""

    sender: Sender
    sequence: int
    assignments: tuple[Assignment, ...]
    add: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """The versions after it, in order of the assignments."""

    outcome: Outcome
    versions: tuple[int, ...]
    global_step: int


# --- the data queue (shard 0) -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """What a data queue hands out: the positions 0 to `size` of each epoch's order, in blocks of `block` positions.

    The order itself (a permutation by seed and epoch) is computed by the workers. Validated when built.

    Raises:
        ValueError: a size is not positive.
    """

    name: str
    size: int
    block: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks every field."""
        if not self.name or min(self.size, self.block, self.epochs) < 1:
            raise ValueError(f"a data queue needs a name and a positive size, block and number of epochs, got {self}")


@dataclass(frozen=True, slots=True)
class Block:
    """Positions `start` to `stop` of the order of `epoch` (from 1); `number` names the block within its queue."""

    number: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A block that its worker is through with, and the sum of the losses of its examples, if it saw any."""

    number: int
    cost_sum: float | None = None


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
class EpochReport:
    """An epoch that is complete: every example was seen. `cost` is the mean over them, None without losses."""

    queue: str
    epoch: int
    cost: float | None
    examples: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The next block; or None: either all is `done`, or others hold what is left, as `waiting_for` says: ask again.

    `reports` has the epochs that are complete, in order, without those that the worker has heard.
    """

    block: Block | None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()


# --- what is going on ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """Asks how the shard is; needs no membership."""


@dataclass(frozen=True, slots=True)
class VariableStatus:
    """One variable: `updates` counts what its optimizer applied, `version` every change."""

    spec: TensorSpec
    version: int
    updates: int
    optimizer: UpdateSpec | None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that is a member, or was. `lease_left` in seconds; `epoch` that of its last block, or 0."""

    name: str
    incarnation: int
    number: int
    state: str  # "live", "left" or "lost"
    steps: int
    staleness: int
    staleness_sum: int
    loss: float | None
    epoch: int
    lease_left: float


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A shard at one moment. `repeated`: retries that were answered, not applied again.

    Of very many workers and epochs it lists the live and the newest.
    """

    shard: int
    shards: int
    global_step: int
    repeated: int
    variables: tuple[VariableStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    epochs: tuple[EpochReport, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent by the server to its own shard, never over the wire."""


Request: TypeAlias = Join | Renew | Leave | Register | Pull | Push | Assign | Take | Status
Message: TypeAlias = Request | Tick
Answer: TypeAlias = Joined | Renewed | Left | Registered | Pulled | Pushed | Assigned | Taken | StatusReport


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the ticket of the message that it answers."""

    ticket: int
    answer: Answer


#: The answer that each request gets.
ANSWERS: dict[type[Request], type[Answer]] = {
    Join: Joined,
    Renew: Renewed,
    Leave: Left,
    Register: Registered,
    Pull: Pulled,
    Push: Pushed,
    Assign: Assigned,
    Take: Taken,
    Status: StatusReport,
}
