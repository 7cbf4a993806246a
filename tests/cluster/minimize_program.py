"""The program of minimized jobs: `psworker run ... tests/cluster/minimize_program.py SETTINGS`, in JSON.

Softmax regression on small images, by L-BFGS in float64. A worker records, in files of its own, the weights with which
it computes portions, and waits at a portion of `holds` until the test lets it go on; `tests.cluster.minimize_job` reads
and makes these files.
"""

import hashlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import psworker as ps
from psworker import ops
from tests.cluster.minimize_data import CLASSES, FEATURES, L2, examples

settings = SimpleNamespace(**json.loads(sys.argv[1]))
folder = Path(settings.folder)
image, label = examples()
W = ps.Variable(np.zeros((FEATURES, CLASSES)), name="W")
b = ps.Variable(np.zeros(CLASSES), name="b")
portions, recorded = 0, set()


def record_weights():
    """Write the present weights, unless this process has before; the file appears complete."""
    digest = hashlib.sha256(W.value.tobytes() + b.value.tobytes()).hexdigest()
    if digest not in recorded:
        recorded.add(digest)
        part = folder / f"{session.worker}-{digest}.part"
        with part.open("wb") as file:
            np.savez(file, W=W.value, b=b.value)
        part.replace(folder / "weights" / f"{digest}.npz")


def loss(batch):
    global portions
    portions += 1
    record_weights()
    if portions == settings.holds.get(session.worker):
        (folder / f"{session.worker}.held").touch()
        while not (folder / f"{session.worker}.go").exists():
            time.sleep(0.01)
    if portions == settings.raises.get(session.worker):
        raise RuntimeError(f"the loss of {session.worker} has failed")
    cross_entropy = ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)
    return cross_entropy + L2 * (ops.sum(W * W) + ops.sum(b * b))


def show(what, fields):
    sys.stdout.write(f"{what} {json.dumps(asdict(fields))}\n")
    sys.stdout.flush()


def report(point):
    show("point", point)
    if point.iterations == settings.stop_at:
        session.stop_all("enough")


with ps.session() as session:
    sys.stdout.write("joined\n")
    sys.stdout.flush()
    while not (folder / "begun").exists():
        time.sleep(0.01)
    data = ps.Dataset({"image": image, "label": label})
    method = ps.LBFGS(gradient=1e-9, decrease=0)
    found = session.minimize(loss, data, method, portion=settings.portion, on_iteration=report)
    show("minimum", found)
    record_weights()
