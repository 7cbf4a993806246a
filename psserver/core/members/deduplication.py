"""Deduplication: for each worker the last sequence number that was settled, and the answer it got.

A worker has one push, assign or tune open at a time, so one entry a worker is enough. The answers kept here hold no
arrays: a retry gets fresh values. A number may also be settled without an answer: its message was given up by the
worker, or others went on without it; when it comes after all, it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.errors import OutOfOrder
from pswire.messages import Assigned, Pushed, Sender, Tuned


@dataclass(frozen=True, slots=True)
class _Entry:
    incarnation: int
    sequence: int
    answer: Pushed | Assigned | Tuned | None


class DeduplicationTable:
    """The last settled message of each worker."""

    def __init__(self) -> None:
        self._last: dict[str, _Entry] = {}

    def reached(self, sender: Sender) -> int:
        """The last sequence number of this incarnation that was settled; 0 if none was."""
        last = self._last.get(sender.worker)
        return 0 if last is None or last.incarnation != sender.incarnation else last.sequence

    def answered(self, sender: Sender, sequence: int) -> Pushed | Assigned | Tuned | None:
        """The answer that this message got before, or None if it is new or was settled without one.

        Raises:
            OutOfOrder: a later message of the worker was settled since.
        """
        last = self._last.get(sender.worker)
        if last is None or last.incarnation != sender.incarnation or sequence > last.sequence:
            return None
        if sequence < last.sequence:
            raise OutOfOrder(
                f"message {sequence} of worker {sender.worker!r} comes after its message {last.sequence} was carried "
                "out: it is too late, and changes nothing"
            )
        return last.answer

    def record(self, sender: Sender, sequence: int, answer: Pushed | Assigned | Tuned) -> None:
        """Keeps the answer, without values, in place of the worker's last."""
        self._last[sender.worker] = _Entry(sender.incarnation, sequence, answer)

    def settle(self, sender: Sender, sequence: int) -> None:
        """Nothing of this sender up to `sequence` is carried out any more, if it was not yet."""
        if sequence > self.reached(sender):
            self._last[sender.worker] = _Entry(sender.incarnation, sequence, None)
