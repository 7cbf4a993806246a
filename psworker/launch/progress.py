"""What a running job does, as numbers: the shards' status, asked for a few times a second and followed over time.

`follow` is pure and does the arithmetic; `Watch` is the thread that asks. How it looks is `psworker.launch.display`'s
business. May import messages, errors and the transport's contract.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from pswire.errors import ParamServerError
from pswire.messages import Status, StatusReport, WorkerStatus
from psworker.transport import Transport

#: Seconds between two questions, and how long to wait for an answer.
INTERVAL, TIMEOUT = 0.25, 2.0
#: Time constants, in seconds, of the moving averages of rates and of costs, which are of single batches.
RATE_SMOOTHING, COST_SMOOTHING = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker now.

    Attributes:
        state: "starting" until it joins; then what the shard says: "live", "left" or "lost".
        rate: its recent steps per second.
        cost: the recent mean of its losses; None before the first.
        staleness: mean over all of its pushes; None before the first.
        dropped: how many of its pushes the servers did not apply.
        waiting_for: for whom it waits, and why; empty while it does not.
        lane: how its tensors travel, "shared memory" or "gRPC", or both, to different shards; empty until it is known.
    """

    name: str
    state: str = "starting"
    epoch: int = 0
    steps: int = 0
    rate: float = 0.0
    cost: float | None = None
    staleness: float | None = None
    dropped: int = 0
    waiting_for: str = ""
    tensor_transport: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """The job now.

    Attributes:
        workers: in the order of their names.
        seconds: since the workers were started.
        step: the global step.
        began: when a report last said that no step had been made, in seconds as above.
        advanced: when the step was last seen to rise.
        problem: why there is no newer report; empty when there is.
    """

    workers: tuple[WorkerView, ...]
    seconds: float = 0.0
    step: int = 0
    began: float = 0.0
    advanced: float = 0.0
    problem: str = ""

    @property
    def rate(self) -> float:
        """Recent steps per second of all workers."""
        return sum(worker.rate for worker in self.workers)

    @property
    def training_seconds(self) -> float:
        """From the first step to the last, within an `INTERVAL`; 0 before the first."""
        return max(0.0, self.advanced - self.began)

    @property
    def epoch(self) -> int:
        """The newest epoch that a worker is in; 0 before the first."""
        return max((worker.epoch for worker in self.workers), default=0)

    @property
    def cost(self) -> float | None:
        """The mean of the workers' costs."""
        return _mean([(worker.cost, 1) for worker in self.workers])

    @property
    def staleness(self) -> float | None:
        """The mean over all pushes."""
        return _mean([(worker.staleness, worker.steps) for worker in self.workers])

    @property
    def dropped(self) -> int:
        """Pushes that were not applied."""
        return sum(worker.dropped for worker in self.workers)


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def follow(view: JobView, reports: Sequence[StatusReport], seconds: float) -> JobView:
    """The next view: `reports` are all shards' at `seconds`, after `view`.

    A step's push goes to every shard, but not to all at the same moment: a worker's steps are those at the shard that
    has seen the most of them, and so is the global step.
    """
    elapsed = seconds - view.seconds
    known = {worker.name: worker for worker in view.workers}
    names = sorted(known | {status.name: None for report in reports for status in report.workers}, key=_by_number)
    step = max(report.global_step for report in reports)
    return JobView(
        workers=tuple(_follow_worker(known.get(name, WorkerView(name)), reports, elapsed) for name in names),
        seconds=seconds,
        step=step,
        began=view.began if step else seconds,
        advanced=view.advanced if step == view.step else seconds,
    )


def _by_number(name: str) -> tuple[int, str]:
    """worker-10 after worker-9."""
    return len(name), name


def _follow_worker(worker: WorkerView, reports: Sequence[StatusReport], elapsed: float) -> WorkerView:
    seen: list[WorkerStatus] = [status for report in reports for status in report.workers if status.name == worker.name]
    if not seen:
        return worker
    steps = max(status.steps for status in seen)
    rate = max(0, steps - worker.steps) / elapsed if elapsed > 0 else worker.rate
    loss = next((status.loss for status in seen if status.loss is not None), None)
    return WorkerView(
        name=worker.name,
        state=seen[0].state,
        epoch=max(status.epoch for status in seen),
        steps=steps,
        rate=_smoothed(worker.rate or None, rate, elapsed / RATE_SMOOTHING) if seen[0].state == "live" else 0.0,
        cost=worker.cost if loss is None else _smoothed(worker.cost, loss, elapsed / COST_SMOOTHING),
        staleness=_mean([(status.staleness_sum / status.steps, status.steps) for status in seen if status.steps]),
        dropped=max(status.dropped for status in seen),
        waiting_for=next((status.waiting_for for status in seen if status.waiting_for), ""),
        tensor_transport=" and ".join(
            dict.fromkeys(status.tensor_transport for status in seen if status.tensor_transport)
        ),
    )


def _smoothed(before: float | None, now: float, elapsed: float) -> float:
    """An exponential moving average over unevenly spaced moments, `elapsed` time constants after the last one."""
    return now if before is None else before + (now - before) * -math.expm1(-elapsed)


class Watch:
    """Asks all shards again and again in a thread, and shows the view after each round. A context manager.

    Args:
        transport: to the shards; this closes it.
        names: the workers that are expected.
        show: called with each new view, in the thread; must not raise.
    """

    def __init__(self, transport: Transport, names: Sequence[str], show: Callable[[JobView], None]) -> None:
        self._transport, self._show = transport, show
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self.view = JobView(tuple(WorkerView(name) for name in names))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends the thread; at a good end a last question makes the view final."""
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._look()
        self._transport.close()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._look()
            self._show(self.view)

    def _look(self) -> None:
        try:
            reports = [self._status(shard) for shard in range(self._transport.shards)]
        except ParamServerError as error:
            self.view = replace(self.view, seconds=time.monotonic() - self._begin, problem=str(error))
        else:
            self.view = follow(self.view, reports, time.monotonic() - self._begin)

    def _status(self, shard: int) -> StatusReport:
        report = self._transport.call(shard, Status(), TIMEOUT).result()
        assert isinstance(report, StatusReport), f"shard {shard} answered Status with {type(report).__name__}"
        return report
