"""The progress of a job as text: a line that fits a terminal, and a summary. Pure."""

from collections.abc import Sequence
from statistics import fmean

from psjob.status.job_status import mean_staleness
from psjob.status.job_view import JobView
from pswire.messages import MinimizationStatus
from pswire.plurals import pluralize

_SEPARATOR = " · "
#: Names of workers that have not joined which are listed.
_MOST_NAMES = 3


def step_line(job: JobView, width: int | None = None) -> str:
    """The job in one line: epoch, step, time left, rate, mean cost, staleness and drops, as far as they are known.

    epoch 5 of 10 · step 4,000 of ~8,200 · 0:03 left · 1,290 steps/s · cost 0.4750 · staleness 0.9

    At most `width` columns wide: what matters less is left out. While a minimization runs, the line is about that.
    """
    if job.minimization is not None:
        return fit([*minimization_parts(job.minimization), (job.problem, 1)], width)
    missing = [worker.name for worker in job.workers if worker.state == "starting"]
    if missing and not job.step:
        line = f"waiting for {_listed(missing)} to join"
        if width is not None and len(line) > width:
            line = f"waiting for {len(missing)} workers to join"
        return fit([(line, 0), (job.problem, 1)], width)
    costs = [worker.cost for worker in job.workers if worker.cost is not None]
    left = job.seconds_left
    parts = [
        (session_text(job), 3),
        (epoch_text(job), 3),
        (f"step {job.step:,}", 0),
        ("" if left is None else f"{clock(left)} left", 4),
        (_rate_text(job), 6),
        (f"cost {fmean(costs):.4f}" if costs else "", 5),
        (staleness_text(job), 7),
        (_dropped_text(job), 2),
        (job.problem, 1),
    ]
    longer = [*parts[:2], (f"step {job.step:,}{_total_text(job)}", 0), *parts[3:]]
    line = fit(longer, None)
    return line if width is None or len(line) <= width else fit(parts, width)


def minimization_parts(one: MinimizationStatus) -> list[tuple[str, int]]:
    """A minimization at its last accepted point, and portions of its present evaluation, as parts of a line for `fit`.

    minimize-1 · iteration 12 · loss 0.2694 · gradient 6.9e-03 · step 1 · 13 evaluations · 37/64 portions · 3 backups
    """
    point = one.point
    if point is not None:
        parts = [
            (f"iteration {point.iterations:,}", 2),
            (f"loss {point.loss:.4g}", 0),
            (f"gradient {point.gradient:.1e}", 3),
            (f"step {point.step:.3g}" if point.iterations else "", 6),
            (pluralize(point.evaluations, "evaluation"), 8),
        ]
    else:
        parts = []
    portions = f"{one.counted:,}/{one.portions:,} portions" if one.portions else ""
    backups = pluralize(one.backups, "backup") if one.backups else ""
    return [(one.name, 4), *parts, (portions, 5), (backups, 7)]


def summary_line(job: JobView, width: int | None = None) -> str:
    """The whole job in one line, when it is over: steps, seconds, steps per second, mean staleness, workers.

    For a job without a step, its last minimization instead of steps. At most `width` columns wide.
    """
    seconds = max(0.0, job.advanced - job.began)
    minimized = "" if job.steps else _minimized_text(job)
    return fit(
        [
            (session_text(job), 3),
            (minimized or f"{job.steps:,} steps in {seconds:.1f} s", 0),
            (f"{rate_text(job.steps / seconds)} steps/s" if seconds > 0 else "", 2),
            (staleness_text(job), 4),
            (_dropped_text(job), 3),
            (pluralize(len(job.taking_part), "worker"), 5),
        ],
        width,
    )


def session_text(job: JobView) -> str:
    """The session of the program, from the second one on."""
    return f"session {job.session}" if job.session > 1 else ""


def _minimized_text(job: JobView) -> str:
    """How far the newest minimization came, at its last accepted point."""
    newest = None if job.job is None else next(iter(job.job.minimizations[-1:]), None)
    if newest is None or newest.point is None:
        return ""
    point = newest.point
    return f"{newest.name}: {pluralize(point.iterations, 'iteration')}, {pluralize(point.evaluations, 'evaluation')}"


def fit(parts: Sequence[tuple[str, int]], width: int | None) -> str:
    """The parts that are not empty, in a line; without those of the highest ranks if it would be too wide.

    Parts of rank 0 and 1 always stay; the line is cut if they are too wide.
    """
    kept = [part for part in parts if part[0]]
    while width is not None and len(_joined(kept)) > width:
        last = max(kept, key=lambda part: part[1])
        if last[1] <= 1:
            return f"{_joined(kept)[: width - 1]}…"
        kept.remove(last)
    return _joined(kept)


def _joined(parts: Sequence[tuple[str, int]]) -> str:
    return _SEPARATOR.join(text for text, _ in parts)


def epoch_text(job: JobView) -> str:
    """The epoch in progress, and of how many, if that is known; of several data queues the one that is behind."""
    queue = job.queue
    epoch = max((worker.epoch for worker in job.workers), default=0) if queue is None else queue.epoch
    if not epoch:
        return ""
    epochs = 0 if queue is None else queue.spec.epochs
    return f"epoch {epoch:,} of {epochs:,}" if epochs else f"epoch {epoch:,}"


def clock(seconds: float) -> str:
    """A time as minutes and seconds, hours too, or days: 0:03, 12:05, 1:02:05, 3 days."""
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if hours >= 48:
        return f"{hours / 24:.0f} days"
    return f"{hours}:{minutes % 60:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _total_text(job: JobView) -> str:
    """The estimated number of steps, with three digits."""
    return "" if job.total_steps is None else f" of ~{max(job.step, int(float(f'{job.total_steps:.3g}'))):,}"


def _listed(names: Sequence[str]) -> str:
    """Names with "and" before the last; of many the first ones, and how many others there are."""
    if len(names) > _MOST_NAMES + 1:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def staleness_text(job: JobView) -> str:
    """The mean staleness of all pushes; nothing with one worker, whose weights are fresh."""
    several = sum([one.mean_staleness is not None for one in job.workers]) > 1
    mean = mean_staleness(job.workers) if several else None
    return "" if mean is None else f"staleness {mean:.1f}"


def _dropped_text(job: JobView) -> str:
    dropped = sum(worker.dropped for worker in job.workers)
    return f"{dropped:,} dropped" if dropped else ""


def _rate_text(job: JobView) -> str:
    return "" if job.steps_per_second is None else f"{rate_text(job.steps_per_second)} steps/s"


def rate_text(rate: float) -> str:
    """Steps per second, with a digit after the point if there are few."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
