"""Measurements of a server: plain numbers, counted where things happen, for `/metrics`. Imports nothing of the server.

All of them begin at 0 with the process, as counters of Prometheus do, also when the shard continues from a checkpoint.
They are written without a lock, by the event loop of the server alone; `JournalMeasurements` by whichever
thread has the journal's file. Other threads may read them at any time: one number may then be newer than another.
"""

from bisect import bisect_left
from collections.abc import Sequence

from pswire.errors import FAMILY
from pswire.messages import Answer, Outcome, Pulled, Pushed

#: Upper bounds of durations of calls, in seconds: a small push takes some 0.3 ms, a large one some tenths of a second,
#: and one that is held as long as the other workers need.
CALL_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Of writing a checkpoint.
CHECKPOINT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

#: Of the lateness of the event loop.
LATE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Of the staleness of pushes, in updates.
STALENESSES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)

#: What becomes of a push.
OUTCOMES = ("applied", "dropped", "repeated", "refused")

#: Reasons of waits: the consistency policy holds a push; another call waits for the shard, such as a pull for changes
#: that shard 0 has decided; a worker asks for examples, or is at a barrier; there is no room for more bytes in
#: progress; an answer waits until the journal is as safe as promised.
POLICY, ORDER, DATA, BARRIER, ADMISSION, JOURNAL = REASONS = (
    "policy",
    "order",
    "data",
    "barrier",
    "admission",
    "journal",
)

#: How tensors travel.
TRANSPORTS = ("inline", "stream", "shared_memory")


class Histogram:
    """Counts of values by upper bounds, each inclusive and ascending; the last count is of those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Waits:
    """Waits of one reason: how many there are now, how many have ended, and how many seconds these took together."""

    __slots__ = ("count", "now", "seconds")

    def __init__(self) -> None:
        self.now = self.count = 0
        self.seconds = 0.0

    def begin(self) -> None:
        """Count one that begins."""
        self.now += 1

    def end(self, seconds: float) -> None:
        """Count the end of one."""
        self.now -= 1
        self.count += 1
        self.seconds += seconds


class Bytes:
    """Bytes of tensors in one direction, by tensor transport."""

    __slots__ = ("inline", "shared_memory", "stream")

    def __init__(self) -> None:
        self.inline = self.stream = self.shared_memory = 0

    def add(self, inline: int, stream: int, shared_memory: int) -> None:
        """Count the tensors of one message."""
        self.inline += inline
        self.stream += stream
        self.shared_memory += shared_memory


class JournalMeasurements:
    """Bytes that were appended to a journal, and the seconds of its syncs."""

    __slots__ = ("appended", "sync_seconds")

    def __init__(self) -> None:
        self.appended = 0
        self.sync_seconds = Histogram(CALL_SECONDS)


class Measurements:
    """The measurements of one server.

    Attributes:
        pushes: that were answered, by `OUTCOMES`; `clipped`: applied ones whose gradients were scaled down.
        push_seconds, pull_seconds: from the arrival of the first frame until the answer is sent, of calls that were
            not refused.
        staleness: of applied pushes.
        received, sent: bytes of tensors.
        waits: by `REASONS`.
        refused: calls that ended with an error, by the name of its class; of another kind: "InternalError".
        checkpoint_seconds: of checkpoints that were written; `checkpoint_failures`: that could not be.
        checkpoint_bytes: of the values and slots in the last one that was written.
        late_seconds: how much later than asked for the event loop has come back to its tick.
    """

    __slots__ = (
        "checkpoint_bytes",
        "checkpoint_failures",
        "checkpoint_seconds",
        "clipped",
        "journal",
        "late_seconds",
        "pull_seconds",
        "push_seconds",
        "pushes",
        "received",
        "refused",
        "sent",
        "staleness",
        "waits",
    )

    def __init__(self) -> None:
        self.pushes = dict.fromkeys(OUTCOMES, 0)
        self.clipped = 0
        self.push_seconds, self.pull_seconds = Histogram(CALL_SECONDS), Histogram(CALL_SECONDS)
        self.staleness = Histogram(STALENESSES)
        self.received, self.sent = Bytes(), Bytes()
        self.waits = {reason: Waits() for reason in REASONS}
        self.refused = dict.fromkeys(FAMILY, 0)
        self.checkpoint_seconds = Histogram(CHECKPOINT_SECONDS)
        self.checkpoint_bytes = self.checkpoint_failures = 0
        self.late_seconds = Histogram(LATE_SECONDS)
        self.journal = JournalMeasurements()

    def answered(self, answer: Answer, seconds: float) -> None:
        """Count a call that was answered, if it is a push or a pull."""
        if not isinstance(answer, Pushed):
            if isinstance(answer, Pulled):
                self.pull_seconds.add(seconds)
            return
        self.push_seconds.add(seconds)
        outcome = answer.outcome
        if outcome is Outcome.APPLIED:
            self.pushes["applied"] += 1
            self.staleness.add(answer.staleness)
            if answer.reason:
                self.clipped += 1
        else:
            self.pushes["dropped" if outcome is Outcome.DROPPED else "repeated"] += 1

    def refuse(self, error: Exception) -> None:
        """Count a call that ended with an error."""
        name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in FAMILY), "InternalError")
        self.refused[name] += 1
