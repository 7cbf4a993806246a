"""The state of a shard as plain data, without the arrays of its variables: what a checkpoint has to know.

A shard that is restored from its state answers every later message with the same bits. Pending calls are no part of it:
nothing of them was acknowledged. Leases are none either: they begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages import (
    AcceptedPoint,
    Assigned,
    Change,
    ChangeId,
    Computed,
    EpochReport,
    Evaluation,
    Job,
    JobReport,
    LastPush,
    Place,
    Pushed,
    QueueSpec,
    Sender,
    StalenessCount,
    Tuned,
)
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import RowInitializer
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, Part, TensorSpec


@dataclass(frozen=True, slots=True)
class VariableState:
    """A variable (`psserver.core.variables.variable.Variable`); its arrays are in `VariableArrays`."""

    spec: TensorSpec
    version: int
    updates: int
    growth: float
    declared: UpdateSpec | None = None
    optimizer: UpdateSpec | None = None
    initial: RowInitializer | None = None
    part: Part | None = None
    vectors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class VariableArrays:
    """The value of a variable and its slots by name."""

    value: Array
    slots: dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """Weights of a variable that were last served to a worker, for delay compensation; None: all rows."""

    worker: str
    name: str
    version: int
    array: Array | Packed
    rows: Array | None = None


@dataclass(frozen=True, slots=True)
class MemberState:
    """A worker (`psserver.core.members.member.Member`); one of the answers at most."""

    name: str
    number: int
    incarnation: int
    process_nonce: int
    state: str
    steps: int
    staleness: int
    staleness_sum: int
    clock: int
    dropped: int
    settled: int
    half_pushes: int
    out_of_data: bool
    must_join: bool
    tensor_transport: str
    loss: float | None = None
    pushed: Pushed | None = None
    assigned: Assigned | None = None
    tuned: Tuned | None = None
    computed: Computed | None = None
    last_push: LastPush | None = None
    barriers: int = 0
    clipped: int = 0
    name_key: bytes = b""
    quarantined: str = ""


@dataclass(frozen=True, slots=True)
class MembershipState:
    """The members that are remembered, those that are gone first; names of others in the order in which they matter.

    `joined` counts the workers that ever joined. Of those that are `forgotten`, that is the highest incarnation, and
    whether one was lost, or had finished.
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


@dataclass(frozen=True, slots=True)
class Holding:
    """A block from `start` on that a worker holds, or that it had and that is to be handed out again.

    Its examples before `position` are done, at this cost. `worker` "": the rest of a block that the former end of its
    queue had cut off, which no worker had.
    """

    worker: str
    block: int
    start: int
    position: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """The sums of an epoch that is not complete."""

    epoch: int
    done: int
    cost_sum: float
    cost_examples: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """A data queue (`psserver.core.data_queue.DataQueue`)."""

    spec: QueueSpec
    handed_out: int
    returned: tuple[Holding, ...] = ()
    out: tuple[Holding, ...] = ()
    open: tuple[OpenEpoch, ...] = ()
    reports: tuple[EpochReport, ...] = ()


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """The epoch of a worker's last block."""

    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class OutPortion:
    """A portion that workers have in hand: the first of them, then the one that has it as a backup."""

    number: int
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerPortions:
    """Portions of a worker; "": of nobody.

    `left` are to be handed out, to this worker first, in order. `claimed` are those whose gradients it has not pushed
    yet, and `had` those that it has claimed last, in this evaluation or before.
    """

    worker: str
    left: tuple[int, ...] = ()
    claimed: tuple[int, ...] = ()
    had: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PortionsState:
    """The portions of an evaluation on shard 0 (`psserver.core.minimization.portions.Portions`).

    `out` in the order in which they were handed out; `losses` of those that are claimed or counted, in the order of
    their numbers; `alone`: those that are pushed by themselves.
    """

    out: tuple[OutPortion, ...] = ()
    workers: tuple[WorkerPortions, ...] = ()
    losses: tuple[float, ...] = ()
    alone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MinimizationState:
    """A minimization (`psserver.core.minimization.minimizations`); `portions` and `note` are those of shard 0."""

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


@dataclass(frozen=True, slots=True)
class VariableChanges:
    """The numbers of the changes that a variable on another shard had (`UpdateOrder`)."""

    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderState:
    """The order of changes over all shards (`psserver.core.policies.update_order.UpdateOrder`)."""

    count: int
    changes: tuple[VariableChanges, ...] = ()
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class VariableGroup:
    """The variables that one registration has brought to the job: see `pswire.placement`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardState:
    """Everything that later answers of a shard depend on, besides arrays and pending calls.

    `cut` is the number of the last cut, and `timeline` counts how often acknowledged pushes were given up. `places`,
    `groups` and `states` are the job's invariants. `jobs` are the reports of those before `job`, and `stopped` says why
    this one was stopped. So many workers as are `awaited` take part in it before the program's next session begins.
    """

    shard: int
    shards: int
    identity: int
    consistency: str
    handling: str
    cut: int
    timeline: int
    global_step: int
    last_step: int
    applied: int
    dropped: int
    repeated: int
    lost_pushes: int
    members: MembershipState
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
    job: Job = Job()  # noqa: RUF009 - frozen
    jobs: tuple[JobReport, ...] = ()
    stopped: str = ""
    max_gradient_norm: str = ""
    clipped: int = 0
    minimizations: tuple[MinimizationState, ...] = ()
    awaited: int = 0
