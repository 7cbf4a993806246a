"""The program of `minimize.py`: regularised softmax regression on MNIST in float64 by L-BFGS; the chief prints JSON."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser()
parser.add_argument("--examples", type=int, default=5_000)
parser.add_argument("--l2", type=float, default=1e-2)
parser.add_argument("--gradient", type=float, default=1e-7)
parser.add_argument("--iterations", type=int, default=1000)
parser.add_argument("--slow", default="", help="the worker that takes ten times as long")
parser.add_argument("--wait", type=float, default=0.0, help="seconds that a portion waits, as for a device")
parser.add_argument("--save", help="file of the weights")
parser.add_argument("--begin", help="file that appears when all workers are ready")
options = parser.parse_args()

train = datasets.mnist().train[: options.examples]
data = ps.Dataset({"image": train.image.astype(np.float64), "label": train.label})
W = ps.Variable(np.zeros((784, 10)), name="W")
b = ps.Variable(np.zeros(10), name="b")
last = time.thread_time()


def loss(batch):
    """In the slow worker, ten times the wait, and nine times the processor time of the portion before as a pause."""
    global last
    is_slow = session.worker == options.slow
    time.sleep(options.wait * (10 if is_slow else 1))
    if is_slow:
        time.sleep(9 * (time.thread_time() - last))
        last = time.thread_time()
    scores = ops.matmul(batch.image, W) + b
    return ops.softmax_cross_entropy(scores, batch.label) + options.l2 * ops.sum(W * W)


with ps.session() as session:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while options.begin and not Path(options.begin).exists():
        time.sleep(0.01)
    began, last = time.monotonic(), time.thread_time()
    method = ps.LBFGS(gradient=options.gradient, decrease=0, iterations=options.iterations)
    found = session.minimize(loss, data, method)
    if session.is_chief:
        seconds = time.monotonic() - began
        sys.stdout.write(json.dumps({**asdict(found), "seconds": seconds}) + "\n")
        if options.save:
            np.savez(options.save, W=W.value, b=b.value)
