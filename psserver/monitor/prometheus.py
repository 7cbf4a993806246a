"""The families of metrics, by the conventions of Prometheus: base units, `_total` for counters, few values of a label.

docs/observability.md lists them. Imports prometheus-client, so only `psserver.monitor.metrics` may import this module.
"""

import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from psjob.guard.finding import KINDS
from psjob.status.job_status import JobStatus
from psserver.measurements import TRANSPORTS, Histogram, Measurements
from pswire.messages import MinimizationStatus, StatusReport, StorageStatus, VariableStatus, WorkerStatus

#: Values of the labels `worker` and `variable`, at most: live workers with the lowest numbers, the largest variables.
MAX_LABELLED = 200

#: Values of the label `queue`, at most: the newest data queues.
MAX_QUEUES = 20

#: States of workers, and kinds of events that are counted from the start, so that the first one is an increase.
STATES = ("live", "left", "lost")
EVENTS = ("joined", "left", "lost", "stalled", "resumed", "lost_pushes")

#: By attribute of `MinimizationStatus`.
_BACKUPS = {
    "backups": "Portions that were given to a second worker.",
    "backups_won": "Portions of which the second worker was first.",
}
#: By attribute of `AcceptedPoint`.
_POINT = {
    "iterations": "Points that a minimization has accepted.",
    "evaluations": "Evaluations of the loss until the last accepted point.",
    "loss": "The loss at the last accepted point.",
    "gradient": "The largest magnitude in the gradient at the last accepted point.",
    "step": "The length of the last accepted step along its direction.",
}

Values = Mapping[str, float]


class _Once(Collector):
    """Families that were made for one answer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families

    def describe(self) -> Iterable[Metric]:
        """None: their names need no check against others."""
        return ()


def exposition(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The families and those of the process in the format that the client accepts, and its type."""
    encode, kind = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Once(families))
    registry.register(_process())
    return encode(registry), kind


@cache
def _process() -> Collector:
    return ProcessCollector(registry=None)


# --- of a shard -------------------------------------------------------------------------------------------------------


def shard_families(
    report: StatusReport,
    measured: Measurements,
    events: Mapping[str, int],
    memory_limit: int,
    findings: Iterable[str] | None,
) -> Iterator[Metric]:
    """As `psserver.monitor.metrics.shard_metrics`."""
    yield from _info(report)
    yield from _calls(measured)
    yield from _progress(report, events)
    yield _gauge("stored_bytes", "Bytes of values and slots on this shard.", report.nbytes)
    yield _gauge("stored_limit_bytes", "Bytes that values and slots may take, half of --memory-limit.", memory_limit)
    yield from _variables(report.variables, report.totals.variables)
    yield from _workers([one for one in report.workers if one.state == "live"])
    if report.storage.folder:
        yield from _storage(report.storage, measured)
    yield _findings(findings)


def _info(report: StatusReport) -> Iterator[Metric]:
    build = {"version": version("paramserver"), "python_version": platform.python_version()}
    yield _constant("build_info", "The versions of this server.", build)
    shard = {"shard": str(report.shard), "shards": str(report.shards)}
    options = {"consistency": report.consistency, "staleness": report.handling}
    yield _constant("shard_info", "Which shard of the job this is, and its options.", shard | options)


def _calls(measured: Measurements) -> Iterator[Metric]:
    """What is counted as calls come in."""
    yield _counters("pushes", "Answered pushes by what became of them.", "outcome", measured.pushes.copy())
    yield _counter(
        "pushes_clipped", "Applied pushes whose gradients --max-gradient-norm scaled down.", measured.clipped
    )
    yield _histogram(
        "push_duration_seconds", "From the arrival of a push until its answer is sent.", measured.push_seconds
    )
    yield _histogram(
        "pull_duration_seconds", "From the arrival of a pull until its answer is sent.", measured.pull_seconds
    )
    yield _histogram(
        "staleness_updates",
        "Updates of its variables that the weights of an applied push had missed.",
        measured.staleness,
    )
    moved = CounterMetricFamily(
        "paramserver_transfer_bytes", "Bytes of tensors received and sent.", labels=["direction", "transport"]
    )
    for direction, counted in (("in", measured.received), ("out", measured.sent)):
        for transport in TRANSPORTS:
            moved.add_metric([direction, transport], getattr(counted, transport))
    yield moved
    waits = SummaryMetricFamily("paramserver_wait_seconds", "Waits of calls, when they have ended.", labels=["reason"])
    for reason, one in measured.waits.items():
        waits.add_metric([reason], one.count, one.seconds)
    yield waits
    waiting = {reason: one.now for reason, one in measured.waits.items()}
    yield _gauges("waiting_calls", "Calls that wait now.", "reason", waiting)
    refused = measured.refused.copy()
    yield _counters("refused_calls", "Calls that ended with an error, by its class.", "error", refused)
    yield _histogram(
        "event_loop_delay_seconds", "How late the event loop came back to its tick.", measured.late_seconds
    )


def _progress(report: StatusReport, events: Mapping[str, int]) -> Iterator[Metric]:
    states = Counter([one.state for one in report.workers])
    workers = {state: states[state] for state in STATES} | {"live": report.totals.live}
    yield _gauges("workers", "Workers by state; of those that are gone, the newest 1,000.", "state", workers)
    counts = dict.fromkeys(EVENTS, 0) | dict(events)
    yield _counters("events", "Events of this server's log by kind.", "kind", counts)
    yield _gauge("global_step", "Updates of the shard.", report.global_step)
    yield _gauge("half_pushes", "Pushes that other shards have applied and this one has not.", report.half_pushes)
    yield _gauge("lost_pushes", "Acknowledged pushes that were given up with a restore.", report.storage.lost_pushes)
    if report.queues:
        epochs = {one.spec.name: one.epoch for one in report.queues[-MAX_QUEUES:]}
        yield _gauges("epoch", "The first epoch of a data queue that is not complete.", "queue", epochs)
    if report.minimizations:
        yield from _minimizations(report.minimizations)


def _minimizations(minimizations: Sequence[MinimizationStatus]) -> Iterator[Metric]:
    """Of those that a status lists; the last accepted point of each that has one."""
    label, points = "minimization", {one.name: one.point for one in minimizations if one.point is not None}
    for name in ("backups", "backups_won"):
        counts = {one.name: getattr(one, name) for one in minimizations}
        yield _counters(f"minimization_{name}", _BACKUPS[name], label, counts)
    for name, text in _POINT.items():
        values = {key: getattr(point, name) for key, point in points.items()}
        yield _gauges(f"minimization_{name}", text, label, values)


def _variables(variables: Sequence[VariableStatus], total: int) -> Iterator[Metric]:
    yield _gauge("variables", "Variables with a part on this shard.", total)
    largest = sorted(variables, key=lambda one: (-one.nbytes, one.spec.name))[:MAX_LABELLED]
    nbytes = {one.spec.name: one.nbytes for one in largest}
    yield _gauges(
        "variable_bytes", f"Bytes of the {MAX_LABELLED} largest variables, slots included.", "variable", nbytes
    )
    updates = {one.spec.name: one.updates for one in largest}
    yield _counters("variable_updates", "Updates of variables by their optimizers.", "variable", updates)
    moved = CounterMetricFamily(
        "paramserver_variable_transfer_bytes",
        "Bytes of applied gradients (in) and of served values and slots (out) by variable.",
        labels=["variable", "direction"],
    )
    for one in largest:
        moved.add_metric([one.spec.name, "in"], one.bytes_in)
        moved.add_metric([one.spec.name, "out"], one.bytes_out)
    yield moved


def _workers(live: Sequence[WorkerStatus]) -> Iterator[Metric]:
    listed = sorted(live, key=lambda one: one.number)[:MAX_LABELLED]
    steps = {one.name: one.steps for one in listed}
    text = f"Applied pushes of live workers, the first {MAX_LABELLED}, in their present incarnation."
    yield _counters("worker_steps", text, "worker", steps)
    yield _counters(
        "worker_dropped", "Dropped pushes of live workers.", "worker", {one.name: one.dropped for one in listed}
    )
    costs = {one.name: one.cost for one in listed if one.cost is not None}
    yield _gauges("worker_cost", "The moving average of the losses that live workers push.", "worker", costs)
    stalenesses = SummaryMetricFamily(
        "paramserver_worker_staleness_updates", "The staleness of applied pushes of live workers.", labels=["worker"]
    )
    for one in listed:
        stalenesses.add_metric([one.name], one.steps, one.staleness_sum)
    yield stalenesses
    waited = {one.name: one.waited for one in listed}
    yield _counters(
        "worker_held_seconds", "Seconds for which the policy has held pushes of live workers.", "worker", waited
    )


def _storage(storage: StorageStatus, measured: Measurements) -> Iterator[Metric]:
    yield _histogram(
        "checkpoint_duration_seconds",
        "From the snapshot of a checkpoint to the end of its writing.",
        measured.checkpoint_seconds,
    )
    yield _counter("checkpoint_failures", "Checkpoints that could not be written.", measured.checkpoint_failures)
    yield _gauge(
        "checkpoint_size_bytes",
        "Bytes of the last checkpoint that this process has written.",
        measured.checkpoint_bytes,
    )
    yield _gauge("checkpoint_number", "The number of the last checkpoint.", storage.last)
    written = round(time.time() - storage.age, 3)
    yield _gauge("checkpoint_timestamp_seconds", "When the last checkpoint was written, or the process began.", written)
    problem = "1 if the last checkpoint, or the journal, cannot be written."
    yield _gauge("storage_problem", problem, bool(storage.problem))
    if storage.journal:
        yield _gauge("journal_size_bytes", "Bytes of the journal.", storage.journal_bytes)
        journal = measured.journal
        yield _counter("journal_appended_bytes", "Bytes that were appended to the journal.", journal.appended)
        yield _histogram("journal_sync_duration_seconds", "Syncs of the journal to the disk.", journal.sync_seconds)


# --- of a job ---------------------------------------------------------------------------------------------------------


def job_families(job: JobStatus, findings: Iterable[str] | None) -> Iterator[Metric]:
    """As `psserver.monitor.metrics.job_metrics`."""
    build = {"version": version("paramserver"), "python_version": platform.python_version()}
    yield _constant("build_info", "The versions of this monitor.", build)
    answered = {one.address: one.report is not None for one in job.answers}
    yield _gauges("job_shard_up", "1 if the shard at this address answers.", "address", answered)
    yield _gauge("job_shards", "Shards of the job.", job.shards)
    yield _gauge("job_global_step", "Updates of shard 0, which has all pushes.", job.global_step)
    states = Counter([one.state for one in job.workers])
    workers = {state: states[state] for state in STATES}
    yield _gauges("job_workers", "Workers by the worst state that a shard reports.", "state", workers)
    yield _gauge("job_problems", "Problems that `psserver status` shows.", len(job.problems))
    yield _findings(findings)


def _findings(kinds: Iterable[str] | None) -> Metric:
    counts = {} if kinds is None else dict.fromkeys(KINDS, 0) | Counter(kinds)
    return _gauges("guard_findings", "Present findings of the convergence guard.", "kind", counts)


# --- families ---------------------------------------------------------------------------------------------------------


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"paramserver_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"paramserver_{name}", text, value=value)


def _constant(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(f"paramserver_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _counters(name: str, text: str, label: str, values: Values) -> Metric:
    return _filled(CounterMetricFamily(f"paramserver_{name}", text, labels=[label]), values)


def _gauges(name: str, text: str, label: str, values: Values) -> Metric:
    return _filled(GaugeMetricFamily(f"paramserver_{name}", text, labels=[label]), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    counts, total, buckets = histogram.counts.copy(), 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        total += count
        buckets.append((floatToGoString(bound), float(total)))  # type: ignore[no-untyped-call]
    return HistogramMetricFamily(f"paramserver_{name}", text, buckets=buckets, sum_value=histogram.sum)
