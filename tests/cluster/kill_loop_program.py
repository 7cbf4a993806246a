"""The training program of the kill loop: `psworker run ... tests/cluster/kill_loop_program.py SETTINGS`, in JSON.

Softmax regression on the first images of MNIST. Each push also adds a unit to rows of two tables, `marks0` and
`marks1`, one on each of two shards: to those of its examples, and to one that belongs to this process. The process
records each push before it is sent, and that it was acknowledged, in files of its own; `tests.cluster.kill_loop` reads
them.
"""

import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import psworker as ps
from psworker import datasets, ops

settings = SimpleNamespace(**json.loads(sys.argv[1]))

train = datasets.mnist().train[: settings.examples]
data = ps.Dataset({"image": train.image, "label": train.label, "number": np.arange(settings.examples)})
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
shape = settings.first + settings.processes, 1
marks = [ps.Table(shape, ps.RowConstant(0.0), name=f"marks{shard}", dtype="float32") for shard in (0, 1)]
optimizer = ps.GradientDescent(settings.rate)


def report(epoch):
    line = f"epoch {epoch.epoch}: cost {epoch.cost:.6f} over {epoch.examples} examples"
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def created(name):
    return os.open(Path(settings.folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


with ps.session() as session:
    first = settings.first + settings.workers.index(session.worker) * settings.processes // len(settings.workers)
    # The first row of this worker's that no earlier process of it has taken.
    row = next(row for row in itertools.count(first) if not Path(settings.folder, f"{row}.pushes").exists())
    pushes, acknowledged = created(f"{row}.pushes"), created(f"{row}.acknowledged")
    for batch in session.batches(data, settings.batch, settings.epochs, on_epoch=report, name="kill-loop"):
        found = [ops.embedding(table, np.append(batch.number, row)) for table in marks]
        loss = ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)
        for rows in found:
            loss = loss + ops.sum((rows - rows.value) * np.float32(-settings.unit / settings.rate))
        before = [float(rows.value[-1, 0]) for rows in found]
        line = {"epoch": batch.epoch, "before": before, "examples": batch.number.tolist()}
        os.write(pushes, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        dropped = session.dropped
        optimizer.minimize(loss)
        os.write(acknowledged, b"d" if session.dropped > dropped else b"a")
        os.fsync(acknowledged)
