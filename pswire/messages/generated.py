"""Messages between workers and shards, and the state of a shard: frozen dataclasses, built by keyword.

Written by `make protos` from protos/pswire/v1; do not edit. Requests that change the shard carry a `Sender`, and those
that must not happen twice a sequence number. Arrays are borrowed, never copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from pswire.messages.arrays import Assignment, Choice, Declaration, Gradient, ServedState, Value
from pswire.messages.behavior import Call, EvaluationRules, JobText, QueueRules
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.specs.vectors import Operation
from pswire.tensors.values import Part, TensorSpec

__all__ = [
    "CALLS",
    "AcceptedPoint",
    "Answer",
    "Assign",
    "Assigned",
    "Barrier",
    "Block",
    "Change",
    "ChangeId",
    "ClaimPortion",
    "Compute",
    "Computed",
    "CountedPortions",
    "Cut",
    "CutReport",
    "DirectAddress",
    "Emptied",
    "EpochReport",
    "Evaluate",
    "Evaluated",
    "Evaluation",
    "EventReport",
    "Finished",
    "Frontier",
    "Holding",
    "Intervene",
    "Intervened",
    "Job",
    "JobReport",
    "Join",
    "Joined",
    "LastEpoch",
    "LastPush",
    "Leave",
    "Left",
    "MemberState",
    "MembershipState",
    "MinimizationState",
    "MinimizationStatus",
    "OpenEpoch",
    "OrderState",
    "OutPortion",
    "Outcome",
    "Overdue",
    "Passed",
    "Place",
    "Portion",
    "PortionClaimed",
    "PortionTaken",
    "PortionsState",
    "Progress",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "QueueSpec",
    "QueueState",
    "QueueStatus",
    "Register",
    "Registered",
    "RemoteWeights",
    "Renew",
    "Renewed",
    "Request",
    "Reset",
    "Restore",
    "Restored",
    "Sender",
    "ShardState",
    "Staleness",
    "StalenessCount",
    "StalenessMatrix",
    "Status",
    "StatusDetail",
    "StatusReport",
    "Stop",
    "Stopped",
    "StorageStatus",
    "Take",
    "TakePortion",
    "Taken",
    "Tick",
    "Totals",
    "Traffic",
    "Tune",
    "Tuned",
    "UpdateGroup",
    "VariableChanges",
    "VariableGroup",
    "VariableState",
    "VariableStatus",
    "WorkerPortions",
    "WorkerStaleness",
    "WorkerStatus",
]


class Outcome(Enum):
    """The result of a push."""

    APPLIED = "applied"
    REPEATED = "repeated"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Job(JobText):
    """A job: the training from the first worker's Join to the last one's Leave.

    A server has one at a time.

    Attributes:
        number: Counts the jobs of these servers from 1, on all shards alike; 0: none.
        name: Empty: no worker has begun it. The jobs of one program have the same name.
        session: Counts the sessions of the program from 1, each of which is a job; 0: it is not numbered.
    """

    number: int = 0
    name: str = ""
    session: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A worker starts or restarts; all its older incarnations are refused from now on.

    Attributes:
        incarnation: 0 asks shard 0 to assign the next one.
        shard: The position of this shard in the worker's list of servers, and the length of that list.
        process_nonce: A random number of the worker process, so that a repeated Join counts once. 0: none.
        tensor_transport: The tensor transport to this shard, for status displays: "shared memory" or "gRPC".
        states: When a worker joins again with its incarnation: the Joined.state of all shards from its first join, in
            order. A shard with a different state refuses, because it has lost its variables since.
        timeline: When joining again: Joined.timeline. A shard with another one refuses with StateLost: ask all shards
            by Restore, which goes back to a cut that all have.
        steps: When joining again: pushes of this incarnation that this shard has acknowledged as applied.
        settled: As in Renew: after state was lost, messages from before are refused if they arrive late.
        job: The job to take part in. Number 0: the running one, which must have this name if any is given; or else a
            new one. To other shards than 0, and when joining again: Joined.job.
        resume: Go on with the job that the shard has, also if it is over.
        program: For the name of a new job that is given none.
        cut: As in Renew.
        name_key: At least 16 random bytes that other processes do not know; empty: none. While a worker of this name is
            live, only a process with the same key takes its place, with a new incarnation; others wait until its lease
            has ended.
        workers: Workers that the launcher has started, which are awaited before the next session of the program begins;
            0: unknown.
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
    name_key: bytes = field(default=b"", repr=False)
    workers: int = 0


@dataclass(frozen=True, slots=True)
class DirectAddress:
    """Where a server listens for the direct transport.

    Attributes:
        port: On the host of the server's address; 0: nowhere.
        socket: The file name of a Unix socket in /dev/shm: paramserver- and 32 hexadecimal digits. Empty: none.
    """

    port: int = 0
    socket: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The worker is a member.

    Attributes:
        number: 0 for the first worker that ever joined.
        lease: Seconds without a message after which the worker is lost.
        consistency: The consistency policy of the shard: async, bounded:S, or sync:N[,backup=B]; and its staleness
            handling: none, scale, delay-compensated[:STRENGTH] or drop:T. They are the same on all shards of a job.
            Except under async without drop, shard 0 decides for all shards whether a push is applied: push to shard 0
            first and, once it has applied the push, to the others with the group of its answer.
        chief: The worker is the chief, which does what must be done once, such as printing. If the chief dies, another
            worker becomes chief and is told by this field of its next answer. Valid from shard 0; false from other
            shards.
        state: The identity of the shard's state: a random number that changes if the server is restarted without its
            state. 0: unknown, never compared.
        timeline: 1 more each time that acknowledged changes were given up (Restore). It must be the same on all shards.
        cut: The number of the shard's last cut.
        steps: Pushes of this incarnation that the shard has applied.
        note: A sentence for the worker's log if the job before this one, or an interruption of this one, is of
            interest.
        stopped: Why the job was stopped (Stop); empty: it was not.
        token: Proves to all shards of the job that the caller is this worker in this incarnation: the metadata "ps-
            member-bin".
        direct: Where the server takes the frames of Transfer without gRPC (docs/protocol.md, "The direct transport").
    """

    incarnation: int = 0
    number: int = 0
    lease: float
    global_step: int = 0
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
    token: bytes = field(default=b"", repr=False)
    direct: DirectAddress | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """The worker that sends a message, and its incarnation."""

    worker: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """A heartbeat.

    Every other message of a worker renews its lease too.

    Attributes:
        idle: The worker is idle, for example without examples: other workers must not wait for its next push.
        tensor_transport: As in Join.
        settled: All messages of the sender up to this sequence number have been answered or abandoned: the shard will
            no longer apply any of them. If the shard has received a later one, `idle` is outdated and ignored.
        half_pushes: Pushes of this incarnation that the worker abandoned on this shard and that other shards have
            applied; reported to the first of several such shards.
        cut: The number of the last cut that the worker knows of, and that no open call of it precedes (Cut).
        written_by_all: The newest cut that all shards have written, as far as the worker knows; 0: it knows of none.
        timeline: As in Take.
    """

    sender: Sender
    idle: bool = False
    tensor_transport: str = ""
    settled: int = 0
    half_pushes: int = 0
    cut: int = 0
    written_by_all: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The lease has been renewed. `waiting_for` is as in `WorkerStatus`; `chief`, `cut` and `stopped` as in
    `Joined`.

    Attributes:
        waiting_for: While a push of the worker is held: the workers it waits for, and the reason.
        chief: As in Joined.
        written: The newest cuts that the shard has written, ascending; 16 at most.
        stopped: As in Joined.
        push_held: Of shard 0, where it decides about pushes: a push of the worker is held. It is decided after the
            snapshot of `cut`, so its parts on other shards come after the cut as well.
        direct: As in Joined: a server that was started again may listen elsewhere.
    """

    global_step: int = 0
    waiting_for: str = ""
    chief: bool = False
    cut: int = 0
    written: tuple[int, ...] = ()
    stopped: str = ""
    push_held: bool = False
    direct: DirectAddress | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends; its unfinished blocks are handed out again. `failed`: others may wait for its replacement.
    `done` is `Left.done` of the shards before this one, which gets no push, by which it would know, if it has no
    variables.

    Attributes:
        failed: The worker has not finished: other workers may wait for its replacement.
        done: To shards other than 0: what those before it have answered. One without variables gets no push, by which
            it would know.
    """

    sender: Sender
    failed: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member. `done`: a worker has finished the job, after its first update.

    Attributes:
        done: A worker has finished the job, after its first update.
    """

    done: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The shard of a variable, or of its first rows."""

    name: str
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Declares variables.

    The first registration of a name wins; later ones must agree, and get its value.

    Attributes:
        places: To shard 0 of several, which is called first: the placement of each variable.
        dry_run: Only check; register nothing and return no values. The values of new variables may be omitted.
        states: To every shard: the Joined.state of all shards, in order. A shard keeps the first such list and refuses
            workers with a different one, because one of the shards has lost its part of the model.
        cut: As in Push.
    """

    sender: Sender
    declarations: tuple[Declaration, ...] = ()
    places: tuple[Place, ...] = ()
    dry_run: bool = False
    states: tuple[int, ...] = ()
    cut: int = 0


@dataclass(frozen=True, slots=True)
class ChangeId:
    """A push or assign that shard 0 has decided.

    The other shards that have a part of it are omitted in messages to these.
    """

    sender: Sender
    sequence: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The number of changes that shard 0 has decided, and those that may not have reached the other shards yet."""

    decided: int = 0
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A snapshot of the declared variables' values, in order, without tables. `frontier` is as in `Pushed`.

    Attributes:
        frontier: As in Pushed.
        behind: Declared variables whose optimizer is another one, of a later stage: pushes of the sender follow that.
    """

    values: tuple[Value, ...] = ()
    global_step: int = 0
    frontier: Frontier | None = None
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Requests values: a snapshot of the shard.

    Attributes:
        known_versions: For each name the version that the worker has, -1 for none: an unchanged value is not sent
            again. Empty: none.
        encoding: Encoding of float32 values in the answer: bfloat16 or float16. Empty: none.
        after: As in Push.
        of_cut: The values of the cut of this number, which is held; 0: the present ones.
    """

    sender: Sender
    names: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    known_versions: tuple[int, ...] = ()
    encoding: str = ""
    after: tuple[ChangeId, ...] = ()
    of_cut: int = 0


@dataclass(frozen=True, slots=True)
class Pulled:
    """The values of the names, in order, then those of the choices. `frontier` is as in `Pushed`.

    Attributes:
        values: The values of `names` in order, then those of `choices`.
        frontier: As in Pushed.
    """

    values: tuple[Value, ...] = ()
    global_step: int = 0
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pushes of several workers whose mean is one update; `number` counts the updates of shard 0.

    In a message to another shard, `members` are those with a part there, without their shards.

    Attributes:
        pushes: Of the update, also those that are not among `members`; 0: none.
    """

    number: int = 0
    members: tuple[ChangeId, ...] = ()
    pushes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """A variable with a part on a shard other than 0, and the Frontier.decided of the weights of its gradient
    there.
    """

    name: str
    served_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the block that a worker holds is trained.

    All its examples before `position` are, with this push and those before it. If the worker dies, the rest is
    handed out again.

    Attributes:
        position: In the order of the epoch: above Block.start and at most Block.stop.
        cost_sum: The sum of the losses of the examples from Block.start to `position`, if computed.
    """

    queue: str
    block: int = 0
    position: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """The gradients of one step, one per variable: all are applied once, or none.

    A push goes to shard 0 (first, if that decides for all), and to every shard with a part of it. One without
    gradients on any shard is no step: it is applied at once, and changes only what `progress` and `loss` say.

    Attributes:
        sequence: From 1, over pushes, assigns and tunes of this incarnation; the same on all shards; a retry repeats
            it.
        pull: Names of the variables whose fresh values the answer returns.
        group: To a shard other than 0: the group in shard 0's answer, if any. If that shard refuses the push or the
            worker abandons it, report this there with Renew.settled, because others wait for it.
        known_versions: For `pull`, as in Pull.
        shards: The shards other than 0 that get a part of this push.
        remote: To shard 0 under sync and drop: every variable with a gradient in this push and a part on another shard.
        after: To a shard other than 0: the `undelivered` changes in the frontier of shard 0's answer. Those that have a
            part there must be settled there before this one.
        global_step: To a shard other than 0: updates of shard 0 before this one, as far as known, for learning-rate
            schedules.
        cut: The highest number of a cut that any shard had answered before this push began, the same in its messages to
            all shards and in retries. Where shard 0 decides, the messages to other shards have the number in its answer
            instead.
        progress: To shard 0, for each data queue that the worker reads: noted in the step that applies or drops this
            push.
    """

    sender: Sender
    sequence: int
    gradients: tuple[Gradient, ...] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The result of a push, and the values it requested.

    Attributes:
        group: Present if the push was applied as one of several.
        frontier: From shard 0 under sync and drop: the changes it had decided before this push. `decided` is the
            RemoteWeights.served_at of values that other shards serve after it.
        cut: The number of the shard's last cut when the push was decided.
    """

    outcome: Outcome
    staleness: int = 0
    global_step: int = 0
    values: tuple[Value, ...] = ()
    reason: str = ""
    group: UpdateGroup | None = None
    frontier: Frontier | None = None
    cut: int = 0


@dataclass(frozen=True, slots=True)
class CountedPortions:
    """Portions whose gradients are in a pushed sum, each once."""

    name: str
    evaluation: int
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Sets variables, or adds to them, without an optimizer: all or none, once.

    Attributes:
        shards: As in Push.
        remote: To shard 0 under sync and drop: assigned variables with a part on another shard.
        after: As in Push.
        portions: The assignments are the sum of the gradients of these portions of an evaluation, for the sum of the
            shard. Dropped if one of them is in that already, or the evaluation is not the present one; on shard 0 also
            if they are no claims of this worker.
    """

    sender: Sender
    sequence: int
    assignments: tuple[Assignment, ...] = ()
    add: bool = False
    shards: tuple[int, ...] = ()
    remote: tuple[str, ...] = ()
    after: tuple[ChangeId, ...] = ()
    cut: int = 0
    portions: CountedPortions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The new versions, in order of the assignments. `frontier` is as in `Pushed`. `reason`: why the sum of an
    evaluation was dropped (`Assign.portions`), which has no versions.

    Attributes:
        frontier: As in Pushed.
        reason: Why the sum of an evaluation was dropped.
    """

    outcome: Outcome
    versions: tuple[int, ...] = ()
    global_step: int = 0
    frontier: Frontier | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """New hyperparameters for variables with an optimizer of this kind, for all or none of them; slots are kept.

    Attributes:
        fields: The fields to change; others are kept.
        cut: As in Push.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...] = ()
    optimizer: UpdateSpec
    fields: tuple[str, ...] = ()
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """Later pushes follow the new hyperparameters."""

    outcome: Outcome
    global_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Operations with vectors of variables, in order, all of them or none.

    Attributes:
        minimization: A minimization has one coordinator at a time: the sender with the highest term, which counts them.
            Term 0 only asks.
        note: If there is one, it is kept as that of the minimization.
        cut: As in Push.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    minimization: str = ""
    note: str = ""
    cut: int = 0
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The results, complete when the array tasks of the step have run.

    Attributes:
        results: Two numbers for each operation with a result, in order: the result of this shard is their sum.
        note: Those of the task; 0 and empty: the shard does not know it.
    """

    outcome: Outcome
    results: Sequence[float] = ()
    global_step: int = 0
    note: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec(QueueRules):
    """A queue of unknown size has size and epochs 0, and its positions are batches.

    Epochs 0: without end.

    Attributes:
        limit: The queue ends after so many positions, over all epochs, if that is earlier; 0: none.
        in_order: The order of an epoch is that of the positions, not a permutation.
        evaluates: Its examples are evaluated, not trained: it is handed out in a job that was stopped, too.
    """

    name: str
    size: int = 0
    block: int
    epochs: int = 0
    seed: int = 0
    limit: int = 0
    in_order: bool = False
    evaluates: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A block that its worker has processed to its stop, and the sum of the losses of its examples, if computed.

    Attributes:
        sums: Of a queue that evaluates: what its metrics add up, over the examples of the block.
    """

    number: int = 0
    cost_sum: float | None = None
    sums: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Requests the next block.

    A worker holds one block of a queue at a time; a repeated Take gets the same block.

    Attributes:
        reports_received: The epoch of the last report of this queue that the worker has received; the answer has those
            of later ones.
        give_back: Requests no block; the unfinished block of the worker is handed out again.
        timeline: Joined.timeline; 0: any. A shard with another one refuses with StateLost: the message is older than
            that.
    """

    sender: Sender
    queue: QueueSpec
    finished: Finished | None = None
    reports_received: int = 0
    give_back: bool = False
    timeline: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Positions of the order of an epoch.

    A block that is handed out again keeps its number, and starts where its last Progress ended.
    """

    number: int = 0
    epoch: int
    start: int = 0
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """A complete epoch: every example was processed. `cost` is the mean over them, None without losses.

    Attributes:
        sums: The sums of all blocks (Finished.sums); none where later evaluations have replaced them.
    """

    queue: str
    epoch: int
    cost: float | None = None
    examples: int = 0
    sums: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The next block.

    None: either all is `done`, or `waiting_for` describes who holds the rest; ask again.

    Attributes:
        chief: As in Joined.
    """

    block: Block | None = None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()
    chief: bool = False
    cut: int = 0
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation(EvaluationRules):
    """The sum of the losses of all examples, and of their gradients, at the present values of the variables.

    Positions 0 to `examples` of the data set are cut into portions of `portion` positions: 32,768 at most, the last
    one may be smaller.

    Attributes:
        number: From 1.
    """

    number: int
    examples: int
    portion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedPoint:
    """Where a line search of a minimization ended, or the minimization began.

    Attributes:
        iterations: Line searches, and evaluations, until then.
        gradient: The largest magnitude in the gradient.
        step: Of the line search, along its direction.
    """

    iterations: int = 0
    evaluations: int = 0
    loss: float = 0.0
    gradient: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Begins an evaluation, if its number is above that of the present one, and waits for it.

    From the coordinator, to every shard. The answer comes when all portions are counted on the shard, or after some
    seconds. Without an evaluation and without `end` it only asks.

    Attributes:
        name: Of the minimization, equal in all workers.
        end: The minimization is over: its result, as JSON of 4,096 characters at most.
        timeline: As in Take.
        point: The last accepted point, for people; none before the first.
        wait: Whether to answer when all portions are counted; otherwise at once.
        cut: As in Push.
        term: As in Compute.
    """

    sender: Sender
    name: str
    evaluation: Evaluation | None = None
    end: str = ""
    timeline: int = 0
    point: AcceptedPoint | None = None
    wait: bool = True
    cut: int = 0
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """How far the present evaluation is on this shard.

    Attributes:
        number: Of the present evaluation, which may be another one than was asked for; 0: none.
        counted: Portions that are in the sum of this shard; it is complete when all are.
        loss: From shard 0, if it is complete: the sum of the losses of all portions.
        end: The result, if the minimization is over.
        stopped: As in Joined.
        cut: As in Pushed.
    """

    number: int = 0
    counted: int = 0
    loss: float | None = None
    waiting_for: str = ""
    end: str = ""
    stopped: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePortion:
    """A worker takes a portion, computes the sums of its losses and gradients, and claims it.

    If the claim counts, it adds the gradient to a sum, which it pushes (Assign.portions) when it is asked to: to
    the other shards first, to shard 0 when all of them have answered. If any shard drops the sum, it discards it,
    and names its portions as `withdrawn`.

    Attributes:
        evaluation: Of which `holding` are portions; 0: none.
        holding: Portions that were taken and not claimed, 16 at most.
        timeline: As in Take.
    """

    sender: Sender
    name: str
    evaluation: int = 0
    holding: tuple[int, ...] = ()
    withdrawn: tuple[int, ...] = ()
    timeline: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Positions `start` to `stop` of an evaluation's data set. `alone`: its gradient is pushed by itself, since
    some shards may have counted it: whoever had it before has pushed it to some of them only.

    Attributes:
        alone: Push its gradient by itself. A shard that has counted it before answers OUTCOME_REPEATED, and adds
            nothing.
    """

    number: int = 0
    start: int = 0
    stop: int
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortionTaken:
    """The next portion.

    None: push the sum, or stop some portions, or it is over; or else ask again.

    Attributes:
        push: Push the sum now.
        stop: Of `holding`: they need not be computed any more.
        end: The result, if the minimization is over.
        chief: As in Joined.
        cut: As in Pushed.
    """

    evaluation: int = 0
    portion: Portion | None = None
    push: bool = False
    stop: tuple[int, ...] = ()
    end: str = ""
    waiting_for: str = ""
    chief: bool = False
    stopped: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPortion:
    """Claims a portion that the worker has computed, with the sum of its losses; to shard 0.

    A promise to push it. `loss` may be NaN or infinite. `timeline` is as in `Take`.

    Attributes:
        loss: The sum of its losses, also NaN or infinite.
        timeline: As in Take.
    """

    sender: Sender
    name: str
    evaluation: int
    portion: int = 0
    loss: float = 0.0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class PortionClaimed:
    """Whether the claim counts: the first one of a portion does, and so does a repetition of that.

    Attributes:
        counted: Whether this is the first claim of the portion, or a repetition of that.
    """

    counted: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Begins a cut on this shard, or asks about one.

    A cut is the state of all shards in which each push is on all of its shards, or on none (docs/reliability.md). A
    shard that sees a higher number in any message takes its snapshot first.

    Attributes:
        number: 0 begins a new one; send it to shard 0, and its number then to the others.
        holder: Keeps the cut in memory until this worker releases it or is gone.
    """

    number: int = 0
    holder: Sender | None = None
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReport:
    """A cut on this shard.

    Attributes:
        number: 0: none could begin yet, because another one is not over.
        complete: No change that belongs to it can arrive any more.
        waiting_for: The workers that have not shown the number, or why none could begin.
        problem: Why it could not be written.
        storage: The server keeps checkpoints.
        gone: This shard has no part of it, any more or at all: it was started again since, or another cut was not over.
    """

    number: int = 0
    complete: bool = False
    waiting_for: str = ""
    written: bool = False
    held: bool = False
    problem: str = ""
    storage: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """Goes back to a cut, if the timeline is above the shard's; without numbers it only asks.

    Needs no membership; all members have to join again. Ask all shards first; tell shard 0, and then the others
    what it answers.
    """

    timeline: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The timeline that the shard follows, and the cut that it began with.

    Attributes:
        lost: The shard began from an older state than it had acknowledged, and waits for a Restore.
        cuts: The cuts that it could go back to, ascending.
    """

    timeline: int = 0
    cut: int = 0
    lost: bool = False
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Waits until every live worker waits at the barrier.

    Attributes:
        number: Counts the barriers of this incarnation from 1, so that a repeated request waits for the same one.
    """

    sender: Sender
    number: int


@dataclass(frozen=True, slots=True)
class Passed:
    """All live workers have waited at the barrier, and passed at this global step; a retry gets the present one.

    Attributes:
        global_step: The global step at the moment at which they passed; in the answer to a repeated request the present
            one.
    """

    global_step: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the training of all workers: data queues hand out no more blocks.

    The first reason counts.
    """

    sender: Sender
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """All workers learn of it with their next heartbeat or block. `reason` is the one that counts.

    Attributes:
        reason: The reason that counts.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends the job and discards its variables.

    Needs no membership.

    Attributes:
        number: Of the empty job that takes its place, above that of the present one; otherwise nothing is done.
        force: Also while workers are live; their calls are refused from then on.
    """

    number: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Emptied:
    """The shard has this job, without workers and variables."""

    job: Job = Job()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervene:
    """Changes a running job, as an operator or a guard does.

    Needs no membership. To every shard.

    Attributes:
        by: Who asks, and why: for logs.
        stop: Ends the training of all workers, as Stop does; other shards than 0 ignore it.
        quarantine: Workers whose pushes are dropped from now on, in this and later incarnations; and those whose pushes
            are applied again.
        scale_learning_rate: Multiplies the learning rates of all variables that have one; 1 leaves them.
    """

    by: str
    reason: str = ""
    stop: bool = False
    quarantine: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    scale_learning_rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Intervened:
    """Later pushes follow it. `quarantined`: all workers that are, by now.

    Attributes:
        quarantined: All workers whose pushes are dropped.
    """

    global_step: int = 0
    quarantined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """Requests a shard's status; needs no membership. `first_variable`: the number of variables that are left out
    at the beginning, for those that one answer has no room for. `detail`: the report has its `StatusDetail`.

    Attributes:
        first_variable: Variables that are left out at the beginning.
        detail: With StatusReport.detail.
    """

    first_variable: int = 0
    detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableStatus:
    """A variable, or the part of it on this shard. `version` counts all changes, `updates` those by its optimizer;
    `nbytes` has the value and the slots.

    Of a `table` only rows travel. `bytes_in` are those of all gradients that were applied since the server has
    started, `bytes_out` those of the values and slots that it has served. Some elements are looked at before and
    after an update, once after each status: of `sampled` ones with a gradient so many were `unchanged`, because the
    update vanished in rounding.

    Attributes:
        spec: Without data.
        nbytes: Bytes of value and slots.
        bytes_in: Of pushed gradients, and of served values, since the server has started.
        sampled: Elements that were looked at before and after an update, with a gradient that is not zero; and those of
            them that it left as they were, for it vanished in rounding. Some are, once after each Status.
    """

    spec: TensorSpec
    version: int = 0
    updates: int = 0
    optimizer: UpdateSpec | None = None
    slots: tuple[str, ...] = ()
    nbytes: int = 0
    part: Part | None = None
    table: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    sampled: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A present or former member.

    Attributes:
        state: live, left or lost.
        tensor_transport: As in Join.
        chief: As in Joined.
        cost: A moving average of the losses of its pushes.
        waited: Seconds that its pushes were held, and for which its present one is.
        encoding: Of the gradients of its last push: their encoding, the largest norm of one, and the moving average of
            that.
        error: The last call that was refused, seconds since 1970; and why its last dropped push was dropped.
        training: From the first push until it is idle, out of data or gone.
        empty: Pushes that changed no variable.
        jumps: Pushes whose largest norm was far above its usual one: how many, how many times as large the first was,
            and when.
        first_loss: The loss of the first push of this incarnation, and the highest `cost` since.
        between_blocks: It has reported the end of its last block, and has pushed nothing of another one.
        quarantined: Its pushes are dropped.
    """

    name: str
    incarnation: int = 0
    number: int = 0
    state: str
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    loss: float | None = None
    epoch: int = 0
    lease_left: float = 0.0
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
class Traffic:
    """Rates per second over the last seconds."""

    pushes: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """Percentiles over applied pushes."""

    p50: int = 0
    p99: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New hyperparameters that a worker has set in the running job.

    Attributes:
        others: Variables beyond those that are named.
    """

    global_step: int = 0
    worker: str
    names: tuple[str, ...] = ()
    optimizer: UpdateSpec
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPush:
    """The last settled push of one incarnation of a worker, if shards other than 0 had parts of it."""

    worker: str
    incarnation: int = 0
    sequence: int = 0
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """Checkpoints and journal.

    Attributes:
        folder: Empty: none.
        last: The last checkpoint that was written, and seconds since then.
        writing: The cut in progress, and the workers that it waits for.
        problem: Why something could not be written.
        timeline: As in Joined.
        lost_pushes: Acknowledged pushes that were given up, as workers have reported them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """How far a data queue is.

    Attributes:
        epoch: The first epoch that is not complete, or the last one.
        done: Positions that are done, of all epochs.
    """

    spec: QueueSpec
    epoch: int
    done: int = 0
    blocks_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job, as it is or as it was when the next one began.

    Attributes:
        state: running; done: its workers have finished; ended: they have left, none of them finished; interrupted: they
            were lost; empty: it has no worker yet.
        workers: That ever joined.
        epochs: Complete ones, of all data queues, and the mean cost of the last one.
    """

    job: Job = Job()
    state: str
    global_step: int = 0
    workers: int = 0
    epochs: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many there are; the lists may have fewer."""

    variables: int = 0
    workers: int = 0
    live: int = 0
    queues: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """Something that happened on a server.

    Attributes:
        number: From 1, without gaps, of the events of one process.
        time: Seconds since 1970.
        worker: Empty: it is of no worker.
    """

    number: int = 0
    time: float = 0.0
    kind: str = ""
    text: str = ""
    warning: bool = False
    worker: str = ""
    global_step: int = 0


@dataclass(frozen=True, slots=True)
class StalenessCount:
    """Applied pushes of a staleness, or of one up to this."""

    staleness: int = 0
    pushes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStaleness:
    """By variable of the matrix, the applied pushes of a worker that had a gradient for it; and their stalenesses,
    added up.
    """

    worker: str
    incarnation: int = 0
    pushes: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StalenessMatrix:
    """Staleness by worker and variable, of the first variables, live workers and the newest of others."""

    variables: tuple[str, ...] = ()
    workers: tuple[WorkerStaleness, ...] = ()


@dataclass(frozen=True, slots=True)
class StatusDetail:
    """What a status has on request, for displays that show more than numbers.

    Attributes:
        events: The newest ones.
        stalenesses: Of all pushes.
    """

    events: tuple[EventReport, ...] = ()
    stalenesses: tuple[StalenessCount, ...] = ()
    matrix: StalenessMatrix = StalenessMatrix()


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimizationStatus:
    """How far a minimization is.

    Attributes:
        evaluation: The number of the present evaluation, and how many portions that has.
        counted: Portions in the sum of shard 0, in the hands of workers, and computed but not pushed yet.
        backups: Portions of all evaluations that were given to a second worker, and those of which that one was first.
        point: None before the first.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """A snapshot of a shard.

    Its lists have 1,000 entries at most, or fewer where these are too large for one message: the first variables,
    live workers, and the newest of others. `totals` counts all of them.

    Attributes:
        consistency: As in Joined.
        half_pushes: Known pushes that other shards have applied and this one has not: those that workers reported, and
            late parts.
        last_pushes: To find pushes that a dead worker has left half-applied, compare the entries of one incarnation on
            all shards.
        jobs: The jobs of this server, at most the newest 100, the present one last.
        stopped: As in Joined.
        exposure: The warning about a server that is open to other machines without TLS or without knowing who calls; ""
            for others.
        held: Pushes that are held now.
        clipped: Pushes whose gradients were scaled down.
        detail: If it was asked for.
        minimizations: The newest 20, of shard 0.
    """

    shard: int = 0
    shards: int
    global_step: int = 0
    repeated: int = 0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A worker; one of the answers at most."""

    name: str
    number: int = 0
    incarnation: int = 0
    process_nonce: int = 0
    state: str
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    clock: int = 0
    dropped: int = 0
    settled: int = 0
    half_pushes: int = 0
    out_of_data: bool = False
    tensor_transport: str = ""
    loss: float | None = None
    pushed: Pushed | None = None
    assigned: Assigned | None = None
    tuned: Tuned | None = None
    last_push: LastPush | None = None
    must_join: bool = False
    barriers: int = 0
    name_key: bytes = field(default=b"", repr=False)
    clipped: int = 0
    quarantined: str = ""
    computed: Computed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """The members that are remembered, those that are gone first; names of others in the order in which they
    matter. `joined` counts the workers that ever joined.

    Of those that are `forgotten`, that is the highest incarnation, and whether one was lost, or had finished.
    """

    members: tuple[MemberState, ...] = ()
    training: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    last_clock: int = 0
    chief: Sender | None = None
    done: bool = False
    half_pushes: int = 0
    last_pushes: tuple[LastPush, ...] = ()
    last_incarnation: int = 0
    stalled: tuple[str, ...] = ()
    joined: int = 0
    forgotten: int = 0
    forgotten_lost: bool = False
    forgotten_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableState:
    """A variable; its arrays are in `VariableArrays`.

    Attributes:
        spec: Without data.
        stage: Of its optimizer, as in Declaration.
    """

    spec: TensorSpec
    version: int = 0
    updates: int = 0
    growth: float = 0.0
    declared: UpdateSpec | None = None
    optimizer: UpdateSpec | None = None
    initial: RowInitializer | None = None
    part: Part | None = None
    vectors: tuple[str, ...] = ()
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A block from `start` on that a worker holds, or that it had and that is to be handed out again.

    Its examples before `position` are done, at this cost. `worker` "": the rest of a block that the former end of
    its queue had cut off, which no worker had.
    """

    worker: str = ""
    block: int = 0
    start: int = 0
    position: int = 0
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch:
    """The sums of an epoch that is not complete."""

    epoch: int
    done: int = 0
    cost_sum: float = 0.0
    cost_examples: int = 0
    sums: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A data queue."""

    spec: QueueSpec
    handed_out: int = 0
    returned: tuple[Holding, ...] = ()
    out: tuple[Holding, ...] = ()
    open: tuple[OpenEpoch, ...] = ()
    reports: tuple[EpochReport, ...] = ()


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """The epoch of a worker's last block."""

    worker: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class VariableChanges:
    """The numbers of the changes that a variable on another shard had (`UpdateOrder`)."""

    name: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderState:
    """The order of changes over all shards."""

    count: int = 0
    changes: tuple[VariableChanges, ...] = ()
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class VariableGroup:
    """The variables that one registration has brought to the job: see `pswire.placement`."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutPortion:
    """A portion that workers have in hand: the first of them, then the one that has it as a backup."""

    number: int = 0
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPortions:
    """The portions of a worker; of the worker "", unassigned ones. `left` are to be handed out, to this worker
    first, in order. `claimed` are portions whose gradients it has not pushed yet, and `had` its last claims, in
    this evaluation or before.
    """

    worker: str = ""
    left: tuple[int, ...] = ()
    claimed: tuple[int, ...] = ()
    had: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PortionsState:
    """The portions of an evaluation on shard 0. `out` in the order in which they were handed out; `losses` of those
    that are claimed or counted, in the order of their numbers; `alone` are portions that are pushed by themselves.
    """

    out: tuple[OutPortion, ...] = ()
    workers: tuple[WorkerPortions, ...] = ()
    losses: Sequence[float] = ()
    alone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimizationState:
    """A minimization; `portions` and `note` are those of shard 0."""

    name: str
    evaluation: Evaluation | None = None
    counted: tuple[int, ...] = ()
    portions: PortionsState | None = None
    backups: int = 0
    backups_won: int = 0
    end: str = ""
    point: AcceptedPoint | None = None
    coordinator: Sender | None = None
    term: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """Everything that later answers of a shard depend on, besides arrays and pending calls. `cut` is the number of
    the last cut, and `timeline` counts how often acknowledged pushes were given up. `places`, `groups` and `states`
    are the job's invariants. `jobs` are the reports of those before `job`, and `stopped` says why this one was
    stopped.

    So many workers as are `awaited` take part in it before the program's next session begins.

    Attributes:
        awaited: Workers that are to take part in the job before the next session of the program begins.
    """

    shard: int = 0
    shards: int
    identity: int = 0
    consistency: str = ""
    handling: str = ""
    cut: int = 0
    timeline: int = 0
    global_step: int = 0
    last_step: int = 0
    applied: int = 0
    dropped: int = 0
    repeated: int = 0
    lost_pushes: int = 0
    members: MembershipState = MembershipState()
    variables: tuple[VariableState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    epochs: tuple[LastEpoch, ...] = ()
    stalenesses: tuple[StalenessCount, ...] = ()
    changes: tuple[Change, ...] = ()
    places: tuple[Place, ...] = ()
    states: tuple[int, ...] = ()
    served: tuple[ServedState, ...] = ()
    order: OrderState | None = None
    groups: tuple[VariableGroup, ...] = ()
    job: Job = Job()
    jobs: tuple[JobReport, ...] = ()
    stopped: str = ""
    max_gradient_norm: str = ""
    clipped: int = 0
    minimizations: tuple[MinimizationState, ...] = ()
    awaited: int = 0


@dataclass(frozen=True, slots=True)
class Overdue:
    """A request for a block, by worker and data queue, that has waited for long."""

    worker: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What time has brought about, as data (`Shard.due`): a server's message to its own shard, never sent to
    another. `lost` are the workers whose lease has expired, `overdue` the requests for blocks, by worker and data
    queue, that have waited for long, and `stalled` the workers that have held others up for too long. `takers` and
    `evaluators` are the workers whose TakePortion and whose Evaluate have waited for long. `gives_up`: workers that
    have not come to the job are awaited no longer.

    So a shard that is given the same messages again needs no clock.

    Attributes:
        gives_up: Workers that have not come to the job are awaited no longer.
    """

    lost: tuple[str, ...] = ()
    overdue: tuple[Overdue, ...] = ()
    stalled: tuple[str, ...] = ()
    takers: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    gives_up: bool = False


Request: TypeAlias = (
    Join
    | Renew
    | Leave
    | Register
    | Pull
    | Push
    | Assign
    | Tune
    | Compute
    | Take
    | Evaluate
    | TakePortion
    | ClaimPortion
    | Cut
    | Restore
    | Barrier
    | Stop
    | Reset
    | Intervene
    | Status
)
Answer: TypeAlias = (
    Joined
    | Renewed
    | Left
    | Registered
    | Pulled
    | Pushed
    | Assigned
    | Tuned
    | Computed
    | Taken
    | Evaluated
    | PortionTaken
    | PortionClaimed
    | CutReport
    | Restored
    | Passed
    | Stopped
    | Emptied
    | Intervened
    | StatusReport
)

#: The methods of the service, but for Transfer.
CALLS: tuple[Call, ...] = (
    Call(name="Join", request=Join, answer=Joined, role="worker", change=True, of_timeline=False, wait="order"),
    Call(name="Renew", request=Renew, answer=Renewed, role="worker", change=False, of_timeline=True, wait="order"),
    Call(name="Leave", request=Leave, answer=Left, role="worker", change=True, of_timeline=False, wait="order"),
    Call(
        name="Register",
        request=Register,
        answer=Registered,
        role="worker",
        change=True,
        of_timeline=False,
        wait="order",
    ),
    Call(name="Pull", request=Pull, answer=Pulled, role="worker", change=False, of_timeline=False, wait="order"),
    Call(name="Push", request=Push, answer=Pushed, role="worker", change=True, of_timeline=False, wait="policy"),
    Call(name="Assign", request=Assign, answer=Assigned, role="worker", change=True, of_timeline=False, wait="order"),
    Call(name="Tune", request=Tune, answer=Tuned, role="worker", change=True, of_timeline=False, wait="order"),
    Call(name="Compute", request=Compute, answer=Computed, role="worker", change=True, of_timeline=False, wait="order"),
    Call(name="Take", request=Take, answer=Taken, role="worker", change=True, of_timeline=True, wait="data"),
    Call(
        name="Evaluate", request=Evaluate, answer=Evaluated, role="worker", change=True, of_timeline=True, wait="data"
    ),
    Call(
        name="TakePortion",
        request=TakePortion,
        answer=PortionTaken,
        role="worker",
        change=True,
        of_timeline=True,
        wait="data",
    ),
    Call(
        name="ClaimPortion",
        request=ClaimPortion,
        answer=PortionClaimed,
        role="worker",
        change=True,
        of_timeline=True,
        wait="order",
    ),
    Call(name="Cut", request=Cut, answer=CutReport, role="worker", change=False, of_timeline=False, wait="order"),
    Call(
        name="Restore", request=Restore, answer=Restored, role="worker", change=False, of_timeline=False, wait="order"
    ),
    Call(name="Barrier", request=Barrier, answer=Passed, role="worker", change=True, of_timeline=False, wait="barrier"),
    Call(name="Stop", request=Stop, answer=Stopped, role="worker", change=True, of_timeline=False, wait="order"),
    Call(name="Reset", request=Reset, answer=Emptied, role="admin", change=True, of_timeline=False, wait="order"),
    Call(
        name="Intervene",
        request=Intervene,
        answer=Intervened,
        role="admin",
        change=True,
        of_timeline=False,
        wait="order",
    ),
    Call(
        name="Status",
        request=Status,
        answer=StatusReport,
        role="observer",
        change=False,
        of_timeline=False,
        wait="order",
    ),
)
