"""The training program of a chaos worker: `psworker run ... tests/chaos/worker.py SETTINGS`, with settings as JSON.

An ordinary program with a session. It records each push before it is sent, and its answer, as lines of JSON in its own
file; each line is complete even if the process is killed. `check.History` reads them. SIGUSR1 makes the loop fail.
"""

from __future__ import annotations

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
from psworker import ops

settings = SimpleNamespace(**json.loads(sys.argv[1]))
draws = random.Random(f"{settings.seed}, {settings.column}")
file = os.open(settings.records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

zeros = np.zeros(scheme.COLUMNS)
small = [[ps.Variable(zeros, name=name) for name in names] for names in scheme.small(settings.shards)]
dense = ps.Variable(np.zeros(scheme.DENSE_SHAPE), name="dense")
table = ps.Table((scheme.TABLE_ROWS, scheme.WIDTH), ps.RowConstant(0.0), name="table", dtype="float64")
optimizer = ps.GradientDescent(ps.schedules.PolynomialDecay(float(scheme.BASE), scheme.BASE, 0.0))


def record(event: str, **fields: Any) -> None:
    """Appends a line by one system call: a killed process has written it or not."""
    line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
    os.write(file, line.encode() + b"\n")


def updates() -> list[int]:
    return [scheme.count_updates(float(first.value[0]))[0] for first, _ in small]


def look(event: str, **fields: Any) -> None:
    """Records the latest values of the small variables, and tests for torn reads."""
    own = [float(first.value[settings.column]) for first, _ in small]
    versions = [first.versions[0] for first, _ in small]
    alike = [np.array_equal(one.value, other.value) and one.versions == other.versions for one, other in small]
    torn = [shard for shard, same in enumerate(alike) if not same]
    record(event, reading={"own": own, "updates": updates(), "versions": versions, "torn": torn}, **fields)


def loss_of(shards: list[int], with_dense: bool) -> tuple[ps.Tensor, list[int]]:
    """A sum with the gradients of `scheme`; and the number of updates that the table's rows include on `shards`."""
    gradient = scheme.gradient(settings.column, settings.unit)
    rows = [row for shard in shards for row in scheme.table_rows(shard, settings.shards, settings.column)]
    found = ops.embedding(table, np.array(rows))
    loss = ops.sum(found * (np.array([[-1.0], [-settings.unit]] * len(shards)) * np.ones(scheme.WIDTH)))
    for shard in shards:
        for variable in small[shard]:
            loss = loss + ops.sum(variable * gradient)
    if with_dense:
        whole = np.zeros(scheme.DENSE_SHAPE)
        for shard in shards:
            whole[scheme.dense_row(shard, settings.shards), : scheme.COLUMNS] = gradient
        loss = loss + ops.sum(dense * whole)
    return loss, [scheme.count_updates(float(row[0]))[0] for row in found.value[::2]]


def step(session: ps.Session, number: int, batch: ps.Batch) -> None:
    shards = list(range(settings.shards))
    if settings.partial and draws.random() < 0.2:
        shards = [draws.choice(shards)]
    seen = updates()
    with_dense = seen[0] % scheme.DENSE_EVERY == 7
    loss, rows_seen = loss_of(shards, with_dense)
    push = {"number": number, "shards": shards, "dense": with_dense, "seen": seen, "rows_seen": rows_seen}
    record("push", **push, epoch=batch.epoch, examples=batch["number"].tolist())
    dropped = session.dropped
    optimizer.minimize(loss)
    look("answer", number=number, dropped=session.dropped > dropped, staleness=session.staleness)
    time.sleep(draws.uniform(0, settings.pause))


def record_takes(session: ps.Session) -> None:
    client = session._client
    take = client.take

    def recorded(*arguments: Any) -> Any:
        record("take")
        taken = take(*arguments)
        reports = [[report.epoch, report.examples] for report in taken.reports]
        record("taken", got=taken.block is not None, reports=reports)
        return taken

    client.take = recorded  # type: ignore[method-assign]


failing: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, frame: failing.append(number))
dataset = ps.Dataset({"number": np.arange(settings.examples)})
record("begin")
with ps.session() as session:
    record_takes(session)
    look("joined", incarnation=session._client._calls.sender.incarnation)
    batches = session.batches(dataset, settings.batch, settings.epochs, name="chaos")
    for number, batch in enumerate(batches, 1):
        step(session, number, batch)
        if failing:
            raise RuntimeError("injected failure")
        if number % 20 == 0:
            session.pull()
            look("pulled")
record("end")
