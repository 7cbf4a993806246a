"""Changes to a running job from outside: stop it, put workers into quarantine, scale learning rates, go back.

For operators and for the guard. Each call asks the shards one after the other, shard 0 first, so that a failure in
between leaves a job whose workers see the change or will be told of it by shard 0.
"""

from collections.abc import Sequence

from pswire.errors import StorageError
from pswire.messages import Intervene, Intervened, Restore, Restored
from pswire.network.shard_stubs import ShardStubs
from pswire.security.credentials import NO_CREDENTIALS, Credentials

#: Seconds for one call: a shard that goes back reads a checkpoint.
TIMEOUT = 60.0


#: Characters of a reason.
MAX_REASON = 500


def _line(reason: str) -> str:
    """A reason as it is sent: one line of limited length."""
    return "".join([one if one.isprintable() else " " for one in reason[:MAX_REASON]])


class InterventionCalls(ShardStubs):
    """Connections to all servers of a job, in the order of their shards, in the name of `by`. A context manager.

    Methods raise `Unavailable` if a server does not answer, `PermissionDenied` without the role of an admin, and the
    servers' errors. They may not be repeated blindly: what the shards before the one that failed have done is done.
    """

    def __init__(self, servers: Sequence[str], by: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__(servers, credentials)
        self._by = by

    def stop(self, reason: str) -> None:
        """End the training of all workers, as `Session.stop_all` does."""
        self._intervene(Intervene(by=self._by, reason=_line(reason), stop=True), 1)

    def quarantine(self, worker: str, reason: str) -> list[str]:
        """Have pushes of a worker dropped from now on; all workers of which they are, by now."""
        return self._intervene(Intervene(by=self._by, reason=_line(reason), quarantine=(worker,)))

    def release(self, worker: str, reason: str) -> list[str]:
        """Have pushes of a worker applied again; the workers that remain in quarantine."""
        return self._intervene(Intervene(by=self._by, reason=_line(reason), release=(worker,)))

    def scale_learning_rates(self, factor: float, reason: str) -> None:
        """Multiply the learning rates of all variables."""
        self._intervene(Intervene(by=self._by, reason=_line(reason), scale_learning_rate=factor))

    def roll_back(self, step: int) -> int:
        """Bring all shards back to the newest checkpoint that all have from a global step up to this one; its number.

        Workers join again by themselves, and go on from there. Raises `StorageError` if there is no such checkpoint,
        before anything is done.
        """
        shards = range(len(self.addresses.find(TIMEOUT)))
        answers = [self.call(shard, Restore(), Restored, TIMEOUT) for shard in shards]
        common = set(answers[0].cuts).intersection(*[one.cuts for one in answers])
        usable = [cut for cut in common if 0 < cut <= step]  # the first one, 0, has no variables
        if not usable:
            have = ", ".join([f"{cut:,}" for cut in sorted(common) if cut]) or "none"
            raise StorageError(
                f"there is no checkpoint from before update {step:,} to go back to; the shards have in common: {have}"
            )
        timeline, cut = max([one.timeline for one in answers]) + 1, max(usable)
        for shard in shards:
            self.call(shard, Restore(timeline, cut), Restored, TIMEOUT)
        return cut

    def _intervene(self, message: Intervene, shards: int | None = None) -> list[str]:
        """Ask the first `shards`, or all; the workers in quarantine."""
        quarantined: list[str] = []
        for shard in range(len(self.addresses.find(TIMEOUT)))[:shards]:
            answer = self.call(shard, message, Intervened, TIMEOUT)
            quarantined += [name for name in answer.quarantined if name not in quarantined]
        return quarantined
