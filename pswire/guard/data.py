"""A worker whose data is gone: it is live and renews its lease, but others train without it.

Its reader has ended or hangs, or gives the same batch again and again: no pushes, pushes without gradients, gradients
that are zero, or a loss that does not change although the weights do. Training goes on with the data of the others,
which is less, and with sharded data it is other data: nobody sees an error.

Source: D. Sculley et al., "Hidden Technical Debt in Machine Learning Systems", NIPS 2015 (data dependencies).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pswire.guard.finding import Finding
from pswire.guard.history import History, Moment, pushed
from pswire.status.job_status import JobWorker

#: Pushes that each of the others, or this worker, has made in the meantime at least; a part of the usual number.
PUSHES, PART = 20, 0.05

#: Moments whose losses must be the same.
LEAST_ROWS = 5

_REMEDY = (
    "look at its input and its log (py-spy dump --pid PID shows where a reader hangs); it takes part again with its "
    "next push, or end it, and others take over its blocks"
)


def findings(history: History, patience: float) -> Iterator[Finding]:
    """One finding for each worker, about the last `patience` seconds.

    Not for a worker that others have to wait for, that waits itself or has told that it has no more examples, and while
    a data queue comes to its end.
    """
    since, now = history.window(patience), history.now
    if since is None or _ending(now):
        return
    present = [one for one in now.training if (before := since.workers.get(one.name)) and _same(before, one)]
    rows = [moment.workers for moment in history.moments if moment.seconds >= since.seconds]
    same = {one.name: _same_values([row[one.name] for row in rows if one.name in row]) for one in present}
    for worker in present:
        others = [pushed(since, one) for one in present if one is not worker]
        if not others or min(others) < PUSHES:
            continue
        usual = all(same[one.name] == _NOTHING for one in present if one is not worker)
        values = same[worker.name] if usual else _NOTHING  # a job that has converged has them everywhere
        if seen := _seen(since, worker, statistics.median(others), values):
            text = f"worker {worker.name!r} is live, but for {now.seconds - since.seconds:.0f} s {seen}"
            yield Finding("data", "warning", worker.name, text, _REMEDY, step=since.job.global_step)


def _same(before: JobWorker, now: JobWorker) -> bool:
    return before.incarnation == now.incarnation and before.training and not now.waiting_for


class _Same(NamedTuple):
    """What was the same in all rows of a worker: gradients of zero, and the loss."""

    zero: bool = False
    loss: float | None = None


_NOTHING = _Same()


def _same_values(rows: Sequence[JobWorker]) -> _Same:
    losses = {row.loss for row in rows}
    zero = all(row.gradient == 0 for row in rows)
    return _Same(zero, losses.pop() if len(losses) == 1 and len(rows) >= LEAST_ROWS else None)


def _seen(since: Moment, worker: JobWorker, of_others: float, same: _Same) -> str:
    before, pushes = since.workers[worker.name], pushed(since, worker)
    if pushes == 0 and worker.dropped == before.dropped:
        return f"it has pushed nothing, and the others some {of_others:,.0f} times each: its reader hangs or has ended"
    if pushes < max(PUSHES, PART * of_others):
        return ""
    if worker.empty - before.empty == pushes:
        return f"its {pushes:,} pushes had no gradients: it computes nothing"
    if same.zero:
        return f"the gradients of its {pushes:,} pushes were all zero: its examples are empty, or its model is cut off"
    if same.loss is not None:
        return f"the loss of its {pushes:,} pushes was always {same.loss:.6g}: it sees the same batch, or none"
    return ""


def _ending(now: Moment) -> bool:
    """Whether a data queue is handed out to its end, so that some workers get no more."""
    for queue in now.job.queues:
        total = queue.spec.total
        if total is not None and queue.done + queue.blocks_out * queue.spec.block >= total:
            return True
    return False
