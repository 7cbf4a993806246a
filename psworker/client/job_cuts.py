"""Cuts that a worker begins: all values of one moment of the job, kept in memory for it, or written by the servers."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from pswire import messages as ms
from pswire.errors import ConfigurationError, GenerationLost, ParamServerError, TimedOut
from psworker.client.retrying_calls import LOG_EVERY, RetryingCalls

logger = logging.getLogger(__name__)

MIN_PAUSE, MAX_PAUSE = 0.001, 0.1  # seconds between two questions whether a cut is complete; doubled each time

T = TypeVar("T")


class JobCuts:
    """The cuts of one worker, one at a time, held on all shards from `hold` to `release`.

    A shard that is started again has no part of a cut any more: another one begins.
    """

    def __init__(self, calls: RetryingCalls) -> None:
        self._calls = calls

    def hold(self, timeout: float, read: Callable[[int], T]) -> T:
        """Begins a cut, waits until it is complete on all shards, and reads its values; the result of `read(number)`.

        While another cut is in progress it waits for that one. Raises `TimedOut` after `timeout` seconds, with the
        workers that have not shown the number, or the reason why none could begin. If it returns, call `release`.
        """
        wait = _Wait(self._calls, timeout)
        while True:
            number = self._complete(wait)
            try:
                return read(number)
            except GenerationLost as error:
                self.release(number)
                wait.reason = str(error)
            except BaseException:
                self.release(number)
                raise
            wait.pause()

    def write(self, timeout: float) -> int:
        """Begins a cut, and waits until it is written on all shards; its number.

        Raises `ConfigurationError` if a server writes no checkpoints, and `TimedOut` after `timeout` seconds, with the
        reason why it is not written yet, or could not be.
        """
        wait = _Wait(self._calls, timeout)
        while True:
            number = self._complete(wait)
            try:
                if self._wait_for(number, wait, _not_written):
                    return number
            finally:
                self.release(number)
            wait.pause()

    def release(self, number: int) -> None:
        """Lets the shards drop the cut; raises nothing. A heartbeat repeats it if a shard cannot be reached."""
        calls = self._calls
        for shard in range(calls.transport.shards):
            message = ms.Cut(number, calls.sender, release=True)
            if calls.call_best_effort(shard, message, f"could not release cut {number}") is None:
                calls.unreleased[shard] = number

    def _complete(self, wait: "_Wait") -> int:
        """The number of a new cut that is complete on all shards, and held there. To be released."""
        calls = self._calls
        while True:
            if number := self._held_everywhere(wait):
                calls.cuts.note(number)
                try:
                    for shard in range(calls.transport.shards):  # this worker need not be waited for
                        calls.call(shard, calls.renewal(shard, 0), ms.Renewed)
                    if self._wait_for(number, wait, _not_complete):
                        return number
                except BaseException:
                    self.release(number)
                    raise
                self.release(number)
            wait.pause()

    def _held_everywhere(self, wait: "_Wait") -> int:
        """The number of a new cut that all shards hold for this worker; 0 if none could begin on one of them.

        As if in a change, no heartbeat shows the number meanwhile: it could be over on a shard before that holds it.
        It begins without a holder: a request that is repeated, as its answer was lost, begins a cut that nobody holds.
        """
        calls = self._calls
        with calls.cuts:
            report = calls.call(0, ms.Cut(), ms.CutReport)
            number, shard = report.number, 0
            for shard in range(calls.transport.shards if number else 0):
                report = calls.call(shard, ms.Cut(number, calls.sender), ms.CutReport)
                if not report.held:
                    break
            else:
                if number:
                    return number
        wait.reason = f"shard {shard}: {report.waiting_for}"
        if number:
            self.release(number)
        return 0

    def _wait_for(self, number: int, wait: "_Wait", problem: Callable[[ms.CutReport], str]) -> bool:
        """Asks the shards about the cut until none has a problem; False if it is gone on one of them."""
        calls = self._calls
        wait.begin()
        for shard in range(calls.transport.shards):
            while True:
                report = calls.call(shard, ms.Cut(number, calls.sender), ms.CutReport)
                reason = problem(report)
                if not reason:
                    break
                wait.reason = f"cut {number}: shard {shard} {reason}"
                if report.gone:
                    return False
                wait.pause()
        return True


def _not_complete(report: ms.CutReport) -> str:
    if report.gone:
        return "has no part of it"
    return "" if report.complete else f"waits for {report.waiting_for}"


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

    def begin(self) -> None:
        """Begins with short pauses again, of another wait within the same time."""
        self._pause = MIN_PAUSE

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
