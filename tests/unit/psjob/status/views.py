"""Views of jobs for tests of what is made of them: statuses of workers and data queues, followed over time."""

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from pswire.messages import Job, JobReport, QueueSpec, QueueStatus, StatusReport, WorkerStatus


def status(name="worker-0", state="live", steps=0, staleness_sum=0, cost=None, epoch=0, **fields):
    return WorkerStatus(
        name=name,
        incarnation=1,
        state=state,
        steps=steps,
        staleness_sum=staleness_sum,
        cost=cost,
        epoch=epoch,
        lease_left=15.0,
        **fields,
    )


def job(global_step, *workers, queues=(), session=0):
    of_session = Job(session, "sweep-1", session)
    jobs = (JobReport(job=of_session, state="running", global_step=global_step, workers=len(workers)),)
    report = StatusReport(shards=1, global_step=global_step, workers=workers, queues=queues, jobs=jobs[: bool(session)])
    return merge_reports([ShardAnswer("h:1", report)])


def data(done, size=1000, epochs=10, limit=0, name="train"):
    spec = QueueSpec(name=name, size=size, block=100, epochs=epochs, limit=limit)
    epoch = 1 if not size else min(done // size + 1, -(-spec.total // size) if spec.total else done)
    return QueueStatus(spec=spec, epoch=epoch, done=done, blocks_out=1)


def followed(*moments):
    """The view after moments of (seconds, step, data queues...)."""
    view = JobView()
    for seconds, step, *queues in moments:
        view = view.follow(job(step, queues=tuple(queues)), seconds)
    return view
