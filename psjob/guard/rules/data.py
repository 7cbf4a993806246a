"""A worker whose data is gone, or wrong: it is live and renews its lease, but others train without it, or against it.

Its reader has ended or hangs, or gives the same batch again and again: no pushes, pushes without gradients, gradients
that are zero, or a loss that does not change although the weights do. Training goes on with the data of the others,
which is less, and with sharded data it is other data, without any error. Where its labels are not those of its
examples, its cost stays where it began, and the costs of all others fall. Gradients of all workers that are zero are a
model that is cut off from its loss.

Source: D. Sculley et al., "Hidden Technical Debt in Machine Learning Systems", NIPS 2015 (data dependencies).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from psjob.guard.finding import Finding
from psjob.guard.history import CONVERGED, History, Moment, pushed
from psjob.status.job_status import JobWorker

#: Pushes that each of the others, or this worker, has made in the meantime at least; a part of the usual number.
PUSHES, PART = 20, 0.05

#: Moments whose losses must be the same.
LEAST_ROWS = 5

#: The cost of a worker has not fallen while it is above `NOT_FALLEN` times the first one; those of the others, at least
#: `OTHERS` workers, have fallen when they are below `FALLEN` times it.
NOT_FALLEN, FALLEN, OTHERS = 0.9, 0.5, 2

_REMEDY = (
    "look at its input and its log (`py-spy dump --pid PID` shows what it does); it takes part again with its next "
    "push, and others take over its blocks when it has ended. A program that evaluates within an epoch calls "
    "`session.idle()` before"
)
_REMEDY_OF_ALL = (
    "look for a loss that does not depend on the variables (`stop_gradient`, a mask of zeros), for units that are dead "
    "since the beginning, and for examples that are all 0"
)
_REMEDY_OF_LABELS = "compare its examples and labels with those of another worker"


def findings(history: History, patience: float) -> Iterator[Finding]:
    """One finding for each worker, about the last `patience` seconds.

    Not for a worker that waits, has told that it has no more examples or is between two blocks, as one that evaluates
    the model is after an epoch, and while a data queue comes to its end. One finding about the job, if gradients of all
    are zero.
    """
    since, now = history.window(patience), history.now
    if since is None:
        return
    steady = [one for one in now.training if (before := since.workers.get(one.name)) and _same(before, one)]
    rows = [moment.workers for moment in history.moments if moment.seconds >= since.seconds]
    same = {one.name: _same_values([row[one.name] for row in rows if one.name in row]) for one in steady}
    if len(steady) == len(now.training) and all(pushed(since, one) >= PUSHES for one in steady):
        if steady and all(same[one.name].zero for one in steady):
            yield from _all_zero(history, since, steady)
            return
        yield from _wrong_labels(history, since, steady)
    present = [one for one in steady if not one.waiting_for]
    if _ending(now):
        return
    for worker in present:
        others = [pushed(since, one) for one in present if one is not worker]
        if not others or min(others) < PUSHES:
            continue
        usual = all(same[one.name] == _NOTHING for one in present if one is not worker)
        values = same[worker.name] if usual else _NOTHING  # a job that has converged has them everywhere
        if seen := _seen(since, worker, statistics.median(others), values):
            text = f"worker {worker.name!r} is live, but for {now.seconds - since.seconds:.0f} s {seen}"
            yield Finding("data", "warning", worker.name, text, _REMEDY, step=since.job.global_step)


def _all_zero(history: History, since: Moment, workers: Sequence[JobWorker]) -> Iterator[Finding]:
    """The finding about gradients of all workers; none if the loss has become 0, or had gradients and is not known."""
    losses = [one.loss for one in workers if one.loss is not None]
    if history.first is None or not losses:
        converged = history.highest_gradient > 0
    else:
        converged = max(losses) <= CONVERGED * history.first and history.first > 0
    if converged:
        return
    seconds, pushes = history.now.seconds - since.seconds, sum([pushed(since, one) for one in workers])
    text = f"for {seconds:.0f} s the gradients of all workers have been zero, in {pushes:,} pushes: nothing is learned"
    yield Finding("data", "warning", "", text, _REMEDY_OF_ALL, step=since.job.global_step)


def _wrong_labels(history: History, since: Moment, workers: Sequence[JobWorker]) -> Iterator[Finding]:
    """The one worker whose cost stays where it began, or rises, while those of all others have fallen."""
    moments = [moment for moment in history.moments if moment.seconds >= since.seconds]
    costs = {one.name: [moment.workers[one.name].cost for moment in moments] for one in workers}
    first = history.first
    if len(workers) <= OTHERS or first is None or not history.fresh or any(None in some for some in costs.values()):
        return
    known = {name: [cost for cost in some if cost is not None] for name, some in costs.items()}
    worker, *others = sorted(workers, key=lambda one: -min(known[one.name]))
    limit = NOT_FALLEN * max(first, worker.first_loss or 0.0)
    highest = max([max(known[one.name]) for one in others])
    if not (min(known[worker.name]) > limit > 0 and highest < FALLEN * first):
        return
    text = (
        f"the cost of worker {worker.name!r} is {known[worker.name][-1]:.3g} and has not fallen in "
        f"{history.now.seconds - since.seconds:.0f} s, and those of the others, of {first:.3g} at the beginning, are "
        f"below {highest:.3g}: its examples are others than theirs, or its labels are wrong"
    )
    yield Finding("data", "warning", worker.name, text, _REMEDY_OF_LABELS, step=since.job.global_step)


def _same(before: JobWorker, now: JobWorker) -> bool:
    return before.incarnation == now.incarnation and before.training


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
        if worker.between_blocks:
            return ""
        return (
            f"it has pushed nothing, and the others some {of_others:,.0f} times each: its reader hangs or has ended, "
            "or it does something else in the middle of its examples, such as an evaluation"
        )
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
    """True if a data queue is handed out to its end, so that some workers get nothing more."""
    for queue in now.job.queues:
        total = queue.spec.total
        if total is not None and queue.done + queue.blocks_out * queue.spec.block >= total:
            return True
    return False
