"""Scalars of the whole job for TensorBoard, from a view of it."""

from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView
from pswire.optimizers import OptimizerSpec
from pswire.specs.schedules import rate
from psworker.summaries.recorder import TRAINING


def cluster_values(view: JobView) -> dict[str, float | None]:
    """Scalars of the job by tag; None where there is no value.

    The cost is the mean over the live workers; steps per second and staleness are those of the last seconds. The
    learning rate is that of the first variable that is trained, as the servers have it.
    """
    live = [worker for worker in view.workers if worker.state == "live"]
    costs = [worker.cost for worker in live if worker.cost is not None]
    return {
        f"{TRAINING}/loss": sum(costs) / len(costs) if costs else None,
        f"{TRAINING}/steps_per_second": view.steps_per_second,
        f"{TRAINING}/staleness": view.staleness,
        f"{TRAINING}/dropped": None if view.job is None else view.job.dropped,
        f"{TRAINING}/learning_rate": None if view.job is None else _learning_rate(view.job),
        f"{TRAINING}/live_workers": len(live),
    }


def _learning_rate(job: JobStatus) -> float | None:
    for variable in job.variables:
        if isinstance(variable.optimizer, OptimizerSpec):
            return rate(variable.optimizer.learning_rate, job.global_step)
    return None
