"""Deduplication: the last settled sequence number of each worker, and its answer.

A worker has one push, assign or tune open at a time, so one entry per worker is enough. The answers kept here hold no
arrays: a retry gets fresh values. A number may also be settled without an answer: the worker has abandoned its message,
or others went on without it; if it arrives after all, it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.errors import InvalidMessage, OutOfOrder
from pswire.messages import ANSWERS, Assign, Assigned, Push, Pushed, Sender, Tune, Tuned


@dataclass(frozen=True, slots=True)
class Settled:
    """A settled message; `answer` is None if it was not applied."""

    incarnation: int
    sequence: int
    answer: Pushed | Assigned | Tuned | None


class DeduplicationTable:
    """The last settled message of each worker."""

    def __init__(self) -> None:
        self._last: dict[str, Settled] = {}

    def last(self, sender: Sender) -> int:
        """The last settled sequence number of this incarnation; 0 if there is none."""
        last = self._last.get(sender.worker)
        return 0 if last is None or last.incarnation != sender.incarnation else last.sequence

    def find(self, message: Push | Assign | Tune) -> Settled | None:
        """The entry of this message if it was settled before; None if it is new.

        Raises:
            OutOfOrder: a later message of the worker was settled since, or this one was abandoned. A push that was
                settled without an answer is returned: its part is dropped.
            InvalidMessage: the sequence number was used for another kind of message.
        """
        sender, sequence = message.sender, message.sequence
        last = self._last.get(sender.worker)
        if last is None or last.incarnation != sender.incarnation or sequence > last.sequence:
            return None
        if sequence < last.sequence:
            raise OutOfOrder(
                f"message {sequence} of worker {sender.worker!r} came after its message {last.sequence} was settled: "
                "it arrived too late and changes nothing"
            )
        if last.answer is None and not isinstance(message, Push):
            raise OutOfOrder(f"message {sequence} of worker {sender.worker!r} was abandoned: it is too late")
        if last.answer is not None and not isinstance(last.answer, ANSWERS[type(message)]):
            raise InvalidMessage(f"sequence number {sequence} was used for another kind of message before")
        return last

    def record(self, sender: Sender, sequence: int, answer: Pushed | Assigned | Tuned) -> None:
        """Keep an answer, without values, and replace the worker's last one."""
        self._last[sender.worker] = Settled(sender.incarnation, sequence, answer)

    def settle(self, sender: Sender, sequence: int) -> None:
        """From now on refuse messages of this sender up to `sequence` that have not arrived."""
        if sequence > self.last(sender):
            self._last[sender.worker] = Settled(sender.incarnation, sequence, None)
