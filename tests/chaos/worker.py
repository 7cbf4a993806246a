"""The training program of a chaos worker: `psworker run ... tests/chaos/worker.py`, an ordinary program with a session.

It records each push before it is sent, and its answer, as lines of JSON in its own file; each line is complete even if
the process is killed. `records` reads them. SIGUSR1 makes the loop fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from typing import Any

import numpy as np
import scheme

import psworker as ps
from psworker import ops


class RecordFile:
    """A file to which lines are appended, each by one system call: a killed process has written a line or not."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Training:
    """Steps of one process, each with known increments (`scheme`)."""

    def __init__(self, arguments: argparse.Namespace, records: RecordFile) -> None:
        self.layout = scheme.Layout(arguments.shards)
        self.column, self.unit, self.records = arguments.column, arguments.unit, records
        self.random = random.Random(f"{arguments.seed}, {arguments.column}")
        self.partial, self.pause = arguments.partial, arguments.pause
        zeros = np.zeros(scheme.COLUMNS)
        self.first = [ps.Variable(zeros, name=name) for name in self.layout.first]
        self.second = [ps.Variable(zeros, name=name) for name in self.layout.second]
        self.dense = ps.Variable(np.zeros((scheme.DENSE_ROWS, scheme.DENSE_WIDTH)), name="dense")
        self.table = ps.Table((scheme.TABLE_ROWS, scheme.WIDTH), ps.RowConstant(0.0), name="table", dtype="float64")
        schedule = ps.schedules.PolynomialDecay(float(scheme.BASE), scheme.BASE, 0.0)
        self.optimizer = ps.GradientDescent(schedule)
        self.pushes = 0

    def step(self, session: ps.Session, batch: ps.Batch) -> None:
        self.pushes += 1
        shards = list(range(self.layout.shards))
        if self.partial and self.random.random() < 0.2:
            shards = [self.random.choice(shards)]
        dense = self._updates()[0] % scheme.DENSE_EVERY == 7
        loss, seen = self._loss(shards, dense)
        self.records.write(
            "push",
            number=self.pushes,
            shards=shards,
            dense=dense,
            seen=self._updates(),
            rows_seen=seen,
            epoch=batch.epoch,
            examples=batch["number"].tolist(),
        )
        dropped = session.dropped
        self.optimizer.minimize(loss)
        self.look("answer", number=self.pushes, dropped=session.dropped > dropped, staleness=session.staleness)
        time.sleep(self.random.uniform(0, self.pause))

    def look(self, event: str, **fields: Any) -> None:
        """Records the latest values of the small variables, and tests for torn reads."""
        own = [float(one.value[self.column]) for one in self.first]
        torn = [
            shard
            for shard, (one, other) in enumerate(zip(self.first, self.second, strict=True))
            if not np.array_equal(one.value, other.value) or one.versions != other.versions
        ]
        versions = [one.versions[0] for one in self.first]
        self.records.write(event, own=own, updates=self._updates(), versions=versions, torn=torn, **fields)

    def _updates(self) -> list[int]:
        return [scheme.count_updates(float(one.value[0]))[0] for one in self.first]

    def _loss(self, shards: list[int], dense: bool) -> tuple[ps.Tensor, list[int]]:
        """A sum with the gradients of `scheme`; and the number of updates that the table's rows include on `shards`."""
        gradient = scheme.gradient(self.column, self.unit)
        rows = [row for shard in shards for row in self.layout.table_rows(shard, self.column)]
        found = ops.embedding(self.table, np.array(rows))
        weights = np.array([[-1.0], [-self.unit]] * len(shards)) * np.ones(scheme.WIDTH)
        loss = ops.sum(found * weights)
        for shard in shards:
            loss = loss + ops.sum(self.first[shard] * gradient) + ops.sum(self.second[shard] * gradient)
        if dense:
            whole = np.zeros((scheme.DENSE_ROWS, scheme.DENSE_WIDTH))
            for shard in shards:
                whole[self.layout.dense_row(shard), : scheme.COLUMNS] = gradient
            loss = loss + ops.sum(self.dense * whole)
        return loss, [scheme.count_updates(float(column[0]))[0] for column in found.value[::2]]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("records", "seed"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("column", "unit", "shards", "examples", "batch", "epochs", "partial"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    arguments = parser.parse_args()
    records = RecordFile(arguments.records)
    training = Training(arguments, records)
    failing: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: failing.append(number))
    dataset = ps.Dataset({"number": np.arange(arguments.examples)})
    records.write("begin", pid=os.getpid())
    with ps.session() as session:
        _record_takes(session, records)
        training.look("joined", incarnation=session._client._calls.sender.incarnation)
        for batch in session.batches(dataset, arguments.batch, arguments.epochs, name="chaos"):
            training.step(session, batch)
            if failing:
                raise RuntimeError("injected failure")
            if training.pushes % 20 == 0:
                session.pull()
                training.look("pulled")
    records.write("end")


def _record_takes(session: ps.Session, records: RecordFile) -> None:
    client = session._client
    take = client.take

    def recorded(queue: Any, finished: Any, heard: int = 0) -> Any:
        records.write("take", finished=None if finished is None else finished.number)
        taken = take(queue, finished, heard)
        block = None if taken.block is None else taken.block.number
        records.write("taken", block=block, done=taken.done, reports=[[r.epoch, r.examples] for r in taken.reports])
        return taken

    client.take = recorded  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
