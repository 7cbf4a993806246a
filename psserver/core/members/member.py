"""The state of each worker on a shard, and training progress: the clocks of workers that others may wait for.

A member is in training from the first push of an incarnation until it is idle, leaves or is lost; its clock counts its
settled pushes. It has finished if it was training, stopped without failing and has not pushed since, or if the data
queue had no examples for it. It is stalled, and not in training, from when it has held others up for too long without a
push to its next one, in whatever incarnation. Policies decide which workers wait.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from psserver.core.members.push_counts import PushCounts
from pswire.messages import Assigned, Computed, Join, LastPush, Pushed, Tuned


@dataclass(slots=True)
class Member:
    """A worker that is `live`, has `left` or was `lost`, with the counts of its latest incarnation."""

    name: str
    number: int  # 0 for the first worker that ever joined; kept over all incarnations
    incarnation: int = 0
    process_nonce: int = 0  # as in `Join`; servers keep a code of it; 0: none
    state: str = "live"
    expires: float = 0.0
    steps: int = 0  # pushes that were applied
    staleness: int = 0  # of the last applied push
    staleness_sum: int = 0  # of all of them
    loss: float | None = None  # the last one that it sent
    training: bool = False
    finished: bool = False
    out_of_data: bool = False
    clock: int = 0  # counts steps and dropped
    dropped: int = 0  # pushes that the policy dropped
    clipped: int = 0  # pushes whose gradients were scaled down
    tensor_transport: str = ""
    settled: int = 0  # sequence number of the last settled push, assign, tune or compute; 0 before the first
    answer: Pushed | Assigned | Tuned | Computed | None = None  # without values; None: abandoned, or others went on
    half_pushes: int = 0  # see `psserver.core.members.deduplication.HalfPushes`
    last_push: LastPush | None = None
    barriers: int = 0  # that it has passed
    name_key: bytes = b""  # as in `Join`
    quarantined: str = ""  # why its pushes are dropped; kept by later incarnations
    counts: PushCounts = field(default_factory=PushCounts)
    must_join: bool = False  # after its shard went back to an older state; its messages are refused until then

    def is_of(self, message: Join) -> bool:
        """Whether a Join is of this incarnation: it joins again, or its message has arrived twice."""
        if message.incarnation:
            return message.incarnation == self.incarnation
        return message.process_nonce != 0 and message.process_nonce == self.process_nonce


class Progress:
    """Members in `training` and `stalled` ones, by name, in the order in which they began; those that have finished."""

    def __init__(self) -> None:
        self.training: dict[str, Member] = {}
        self.stalled: dict[str, Member] = {}
        self._finished: dict[str, Member] = {}
        self.forgotten_finished = False  # whether one that has finished is forgotten since
        self._last_clock = 0  # the least clock when the last member stopped

    @property
    def least_clock(self) -> int:
        """The clock of the slowest member in training, or its last value if there is none; never decreases."""
        return min([member.clock for member in self.training.values()], default=self._last_clock)

    @property
    def ending(self) -> bool:
        """Whether some member has finished: then fewer workers may push from now on."""
        return self.forgotten_finished or bool(self._finished)

    def state(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int]:
        """The names of those in training, finished and stalled, each in order, and the last least clock."""
        return tuple(self.training), tuple(self._finished), tuple(self.stalled), self._last_clock

    def restore(
        self, training: Iterable[Member], finished: Iterable[Member], stalled: Iterable[Member], last_clock: int
    ) -> None:
        """Continue from a `state`."""
        self.training = {member.name: member for member in training}
        self.stalled = {member.name: member for member in stalled}
        self._finished = {member.name: member for member in finished}
        self._last_clock = last_clock
        for member in self.training.values():
            member.training = True
        for member in self._finished.values():
            member.finished = True

    def start(self, member: Member) -> None:
        """Begin with a push, not behind the slowest; if it trained before in this incarnation, it keeps its lead."""
        member.clock = max(member.clock, self.least_clock)
        member.training, member.finished, member.out_of_data = True, False, False
        self.training[member.name] = member
        self._finished.pop(member.name, None)
        self.stalled.pop(member.name, None)

    def stop(self, member: Member) -> None:
        """Stop waiting for pushes of a member."""
        if member.training:
            self._last_clock = self.least_clock
            member.training = False
            del self.training[member.name]

    def stall(self, member: Member) -> None:
        """Stop waiting for pushes of a live member."""
        self.stop(member)
        self.stalled[member.name] = member

    def finish(self, member: Member, *, out_of_data: bool = False) -> None:
        """Stop without failing. A member that never trained has not finished, unless there was no data for it."""
        if member.training or member.clock or out_of_data:
            member.finished = True
            member.out_of_data |= out_of_data
            self._finished[member.name] = member
        self.stalled.pop(member.name, None)
        self.stop(member)

    def forget(self, member: Member) -> None:
        """Remember no more of a member that is gone than that it has finished, if so."""
        self.forgotten_finished |= self._finished.pop(member.name, None) is not None
        self.stalled.pop(member.name, None)

    def finished_among(self, names: Collection[str]) -> list[str]:
        """Those of these workers that have finished, in their order."""
        if not self._finished:
            return []
        return [name for name in names if name in self._finished]

    def resume_all(self) -> None:
        """Note that the job goes on, whoever had finished or stalled."""
        self.resume(list(self._finished))
        self.forgotten_finished = False
        self.stalled.clear()

    def resume(self, names: Iterable[str]) -> None:
        """Note that these members have not finished: there is data for them, or another job."""
        for name in names:
            member = self._finished.pop(name, None)
            if member is not None:
                member.finished = member.out_of_data = False
