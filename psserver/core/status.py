"""Rows of a shard's status: its variables and workers. May import those two."""

from __future__ import annotations

from psserver.core.members.member import Member
from psserver.core.variables.variable import Variable
from pswire.messages import VariableStatus, WorkerStatus

#: Workers, epochs and changes that a status lists, live workers and the newest first, so that it fits into a message.
MOST_LISTED = 1000


def variable_status(variable: Variable) -> VariableStatus:
    """One row of a status."""
    return VariableStatus(
        variable.spec,
        variable.version,
        variable.updates,
        variable.optimizer,
        tuple(variable.slot_specs),
        variable.nbytes,
        variable.part,
        variable.initial is not None,
    )


def worker_status(member: Member, epoch: int, now: float, waiting_for: str, chief: bool) -> WorkerStatus:
    """One row of a status; `epoch` is that of its last block, or 0."""
    return WorkerStatus(
        member.name,
        member.incarnation,
        member.number,
        member.state,
        member.steps,
        member.staleness,
        member.staleness_sum,
        member.loss,
        epoch,
        max(0.0, member.expires - now) if member.state == "live" else 0.0,
        member.dropped,
        waiting_for,
        member.tensor_transport,
        chief,
    )
