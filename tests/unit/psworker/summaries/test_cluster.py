"""Scalars of a job between two of its statuses, and the thread that asks for them."""

import threading
from dataclasses import replace

import pytest

from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.schedules import CosineDecay
from pswire.status.job_status import JobVariable, JobWorker, ShardAnswer, merge_reports
from pswire.tensors.values import TensorSpec
from psworker.summaries import cluster
from psworker.summaries.cluster import ClusterWatch, cluster_values

NOTHING = merge_reports([])


def job(step, *workers, dropped=0):
    return replace(NOTHING, global_step=step, dropped=dropped, workers=workers)


def variable(name, optimizer):
    spec = TensorSpec(name, (), "float32")
    return JobVariable(spec, (0,), (0,), (0,), optimizer, (), 4, False)


def worker(name, steps, mean, cost, state="live", incarnation=1):
    return JobWorker(name, state=state, steps=steps, mean_staleness=mean, cost=cost, incarnation=incarnation)


def test_the_scalars_of_a_job_are_those_of_all_its_workers():
    before = job(100, worker("a", 60, 1.0, 0.5), worker("b", 40, 2.0, 0.7))
    now = job(
        250,
        worker("a", 120, 1.5, 0.4),  # 60 more, of staleness 2 in the mean
        worker("b", 40, 2.0, 0.7, "lost"),
        worker("b", 30, 1.0, 0.2, incarnation=2),
        worker("c", 10, 5.0, None),
        dropped=3,
    )
    rate = CosineDecay(0.5, 500)  # half of it at step 250
    optimizers = [None, MovingAverage(0.9), Momentum(rate, 0.9), GradientDescent(9.0)]
    now = replace(now, variables=tuple(variable(f"v{number}", one) for number, one in enumerate(optimizers)))
    assert cluster_values(before, now, 2.0) == {
        "training/loss": pytest.approx((0.4 + 0.2) / 2),
        "training/steps_per_second": 75.0,
        "training/staleness": pytest.approx((60 * 2 + 30 * 1 + 10 * 5) / 100),
        "training/dropped": 3,
        "training/learning_rate": pytest.approx(0.25),
        "training/live_workers": 3,
    }


def test_what_is_not_known_has_no_scalar():
    found = cluster_values(None, job(0, worker("a", 0, None, None)), 0.0)
    assert [tag for tag, value in found.items() if value is None] == [
        "training/loss",
        "training/steps_per_second",
        "training/staleness",
        "training/learning_rate",
    ]
    assert cluster_values(job(9), job(5), 1.0)["training/steps_per_second"] == 0  # back to a checkpoint
    assert cluster_values(job(5), job(9), 0.2)["training/steps_per_second"] is None  # of so short a time


def test_the_thread_asks_again_and_again_and_once_more_at_the_end_and_leaves_out_partial_answers(monkeypatch):
    monkeypatch.setattr(cluster, "INTERVAL", 0.001)
    asked, shown, fourth = [], [], threading.Event()

    def ask(timeout):
        asked.append(timeout)
        step = len(asked)
        return replace(job(step), answers=(ShardAnswer("s", problem="no answer"),) if step == 2 else ())

    def show(status, values):
        shown.append(status.global_step)
        if status.global_step >= 4:
            fourth.set()

    watch = ClusterWatch(lambda: True, ask, show)
    assert fourth.wait(30)
    before = len(asked)
    watch.close(failed=False)
    assert len(asked) > before
    assert shown == [1, *range(3, len(asked) + 1)]


@pytest.mark.parametrize(("chief", "failed"), [(False, False), (True, True)])
def test_a_worker_that_is_not_chief_asks_for_nothing_and_neither_does_a_chief_that_has_failed_at_its_end(chief, failed):
    asked = []
    ClusterWatch(lambda: chief, asked.append, asked.append).close(failed=failed)
    assert asked == []
