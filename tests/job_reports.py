"""Reports of a job of two shards, and the rows of the tables that show them."""

import re

from pswire.messages import (
    Change,
    EpochReport,
    QueueSpec,
    QueueStatus,
    Staleness,
    StatusReport,
    Traffic,
    VariableStatus,
    WorkerStatus,
)
from pswire.optimizers import Adam, GradientDescent, Momentum
from pswire.status.job_status import ShardAnswer
from pswire.tensors.values import Part, TensorSpec

GRPC = {"tensor_transport": "gRPC"}


def worker(name="w0", **fields) -> WorkerStatus:
    known = {"incarnation": 1, "number": 0, "state": "live", "steps": 0, "staleness": 0, "staleness_sum": 0}
    return WorkerStatus(name, **{**known, "loss": None, "epoch": 0, "lease_left": 15.0, **fields})


def two_shards() -> list[ShardAnswer]:
    """`table` is on both, 70 rows and 30; `W` on the first and `b` on the second only."""
    first = StatusReport(
        0,
        2,
        global_step=12,
        repeated=1,
        variables=(
            VariableStatus(TensorSpec("W", (2, 3)), 12, 12, Momentum(0.5), ("momentum",), 48),
            VariableStatus(TensorSpec("table", (70, 4)), 9, 8, None, (), 1120, Part(0, 100), True),
        ),
        workers=(
            worker("w0", steps=8, staleness_sum=4, loss=0.25, epoch=3, lease_left=9.5, dropped=1, **GRPC, chief=True),
            worker("w1", number=1, steps=4, staleness_sum=4, loss=1.5, waiting_for="w0, 2 steps behind", **GRPC),
        ),
        epochs=(EpochReport("mnist", 1, float("nan"), 60000),),
        dropped=1,
        nbytes=1168,
        consistency="bounded:2",
        traffic=Traffic(3.25, 2048.0, 1.5 * 2**20),
        staleness=Staleness(1, 7),
        changes=(Change(2, "w1", ("W",), GradientDescent(0.25)),),
        queues=(
            QueueStatus(QueueSpec("mnist", 60_000, 1600, 10, seed=1), 2, 66_400, 2),
            QueueStatus(QueueSpec("stream", 0, 16, 0), 1, 1_250, 1),
        ),
    )
    second = StatusReport(
        1,
        2,
        global_step=11,
        repeated=2,
        variables=(
            VariableStatus(TensorSpec("b", (3,)), 11, 11, Adam(0.5), ("m", "v"), 36),
            VariableStatus(TensorSpec("table", (30, 4)), 7, 6, None, (), 480, Part(70, 100), True),
        ),
        workers=(
            worker("w0", steps=8, staleness_sum=0, loss=0.25, lease_left=8.5, tensor_transport="shared memory"),
            worker("w1", number=1, steps=3, staleness_sum=3, state="lost", lease_left=0.0),
        ),
        nbytes=516,
        consistency="bounded:2",
        changes=(Change(2, "w1", ("b",), GradientDescent(0.25)), Change(1, "w0", ("b",), GradientDescent(0.125))),
    )
    return [ShardAnswer("host:1", first), ShardAnswer("host:2", second)]


def row(text: str, *first: str) -> list[str]:
    """The cells of the row of a table that begins with these."""
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    (found,) = [cells for cells in rows if cells[: len(first)] == list(first)]
    return found
