"""A report that has something of everything, and the text of `/metrics` as a table."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.measurements import Measurements
from psserver.monitor.metrics import job_metrics, shard_metrics
from pswire import messages as ms
from pswire.tensors.values import TensorSpec

WORKER = ms.WorkerStatus(
    name="w0",
    incarnation=1,
    number=0,
    state="live",
    steps=8,
    staleness=2,
    staleness_sum=12,
    loss=0.5,
    epoch=1,
    lease_left=9.0,
    dropped=3,
    cost=0.75,
    waited=1.5,
)
VARIABLE = ms.VariableStatus(
    spec=TensorSpec("W", (2, 3), "float32"), version=9, updates=8, optimizer=None, nbytes=48, bytes_in=96, bytes_out=120
)
QUEUE = ms.QueueStatus(spec=ms.QueueSpec(name="train", size=10, block=10, epochs=5), epoch=2, done=15, blocks_out=1)
MINIMIZATION = ms.MinimizationStatus(
    name="fit",
    evaluation=14,
    portions=64,
    counted=37,
    out=2,
    claimed=5,
    backups=3,
    backups_won=1,
    end="",
    point=ms.AcceptedPoint(iterations=12, evaluations=13, loss=0.25, gradient=0.5, step=1.0),
)
REPORT = ms.StatusReport(
    shard=1,
    shards=2,
    global_step=8,
    repeated=0,
    variables=(VARIABLE,),
    workers=(WORKER, replace(WORKER, name="w1", state="left"), replace(WORKER, name="w2", state="lost")),
    nbytes=48,
    consistency="sync:2",
    half_pushes=1,
    storage=ms.StorageStatus(
        folder="run", last=7, age=30.0, journal=True, journal_bytes=99, lost_pushes=4, problem="disk full"
    ),
    queues=(QUEUE,),
    totals=ms.Totals(variables=1, workers=3, live=1, queues=1),
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
