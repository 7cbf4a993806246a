"""Timelines: how often all shards went back to an earlier cut; a shard refuses messages of another timeline.

One that was started again from an older state than it had acknowledged is `lost`: it waits to be told to which cut the
others go back.
"""

from typing import Any, NoReturn

from psserver.core.gaps import check_count
from psserver.core.part import Position
from pswire import messages as ms
from pswire.errors import StateLost

#: By how much a message may raise the number of the timeline: restores count them.
MAX_GAP = 1000

#: Messages that are refused when they come from before the shards went back.
OF_TIMELINES = frozenset([call.request for call in ms.CALLS if call.of_timeline])


class Timeline:
    """The timeline of one shard, by its `number`. `joins` and `messages` of another one are refused by `StateLost`."""

    def __init__(self, shard: int, position: Position) -> None:
        self.number, self.lost = 0, False
        self._shard, self._position = shard, position

    def check_not_lost(self) -> None:
        """Raise `StateLost` if this shard waits to be told where to begin."""
        if self.lost:
            raise StateLost(
                f"shard {self._shard} was started again from checkpoint {self._position.cut}, which is older than what "
                "it had acknowledged"
            )

    def check(self, message: Any) -> None:  # noqa: ANN401
        """Refuse a message (`OF_TIMELINES`) of a member that follows another timeline; 0: it follows none."""
        if message.timeline not in (0, self.number):
            self._refuse(message.sender.worker, message.timeline)

    def check_join(self, message: ms.Join, *, again: bool) -> None:
        """Refuse a worker of another timeline, or one that does not know of the last rollback and has to join again."""
        self.check_not_lost()
        if message.timeline != self.number and (message.timeline or again):  # 0: it joins for the first time
            self._refuse(message.worker, message.timeline)

    def check_restore(self, message: ms.Restore) -> None:
        """Raise `InvalidMessage` for a timeline that is far above this one."""
        check_count(message, "timeline", message.timeline, self.number, MAX_GAP)

    def _refuse(self, worker: str, timeline: int) -> NoReturn:
        raise StateLost(
            f"shard {self._shard} follows timeline {self.number} of the job, and worker {worker!r} timeline {timeline}"
        )
