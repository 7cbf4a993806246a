"""Decisions of shard 0 in the messages to other shards: the changes before a message, and the pushes of an update."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from psserver.core.members.job_invariants import JobInvariants
from psserver.core.options import ShardOptions
from psserver.core.policies.update_order import UpdateOrder
from pswire import messages as ms
from pswire.errors import InvalidMessage
from pswire.specs.consistency import Synchronous


class RemoteDecisions:
    """Checks decisions, and selects what of them concerns this shard; `order` is there if it orders changes."""

    def __init__(self, options: ShardOptions, invariants: JobInvariants, order: UpdateOrder | None) -> None:
        self._options, self._invariants, self._order = options, invariants, order

    def check_remote(self, weights: Iterable[ms.RemoteWeights], names: Sequence[str]) -> None:
        """Raise `InvalidMessage` unless these weights and names on other shards can be."""
        if self._order is None:
            raise InvalidMessage(f"{names[0]!r}: this shard does not order changes on other shards")
        self._invariants.check_placed(names)
        self._order.check(weights)

    def check_group(self, push: ms.Push, group: ms.UpdateGroup) -> None:
        """Raise `InvalidMessage` for a group that shard 0 cannot have made of this push and others."""
        if not self._options.shard:
            raise InvalidMessage("shard 0 decides which pushes make an update: a push to it has no group")
        consistency = self._options.consistency
        may_have = isinstance(consistency, Synchronous) and group.pushes <= consistency.workers
        if group.pushes > len(group.members) and not may_have:
            raise InvalidMessage(f"an update of {group.pushes} pushes, with --consistency {consistency}")
        if not any((one.sender, one.sequence) == (push.sender, push.sequence) for one in self._members_here(group)):
            raise InvalidMessage(
                f"a push of worker {push.sender.worker!r} for update {group.number} of shard 0, which it is not in"
            )

    def here(self, message: ms.Push | ms.Pull | ms.Assign) -> ms.Push | ms.Pull | ms.Assign:
        """The message to this shard, not 0, without the changes that have no part here or are of the same worker."""
        changed: dict[str, Any] = {}
        if message.after:
            others = [one for one in message.after if one.sender.worker != message.sender.worker]
            changed["after"] = self._with_parts_here(others)
        if isinstance(message, ms.Push) and (group := message.group) is not None:
            pushes, members = max(group.pushes, len(group.members)), self._members_here(group)
            changed["group"] = ms.UpdateGroup(number=group.number, members=members, pushes=pushes)
        return dataclasses.replace(message, **changed) if changed else message

    def _members_here(self, group: ms.UpdateGroup) -> tuple[ms.ChangeId, ...]:
        """The pushes of a group that have a part on this shard; all of them if the group names no shards."""
        named = [one for one in group.members if one.shards]
        return self._with_parts_here(named or group.members)

    def _with_parts_here(self, changes: Iterable[ms.ChangeId]) -> tuple[ms.ChangeId, ...]:
        """The changes that have a part on this shard; a change without `shards` has one."""
        here = [change for change in changes if not change.shards or self._options.shard in change.shards]
        return tuple([ms.ChangeId(change.sender, change.sequence) for change in here])
