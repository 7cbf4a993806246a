"""The training program of a chaos worker: `psworker run ... tests/chaos/worker.py SETTINGS`, with settings as JSON.

An ordinary program with a session. It records each push before it is sent, and its answer, as lines of JSON in its own
file; each line is complete even if the process is killed. `check.History` reads them. SIGUSR1 makes the loop fail.
"""

import json
import os
import random
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import scheme

import psworker as ps
from psworker import datasets, ops

settings = SimpleNamespace(**json.loads(sys.argv[1]))
draws = random.Random(f"{settings.seed}, {settings.column}")
file = os.open(settings.records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

#: By rows on all shards: above `pswire.placement.SPLIT_BYTES` of float64, and divisible by one, two and three.
DENSE_SHAPE, TABLE_SHAPE = (534, 1024), (65_538, 8)
#: The learning rate of softmax regression on MNIST, with `images`: it shows that the job trains as undisturbed.
IMAGE_RATE = 1 / 128
#: A push includes the dense variable after this many updates, in all workers of a synchronous group alike.
DENSE_EVERY = 40

zeros = np.zeros(scheme.COLUMNS)
#: With learning rate 1 it adds 1 to column 0 of a small variable, and the unit to the column of this process.
gradient = np.zeros(scheme.COLUMNS)
gradient[[0, settings.column]] = -1.0 * (not settings.compensated), -settings.unit
small = [[ps.Variable(zeros, name=name) for name in names] for names in scheme.small(settings.shards)]
dense = ps.Variable(np.zeros(DENSE_SHAPE), name="dense")
table = ps.Table(TABLE_SHAPE, ps.RowConstant(0.0), name="table", dtype="float64")
optimizer = ps.GradientDescent(ps.schedules.PolynomialDecay(float(scheme.BASE), scheme.BASE, 0.0))


def record(event: str, **fields: Any) -> None:
    """Appends a line by one system call: a killed process has written it or not."""
    line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
    os.write(file, line.encode() + b"\n")


def updates() -> list[int]:
    """By shard; a compensated column 0, which all workers change, would not tell it."""
    if settings.compensated:
        return [version for first, _ in small for version in first.versions]
    return [scheme.count_updates(float(first.value[0]))[0] for first, _ in small]


def look(event: str, **fields: Any) -> None:
    """Records the latest values of the small variables, and tests for torn reads."""
    reading: dict[str, list] = {"own": [], "updates": updates(), "versions": [], "torn": []}
    for shard, (one, other) in enumerate(small):
        reading["own"].append(float(one.value[settings.column]))
        reading["versions"] += one.versions
        reading["torn"] += [shard] * (one.versions != other.versions or not np.array_equal(one.value, other.value))
    record(event, reading=reading, **fields)


def step(session: ps.Session, batch: ps.Batch) -> None:
    """Pushes to all shards or one, to each: its small variables, two rows of the table, sometimes a row of `dense`."""
    shards = list(range(settings.shards))
    if settings.partial and draws.random() < 0.2:
        shards = [draws.choice(shards)]
    seen = [[count] for count in updates()]
    with_dense = seen[0][0] % DENSE_EVERY == 7
    examples = batch["number"].tolist()
    marked = [scheme.COLUMNS + example for example in examples] if settings.marks else []
    rows = np.array([0, settings.column, *marked])
    firsts = [shard * TABLE_SHAPE[0] // settings.shards for shard in shards]
    found = ops.embedding(table, np.concatenate([first + rows for first in firsts]))
    for shard, row in zip(shards, found.value[:: len(rows)], strict=True):
        seen[shard] += [] if settings.compensated else [scheme.count_updates(float(row[0]))[0]]
    of_rows = np.array([*gradient[[0, settings.column]], *[-settings.unit] * len(marked)], float)[:, np.newaxis]
    loss = ops.sum(found * np.tile(of_rows, (len(shards), TABLE_SHAPE[1])))
    for shard in shards:
        for variable in small[shard]:
            loss = loss + ops.sum(variable * gradient)
    if with_dense:
        whole = np.zeros(DENSE_SHAPE)
        for shard in shards:
            whole[shard * DENSE_SHAPE[0] // settings.shards, : scheme.COLUMNS] = gradient
        loss = loss + ops.sum(dense * whole)
    cost = None
    if settings.images:
        cost = ops.softmax_cross_entropy(ops.matmul(batch["image"].astype(float), W) + b, batch["label"])
        loss = loss + cost * (IMAGE_RATE / scheme.BASE)
        cost = float(cost.value)
    record("push", shards=shards, dense=with_dense, seen=seen, epoch=batch.epoch, examples=examples, cost=cost)
    dropped = session.dropped
    optimizer.minimize(loss)
    look("answer", dropped=session.dropped > dropped, staleness=session.staleness)
    time.sleep(draws.uniform(0, settings.pause))


def record_takes(session: ps.Session) -> None:
    blocks = session._client.blocks
    take = blocks.take

    def recorded(*arguments: Any) -> Any:
        record("take")
        taken = take(*arguments)
        reports = [[report.epoch, report.examples, report.cost] for report in taken.reports]
        record("taken", got=taken.block is not None, reports=reports)
        return taken

    blocks.take = recorded  # type: ignore[method-assign]


failing: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, frame: failing.append(number))
fields = {"number": np.arange(settings.examples)}
if settings.images:
    train = datasets.mnist().train[: settings.examples]
    fields |= {"image": train.image, "label": train.label}
dataset = ps.Dataset(fields)
record("begin")
with ps.session() as session:
    record_takes(session)
    look("joined", incarnation=session._client.membership.sender.incarnation)
    if settings.images:  # registered after the others, whose shards so depend on them alone
        W, b = ps.Variable(np.zeros((784, 10)), name="W"), ps.Variable(np.zeros(10), name="b")
    batches = session.batches(dataset, settings.batch, settings.epochs, name="chaos")
    for number, batch in enumerate(batches, 1):
        step(session, batch)
        if failing:
            raise RuntimeError("injected failure")
        if number % 20 == 0:
            session.pull()
            look("pulled")
record("end")
