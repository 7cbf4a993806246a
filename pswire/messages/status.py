"""The status of a shard, for displays and programs."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.data_queue import EpochReport, QueueSpec
from pswire.messages.membership import Job
from pswire.messages.minimization import AcceptedPoint
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import Part, TensorSpec


@dataclass(frozen=True, slots=True)
class Status:
    """Requests a shard's status; needs no membership.

    `first_variable`: the number of variables that are left out at the beginning, for those that one answer has no room
    for. `detail`: the report has its `StatusDetail`.
    """

    first_variable: int = 0
    detail: bool = False


@dataclass(frozen=True, slots=True)
class VariableStatus:
    """A variable, or the part of it on this shard.

    `version` counts all changes, `updates` those by its optimizer; `nbytes` has the value and the slots. Of a `table`
    only rows travel. `bytes_in` are those of all gradients that were applied since the server has started, `bytes_out`
    those of the values and slots that it has served. Some elements are looked at before and after an update, once after
    each status: of `sampled` ones with a gradient so many were `unchanged`, because the update vanished in rounding.
    """

    spec: TensorSpec
    version: int
    updates: int
    optimizer: UpdateSpec | None
    slots: tuple[str, ...] = ()
    nbytes: int = 0
    part: Part | None = None
    table: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    sampled: int = 0
    unchanged: int = 0


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
        clipped: of those that were applied, those whose gradients were scaled down (`--max-gradient-norm`).
        epoch: that of its last block, or 0.
        lease_left: seconds.
        waiting_for: while a push is held: which workers it waits for, and why.
        cost: the moving average of the losses of its pushes; None before the first.
        waited: seconds that pushes of this incarnation were held; `held`: those of the present one, 0 if none is.
        encoding: of the gradients of its last push, such as "float32", "bfloat16", "int8", "topk"; "rows ..." of rows.
        gradient: the largest L2 norm of a variable's gradient in its last push (of rows and compressed gradients: a
            bound of the magnitude of any element); `gradient_mean`: the moving average of that.
        error: why its last refused call was refused, "" if none was; `error_time`: when, in seconds since 1970.
        drop_reason: why the policy has dropped its last dropped push; "" if it has dropped none.
        training: it pushes: from the first push of this incarnation until it is idle, out of data or gone.
        empty: pushes of this incarnation that changed no variable.
        jumps: pushes of this incarnation whose `gradient` was far above its usual one; `jump`: how many times as large
            the first of them was, and `jumped_at` the global step of that.
        first_loss, peak_cost: the loss of the first push of this incarnation, and the highest `cost` since.
        between_blocks: it has reported the end of its last block, and has pushed nothing of another one.
        quarantined: its pushes are dropped.
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
    clipped: int = 0
    cost: float | None = None
    waited: float = 0.0
    held: float = 0.0
    encoding: str = ""
    gradient: float = 0.0
    gradient_mean: float = 0.0
    error: str = ""
    error_time: float = 0.0
    drop_reason: str = ""
    training: bool = False
    empty: int = 0
    jumps: int = 0
    jump: float = 0.0
    jumped_at: int = 0
    first_loss: float | None = None
    peak_cost: float | None = None
    between_blocks: bool = False
    quarantined: bool = False


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
class MinimizationStatus:
    """How far a minimization is (`pswire.messages.minimization`).

    Attributes:
        evaluation: the number of the present one, 0 before the first; no count, which `point` has.
        portions: of it; `counted`: those whose gradients are in the sum of shard 0.
        out, claimed: portions that workers have in hand, and those that they have computed and not pushed yet.
        backups: portions of all evaluations that were given to a second worker, because the first one was not done when
            no others were left; `backups_won`: those of which the second one was first.
        end: the result as JSON, if it is over.
        point: the last accepted point; None before the first.
    """

    name: str
    evaluation: int = 0
    portions: int = 0
    counted: int = 0
    out: int = 0
    claimed: int = 0
    backups: int = 0
    backups_won: int = 0
    end: str = ""
    point: AcceptedPoint | None = None


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
    """New hyperparameters that a worker set for some variables in the running job, after `global_step` updates.

    Of more than 100 variables the first ones are named, and `others` counts the rest.
    """

    global_step: int
    worker: str
    names: tuple[str, ...]
    optimizer: UpdateSpec
    others: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """How many entries there are for lists of a `StatusReport`, which may have fewer; `live`: of the workers."""

    variables: int = 0
    workers: int = 0
    live: int = 0
    queues: int = 0


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
class StalenessCount:
    """The number of applied pushes of a staleness; in a status the staleness is the upper bound of a range."""

    staleness: int
    pushes: int


@dataclass(frozen=True, slots=True)
class EventReport:
    """Something that happened on a server.

    Attributes:
        number: from 1, without gaps, among the events of this process of the server.
        time: seconds since 1970.
        kind: as `psserver.core.events` has them, such as "joined" or "lost".
        worker: "" if it is of none.
        global_step: of the shard.
    """

    number: int
    time: float
    kind: str
    text: str
    warning: bool = False
    worker: str = ""
    global_step: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStaleness:
    """The row of one incarnation of a worker in a `StalenessMatrix`.

    By variable: its applied `pushes` that had a gradient for the variable, and the sum of their stalenesses in `sums`.
    """

    worker: str
    incarnation: int
    pushes: tuple[int, ...]
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StalenessMatrix:
    """Staleness by worker and variable, of the first variables, live workers and the newest of others."""

    variables: tuple[str, ...] = ()
    workers: tuple[WorkerStaleness, ...] = ()


@dataclass(frozen=True, slots=True)
class StatusDetail:
    """What a status has on request, for displays that show more than numbers.

    Attributes:
        events: the newest ones, in order.
        stalenesses: applied pushes by staleness: exact to 32, above that by upper bounds, each twice the one before.
    """

    events: tuple[EventReport, ...] = ()
    stalenesses: tuple[StalenessCount, ...] = ()
    matrix: StalenessMatrix = StalenessMatrix()


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A snapshot of a shard.

    Its lists have 1,000 entries at most, or fewer where these are too large for one message: the first variables, live
    workers, and the newest of others. `totals` counts all of them.

    Attributes:
        repeated: retries that were answered and not applied again.
        nbytes: bytes of values and slots.
        consistency, handling: the shard's options, as `pswire.specs.consistency` writes them.
        half_pushes: pushes that other shards have applied and this one has not, abandoned or late.
        last_pushes: for finding pushes left incomplete by a worker's death: compare the lists of all shards.
        queues: those of shard 0, in the order in which they began.
        minimizations: the newest 20, of shard 0, in that order too.
        jobs: of this server, at most the newest 100, the present one last.
        stopped: as in `Joined`.
        exposure: the warning about a server that is open to other machines without TLS or without knowing who calls.
        held: pushes that the policy holds now; `clipped`: those that `--max-gradient-norm` has scaled down.
        detail: if it was asked for.
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
    exposure: str = ""
    totals: Totals = Totals()
    held: int = 0
    clipped: int = 0
    detail: StatusDetail | None = None
    minimizations: tuple[MinimizationStatus, ...] = ()
