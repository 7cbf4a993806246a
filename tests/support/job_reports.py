"""Reports of a job of two shards, and the rows of the tables that show them."""

import re

from psjob.status.job_status import ShardAnswer
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
from pswire.tensors.values import Part, TensorSpec

GRPC = {"tensor_transport": "gRPC"}


def worker(name="w0", **fields) -> WorkerStatus:
    known = {"incarnation": 1, "number": 0, "state": "live", "steps": 0, "staleness": 0, "staleness_sum": 0}
    return WorkerStatus(name=name, **{**known, "loss": None, "epoch": 0, "lease_left": 15.0, **fields})


def two_shards() -> list[ShardAnswer]:
    """`table` is on both, 70 rows and 30; `W` on the first and `b` on the second only."""
    first = StatusReport(
        shard=0,
        shards=2,
        global_step=12,
        repeated=1,
        variables=(
            VariableStatus(
                spec=TensorSpec("W", (2, 3)),
                version=12,
                updates=12,
                optimizer=Momentum(0.5),
                slots=("momentum",),
                nbytes=48,
            ),
            VariableStatus(
                spec=TensorSpec("table", (70, 4)),
                version=9,
                updates=8,
                optimizer=None,
                slots=(),
                nbytes=1120,
                part=Part(0, 100),
                table=True,
            ),
        ),
        workers=(
            worker("w0", steps=8, staleness_sum=4, loss=0.25, epoch=3, lease_left=9.5, dropped=1, **GRPC, chief=True),
            worker("w1", number=1, steps=4, staleness_sum=4, loss=1.5, waiting_for="w0, 2 steps behind", **GRPC),
        ),
        epochs=(EpochReport(queue="mnist", epoch=1, cost=float("nan"), examples=60000),),
        dropped=1,
        nbytes=1168,
        consistency="bounded:2",
        traffic=Traffic(3.25, 2048.0, 1.5 * 2**20),
        staleness=Staleness(1, 7),
        changes=(Change(global_step=2, worker="w1", names=("W",), optimizer=GradientDescent(0.25)),),
        queues=(
            QueueStatus(
                spec=QueueSpec(name="mnist", size=60_000, block=1600, epochs=10, seed=1),
                epoch=2,
                done=66_400,
                blocks_out=2,
            ),
            QueueStatus(spec=QueueSpec(name="stream", size=0, block=16, epochs=0), epoch=1, done=1_250, blocks_out=1),
        ),
    )
    second = StatusReport(
        shard=1,
        shards=2,
        global_step=11,
        repeated=2,
        variables=(
            VariableStatus(
                spec=TensorSpec("b", (3,)), version=11, updates=11, optimizer=Adam(0.5), slots=("m", "v"), nbytes=36
            ),
            VariableStatus(
                spec=TensorSpec("table", (30, 4)),
                version=7,
                updates=6,
                optimizer=None,
                slots=(),
                nbytes=480,
                part=Part(70, 100),
                table=True,
            ),
        ),
        workers=(
            worker("w0", steps=8, staleness_sum=0, loss=0.25, lease_left=8.5, tensor_transport="shared memory"),
            worker("w1", number=1, steps=3, staleness_sum=3, state="lost", lease_left=0.0),
        ),
        nbytes=516,
        consistency="bounded:2",
        changes=(
            Change(global_step=2, worker="w1", names=("b",), optimizer=GradientDescent(0.25)),
            Change(global_step=1, worker="w0", names=("b",), optimizer=GradientDescent(0.125)),
        ),
    )
    return [ShardAnswer("host:1", first), ShardAnswer("host:2", second)]


def row(text: str, *first: str) -> list[str]:
    """The cells of the row of a table that begins with these."""
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    (found,) = [cells for cells in rows if cells[: len(first)] == list(first)]
    return found
