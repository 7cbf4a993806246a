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

from psjob.guard.finding import Finding
from psjob.guard.history import FALLEN, History, Moment
from psjob.status.job_status import JobWorker

#: Jumps of one worker from which they are no accident; how large the first one is where others have jumped after it.
LEAST_JUMPS, FAR = 3, 100.0

#: A cost counts as low up to this multiple of the lowest one.
WELL = 1.5

#: Ratio of a worker's gradients to those of the others, and for how many seconds and pushes of each worker.
OUTLIER, SECONDS, PUSHES = 6.0, 4.0, 16

_QUARANTINE = (
    "put it into quarantine (`psserver quarantine --worker {}`) and look at its input, or limit what a push can do: "
    "`--max-gradient-norm NORM:reject`"
)

#: What helps against NaN.
NAN_REMEDY = (
    "look for NaN in its examples (`np.isnan`), and in its loss for log(0) and divisions by 0, which "
    "`ops.softmax_cross_entropy` and `ops.sigmoid_cross_entropy` do not have; clipping does not remove NaN"
)

#: Seconds for which a jump or a refused call counts.
RECENT = 30.0


def findings(history: History) -> Iterator[Finding]:
    """About the worker that jumped first, or else one whose push was not finite, or whose pushes are always larger.

    None where no others push, or pushes of several were refused: `psjob.guard.rules.rate` is for these.
    """
    jumps, errors = jumped(history), refused(history)
    if any(not history.others(one.name) for one in (*jumps[:1], *errors[:1])):
        return
    if jumps and _is_cause(jumps[0], history, others=len(jumps) - 1, spoilt=len(errors) > 1):
        yield _jump(jumps[0], others=len(jumps) - 1)
    elif len(errors) == 1:
        yield _not_finite(errors[0], history)
    elif not errors and (since := history.window(SECONDS, PUSHES)) is not None:
        moments = [moment for moment in history.moments if moment.seconds >= since.seconds]
        always = set.intersection(*[_outliers(moment) for moment in moments])
        for worker in history.now.training:
            if worker.name in always:
                yield _outlier(worker, moments)


def jumped(history: History) -> list[JobWorker]:
    """The workers whose pushes have jumped lately, the one that did so first at the beginning."""
    jumps = [one for one in history.now.workers.values() if _jumps_now(one, history)]
    return sorted(jumps, key=lambda one: one.jumped_at)


def refused(history: History) -> list[JobWorker]:
    """The workers with a push that was refused lately, for NaN or infinity."""
    return [one for one in history.now.workers.values() if _refused_now(one, history)]


def what_is_not_finite(worker: JobWorker) -> str:
    """The error of its refused push, without advice."""
    return worker.error.partition("; ")[0]


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
    text = (
        f"gradients of worker {worker.name!r} have had a norm of {worker.gradient_mean:.3g} for {seconds:.0f} s, and "
        f"those of the others one of {others:.3g}: its data is not scaled as theirs, or its machine is wrong"
    )
    return _found(worker, text, moments[0].job.global_step)


def _found(worker: JobWorker, text: str, step: int, remedy: str = "", *, harmed: bool = True) -> Finding:
    """The finding about a worker whose pushes are not to be applied, by default for large gradients."""
    remedy = remedy or _QUARANTINE.format(worker.name)
    return Finding("worker", "error", worker.name, text, remedy, step=step, quarantine=True, harmed=harmed)


def _is_cause(worker: JobWorker, history: History, others: int, *, spoilt: bool) -> bool:
    """True if the cause is this worker alone; a single jump is enough if it has `spoilt` all.

    Where others have jumped too, training may have diverged; but not from one moment to the next.
    """
    if worker.jumps < LEAST_JUMPS and not spoilt:
        return False
    return worker.jump >= FAR or not (others or spoilt) or _was_well(history, worker.jumped_at)


def _was_well(history: History, step: int) -> bool:
    """True if the cost had fallen, and was low, at the last moment before this step."""
    before = [moment.cost for moment in history.moments if moment.job.global_step < step and moment.cost is not None]
    first, lowest = history.first, history.lowest
    return bool(before and first and lowest) and before[-1] <= min(WELL * (lowest or 0.0), FALLEN * (first or 0.0))


def _before(worker: JobWorker, history: History) -> JobWorker | None:
    """The worker `RECENT` seconds ago."""
    since = history.window(RECENT)
    return None if since is None else since.workers.get(worker.name)


def _jumps_now(worker: JobWorker, history: History) -> bool:
    """True if pushes of a worker have jumped lately, and are applied."""
    if not worker.jumps or worker.quarantined:
        return False
    before = _before(worker, history)
    return before is None or before.incarnation != worker.incarnation or before.jumps < worker.jumps


def _refused_now(worker: JobWorker, history: History) -> bool:
    """True if a push with NaN or infinity was refused lately."""
    if not worker.error.startswith("NotFinite"):
        return False
    before = _before(worker, history)
    known = history.known_errors.get(worker.name, 0.0) if before is None else before.error_time
    return worker.error_time > known


def _jump(worker: JobWorker, others: int) -> Finding:
    first = f", before those of {others} others" if others else ""
    text = (
        f"gradients of worker {worker.name!r} were {worker.jump:,.0f} times as large as usual from update "
        f"{worker.jumped_at:,} on{first}, in {worker.jumps:,} pushes: its data or its machine is wrong"
    )
    return _found(worker, text, max(0, worker.jumped_at - 1))


def _not_finite(worker: JobWorker, history: History) -> Finding:
    text = (
        f"a push of worker {worker.name!r} was refused, and has changed nothing: {what_is_not_finite(worker)}; those "
        "of others are finite: its data or its machine is wrong, or its loss has no value for some examples"
    )
    return _found(worker, text, history.now.job.global_step, NAN_REMEDY, harmed=False)
