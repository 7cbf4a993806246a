"""Messages between workers and shards: frozen dataclasses; and the sizes of their arrays.

Requests that change the shard carry a `Sender`, and those that must not happen twice a sequence number. Arrays are
borrowed, never copied here. Pure: `pswire.codec` turns messages into bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, get_args

from pswire.errors import ParamServerError
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, Part, TensorSpec

# --- membership -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sender:
    """The worker that sends a message, and its incarnation (`Joined.incarnation`)."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Job:
    """The training from the first worker's Join to the last one's Leave; a server has one job at a time.

    Attributes:
        number: counts the jobs of the servers from 1, on all shards alike; 0: none.
        name: for people, and to go on with it; "": no worker has begun it.
    """

    number: int = 0
    name: str = ""

    def __str__(self) -> str:
        return f"job {self.number} ({self.name})" if self.name else f"job {self.number}"


@dataclass(frozen=True, slots=True)
class Join:
    """A worker starts or restarts; all its older incarnations are refused from now on.

    Attributes:
        incarnation: 0 asks shard 0 for the next one, with which the worker then joins the other shards.
        shard, shards: the place of this shard in the worker's list of servers, and the length of the list.
        process_nonce: a random number of this process, so that a Join that arrives twice counts once; 0: none.
        tensor_transport: how tensors travel to this shard, for status displays.
        states: when joining again: `Joined.state` of all shards, in order; a shard with a different state refuses.
        timeline: when joining again: `Joined.timeline`; a shard with another one refuses with `StateLost`. 0: none.
        steps: when joining again: pushes of this incarnation that this shard has acknowledged as applied.
        settled: as in `Renew`: after state was lost, messages from before are refused if they arrive late.
        job: to shard 0, with number 0: the running job, of this name if it has one; if none is running, a new one. To
            other shards, and when joining again: `Joined.job`.
        resume: go on with the job that the shard has, also if it is over.
        program: for the name of a new job that is given none.
        cut: as in `Renew`.
    """

    worker: str
    incarnation: int = 0
    shard: int = 0
    shards: int = 1
    process_nonce: int = 0
    tensor_transport: str = ""
    states: tuple[int, ...] = ()
    timeline: int = 0
    steps: int = 0
    settled: int = 0
    job: Job = Job()
    resume: bool = False
    program: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker is a member.

    Attributes:
        number: 0 for the first worker of the job; kept when a worker joins again.
        lease: seconds of silence after which the worker counts as lost.
        consistency, staleness: the shard's options, as `pswire.specs.consistency` writes them; equal on all shards.
        chief: whether this worker is the chief; may change later. Only shard 0 knows.
        state: the identity of the shard's state; a server restarted without its state has a different one. 0: none.
        timeline: 1 more each time that acknowledged changes were given up (`Restore`).
        cut: the number of the shard's last cut (`Cut`).
        steps: pushes of this incarnation that the shard has applied.
        note: a sentence for the worker's log, if the job before this one, or an interruption of it, is of interest.
        stopped: why the job was stopped (`Stop`); "": it was not.
    """

    incarnation: int
    number: int
    lease: float
    global_step: int
    consistency: str = "async"
    staleness: str = "none"
    chief: bool = False
    state: int = 0
    timeline: int = 0
    cut: int = 0
    steps: int = 0
    job: Job = Job()
    note: str = ""
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Renew:
    """A heartbeat. Every other message of a worker renews its lease too.

    Attributes:
        idle: the worker has nothing to do for now, such as no examples: others do not wait for its next push.
        settled: messages up to this sequence number have been answered or abandoned, and none is carried out any more.
            An `idle` is outdated, and ignored, if the shard has received a later message from the worker.
        half_pushes: pushes of this incarnation that this shard has not applied and others have, as far as the worker
            knows; if there are several such shards, the first one gets the count.
        cut: the number of the last cut of which the worker knows, and which no open call of it precedes (`Cut`).
        written_by_all: the newest cut that all shards have written, as far as the worker knows; 0: it knows of none.
        timeline: that of these numbers, as in `Take`: one from before all shards went back is refused.
    """

    sender: Sender
    idle: bool = False
    tensor_transport: str = ""
    settled: int = 0
    half_pushes: int = 0
    cut: int = 0
    written_by_all: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease has been renewed. `waiting_for` is as in `WorkerStatus`; `chief`, `cut` and `stopped` as in `Joined`.

    Attributes:
        written: the newest cuts that the shard has written, ascending, 16 at most.
    """

    global_step: int
    waiting_for: str = ""
    chief: bool = False
    cut: int = 0
    written: tuple[int, ...] = ()
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends; its unfinished blocks are handed out again. `failed`: others may wait for its replacement."""

    sender: Sender
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member."""


# --- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Barrier:
    """Waits until every live worker waits at the barrier; to shard 0. Others do not wait for this worker's pushes.

    Attributes:
        number: counts the barriers of this incarnation from 1, so that a retry waits for the same one.
    """

    sender: Sender
    number: int


@dataclass(frozen=True, slots=True)
class Passed:
    """All live workers have waited at the barrier."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the training of all workers: data queues hand out no more blocks; to shard 0. The first reason counts."""

    sender: Sender
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """All workers learn of it with their next heartbeat or block. `reason` is the one that counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends the job of a shard and discards its variables. Needs no membership; to every shard.

    Attributes:
        number: that of the empty job which takes its place. Nothing is done unless it is above the present one's.
        force: also while workers are live; their calls are refused from then on.
    """

    number: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Emptied:
    """The shard has this job, without workers and variables."""

    job: Job


# --- the order of changes ---------------------------------------------------------------------------------------------
# Where a policy looks at staleness, shard 0 numbers every change, on whichever shards it is made. A message to another
# shard names the changes that must be made there before it (`after`).


@dataclass(frozen=True, slots=True)
class ChangeId:
    """A push or assign that shard 0 has decided. `shards`: the others with a part, empty in messages to one of them."""

    sender: Sender
    sequence: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The number of changes shard 0 has decided, and those that may not have reached the other shards.

    Values that another shard serves after all undelivered changes include at least the first `decided` changes.
    """

    decided: int
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """A variable with a part on a shard other than 0, and `Frontier.decided` of its gradient's weights there."""

    name: str
    served_at: int


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pushes of several workers that make one update, their mean; `number` counts the updates of shard 0."""

    number: int
    members: tuple[ChangeId, ...]


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
        cut: as in `Push`.
    """

    sender: Sender
    declarations: tuple[Declaration, ...]
    places: tuple[Place, ...] = ()
    dry_run: bool = False
    states: tuple[int, ...] = ()
    cut: int = 0


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
        after: as in `Push`.
        of_cut: the values as they were in the cut of this number, which is held (`Cut`); 0: the present ones.
    """

    sender: Sender
    names: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    after: tuple[ChangeId, ...] = ()
    of_cut: int = 0


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

    A push goes to shard 0 (first, if that decides for all), and to every shard with a part of it.

    Attributes:
        sequence: counts a worker's pushes, assigns and tunes from 1, over all shards; a retry repeats it.
        pull, known_versions, encoding: the values to answer with, as in `Pull`.
        group: shard 0's decision, to the other shards: the pushes that make one update.
        shards: the shards other than 0 that get a part.
        remote: to shard 0, for the staleness of gradients of which it has no part.
        after: to the other shards: changes to be made before this one (`Frontier`).
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
        sequence, shards, after, cut: as in `Push`.
        remote: to shard 0, where it decides for all by staleness: names of variables with a part on another shard.
    """

    sender: Sender
    sequence: int
    assignments: tuple[Assignment, ...]
    add: bool = False
    shards: tuple[int, ...] = ()
    remote: tuple[str, ...] = ()
    after: tuple[ChangeId, ...] = ()
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The new versions, in order of the assignments. `frontier` is as in `Pushed`."""

    outcome: Outcome
    versions: tuple[int, ...]
    global_step: int
    frontier: Frontier | None = None


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


# --- the data queue ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A data queue: positions 0 to `size` of each epoch's order, handed out in blocks of `block` positions.

    Positions are examples; those of a queue without a `size` are batches, which each worker reads from its own source.

    Attributes:
        size: positions of an epoch; 0: unknown, so that the first epoch does not end. Then `epochs` is 0 too.
        epochs: passes over all positions; 0: without end.
        seed: the order of an epoch is a permutation by seed and epoch, which the workers compute.
        limit: the queue ends after so many positions, over all epochs, if that is earlier; 0: none.
        in_order: the order is 0 to `size` itself.
    """

    name: str
    size: int
    block: int
    epochs: int
    seed: int = 0
    limit: int = 0
    in_order: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.block < 1 or min(self.size, self.epochs, self.limit) < 0:
            raise ValueError(f"a data queue needs a name, a positive block and no negative number, got {self}")
        if not self.size and self.epochs:
            raise ValueError(f"a data queue without a size has no epochs, got {self}")

    @property
    def total(self) -> int | None:
        """Positions of all epochs up to the end of the queue; None: it has no end."""
        ends = [end for end in (self.size * self.epochs, self.limit) if end]
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class Block:
    """Positions `start` to `stop` of the order of `epoch` (from 1); `number` names the block within its queue.

    Of a block that is handed out again only the rest, which is not done (`Progress`): it has the same number.
    """

    number: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A block that its worker has processed to its stop, and the sum of the losses of its examples, if computed."""

    number: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True)
class EpochReport:
    """A complete epoch: every example was processed. `cost` is the mean over them, None without losses."""

    queue: str
    epoch: int
    cost: float | None
    examples: int


@dataclass(frozen=True, slots=True)
class Take:
    """Requests the next block. A worker holds one block of a queue at a time; a repeated Take gets the same block.

    Attributes:
        finished: the block to return as done.
        reports_received: the epoch of the last report that the worker has received; 0: none.
        give_back: request no block; the one held goes to other workers.
        timeline: that the worker knows, as in `Join`; 0: any.
    """

    sender: Sender
    queue: QueueSpec
    finished: Finished | None = None
    reports_received: int = 0
    give_back: bool = False
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """The next block. None: either all is `done`, or `waiting_for` describes who holds the rest; ask again.

    Attributes:
        reports: complete epochs in order, without those the worker has received; of more than 1,000 the newest.
        chief: as in `Joined`. A dead chief's block is handed out again only when the chief is known to be lost, so a
            worker that gets a block's epoch report knows the new chief by then.
        cut, stopped: as in `Joined`.
    """

    block: Block | None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()
    chief: bool = False
    cut: int = 0
    stopped: str = ""


# --- cuts, and what is restored from them -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """Begins a cut, or asks about one: the state of all shards in which each push is on all of its shards, or on none.

    Each change carries the number of the last cut that its worker knew of when it began (`Push.cut`). A shard that
    sees a higher number takes its snapshot before it goes on; a change of a lower number that arrives later belongs to
    the cut all the same.

    Attributes:
        number: of the cut that is asked about, which begins here if it has not; 0 begins a new one.
        holder: keeps the cut in memory, for `Pull.of_cut`, until this worker releases it or is gone; None: nobody.
        release: the holder needs the cut no more.
    """

    number: int = 0
    holder: Sender | None = None
    release: bool = False


@dataclass(frozen=True, slots=True)
class CutReport:
    """A cut on this shard.

    Attributes:
        number: 0 if none could begin, because another one is not over: ask again.
        complete: no change that belongs to it can arrive any more.
        waiting_for: the workers that have not shown its number, or why none could begin.
        written: it is on disk.
        held: its values can be pulled.
        problem: why it could not be written.
        storage: the server keeps checkpoints.
    """

    number: int
    complete: bool = False
    waiting_for: str = ""
    written: bool = False
    held: bool = False
    problem: str = ""
    storage: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """Goes back to the cut of this number, as timeline `timeline`, if that is above the shard's; (0, 0) only asks.

    Needs no membership: all members of the shard have to join again.
    """

    timeline: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """The timeline that the shard follows, and the cut that it began with.

    Attributes:
        lost: the shard has begun from an older state than it had acknowledged, and waits for a `Restore`.
        cuts: the numbers of those that it could go back to, ascending.
    """

    timeline: int
    cut: int
    lost: bool = False
    cuts: tuple[int, ...] = ()


# --- status -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """Requests a shard's status; needs no membership."""


@dataclass(frozen=True, slots=True)
class VariableStatus:
    """A variable, or the part of it on this shard.

    `version` counts all changes, `updates` those by its optimizer; `nbytes` has the value and the slots. Of a `table`
    only rows travel.
    """

    spec: TensorSpec
    version: int
    updates: int
    optimizer: UpdateSpec | None
    slots: tuple[str, ...] = ()
    nbytes: int = 0
    part: Part | None = None
    table: bool = False


@dataclass(frozen=True, slots=True)
class LastPush:
    """The last push of one incarnation that a shard has settled, if other shards (`shards`) had parts of it."""

    worker: str
    incarnation: int
    sequence: int
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A present or former member.

    Attributes:
        state: "live", "left" or "lost".
        steps, dropped: pushes that were applied, and that the policy refused.
        epoch: that of its last block, or 0.
        lease_left: seconds.
        waiting_for: while a push is held: which workers it waits for, and why.
    """

    name: str
    incarnation: int
    number: int
    state: str
    steps: int
    staleness: int
    staleness_sum: int
    loss: float | None
    epoch: int
    lease_left: float
    dropped: int = 0
    waiting_for: str = ""
    tensor_transport: str = ""
    chief: bool = False


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How far a data queue is.

    Attributes:
        epoch: the first one that is not complete, from 1; the last one when all is done.
        done: positions that are done, of all epochs together: `spec.total` at the end, if it has one.
        blocks_out: blocks that workers hold.
    """

    spec: QueueSpec
    epoch: int
    done: int
    blocks_out: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Applied pushes, and bytes of tensors in and out, per second over the last seconds."""

    pushes: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """Median and 99th percentile of the staleness of applied pushes."""

    p50: int = 0
    p99: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """New hyperparameters that a worker set for some variables in the running job, after `global_step` updates."""

    global_step: int
    worker: str
    names: tuple[str, ...]
    optimizer: UpdateSpec


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Checkpoints and journal of a shard.

    Attributes:
        folder: where they are; "": none.
        last: the number of the last checkpoint that was written; `age`: seconds since then.
        writing: the number of the cut in progress, 0 if there is none; `waiting_for` names its missing workers.
        problem: why the last checkpoint could not be written, or the journal cannot be now; "": nothing is wrong.
        journal: whether there is one; `journal_bytes`: its size.
        timeline: as in `Joined`.
        lost_pushes: acknowledged pushes that were given up when older state was restored, as their workers report them.
    """

    folder: str = ""
    last: int = 0
    age: float = 0.0
    writing: int = 0
    waiting_for: str = ""
    problem: str = ""
    journal: bool = False
    journal_bytes: int = 0
    timeline: int = 0
    lost_pushes: int = 0


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job, as it is or as it was when the next one began.

    Attributes:
        state: "running"; "done": a worker has finished, and none is left; "ended": all left, and none has finished;
            "interrupted": the last ones were lost; "empty": no worker has joined yet.
        workers: that ever joined.
        epochs, cost: complete epochs of all data queues, and the mean cost of the last one.
    """

    job: Job
    state: str
    global_step: int
    workers: int
    epochs: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A snapshot of a shard. Its lists have 1,000 entries at most: live workers, and the newest.

    Attributes:
        repeated: retries that were answered and not applied again.
        nbytes: bytes of values and slots.
        consistency, handling: the shard's options, as `pswire.specs.consistency` writes them.
        half_pushes: pushes that other shards have applied and this one has not, abandoned or late.
        last_pushes: for finding pushes left incomplete by a worker's death: compare the lists of all shards.
        queues: those of shard 0, in the order in which they began.
        jobs: of this server, at most the newest 100, the present one last.
        stopped: as in `Joined`.
    """

    shard: int
    shards: int
    global_step: int
    repeated: int
    variables: tuple[VariableStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    epochs: tuple[EpochReport, ...] = ()
    dropped: int = 0
    nbytes: int = 0
    consistency: str = "async"
    handling: str = "none"
    traffic: Traffic = Traffic()
    staleness: Staleness = Staleness()
    changes: tuple[Change, ...] = ()
    half_pushes: int = 0
    last_pushes: tuple[LastPush, ...] = ()
    storage: StorageStatus = StorageStatus()
    queues: tuple[QueueStatus, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    stopped: str = ""


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """What time has brought about, as data (`Shard.due`): a server's message to its own shard, never sent to another.

    `lost` are the workers whose lease has expired, `overdue` the requests for blocks, by worker and data queue, that
    have waited for long. So a shard that is given the same messages again needs no clock.
    """

    lost: tuple[str, ...] = ()
    overdue: tuple[tuple[str, str], ...] = ()


Request: TypeAlias = (
    Join
    | Renew
    | Leave
    | Barrier
    | Stop
    | Reset
    | Register
    | Pull
    | Push
    | Assign
    | Tune
    | Take
    | Cut
    | Restore
    | Status
)
Message: TypeAlias = Request | Tick
Answer: TypeAlias = (
    Joined
    | Renewed
    | Left
    | Passed
    | Stopped
    | Emptied
    | Registered
    | Pulled
    | Pushed
    | Assigned
    | Tuned
    | Taken
    | CutReport
    | Restored
    | StatusReport
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the message with this ticket; or the error that ends its call."""

    ticket: int
    answer: Answer | ParamServerError


#: The class of each request's answer: `Request` and `Answer` list them in the same order.
ANSWERS: dict[type[Request], type[Answer]] = dict(zip(get_args(Request), get_args(Answer), strict=True))


# --- sizes of arrays, in bytes ----------------------------------------------------------------------------------------


class Allocator(Protocol):
    """Memory that belongs to one call, for the values of its answer."""

    def take(self, spec: TensorSpec) -> Array | None:
        """An uninitialized array, C-contiguous, for the next value of the answer; None: none is left, allocate one."""


#: The field of each message class whose entries have arrays or None, and the field of these; others have no arrays.
_ARRAYS: dict[type, tuple[str, str]] = {
    Push: ("gradients", "array"),
    Registered: ("values", "array"),
    Pulled: ("values", "array"),
    Pushed: ("values", "array"),
    Pull: ("choices", "rows"),
    Register: ("declarations", "value"),
    Assign: ("assignments", "array"),
}


def array_sizes(message: Message | Answer) -> list[int]:
    """The size of each array of a message as it travels, in order."""
    if type(message) not in _ARRAYS:
        return []
    entries, field = _ARRAYS[type(message)]
    sizes: list[int] = []
    for entry in getattr(message, entries):
        tensor = getattr(entry, field)
        values = tensor.values if isinstance(tensor, IndexedSlices) else tensor
        if values is not None:
            sizes += [part.nbytes for part in values.parts] if isinstance(values, Packed) else [values.nbytes]
        if values is not tensor:
            sizes.append(tensor.indices.nbytes)
    return sizes


def tensor_bytes(message: Message | Answer) -> int:
    """The size of all arrays of a message together."""
    return sum(array_sizes(message))


def most_answer_sizes(message: Request, spec_of: Callable[[str], TensorSpec]) -> list[int]:
    """The upper bound of the size of each value in the answer; `spec_of` returns the spec of a variable there."""
    match message:
        case Push():
            return [whole_bytes(spec_of(name), message.encoding) for name in message.pull]
        case Pull():
            whole = [whole_bytes(spec_of(name), message.encoding) for name in message.names]
            return whole + [_most_chosen(choice, spec_of(choice.name)) for choice in message.choices]
        case Register():
            return [one.spec.nbytes for one in message.declarations if one.initial is None]
        case _:
            return []


def whole_bytes(spec: TensorSpec, encoding: str) -> int:
    """The size of a whole value, with the 16-bit `encoding` if it is float32; "": without."""
    return spec.nbytes // 2 if encoding and spec.dtype == "float32" else spec.nbytes


def _most_chosen(choice: Choice, spec: TensorSpec) -> int:
    itemsize = max(DTYPES[spec.dtype].itemsize, 8 if choice.slot else 0)  # 8: the widest that a slot can be
    whole = spec.shape[0] if spec.shape else 1
    rows = whole if choice.rows is None else len(choice.rows)
    return rows * (spec.size // max(1, whole)) * itemsize
