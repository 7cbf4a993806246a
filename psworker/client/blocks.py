"""Blocks of examples: one worker takes them from the data queues of its job, and gives back what it does not train."""

from pswire import messages as ms
from psworker.client.heartbeat import Heartbeat
from psworker.client.retry import Calls
from psworker.client.rollback import Rollback, redone


class Blocks:
    """The blocks that one worker has, one of each data queue at most; a rollback gives them back."""

    def __init__(self, calls: Calls, rollback: Rollback, heartbeat: Heartbeat) -> None:
        self._calls, self.rollback, self._heartbeat = calls, rollback, heartbeat
        self._taken: dict[str, int] = {}  # by data queue, the rollbacks when a block was taken

    @redone("it takes another block of examples")
    def take(self, queue: ms.QueueSpec, finished: ms.Finished | None, reports: int = 0) -> ms.Taken:
        """The next block of a data queue, or after seconds the reason for waiting; epoch reports from `reports` on.

        After a rollback, the block that was taken before was given back, and `finished` is ignored.
        """
        self._heartbeat.idle_since = 0
        message = ms.Take(
            sender=self._calls.membership.sender,
            queue=queue,
            finished=finished if self.has(queue.name) else None,  # a retry would finish the block that comes again
            reports_received=reports,
            timeline=self._calls.membership.timeline,
        )
        taken = self._calls.call(0, message, ms.Taken)
        self._taken[queue.name] = self.rollback.count
        return taken

    @property
    def queues_read(self) -> int:
        """The number of data queues that this worker has read from: how far its program is, the same in all workers."""
        return len(self._taken)

    def has(self, queue: str) -> bool:
        """True if the last `take` is still valid: after a rollback another worker may have the block."""
        return self._taken.get(queue) == self.rollback.count

    def give_back(self, queue: ms.QueueSpec) -> None:
        """Gives back the block that this worker holds, so that it need not leave first; raises nothing."""
        if not self._calls.closing.is_set():  # it has not left
            message = ms.Take(sender=self._calls.membership.sender, queue=queue, give_back=True)
            self._calls.call_best_effort(0, message, f"could not give back the block of {queue.name}")
