"""One worker sends NaN, or gradients that are far larger than before: its machine or its data, not the training.

Servers refuse NaN and infinity (the worker gets an error, and nothing changes), and count gradients that jump. A model
that is spoilt gives every worker large gradients, so the worker whose gradients jumped first is named, and only if it
did so far above what a rate that is too large brings about step by step.

Sources: P. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017 (one
worker is enough to spoil a mean); H. D. Dixit et al., "Silent Data Corruptions at Scale", 2021 (machines that compute
wrong).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_high

from pswire.guard.finding import Finding
from pswire.guard.history import FALLEN, History, Moment
from pswire.status.job_status import JobWorker

#: Jumps of one worker from which they are no accident; how large the first one is where others have jumped after it.
LEAST_JUMPS, FAR = 3, 100.0

#: A cost is low up to so many times the lowest one.
WELL = 1.5

#: Gradients so many times as large as those of the others, for so many seconds and pushes of each worker.
OUTLIER, SECONDS, PUSHES = 6.0, 4.0, 16

_QUARANTINE = (
    "put it into quarantine (`psserver quarantine --worker {}`) and look at its input, or limit what a push can do: "
    "`--max-gradient-norm NORM:reject`"
)

#: Seconds for which a jump or a refused call counts.
RECENT = 30.0


def findings(history: History) -> Iterator[Finding]:
    """About the worker that jumped first, or else those whose pushes are not finite, or are always larger."""
    workers = history.now.workers.values()
    jumped = sorted([one for one in workers if _jumps_now(one, history)], key=lambda one: one.jumped_at)
    refused = [one for one in workers if _refused_now(one, history)]
    if jumped and _is_cause(jumped[0], history, others=len(jumped) - 1, spoilt=len(refused) > 1):
        yield _jump(jumped[0], others=len(jumped) - 1)
    elif refused:
        yield _not_finite(refused, history)
    elif (since := history.window(SECONDS, PUSHES)) is not None:
        moments = [moment for moment in history.moments if moment.seconds >= since.seconds]
        always = set.intersection(*[_outliers(moment) for moment in moments])
        for worker in history.now.training:
            if worker.name in always:
                yield _outlier(worker, moments)


def _outliers(moment: Moment) -> set[str]:
    """The workers whose gradients are far larger than those of the others."""
    sizes = {one.name: one.gradient_mean for one in moment.training}
    return {
        name
        for name, size in sizes.items()
        if len(sizes) > 1 and size > OUTLIER * median_high([other for one, other in sizes.items() if one != name])
    }


def _outlier(worker: JobWorker, moments: Sequence[Moment]) -> Finding:
    seconds = moments[-1].seconds - moments[0].seconds
    others = median_high([one.gradient_mean for one in moments[-1].training if one.name != worker.name])
    return Finding(
        "worker",
        "error",
        worker.name,
        f"gradients of worker {worker.name!r} have had a norm of {worker.gradient_mean:.3g} for {seconds:.0f} s, and "
        f"those of the others one of {others:.3g}: its data is not scaled as theirs, or its machine is wrong",
        _QUARANTINE.format(worker.name),
        step=moments[0].job.global_step,
        quarantine=True,
        harmed=True,
    )


def _is_cause(worker: JobWorker, history: History, others: int, *, spoilt: bool) -> bool:
    """Whether this worker has jumped for a reason of its own; a single jump is enough where it has `spoilt` all.

    Where others have jumped too, training may have diverged; but not from one moment to the next.
    """
    if worker.jumps < LEAST_JUMPS and not spoilt:
        return False
    return worker.jump >= FAR or not (others or spoilt) or _was_well(history, worker.jumped_at)


def _was_well(history: History, step: int) -> bool:
    """Whether the cost had fallen, and was low, at the last moment before this step."""
    before = [moment.cost for moment in history.moments if moment.job.global_step < step and moment.cost is not None]
    first, lowest = history.first, history.lowest
    return bool(before and first and lowest) and before[-1] <= min(WELL * (lowest or 0.0), FALLEN * (first or 0.0))


def _jumps_now(worker: JobWorker, history: History) -> bool:
    """Whether pushes of a worker have jumped lately, and are applied."""
    if not worker.jumps or worker.drop_reason.startswith("quarantine"):
        return False
    since = history.window(RECENT)
    before = None if since is None else since.workers.get(worker.name)
    return before is None or before.incarnation != worker.incarnation or before.jumps < worker.jumps


def _refused_now(worker: JobWorker, history: History) -> bool:
    """Whether a push with NaN or infinity was refused lately."""
    if not worker.error.startswith("NotFinite"):
        return False
    since = history.window(RECENT)
    before = None if since is None else since.workers.get(worker.name)
    known = history.known_errors.get(worker.name, 0.0) if before is None else before.error_time
    return worker.error_time > known


def _jump(worker: JobWorker, others: int) -> Finding:
    name, first = worker.name, f", before those of {others} others" if others else ""
    at, times = f"{worker.jumped_at:,}", f"{worker.jump:,.0f}"
    return Finding(
        "worker",
        "error",
        name,
        f"gradients of worker {name!r} were {times} times as large as usual from update {at} on{first}, in "
        f"{worker.jumps:,} pushes: its data or its machine is wrong",
        _QUARANTINE.format(name),
        step=max(0, worker.jumped_at - 1),
        quarantine=True,
        harmed=True,
    )


def _not_finite(refused: Sequence[JobWorker], history: History) -> Finding:
    """The finding about one worker, or about the job if pushes of several were refused."""
    first, *others = sorted(refused, key=lambda one: one.error_time)
    cause = "those of others are finite: its data or its machine is wrong, or its loss has no limit, as log(0)"
    if others:
        cause = f"so were pushes of {len(others)} others: variables have become too large, by the learning rate"
    return Finding(
        "worker",
        "error",
        "" if others else first.name,
        f"a push of worker {first.name!r} was refused, and has changed nothing: {first.error}; {cause}",
        "lower the learning rate, or clip gradients" if others else "look at its input, and clip gradients",
        step=history.lowest_step if others else history.now.job.global_step,
        scale_learning_rate=1 / len(refused),
        quarantine=not others,
        harmed=bool(others),
    )
