"""A report that has something of everything, and the text of `/metrics` as a table."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from psserver.measurements import Measurements
from psserver.monitor.metrics import job_metrics, shard_metrics
from pswire import messages as ms
from pswire.status.job_status import ShardAnswer, merge_reports
from pswire.tensors.values import TensorSpec

WORKER = ms.WorkerStatus("w0", 1, 0, "live", 8, 2, 12, 0.5, 1, 9.0, dropped=3, cost=0.75, waited=1.5)
VARIABLE = ms.VariableStatus(TensorSpec("W", (2, 3), "float32"), 9, 8, None, nbytes=48, bytes_in=96, bytes_out=120)
QUEUE = ms.QueueStatus(ms.QueueSpec("train", size=10, block=10, epochs=5), 2, 15, 1)
MINIMIZATION = ms.MinimizationStatus("fit", 14, 64, 37, 2, 5, 3, 1, "", ms.AcceptedPoint(12, 13, 0.25, 0.5, 1.0))
REPORT = ms.StatusReport(
    1,
    2,
    8,
    0,
    variables=(VARIABLE,),
    workers=(WORKER, replace(WORKER, name="w1", state="left"), replace(WORKER, name="w2", state="lost")),
    nbytes=48,
    consistency="sync:2",
    half_pushes=1,
    storage=ms.StorageStatus("run", 7, 30.0, journal=True, journal_bytes=99, lost_pushes=4, problem="disk full"),
    queues=(QUEUE,),
    totals=ms.Totals(1, 3, 1, 1),
    minimizations=(MINIMIZATION,),
)


def samples(exposition):
    """The value of each sample of ours, by its name and the values of its labels, in the order of their names."""
    text, _ = exposition
    return {
        (sample.name.removeprefix("paramserver_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def families(text):
    """Type, help and labels of each family in the text of `/metrics`, by its name."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            family.documentation,
            tuple(sorted({label for sample in family.samples for label in sample.labels} - {"le"})),
        )
        for family in text_string_to_metric_families(text)
    }


def full_text():
    """The text of `/metrics` of a shard with everything, and of its monitor."""
    options = {"events": {}, "memory_limit": 100, "findings": ["momentum"]}
    of_shard = shard_metrics(REPORT, Measurements(), **options)[0]
    of_job = job_metrics(merge_reports([ShardAnswer("a:1", REPORT)]), findings=["momentum"])[0]
    return of_shard.decode(), of_job.decode()


def all_families():
    """Those of a shard with everything, and of its monitor."""
    of_shard, of_job = map(families, full_text())
    return of_job | of_shard
