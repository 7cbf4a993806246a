"""Reports of shards for tests of the monitor, with the fields that a test names."""

from psjob.status.job_status import ShardAnswer, merge_reports
from pswire.messages import (
    EventReport,
    Job,
    JobReport,
    StalenessCount,
    StalenessMatrix,
    StatusDetail,
    StatusReport,
    Totals,
    VariableStatus,
    WorkerStaleness,
    WorkerStatus,
)
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec


def worker(name, steps, staleness_sum=0, *, incarnation=1, state="live", **fields):
    """The row of a worker; its number is the digits of its name."""
    number = int("".join(filter(str.isdigit, name)) or 0)
    return WorkerStatus(
        name=name,
        incarnation=incarnation,
        number=number,
        state=state,
        steps=steps,
        staleness=0,
        staleness_sum=staleness_sum,
        loss=None,
        epoch=0,
        lease_left=10.0,
        **fields,
    )


def variable(name, bytes_in=0, bytes_out=0, nbytes=400):
    spec = TensorSpec(name, (10, 10), "float32")
    return VariableStatus(
        spec=spec,
        version=3,
        updates=3,
        optimizer=GradientDescent(0.5),
        slots=(),
        nbytes=nbytes,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
    )


def event(number, time=0.0, text="", kind="joined"):
    return EventReport(number=number, time=time, kind=kind, text=text or f"event {number}")


def report(
    step, *, shard=0, shards=1, workers=(), variables=(), stalenesses=None, matrix=None, events=(), job=1, **fields
):
    """A report; `matrix` has, by (worker, incarnation), by variable, pushes and the sum of their stalenesses."""
    names = tuple(one.spec.name for one in variables)
    rows = tuple(
        WorkerStaleness(
            worker=worker,
            incarnation=incarnation,
            pushes=tuple(row.get(name, (0, 0))[0] for name in names),
            sums=tuple(row.get(name, (0, 0))[1] for name in names),
        )
        for (worker, incarnation), row in (matrix or {}).items()
    )
    counts = tuple(StalenessCount(*one) for one in (stalenesses or {}).items())
    totals = Totals(
        variables=len(variables), workers=len(workers), live=sum(one.state == "live" for one in workers), queues=0
    )
    detail = StatusDetail(tuple(events), counts, StalenessMatrix(names, rows))
    return StatusReport(
        shard=shard,
        shards=shards,
        global_step=step,
        repeated=0,
        variables=tuple(variables),
        workers=tuple(workers),
        jobs=(JobReport(job=Job(job, "train"), state="running", global_step=step, workers=1),),
        totals=totals,
        detail=detail,
        **fields,
    )


def job(*answers):
    """The job of these reports; a text is why the shard of its place does not answer."""
    return merge_reports(
        [
            ShardAnswer(f"host{place}:7070", problem=one)
            if isinstance(one, str)
            else ShardAnswer(f"host{place}:7070", one)
            for place, one in enumerate(answers)
        ]
    )
