"""Messages of a shard's status: its variables, workers and epochs, as plain numbers and names; no arrays."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.data_queue import EpochReport
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import Part, TensorSpec


@dataclass(frozen=True, slots=True)
class Status:
    """Requests a shard's status; needs no membership."""


@dataclass(frozen=True, slots=True)
class VariableStatus:
    """A variable, or the part of it on this shard.

    Attributes:
        version: the number of all changes.
        updates: the number of changes by its optimizer.
        nbytes: bytes of the value and the slots.
        table: whether only rows of it travel.
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
        tensor_transport: "shared memory" or "gRPC".
        chief: as in `Joined`.
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
class StatusReport:
    """A snapshot of a shard. Lists of workers, epochs and changes are cut to live workers and the newest.

    Attributes:
        repeated: retries that were answered and not applied again.
        nbytes: bytes of values and slots.
        consistency, handling: the shard's options, as `pswire.specs.consistency` writes them.
        half_pushes: pushes that other shards have applied and this one has not, abandoned or late.
        last_pushes: for finding pushes left incomplete by a worker's death: compare the lists of all shards.
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
