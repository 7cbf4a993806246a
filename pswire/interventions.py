"""Changes to a running job from outside: stop it, put workers into quarantine, scale learning rates, go back.

For operators and for the guard. Each call asks the shards one after the other, shard 0 first, so that a failure in
between leaves a job whose workers see the change or will be told of it by shard 0.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from pswire.channel import open_channel
from pswire.errors import StorageError
from pswire.messages import Answer, Intervene, Intervened, Request, Restore, Restored
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.unary_call import call
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

#: Seconds for one call: a shard that goes back reads a checkpoint.
TIMEOUT = 60.0


#: Characters of a reason.
MAX_REASON = 500


def _line(reason: str) -> str:
    """A reason as it is sent: one line of limited length."""
    return "".join([one if one.isprintable() else " " for one in reason[:MAX_REASON]])


class Interventions(ExitStack):
    """Connections to all servers of a job, in the order of their shards, in the name of `by`. A context manager.

    Methods raise `Unavailable` if a server does not answer, `PermissionDenied` without the role of an admin, and the
    servers' errors. They may not be repeated blindly: what the shards before the one that failed have done is done.
    """

    def __init__(self, addresses: Sequence[str], by: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__()
        self._by, self._addresses, self._credentials = by, addresses, credentials
        channels = [self.enter_context(open_channel(address, credentials)) for address in addresses]
        self._stubs = [ParameterServerStub(channel) for channel in channels]  # type: ignore[no-untyped-call]

    def stop(self, reason: str) -> None:
        """End the training of all workers, as `Session.stop_all` does."""
        self._intervene(Intervene(self._by, _line(reason), stop=True), self._addresses[:1])

    def quarantine(self, worker: str, reason: str) -> list[str]:
        """Have pushes of a worker dropped from now on; all workers of which they are, by now."""
        return self._intervene(Intervene(self._by, _line(reason), quarantine=(worker,)), self._addresses)

    def release(self, worker: str, reason: str) -> list[str]:
        """Have pushes of a worker applied again; the workers that remain in quarantine."""
        return self._intervene(Intervene(self._by, _line(reason), release=(worker,)), self._addresses)

    def scale_learning_rates(self, factor: float, reason: str) -> None:
        """Multiply the learning rates of all variables."""
        self._intervene(Intervene(self._by, _line(reason), scale_learning_rate=factor), self._addresses)

    def roll_back(self, step: int) -> int:
        """Bring all shards back to the newest checkpoint that all have from a global step up to this one; its number.

        Workers join again by themselves, and go on from there. Raises `StorageError` if there is no such checkpoint,
        before anything is done.
        """
        answers = [self._restored(number, Restore()) for number in range(len(self._addresses))]
        common = set(answers[0].cuts).intersection(*[one.cuts for one in answers])
        usable = [cut for cut in common if 0 < cut <= step]  # the first one, 0, has no variables
        if not usable:
            have = ", ".join([f"{cut:,}" for cut in sorted(common) if cut]) or "none"
            raise StorageError(
                f"there is no checkpoint from before update {step:,} to go back to; the shards have in common: {have}"
            )
        timeline, cut = max([one.timeline for one in answers]) + 1, max(usable)
        for number in range(len(self._addresses)):
            self._restored(number, Restore(timeline, cut))
        return cut

    def _restored(self, number: int, message: Restore) -> Restored:
        answer = self._call(number, message)
        assert isinstance(answer, Restored)
        return answer

    def _intervene(self, message: Intervene, addresses: Sequence[str]) -> list[str]:
        quarantined: list[str] = []
        for number in range(len(addresses)):
            answer = self._call(number, message)
            assert isinstance(answer, Intervened)
            quarantined += [name for name in answer.quarantined if name not in quarantined]
        return quarantined

    def _call(self, number: int, message: Request) -> Answer | Request:
        """The answer of a shard."""
        method = getattr(self._stubs[number], type(message).__name__)
        return call(self._addresses[number], method, message, TIMEOUT, self._credentials)
