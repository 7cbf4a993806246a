"""The newest events of a server, and the last refused call of each worker, for its status. Used in the event loop."""

import logging
import time
from collections import OrderedDict, deque
from dataclasses import replace

from psserver.core.events import Event
from pswire.errors import Unavailable
from pswire.messages import EventReport, StatusReport

#: Events that are kept; all are in the log.
MAX_EVENTS = 256

#: Workers whose last refused call is kept, those refused last; and characters of its reason.
MAX_REFUSED, MAX_REASON = 1000, 500

log = logging.getLogger(__name__)


class EventLog:
    """Logs events, and keeps the newest ones with their numbers and times.

    Attributes:
        counts: all events by kind. Other threads may copy it.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._events: deque[EventReport] = deque(maxlen=MAX_EVENTS)
        self._refused: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by worker: why, and when
        self._count = 0

    def add(self, event: Event, global_step: int) -> None:
        """Log an event, and keep it."""
        log.log(logging.WARNING if event.warning else logging.INFO, "%s", event.text, extra={"event": event.kind})
        self.keep(event, global_step)

    def keep(self, event: Event, global_step: int) -> None:
        """Keep an event that is in the log already."""
        self._count += 1
        self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
        self._events.append(
            EventReport(
                number=self._count,
                time=time.time(),
                kind=event.kind,
                text=event.text,
                warning=event.warning,
                worker=event.worker,
                global_step=global_step,
            )
        )

    def note_refusal(self, worker: str, error: Exception) -> None:
        """Keep why a call of a worker was refused; `Unavailable` only asks for another attempt."""
        if isinstance(error, Unavailable):
            return
        self._refused.pop(worker, None)
        self._refused[worker] = f"{type(error).__name__}: {error}"[:MAX_REASON], time.time()
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def filled_in(self, report: StatusReport) -> StatusReport:
        """A report with what is kept here: refused calls, and events if it has a detail."""
        if self._refused:
            workers = [
                replace(one, error=self._refused[one.name][0], error_time=self._refused[one.name][1])
                if one.name in self._refused
                else one
                for one in report.workers
            ]
            report = replace(report, workers=tuple(workers))
        if report.detail is not None:
            report = replace(report, detail=replace(report.detail, events=tuple(self._events)))
        return report
