"""Deduplication: each push, assign, tune and compute of a worker is applied once; half-applied pushes are counted.

A worker has one of them open at a time, so the table has one entry per member: the sequence number of its last settled
message, and the answer (`Member.settled`, `Member.answer`).
"""

from collections import deque
from collections.abc import Iterable, Mapping

from psserver.core.gaps import check_count
from psserver.core.members.member import Member
from pswire.errors import InvalidMessage, OutOfOrder
from pswire.messages import ANSWERS, Assign, Compute, LastPush, Push, Tune

#: Earlier incarnations whose last push is remembered.
MAX_EARLIER_INCARNATIONS = 1000


def is_repeated(member: Member, message: Push | Assign | Tune | Compute) -> bool:
    """Whether this message of a live member is its last settled one; False if it is new.

    Raises `OutOfOrder` if a later message of the worker was settled since, or this one was abandoned, unless it is a
    push, whose part is dropped; `InvalidMessage` if the number was used for another kind of message, or is far above.
    """
    sequence = message.sequence
    if sequence > member.settled:
        check_count(message, "sequence number", sequence, member.settled)
        return False
    if sequence < member.settled:
        raise OutOfOrder(
            f"message {sequence} of worker {member.name!r} came after its message {member.settled} was settled: "
            "it arrived too late and changes nothing"
        )
    if member.answer is None and not isinstance(message, Push):
        raise OutOfOrder(f"message {sequence} of worker {member.name!r} was abandoned: it is too late")
    if member.answer is not None and not isinstance(member.answer, ANSWERS[type(message)]):
        raise InvalidMessage(f"sequence number {sequence} was used for another kind of message before")
    return True


class HalfPushes:
    """Half-applied pushes of `members`, of which some shards have applied their part and others have not.

    Workers report those that they abandoned, and a shard counts parts that arrived too late. Those left by the death of
    a worker are found by comparing the last pushes of all shards (`psserver status`).
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._counted = 0  # reports of earlier incarnations, and late parts
        self._last_pushes: deque[LastPush] = deque(maxlen=MAX_EARLIER_INCARNATIONS)  # of earlier incarnations

    @property
    def count(self) -> int:
        """The number of half-applied pushes known to this shard."""
        return self._counted + sum(member.half_pushes for member in self._members.values())

    def last_pushes(self, most: int) -> tuple[LastPush, ...]:
        """The last push of each incarnation that other shards have a part of; at most the newest 1,000."""
        now = [member.last_push for member in self._members.values() if member.last_push is not None]
        return tuple([*self._last_pushes, *now][-most:])

    def state(self) -> tuple[int, tuple[LastPush, ...]]:
        """The counts of earlier incarnations, and their last pushes."""
        return self._counted, tuple(self._last_pushes)

    def restore(self, counted: int, last_pushes: Iterable[LastPush]) -> None:
        """Continue from a `state`."""
        self._counted = counted
        self._last_pushes.extend(last_pushes)

    def settle(self, member: Member, sequence: int) -> bool:
        """Note that the worker knows the outcome of its messages up to this one; False if that was known."""
        new = sequence > (member.last_push.sequence if member.last_push else 0)
        if new:
            member.last_push = LastPush(
                worker=member.name, incarnation=member.incarnation, sequence=sequence, shards=()
            )
        return new

    def late_part(self, member: Member, sequence: int) -> None:
        """Count the part of a push that arrived too late to be applied here."""
        self._counted += self.settle(member, sequence)

    def end_incarnation(self, member: Member) -> None:
        """Keep the counts of a member whose next incarnation begins."""
        self._counted += member.half_pushes
        if member.last_push is not None:
            self._last_pushes.append(member.last_push)
