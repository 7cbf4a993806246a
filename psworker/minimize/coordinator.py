"""The coordinator of a minimization: a thread of the chief, which sees sums alone.

When the chief dies, the next one's coordinator continues from the last accepted point.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict

from pswire.errors import OutOfOrder
from pswire.messages import AcceptedPoint
from pswire.specs.vectors import VARIABLES, Copy
from psworker.client.rollback import RolledBack
from psworker.minimize.descent import Result, descend
from psworker.minimize.minimizers import Minimizer, Minimum
from psworker.minimize.shard_space import AlreadyOver, JobStopped, ShardSpace
from psworker.minimize.space import POINT

logger = logging.getLogger(__name__)


class Coordinator:
    """Minimizes in a thread, from `start` until the minimization is over, another worker coordinates it, or `stop`.

    Attributes:
        superseded: whether another worker coordinates it by now.

    Args:
        minimizer: the method and its limits.
        space: begins a term as coordinator, in the thread, with whether it is to stop as `stopping`.
        report: is called with each accepted point, in the thread.
    """

    def __init__(
        self,
        minimizer: Minimizer,
        space: Callable[..., ShardSpace],
        report: Callable[[AcceptedPoint], None],
    ) -> None:
        self._minimizer, self._space, self._report = minimizer, space, report
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self.superseded = False
        self._thread = threading.Thread(target=self._run, name="psworker-coordinator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the thread, if there was one."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread after its present call."""
        self._stopping.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._minimize():
                pass
        except OutOfOrder as error:
            logger.warning("superseded as coordinator: %s", error)
            self.superseded = True
        except AlreadyOver:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `check`, in the worker's own thread
            self._error = error

    def _minimize(self) -> bool:
        """Return True if it is over; False if the shards went back, to continue from the state saved there."""
        try:
            space = self._space(stopping=self._stopping.is_set)
            try:
                result = descend(self._minimizer.method(), space, self._minimizer, self._accepted, space.saved)
            except JobStopped as error:
                result = _last(space, f"the job was stopped: {error}")
            if not self._stopping.is_set():
                space.end(asdict(minimum(result)), result.progress)
        except RolledBack as error:
            logger.warning("the minimization goes on from an earlier point: %s", error)
            return False
        return True

    def _accepted(self, progress: AcceptedPoint) -> bool:
        self._report(progress)
        return self._stopping.is_set()


def _last(space: ShardSpace, reason: str) -> Result:
    """The end at the last accepted point, if there is one."""
    if space.point is None:
        return Result(AcceptedPoint(iterations=0, evaluations=0, loss=float("nan"), gradient=float("nan")), reason)
    space.run([Copy(VARIABLES, POINT)])
    return Result(space.point, reason)


def minimum(result: Result) -> Minimum:
    """The result for the program."""
    last = result.progress
    return Minimum(last.loss, last.gradient, last.iterations, last.evaluations, result.reason, result.converged)
