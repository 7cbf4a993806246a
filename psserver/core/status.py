"""Rows of a shard's status: its variables and workers. May import those two."""

from __future__ import annotations

from psserver.core.members.member import Member
from psserver.core.variables.variable import Variable
from pswire.messages import VariableStatus, WorkerStatus

#: Workers, epochs and changes that a status lists, live workers and the newest first, so that it fits into a message.
MOST_LISTED = 1000


def variable_status(variable: Variable) -> VariableStatus:
    """One row of a status."""
    spec, optimizer, is_table = variable.spec, variable.optimizer, variable.initial is not None
    counts, slots = (variable.version, variable.updates), tuple(variable.slot_specs)
    return VariableStatus(spec, *counts, optimizer, slots, variable.nbytes, variable.part, is_table)


def worker_status(member: Member, epoch: int, now: float, waiting_for: str, chief: bool) -> WorkerStatus:
    """One row of a status; `epoch` is that of its last block, or 0."""
    lease_left = max(0.0, member.expires - now) if member.state == "live" else 0.0
    life = member.name, member.incarnation, member.number, member.state
    training = member.steps, member.staleness, member.staleness_sum, member.loss
    return WorkerStatus(
        *life, *training, epoch, lease_left, member.dropped, waiting_for, member.tensor_transport, chief
    )
