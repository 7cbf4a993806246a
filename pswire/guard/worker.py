"""One worker sends NaN, or gradients that are far larger than before: its machine or its data, not the training.

Servers refuse NaN and infinity (the worker gets an error, and nothing changes), and count gradients that jump. A model
that is spoilt gives every worker large gradients, so the worker whose gradients jumped first is named, and only if it
did so far above what a rate that is too large brings about step by step.

Sources: P. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017 (one
worker is enough to spoil a mean); H. D. Dixit et al., "Silent Data Corruptions at Scale", 2021 (machines that compute
wrong).
"""

from __future__ import annotations

from collections.abc import Iterator

from pswire.guard.finding import Finding
from pswire.guard.history import History
from pswire.job_status import JobWorker

#: Jumps of one worker from which they are no accident; how large the first one is where others have jumped after it.
LEAST_JUMPS, FAR = 3, 100.0

#: Seconds for which a jump or a refused call counts.
RECENT = 30.0


def findings(history: History) -> Iterator[Finding]:
    """One finding for each worker."""
    workers = history.now.workers.values()
    jumped = sorted([one for one in workers if _jumps_now(one, history)], key=lambda one: one.jumped_at)
    if jumped and jumped[0].jumps >= LEAST_JUMPS and (len(jumped) == 1 or jumped[0].jump >= FAR):
        yield _jump(jumped[0], others=len(jumped) - 1)
    refused = [one for one in workers if _refused_now(one, history)]
    for worker in refused:
        if worker not in jumped[:1]:
            yield _not_finite(worker, len(refused) - 1, history)


def _jumps_now(worker: JobWorker, history: History) -> bool:
    """Whether pushes of a live worker have jumped lately, and are applied."""
    if worker.state != "live" or not worker.jumps or worker.drop_reason.startswith("quarantine"):
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
    return before is None or before.error_time < worker.error_time


def _jump(worker: JobWorker, others: int) -> Finding:
    name, first = worker.name, f", before those of {others} others" if others else ""
    at, times = f"{worker.jumped_at:,}", f"{worker.jump:,.0f}"
    return Finding(
        "worker",
        "error",
        name,
        f"gradients of worker {name!r} were {times} times as large as usual from update {at} on{first}, in "
        f"{worker.jumps:,} pushes: its data or its machine is wrong",
        f"put it into quarantine (`psserver quarantine --worker {name}`) and look at its input, or limit what a push "
        "can do: `--max-gradient-norm NORM:reject`",
        step=max(0, worker.jumped_at - 1),
        quarantine=True,
        harmed=True,
    )


def _not_finite(worker: JobWorker, others: int, history: History) -> Finding:
    cause = "those of others are finite: its data or its machine is wrong, or its loss has no limit, as log(0)"
    if others:
        cause = f"so were pushes of {others} others: the learning rate is too large"
    return Finding(
        "worker",
        "error",
        worker.name,
        f"a push of worker {worker.name!r} was refused, and has changed nothing: {worker.error}; {cause}",
        "look at its input; lower the learning rate, or clip gradients",
        step=history.now.job.global_step,
        quarantine=not others,
    )
