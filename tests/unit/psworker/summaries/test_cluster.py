"""Scalars of a job, from a view of it."""

from dataclasses import replace

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from pswire.messages import StatusReport, VariableStatus, WorkerStatus
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.schedules import CosineDecay
from pswire.tensors.values import TensorSpec
from psworker.summaries.cluster import cluster_values


def job(step, *workers, **fields):
    report = StatusReport(shards=1, global_step=step, workers=workers, **fields)
    return merge_reports([ShardAnswer("h:1", report)])


def variable(name, optimizer):
    return VariableStatus(spec=TensorSpec(name, (), "float32"), optimizer=optimizer)


def worker(name, steps, staleness_sum, cost, state="live", incarnation=1):
    return WorkerStatus(
        name=name, state=state, steps=steps, staleness_sum=staleness_sum, cost=cost, incarnation=incarnation
    )


def test_the_scalars_of_a_job_are_those_of_all_its_workers():
    before = job(100, worker("a", 60, 60, 0.5), worker("b", 40, 80, 0.7), worker("c", 0, 0, None))
    rate = CosineDecay(0.5, 500)  # half of it at step 250
    optimizers = [None, MovingAverage(0.9), Momentum(rate, 0.9), GradientDescent(9.0)]
    now = job(
        250,
        worker("a", 120, 180, 0.4),  # 60 more, of staleness 2 in the mean
        worker("b", 30, 30, 0.2, incarnation=2),
        worker("c", 10, 50, None),
        worker("d", 40, 80, 0.7, "lost"),
        dropped=3,
        variables=tuple(variable(f"v{number}", one) for number, one in enumerate(optimizers)),
    )
    assert cluster_values(JobView().follow(before, 0.0).follow(now, 2.0)) == {
        "training/loss": pytest.approx((0.4 + 0.2) / 2),
        "training/steps_per_second": 75.0,
        "training/staleness": pytest.approx((60 * 2 + 30 * 1 + 10 * 5 + 40 * 2) / 140),
        "training/dropped": 3,
        "training/learning_rate": pytest.approx(0.25),
        "training/live_workers": 3,
    }


def test_what_is_not_known_has_no_scalar():
    first = JobView().follow(job(9, worker("a", 0, 0, None)), 0.0)
    assert [tag for tag, value in cluster_values(first).items() if value is None] == [
        "training/loss",
        "training/steps_per_second",
        "training/staleness",
        "training/learning_rate",
    ]
    for step, seconds in ((5, 1.0), (11, 0.1)):  # back to a checkpoint; of so short a time
        found = cluster_values(replace(first).follow(job(step), seconds))
        assert found["training/steps_per_second"] is None
