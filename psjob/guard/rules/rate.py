"""The learning rate is too large by itself: gradients of the only worker grow, those of all are NaN, or units are dead.

Where only one worker pushes, there are no others to compare it with: gradients that grow are a matter of the rate, as
far as the status of a job shows. A model whose units were driven out of their range predicts the same for all examples:
its cost is that of guessing, and stays there, whatever the optimizer. With stale pushes it is for the rate of all
workers together (`psjob.guard.rules.staleness`).

Sources: Y. LeCun et al., "Efficient BackProp", 1998 (the largest rate that converges); L. Lu et al., "Dying ReLU and
Initialization", 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psjob.guard.finding import Finding, smaller_rate
from psjob.guard.history import GREW, History, learning_rate
from psjob.guard.instability import dead, is_stale
from psjob.guard.rules.worker import LEAST_JUMPS, NAN_REMEDY, jumped, refused, what_is_not_finite
from psjob.status.job_status import JobWorker

#: What to divide the rate by where there are no workers to divide it among.
LESS = 4

#: Gradients have grown when they are this many times as large as at the beginning.
LARGER = 10.0


def findings(history: History) -> Iterator[Finding]:
    """One finding about the job; none where one worker of several is the cause (`psjob.guard.rules.worker`)."""
    jumps, errors = jumped(history), refused(history)
    if len(errors) > 1:
        yield _not_finite(errors, history)
    elif jumps and (errors or jumps[0].jumps >= LEAST_JUMPS) and not history.others(jumps[0].name):
        yield _jump(jumps[0], history)
    elif errors and not history.others(errors[0].name):
        yield _not_finite(errors, history)
    elif not is_stale(history) and (seen := dead(history)):
        rate = learning_rate(history.now.job)
        text = f"{seen}: a learning rate of {rate:.4g} is too large for the model, whose units are dead"
        remedy = f"begin again with {_smaller(history)}, or limit steps with `ps.clip_by_global_norm`"
        yield _too_large(text, remedy)


def _smaller(history: History, divisor: int = LESS) -> str:
    return smaller_rate(learning_rate(history.now.job), divisor)


def _too_large(text: str, remedy: str, step: int = 0, divisor: int = LESS) -> Finding:
    """The finding that variables were harmed by a rate that is this many times too large."""
    return Finding("rate", "error", "", text, remedy, step=step, scale_learning_rate=1 / divisor, harmed=True)


def _jump(worker: JobWorker, history: History) -> Finding:
    at, rate = f"{worker.jumped_at:,}", learning_rate(history.now.job)
    return _too_large(
        f"gradients were {worker.jump:,.0f} times as large as usual from update {at} on, in {worker.jumps:,} pushes of "
        f"worker {worker.name!r}, the only one that pushes: a learning rate of {rate:.4g} is too large for the model, "
        "or for these examples",
        f"try {_smaller(history)}, or limit what a push can do: `--max-gradient-norm NORM`; where it comes again at "
        "the same examples, look at these",
        max(0, worker.jumped_at - 1),
    )


def _not_finite(errors: Sequence[JobWorker], history: History) -> Finding:
    """Refused pushes of the only worker, or of several: after something grew they are another matter than at once."""
    first, *others = sorted(errors, key=lambda one: one.error_time)
    who = f"a push of worker {first.name!r}{'' if others else ', the only one that pushes,'}"
    also = f"; so were pushes of {len(others)} others" if others else ""
    seen = f"{who} was refused, and has changed nothing: {what_is_not_finite(first)}{also}"
    if not any(_grew(one, history) for one in errors):
        text = f"{seen}. Gradients and cost had not grown before: the loss has no value for some examples"
        return Finding("rate", "error", "", text, NAN_REMEDY, step=history.now.job.global_step)
    rate, divisor = learning_rate(history.now.job), len(errors) if others else LESS
    return _too_large(
        f"{seen}. Gradients or the cost had grown before: variables have become too large, by a learning rate "
        f"of {rate:.4g}",
        f"go back to a checkpoint from before, and try {_smaller(history, divisor)}; clipping does not remove NaN",
        history.lowest_step,
        divisor,
    )


def _grew(worker: JobWorker, history: History) -> bool:
    """True if gradients or costs of a worker had become larger before its push was refused."""
    first, peak = worker.first_loss, worker.peak_cost
    if first is not None and peak is not None and peak > GREW * first > 0:
        return True
    larger = worker.gradient > LARGER * history.first_gradient > 0
    return worker.jumps > 0 or larger or "the update of" in worker.error
