"""The state of a job on another number of shards: placement anew, arrays joined and split by rows.

For workers that join afterwards it is the same job: values, slots, versions, hyperparameters, positions in data queues,
and all counts of the job. Workers cannot continue across a reshard, because they know the old servers: all
members are marked lost, and their blocks are handed out again. What is not kept:

- weights that were last served to workers (delay compensation), and which changes other shards had (staleness): nobody
  is there who knows older weights;
- the parts of a number that shards count each for themselves: rates and percentiles of the shards other than 0;
- a variable that a dying worker has registered on some of its shards only: the next worker registers it again;
- pushes that are half applied stay so; they are counted on shard 0.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import run
from pswire.messages import MembershipState, MemberState, OrderState, Place, ShardState, Tick, VariableState
from pswire.placement import Partition, place_again
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.values import Array, TensorSpec, whole_spec


@dataclass(frozen=True, slots=True, eq=False)
class WholeVariable:
    """A variable with all its rows; `state` is its first part's, with the highest counts of all parts."""

    spec: TensorSpec
    state: VariableState
    arrays: VariableArrays


def reshard(old: Sequence[Shard], shards: int, number: int) -> list[tuple[ShardState, dict[str, VariableArrays]]]:
    """The states and arrays of the new shards; arrays may be shared with the old shards.

    Computed alike wherever it is computed. The members of the old shards are lost afterwards.

    Args:
        old: all shards of the job, in order, with the late changes of the cut.
        shards: of the job from now on.
        number: of the checkpoint that begins it, greater than all before.
    """
    for one in old:
        _end_memberships(one)
    job = merge_reports([ShardAnswer(f"shard {one.shard}", one.status(0.0)) for one in old])
    states = [one.state() for one in old]
    variables = whole_variables(old)
    groups = _groups(states[0], variables)
    placed = place_again([[variables[name].spec for name in group] for group in groups], shards)
    found = []
    for shard in range(shards):
        state = _shard_state(states, job, shard, shards, number)
        mine, arrays = [], {}
        for name, partitions in placed.items():
            for partition in partitions:
                if partition.shard == shard:
                    part, arrays[name] = _partition(variables[name], partition)
                    mine.append(part)
        places = [Place(name, partitions[0].shard) for name, partitions in placed.items()]
        state = replace(state, variables=tuple(mine), places=tuple(places) if shards > 1 and not shard else ())
        found.append((state, arrays))
    return found


def whole_variables(shards: Iterable[Shard]) -> dict[str, WholeVariable]:
    """The variables of all shards, joined; incomplete ones are left out."""
    parts: dict[str, list[tuple[VariableState, VariableArrays]]] = {}
    for shard in shards:
        arrays = shard.arrays()
        for state in shard.state().variables:
            parts.setdefault(state.spec.name, []).append((state, arrays[state.spec.name]))
    joined = {name: _joined(mine) for name, mine in parts.items()}
    return {name: one for name, one in joined.items() if one is not None}


def _joined(parts: list[tuple[VariableState, VariableArrays]]) -> WholeVariable | None:
    """A variable from its partitions; None: some are missing."""
    parts = sorted(parts, key=lambda one: 0 if one[0].part is None else one[0].part.first)
    first, arrays = parts[0]
    states = [state for state, _ in parts]
    state = replace(
        first,
        version=max([one.version for one in states]),
        updates=max([one.updates for one in states]),
        growth=max([one.growth for one in states]),
        stage=max([one.stage for one in states]),
    )
    if first.part is None:
        return WholeVariable(first.spec, state, arrays)
    rows = sum([one.spec.shape[0] for one in states])
    if rows != first.part.of:
        return None
    spec = whole_spec(first.spec, first.part)
    slots = {slot: np.concatenate([one.slots[slot] for _, one in parts]) for slot in arrays.slots}
    return WholeVariable(spec, state, VariableArrays(np.concatenate([one.value for _, one in parts]), slots))


def _partition(variable: WholeVariable, partition: Partition) -> tuple[VariableState, VariableArrays]:
    state = replace(variable.state, spec=partition.spec, part=partition.part)
    if partition.part is None:
        return state, variable.arrays
    first = partition.part.first
    rows = slice(first, first + partition.spec.shape[0])
    value, slots = variable.arrays.value, variable.arrays.slots
    return state, VariableArrays(_rows(value, rows), {name: _rows(slot, rows) for name, slot in slots.items()})


def _rows(array: Array, rows: slice) -> Array:
    return array[rows].copy()


def _groups(state: ShardState, variables: dict[str, WholeVariable]) -> list[list[str]]:
    """The groups in which the variables were registered."""
    groups = [[name for name in group.names if name in variables] for group in state.groups]
    grouped = {name for group in groups for name in group}
    return [*groups, [name for name in variables if name not in grouped]]


def _shard_state(states: Sequence[ShardState], job: JobStatus, shard: int, shards: int, number: int) -> ShardState:
    """The state of a new shard, without its variables."""
    first = states[0]
    identities = [_identity(states, number, other, shards) for other in range(shards)]
    state = replace(
        first,
        shard=shard,
        shards=shards,
        identity=identities[shard],
        cut=number,
        timeline=max([one.timeline for one in states]),
        global_step=job.global_step,
        last_step=max([one.last_step for one in states]),
        applied=max([one.applied for one in states]),
        dropped=job.dropped,
        clipped=max([one.clipped for one in states]),
        repeated=0,
        lost_pushes=0,
        members=_members([one.members for one in states]),
        queues=(),
        epochs=(),
        stalenesses=(),
        changes=(),
        places=(),
        states=tuple(identities),
        served=(),
        order=None,
        groups=(),
        minimizations=tuple([replace(one, counted=(), portions=None) for one in first.minimizations]),
    )
    if shard:
        return state
    orders = parse_consistency(first.consistency).orders or parse_staleness(first.handling).orders
    return replace(
        state,
        repeated=job.repeated,
        lost_pushes=sum([one.lost_pushes for one in states]),
        members=replace(state.members, chief=first.members.chief, half_pushes=job.half_pushes),
        queues=first.queues,
        epochs=first.epochs,
        stalenesses=first.stalenesses,
        changes=job.changes,
        order=OrderState(first.order.count if first.order else 0) if orders and shards > 1 else None,
        groups=first.groups,
    )


def _members(states: Sequence[MembershipState]) -> MembershipState:
    """All members, as no shard has them: for deduplication, their last settled message on any of the shards."""
    entries: dict[str, list[MemberState]] = {}
    for state in states:
        for member in state.members:
            entries.setdefault(member.name, []).append(member)
    first = states[0]
    return MembershipState(
        members=tuple([_member(mine) for mine in entries.values()]),
        training=(),
        finished=first.finished,
        last_clock=first.last_clock,
        done=any(state.done for state in states),
        joined=max([state.joined for state in states]),
        forgotten=max([state.forgotten for state in states]),
        forgotten_lost=any(state.forgotten_lost for state in states),
        forgotten_finished=any(state.forgotten_finished for state in states),
    )


def _member(entries: Sequence[MemberState]) -> MemberState:
    newest = max([one.incarnation for one in entries])
    entries = [one for one in entries if one.incarnation == newest]  # a shard may know only an earlier one
    settled = max(entries, key=lambda one: (one.settled, _is_answered(one)))
    return replace(
        entries[0],
        steps=max([one.steps for one in entries]),
        dropped=max([one.dropped for one in entries]),
        clipped=max([one.clipped for one in entries]),
        settled=settled.settled,
        pushed=settled.pushed,
        assigned=settled.assigned,
        tuned=settled.tuned,
        loss=next((one.loss for one in entries if one.loss is not None), None),
        half_pushes=0,
        last_push=None,
        tensor_transport="",
    )


def _is_answered(member: MemberState) -> bool:
    return any(one is not None for one in (member.pushed, member.assigned, member.tuned))


def _end_memberships(shard: Shard) -> None:
    live = tuple([member.name for member in shard.state().members.members if member.state == "live"])
    run(shard.step(0, Tick(lost=live), 0.0).tasks)


def _identity(old: Sequence[ShardState], number: int, shard: int, shards: int) -> int:
    """A number from 1 on, of 63 bits, that only this new shard has that begins from these steps of the old ones.

    Each new shard knows the numbers of all, so that shards that began from different steps are refused when a worker
    joins.
    """
    steps = [
        (one.identity, one.global_step, one.applied, one.dropped, [(v.spec.name, v.version) for v in one.variables])
        for one in old
    ]
    text = f"{steps} {number} {shard} {shards}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1 | 1
