"""Recovery after shards have lost acknowledged state: all shards go back to a cut that each of them has.

Every worker that learns of it does the same, at the same time. They agree because shard 0 is told first, and all others
get the answer of shard 0.
"""

import logging
import time
from collections.abc import Sequence

from pswire import messages as ms
from pswire.errors import InvalidMessage, ParamServerError, StateLost, WrongShard
from psworker.client import retrying_calls
from psworker.client.registration import Registration
from psworker.client.retrying_calls import RetryingCalls

logger = logging.getLogger(__name__)


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


class WentBack(ParamServerError):
    """All shards went back to a cut during a call that cannot be repeated after that. Raised by the client alone."""


class Recovery:
    """Recovery of one worker: its part of going back, its membership, and the variables that the cut does not have.

    `count` is how often that happened, and `reason` why it did the last time.
    """

    def __init__(self, calls: RetryingCalls, registration: Registration, timeout: float) -> None:
        self.count, self.reason = 0, ""
        self._calls, self._registration, self._timeout = calls, registration, timeout

    def go_back(self, error: StateLost, settled: int, consequence: str) -> list[ms.Joined]:
        """Brings all shards to a common cut, joins them again and registers what it lacks; the answers to the joins.

        The worker's messages up to number `settled` are abandoned; `consequence` says so, for the log. It begins again
        if a shard is lost in between, for `timeout` seconds; each call is tried for as long while a shard cannot be
        reached.

        Raises `WrongShard` if the shards have no cut in common, or refuse to go back.
        """
        calls, began, pause = self._calls, time.monotonic(), retrying_calls.INITIAL_BACKOFF
        while True:
            try:
                cut, answers = self._agree(settled)
                self._registration.register_again()
            except StateLost:
                if time.monotonic() - began >= self._timeout or calls.closing.is_set():
                    raise
            else:
                break
            calls.closing.wait(pause)
            pause = min(2 * pause, retrying_calls.MAX_BACKOFF)
        self.count += 1
        self.reason = f"all shards went back to checkpoint {cut}: {error}"
        logger.warning("%s: %s; %s", calls.sender.worker, self.reason, consequence)
        return answers

    def _agree(self, settled: int) -> tuple[int, list[ms.Joined]]:
        """The cut that all shards follow now, and their answers to the joins."""
        calls = self._calls
        answers = [calls.call(shard, ms.Restore(), ms.Restored) for shard in range(calls.transport.shards)]
        timeline, cut = common_cut(answers)
        for shard in range(calls.transport.shards):
            try:
                answer = calls.call(shard, ms.Restore(timeline, cut), ms.Restored)
            except InvalidMessage as error:
                raise StateLost(f"shard {shard} could not go back to checkpoint {cut}: {error}") from None
            if not shard:  # another worker may have told it something else
                timeline, cut = answer.timeline, answer.cut
        return cut, calls.join_again(timeline, cut, settled)
