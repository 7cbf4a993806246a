"""The state of each worker on a shard, and training progress: the clocks of those for whose next push others may wait.

A member is in training from the first push of an incarnation until it is idle, leaves or is lost; its clock counts its
settled pushes. It has finished if it was training, stopped without failing and has not pushed since, or if the data
queue had no examples for it. Policies decide which workers wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pswire.messages import Assigned, LastPush, Pushed, Tuned


@dataclass(slots=True)
class Member:
    """A worker that is `live`, has `left` or was `lost`, in its latest incarnation.

    Attributes:
        number: 0 for the first worker that ever joined; kept over all incarnations.
        process_nonce: the random number of the worker's process; 0: none.
        steps, dropped: its pushes in this incarnation that were applied, and that the policy dropped.
        staleness, staleness_sum, loss: of its last applied push; of all of them; the last one that it sent.
        training, finished, out_of_data, clock: training progress; `clock` counts steps and dropped.
        settled, answer: sequence number of its last settled push, assign or tune, 0 before the first, and the answer,
            without values; None: it was abandoned, or others went on without it.
        half_pushes, last_push: see `psserver.core.members.deduplication.HalfPushes`.
    """

    name: str
    number: int
    incarnation: int = 0
    process_nonce: int = 0
    state: str = "live"
    expires: float = 0.0
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    loss: float | None = None
    training: bool = False
    finished: bool = False
    out_of_data: bool = False
    clock: int = 0
    dropped: int = 0
    tensor_transport: str = ""
    settled: int = 0
    answer: Pushed | Assigned | Tuned | None = None
    half_pushes: int = 0
    last_push: LastPush | None = None


class Progress:
    """Members in `training`, by name, in the order in which they began, and those that have finished."""

    def __init__(self) -> None:
        self.training: dict[str, Member] = {}
        self._finished: dict[str, Member] = {}
        self._last_clock = 0  # the least clock when the last member stopped

    @property
    def least_clock(self) -> int:
        """The clock of the slowest member in training, or its last value if there is none; never decreases."""
        return min([member.clock for member in self.training.values()], default=self._last_clock)

    @property
    def ending(self) -> bool:
        """Whether some member has finished: then fewer workers may push from now on."""
        return bool(self._finished)

    def start(self, member: Member) -> None:
        """Begin with a push, not behind the slowest; if it trained before in this incarnation, it keeps its lead."""
        member.clock = max(member.clock, self.least_clock)
        member.training, member.finished, member.out_of_data = True, False, False
        self.training[member.name] = member
        self._finished.pop(member.name, None)

    def stop(self, member: Member) -> None:
        """Stop waiting for pushes of a member."""
        if member.training:
            self._last_clock = self.least_clock
            member.training = False
            del self.training[member.name]

    def finish(self, member: Member, *, out_of_data: bool = False) -> None:
        """Stop without failing. A member that never trained has not finished, unless there was no data for it."""
        if member.training or member.clock or out_of_data:
            member.finished = True
            member.out_of_data |= out_of_data
            self._finished[member.name] = member
        self.stop(member)

    def resume(self, names: Iterable[str]) -> None:
        """Note that these members have not finished: there is data for them, or another job."""
        for name in names:
            member = self._finished.pop(name, None)
            if member is not None:
                member.finished = member.out_of_data = False
