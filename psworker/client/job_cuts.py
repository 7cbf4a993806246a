"""Cuts that a worker begins: all values of one moment of the job, kept in memory for it, or written by the servers."""

import logging
import time
from collections.abc import Callable

from pswire import messages as ms
from pswire.errors import ConfigurationError, ParamServerError, TimedOut
from psworker.client.retrying_calls import LOG_EVERY, RetryingCalls

logger = logging.getLogger(__name__)

MIN_PAUSE, MAX_PAUSE = 0.001, 0.1  # seconds between two questions whether a cut is complete; doubled each time


class JobCuts:
    """The cuts of one worker, one at a time, held on all shards from `begin` to `release`."""

    def __init__(self, calls: RetryingCalls) -> None:
        self._calls = calls

    def begin(self, timeout: float) -> int:
        """Begins a cut, and waits until it is complete on all shards; its number. Call `release` with it, always.

        While another cut is in progress it waits for that one. Raises `TimedOut` after `timeout` seconds, with the
        workers that have not shown the number, or the reason why none could begin.
        """
        wait = _Wait(self._calls, timeout)
        while not (number := self._held_everywhere(wait)):
            wait.pause()
        calls = self._calls
        calls.cuts.note(number)
        try:
            for shard in range(calls.transport.shards):  # this worker need not be waited for
                calls.call(shard, calls.renewal(shard, 0), ms.Renewed)
            self._wait_for(number, wait, lambda report: "" if report.complete else f"waits for {report.waiting_for}")
        except BaseException:
            self.release(number)
            raise
        return number

    def write(self, timeout: float) -> int:
        """Begins a cut, and waits until it is written on all shards; its number.

        Raises `ConfigurationError` if a server writes no checkpoints, and `TimedOut` after `timeout` seconds, with the
        reason why it is not written yet, or could not be.
        """
        began = time.monotonic()
        number = self.begin(timeout)
        try:
            wait = _Wait(self._calls, began + timeout - time.monotonic())
            self._wait_for(number, wait, _not_written)
        finally:
            self.release(number)
        return number

    def release(self, number: int) -> None:
        """Lets the shards drop the cut; raises nothing."""
        calls = self._calls
        for shard in range(calls.transport.shards):
            message = ms.Cut(number, calls.sender, release=True)
            calls.call_best_effort(shard, message, f"could not release cut {number}")

    def _held_everywhere(self, wait: "_Wait") -> int:
        """The number of a new cut that all shards hold for this worker; 0 if none could begin on one of them.

        As if in a change, no heartbeat shows the number meanwhile: it could be over on a shard before that holds it.
        """
        calls = self._calls
        with calls.cuts:
            report = calls.call(0, ms.Cut(0, calls.sender), ms.CutReport)
            number, shard = report.number, 0
            while number and report.held and (shard := shard + 1) < calls.transport.shards:
                report = calls.call(shard, ms.Cut(number, calls.sender), ms.CutReport)
        if report.held:
            return number
        wait.reason = f"shard {shard}: {report.waiting_for}"
        if number:
            self.release(number)
        return 0

    def _wait_for(self, number: int, wait: "_Wait", problem: Callable[[ms.CutReport], str]) -> None:
        """Asks the shards about the cut until none has a problem."""
        calls = self._calls
        for shard in range(calls.transport.shards):
            while reason := problem(calls.call(shard, ms.Cut(number, calls.sender), ms.CutReport)):
                wait.reason = f"cut {number}: shard {shard} {reason}"
                wait.pause()


def _not_written(report: ms.CutReport) -> str:
    if report.problem:
        raise ParamServerError(f"checkpoint {report.number} could not be written: {report.problem}")
    if not report.storage:
        raise ConfigurationError(
            "the servers write no checkpoints: start them with --checkpoint-dir, or give ps.session a checkpoint_dir"
        )
    return "" if report.written else "has not written it yet"


class _Wait:
    """Pauses until `timeout` seconds are over; `reason` is that of the last one."""

    def __init__(self, calls: RetryingCalls, timeout: float) -> None:
        self.reason = ""
        self._calls, self._pause, self._began, self._timeout = calls, MIN_PAUSE, time.monotonic(), timeout
        self._logged = 0.0

    def pause(self) -> None:
        """Waits a while, longer each time; raises `TimedOut` at the end."""
        waited = time.monotonic() - self._began
        if waited >= self._timeout or self._calls.closing.is_set():
            raise TimedOut(f"gave up after {waited:.1f} s: {self.reason}")
        if waited - self._logged >= LOG_EVERY:
            logger.warning("%s waits, for %.0f s: %s", self._calls.sender.worker, waited, self.reason)
            self._logged = waited
        self._calls.closing.wait(min(self._pause, self._timeout - waited))
        self._pause = min(2 * self._pause, MAX_PAUSE)
