"""Rollback after shards have lost acknowledged state: all shards go back to a cut that each of them has.

Every worker that learns of the loss does the same, at the same time. They agree on the cut because shard 0 decides
first, and its answer is sent to all other shards.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pswire import messages as ms
from pswire.errors import GenerationLost, InvalidMessage, ParamServerError, StateLost, WrongShard
from psworker.client.job_cuts import JobCuts
from psworker.client.joining import join_again
from psworker.client.registration import ShardedRegistration
from psworker.client.retry import Calls, Wait

logger = logging.getLogger(__name__)

#: Rollbacks allowed within one call.
MAX_ROLLBACKS = 10

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="_Owner")


def common_cut(answers: Sequence[ms.Restored]) -> tuple[int, int]:
    """The timeline that all shards can follow, and its cut, from the answers of all of them, in order.

    That is the newest timeline that a shard follows, if no shard has lost state since it began, and the others have its
    cut. Otherwise it is a new one, which begins with the newest cut that all have.

    Raises `WrongShard` if they have none in common.
    """
    timeline = max([one.timeline for one in answers])
    following = [one for one in answers if one.timeline == timeline]
    cut = following[0].cut
    in_force = all(one.cut == cut and not one.lost for one in following)
    if in_force and all(one.timeline == timeline or cut in one.cuts for one in answers):
        return timeline, cut
    common = set(answers[0].cuts).intersection(*[one.cuts for one in answers])
    if not common:
        have = [f"shard {shard} has {', '.join(map(str, one.cuts)) or 'none'}" for shard, one in enumerate(answers)]
        raise WrongShard(
            f"shards have lost what came after their checkpoints, and have no checkpoint in common: {'; '.join(have)}. "
            "This job cannot go on: start all servers again, from one checkpoint that all have or from none"
        )
    return timeline + 1, max(common)


class _Owner(Protocol):
    """An object with `redone` methods."""

    rollback: "Rollback"


def redone(consequence: str) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """A decorator of a method whose calls are made again after a rollback during them (`Rollback.redo`)."""

    def decorate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return self.rollback.redo(lambda: method(self, *args, **kwargs), consequence)

        return call

    return decorate


class RolledBack(ParamServerError):
    """All shards went back to a cut during a call that cannot be redone. Raised by the client alone."""


class Rollback:
    """Rollbacks of one worker's job, and what its calls do then: they are redone, or raise `RolledBack`.

    Attributes:
        count: the number of rollbacks.
        reason: why the last one happened.
        on_rollback: called after each, to pull values; after the end of the generation if one is open.
        changing: held during each rollback, and during a change that another thread may make: a worker has one open.
    """

    def __init__(self, calls: Calls, registration: ShardedRegistration, cuts: JobCuts, timeout: float) -> None:
        self.count, self.reason = 0, ""
        self.on_rollback: Callable[[], None] = lambda: None
        self.changing = threading.RLock()
        self._calls, self._registration, self._cuts, self._timeout = calls, registration, cuts, timeout
        self._notified = 0  # `count` at the last call of `on_rollback`

    def redo(self, attempt: Callable[[], T], consequence: str) -> T:
        """The result of an attempt, which is made again if all shards go back to a cut during it."""
        for _ in range(MAX_ROLLBACKS):
            count = self.count
            try:
                return attempt()
            except StateLost as error:
                self._go_back_since(count, error, consequence)
        return attempt()

    @contextmanager
    def raised(self, consequence: str) -> Iterator[None]:
        """Raises `RolledBack` if all shards go back to a cut during calls that are not redone."""
        count = self.count
        try:
            yield
        except StateLost as error:
            self._go_back_since(count, error, consequence)
            raise RolledBack(self.reason) from None

    def _go_back_since(self, count: int, error: StateLost, consequence: str) -> None:
        """Goes back to a cut, unless another thread has done so since the count was this."""
        with self.changing:
            if self.count == count:
                self.go_back(error, consequence)

    def go_back(self, error: StateLost, consequence: str) -> list[ms.Joined]:
        """Brings all shards to a common cut, joins them again and registers what it lacks; the answers to the joins.

        The worker's earlier messages are abandoned; `consequence` is for the log. It begins again if a shard is lost
        meanwhile, for `timeout` seconds; each call is tried for as long while a shard cannot be reached.

        Raises `WrongShard` if the shards have no cut in common, or refuse to go back; `GenerationLost` if one is open.
        """
        wait = Wait(self._calls.closing, self._timeout)
        while True:
            try:
                cut, answers = self._agree()
                self._registration.register_again()
                break
            except StateLost as lost:
                if wait.is_over():
                    raise
                wait.pause(lost)
        self.count += 1
        self.reason = f"all shards went back to checkpoint {cut}: {error}"
        logger.warning("%s: %s; %s", self._calls.membership.sender.worker, self.reason, consequence)
        if self._cuts.generation:
            raise GenerationLost(
                f"the values of generation {self._cuts.generation} are gone, repeat the block of session.generation(): "
                f"{self.reason}"
            )
        self.notify()
        return answers

    def notify(self) -> None:
        """Calls `on_rollback` if there was a rollback since its last call."""
        if self._notified != self.count:
            self._notified = self.count
            self.on_rollback()

    def _agree(self) -> tuple[int, list[ms.Joined]]:
        """The cut that all shards follow now, and their answers to the joins."""
        calls = self._calls
        answers = [calls.call(shard, ms.Restore(), ms.Restored) for shard in range(calls.transport.shards)]
        timeline, cut = common_cut(answers)
        for shard in range(calls.transport.shards):
            try:
                answer = calls.call(shard, ms.Restore(timeline, cut), ms.Restored)
            except InvalidMessage as error:
                raise StateLost(f"shard {shard} could not go back to checkpoint {cut}: {error}") from None
            if not shard:  # another worker may have chosen another one
                timeline, cut = answer.timeline, answer.cut
        return cut, join_again(calls, timeline, cut)
