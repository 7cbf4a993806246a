"""Histories of jobs for tests of the guard: recorded ones, and made by hand."""

import json
from dataclasses import replace
from pathlib import Path

from psjob.guard import Guard
from psjob.status.job_status import JobVariable, JobWorker, ShardAnswer, merge_reports
from pswire.messages import StatusReport
from pswire.optimizers import GradientDescent, UpdateSpec
from pswire.specs.spec import from_plain
from pswire.tensors.values import TensorSpec
from tests.tools.record_history import WORKER_FIELDS

FOLDER = Path(__file__).with_name("histories")


def job(step, workers, variables=(), **changes):
    """A status of one shard that has answered."""
    status = merge_reports([ShardAnswer("host:7070", StatusReport(shards=1, global_step=step))])
    return replace(status, variables=tuple(variables), workers=tuple(workers), **changes)


def variable(optimizer=None, name="W", dtype="float32", sampled=0, unchanged=0):
    """A variable of a hundred elements."""
    optimizer = optimizer or GradientDescent(0.05)
    counts = {"sampled": sampled, "unchanged": unchanged}
    return JobVariable(TensorSpec(name, (100,), dtype), (0,), (0,), (0,), optimizer, (), 400, False, **counts)


def workers(count, steps, staleness=3.0, cost=1.0, first=2.3, peak=2.4, **changes):
    """Workers in training that have made so many pushes each."""
    usual = {"incarnation": 1, "state": "live", "training": True, "loss": cost, "gradient": 1.0, "gradient_mean": 1.0}
    usual |= {"steps": steps, "mean_staleness": staleness, "cost": cost, "first_loss": first, "peak_cost": peak}
    return [JobWorker(**{"name": f"w{number}", "number": number, **usual, **changes}) for number in range(count)]


def recorded(name):
    """The moments of a recorded history: seconds and statuses."""
    for moment in json.loads((FOLDER / f"{name}.json").read_text()):
        optimizer = moment["optimizer"] and from_plain(UpdateSpec, moment["optimizer"])
        variables = [variable(optimizer, *row) for row in moment["variables"] if optimizer]
        # earlier recordings have fewer fields
        rows = [JobWorker(**dict(zip(WORKER_FIELDS, row, strict=False))) for row in moment["workers"]]
        yield moment["seconds"], job(moment["step"], rows, variables)


def found(history, guard=None):
    """The findings that open, each with the time."""
    guard = guard or Guard()
    return [(seconds, one) for seconds, status in history for one in guard.observe(status, seconds)]
