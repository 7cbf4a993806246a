"""Cuts that a worker begins: all values of one moment of the job, kept in memory for it, or written by the servers."""

from collections.abc import Callable
from typing import TypeVar

from pswire import messages as ms
from pswire.errors import ConfigurationError, GenerationLost, ParamServerError, TimedOut
from psworker.client.retry import Calls, Wait

PAUSES = 0.001, 0.1  # seconds between two questions whether a cut is complete: the first, doubled up to the last

T = TypeVar("T")


class JobCuts:
    """The cuts of one worker, one at a time.

    `generation` is the number of the cut of the open generation, from `hold` to `release`; 0: none. A shard that is
    started again no longer has its part of a cut: another one begins.
    """

    def __init__(self, calls: Calls) -> None:
        self.generation = 0
        self._calls = calls

    def hold(self, timeout: float, read: Callable[[], T]) -> T:
        """Begins a cut, waits until it is complete on all shards, and reads its values; the result of `read`.

        While another cut is in progress it waits for that one. Raises `TimedOut` after `timeout` seconds, with the
        workers that have not shown the number, or the reason why none could begin. If it returns, call `release`.
        """
        wait = _Wait(self._calls, timeout)
        while True:
            self.generation = self._complete(wait)
            try:
                return read()
            except GenerationLost as error:
                self.release()
                wait.reason = str(error)
            except BaseException:
                self.release()
                raise
            wait.again()

    def release(self) -> None:
        """Ends the generation, if one is open."""
        number, self.generation = self.generation, 0
        if number:
            self._release(number)

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
                self._release(number)
            wait.again()

    def _release(self, number: int) -> None:
        """Lets the shards drop the cut; raises nothing. A heartbeat repeats it if a shard cannot be reached."""
        calls, member = self._calls, self._calls.membership
        for shard in range(calls.transport.shards):
            message = ms.Cut(number, member.sender, release=True)
            if calls.call_best_effort(shard, message, f"could not release cut {number}") is None:
                member.unreleased[shard] = number

    def _complete(self, wait: "_Wait") -> int:
        """The number of a new cut that is complete on all shards, and held there. To be released."""
        calls, member = self._calls, self._calls.membership
        while True:
            if number := self._held_everywhere(wait):
                member.cuts.note(number)
                try:
                    for shard in range(calls.transport.shards):  # this worker need not be waited for
                        calls.call(shard, member.renewal(shard, 0), ms.Renewed)
                    if self._wait_for(number, wait, _not_complete):
                        return number
                except BaseException:
                    self._release(number)
                    raise
                self._release(number)
            wait.again()

    def _held_everywhere(self, wait: "_Wait") -> int:
        """The number of a new cut that all shards hold for this worker; 0 if none could begin on one of them.

        As in a change, no heartbeat shows the number meanwhile: a shard could complete and drop the cut before it holds
        it. The cut begins without a holder, because a retry, after an answer that did not arrive, begins another.
        """
        calls, member = self._calls, self._calls.membership
        with member.cuts:
            report = calls.call(0, ms.Cut(), ms.CutReport)
            number, shard = report.number, 0
            for shard in range(calls.transport.shards if number else 0):
                report = calls.call(shard, ms.Cut(number, member.sender), ms.CutReport)
                if not report.held:
                    break
            else:
                if number:
                    return number
        wait.reason = f"shard {shard}: {report.waiting_for}"
        if number:
            self._release(number)
        return 0

    def _wait_for(self, number: int, wait: "_Wait", problem: Callable[[ms.CutReport], str]) -> bool:
        """Asks the shards about the cut until none has a problem; False if it is gone on one of them."""
        calls, member = self._calls, self._calls.membership
        wait.restart()
        for shard in range(calls.transport.shards):
            while True:
                report = calls.call(shard, ms.Cut(number, member.sender), ms.CutReport)
                reason = problem(report)
                if not reason:
                    break
                wait.reason = f"cut {number}: shard {shard} {reason}"
                if report.gone:
                    return False
                wait.again()
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


class _Wait(Wait):
    """The pauses until a cut has begun, is complete or is written; `reason` explains the last one."""

    def __init__(self, calls: Calls, timeout: float) -> None:
        super().__init__(calls.closing, timeout, f"{calls.membership.sender.worker} waits", pauses=PAUSES)
        self.reason = ""

    def again(self) -> None:
        """Pauses; raises `TimedOut` at the end."""
        if self.is_over():
            raise TimedOut(f"gave up after {self.waited:.1f} s: {self.reason}")
        self.pause(self.reason)
