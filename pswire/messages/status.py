"""How a shard is at one moment: its variables, its workers, its epochs. Plain numbers and names; no arrays."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.data_queue import EpochReport
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import Part, TensorSpec


@dataclass(frozen=True, slots=True)
class VariableStatus:
    """One variable, or the part of it on this shard.

    `updates` counts what its optimizer applied, `version` every change. `nbytes` has those of the value and the slots;
    `table` says whether only rows of it travel.
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
    """The last push of one life of a worker that a shard has settled, if other shards (`shards`) had parts of it."""

    worker: str
    incarnation: int
    sequence: int
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that is a member, or was. `lease_left` in seconds; `epoch` that of its last block, or 0.

    `steps` counts its pushes that were applied, `dropped` those that the policy refused. While one is held,
    `waiting_for` says for whom, and why. `tensor_transport` is how its tensors travel: "shared memory" or "gRPC".
    `chief` is as in `Joined`.
    """

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
    dropped: int = 0
    waiting_for: str = ""
    tensor_transport: str = ""
    chief: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went through a shard in the last seconds, each a second: pushes applied, bytes of tensors in and out."""

    pushes: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """Of the pushes that were applied: the median and the 99th percentile of how stale they were."""

    p50: int = 0
    p99: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """New hyperparameters that a worker gave some variables in the running job, after `global_step` updates."""

    global_step: int
    worker: str
    names: tuple[str, ...]
    optimizer: UpdateSpec


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A shard at one moment. `repeated`: retries that were answered, not applied again.

    Of very many workers, epochs and changes it lists the live and the newest. `nbytes` are those of values and slots.
    `consistency` and `handling` (of staleness) are as `pswire.specs.consistency` writes them. `half_pushes` counts
    pushes
    that other shards have applied and this one not: those that workers gave up, and those whose part came too late; by
    comparing `last_pushes` of all shards those are found that were left so by a worker's death.
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
