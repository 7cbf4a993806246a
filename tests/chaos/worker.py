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


class Training:
    """Steps of one process, each with known increments (`scheme`)."""

    def __init__(self, settings: SimpleNamespace) -> None:
        self.settings = settings
        self.random = random.Random(f"{settings.seed}, {settings.column}")
        self._file = os.open(settings.records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        zeros = np.zeros(scheme.COLUMNS)
        self.small = [[ps.Variable(zeros, name=name) for name in names] for names in scheme.small(settings.shards)]
        self.dense = ps.Variable(np.zeros(scheme.DENSE_SHAPE), name="dense")
        self.table = ps.Table((scheme.TABLE_ROWS, scheme.WIDTH), ps.RowConstant(0.0), name="table", dtype="float64")
        self.optimizer = ps.GradientDescent(ps.schedules.PolynomialDecay(float(scheme.BASE), scheme.BASE, 0.0))
        self.pushes = 0

    def record(self, event: str, **fields: Any) -> None:
        """Appends a line by one system call: a killed process has written it or not."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def look(self, event: str, **fields: Any) -> None:
        """Records the latest values of the small variables, and tests for torn reads."""
        reading = {
            "own": [float(first.value[self.settings.column]) for first, _ in self.small],
            "updates": self._updates(),
            "versions": [first.versions[0] for first, _ in self.small],
            "torn": [
                shard
                for shard, (first, second) in enumerate(self.small)
                if not np.array_equal(first.value, second.value) or first.versions != second.versions
            ],
        }
        self.record(event, reading=reading, **fields)

    def step(self, session: ps.Session, batch: ps.Batch) -> None:
        self.pushes += 1
        shards = list(range(self.settings.shards))
        if self.settings.partial and self.random.random() < 0.2:
            shards = [self.random.choice(shards)]
        seen = self._updates()
        dense = seen[0] % scheme.DENSE_EVERY == 7
        loss, rows_seen = self._loss(shards, dense)
        push = {"number": self.pushes, "shards": shards, "dense": dense, "seen": seen, "rows_seen": rows_seen}
        self.record("push", **push, epoch=batch.epoch, examples=batch["number"].tolist())
        dropped = session.dropped
        self.optimizer.minimize(loss)
        self.look("answer", number=self.pushes, dropped=session.dropped > dropped, staleness=session.staleness)
        time.sleep(self.random.uniform(0, self.settings.pause))

    def _updates(self) -> list[int]:
        return [scheme.count_updates(float(first.value[0]))[0] for first, _ in self.small]

    def _loss(self, shards: list[int], dense: bool) -> tuple[ps.Tensor, list[int]]:
        """A sum with the gradients of `scheme`; and the number of updates that the table's rows include on `shards`."""
        total, column, unit = self.settings.shards, self.settings.column, self.settings.unit
        gradient = scheme.gradient(column, unit)
        rows = [row for shard in shards for row in scheme.table_rows(shard, total, column)]
        found = ops.embedding(self.table, np.array(rows))
        loss = ops.sum(found * (np.array([[-1.0], [-unit]] * len(shards)) * np.ones(scheme.WIDTH)))
        for shard in shards:
            for variable in self.small[shard]:
                loss = loss + ops.sum(variable * gradient)
        if dense:
            whole = np.zeros(scheme.DENSE_SHAPE)
            for shard in shards:
                whole[scheme.dense_row(shard, total), : scheme.COLUMNS] = gradient
            loss = loss + ops.sum(self.dense * whole)
        return loss, [scheme.count_updates(float(row[0]))[0] for row in found.value[::2]]

    def record_takes(self, session: ps.Session) -> None:
        client = session._client
        take = client.take

        def recorded(*arguments: Any) -> Any:
            self.record("take")
            taken = take(*arguments)
            reports = [[report.epoch, report.examples] for report in taken.reports]
            self.record("taken", got=taken.block is not None, reports=reports)
            return taken

        client.take = recorded  # type: ignore[method-assign]


def main() -> None:
    training = Training(SimpleNamespace(**json.loads(sys.argv[1])))
    settings = training.settings
    failing: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: failing.append(number))
    dataset = ps.Dataset({"number": np.arange(settings.examples)})
    training.record("begin")
    with ps.session() as session:
        training.record_takes(session)
        training.look("joined", incarnation=session._client._calls.sender.incarnation)
        for batch in session.batches(dataset, settings.batch, settings.epochs, name="chaos"):
            training.step(session, batch)
            if failing:
                raise RuntimeError("injected failure")
            if training.pushes % 20 == 0:
                session.pull()
                training.look("pulled")
    training.record("end")


if __name__ == "__main__":
    main()
