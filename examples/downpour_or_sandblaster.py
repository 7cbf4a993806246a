"""Figures 4 and 5 of DistBelief in the small: SGD, Downpour SGD with Adagrad and Sandblaster L-BFGS, by workers.

The same model, MNIST by softmax regression or with a hidden layer, is trained for some seconds by each, as a job of
processes on this machine. The chief keeps the weights of some moments; afterwards their cost on the whole training set
and their accuracy on the test set are computed.

python examples/downpour_or_sandblaster.py                              # a table
python examples/downpour_or_sandblaster.py --hidden 64 --plot cost.png  # and a picture: pip install matplotlib

Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012: sections 4.1, 4.2 and 5, figures 4 and 5.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import datasets, ops

METHODS = {"sgd": "SGD", "downpour": "Downpour SGD, Adagrad", "sandblaster": "Sandblaster L-BFGS"}

parser = argparse.ArgumentParser(description="Cost and accuracy over time: SGD, Downpour SGD and Sandblaster L-BFGS.")
parser.add_argument("--seconds", type=float, default=12.0, help="of training, for each job")
parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers (SGD has one)")
parser.add_argument("--hidden", type=int, default=0, help="units of a hidden layer; 0: softmax regression")
parser.add_argument("--examples", type=int, default=55_000, help="the first ones of the training set")
parser.add_argument("--batch-size", type=int, default=100, help="of SGD and Downpour SGD")
parser.add_argument("--learning-rate", type=float, default=0.2, help="of SGD")
parser.add_argument("--adagrad-rate", type=float, default=0.05, help="of Downpour SGD")
parser.add_argument("--accuracy", type=float, default=0.9, help="of the test set; the time until then is compared")
parser.add_argument("--plot", metavar="PNG", help="draw a picture")
parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)  # of a worker, in a job
parser.add_argument("--points", type=Path, help=argparse.SUPPRESS)  # the file for its chief


def weights_at_start(hidden):
    """The initial values, the same in all jobs: a kernel and a bias for each layer."""
    random = np.random.default_rng(1)
    sizes = [784, hidden, 10] if hidden else [784, 10]
    kernels = [random.normal(0, 1 / np.sqrt(rows), (rows, columns)) for rows, columns in pairwise(sizes)]
    return [array.astype(np.float32) for kernel in kernels for array in (kernel, np.zeros(kernel.shape[1]))]


def logits(image, weights):
    kernel, bias, *rest = weights
    product = ops.matmul(image, kernel) + bias
    return logits(ops.relu(product), rest) if rest else product


class Points:
    """The weights of the chief at some moments, in seconds since the beginning, and at the end what they are worth."""

    def __init__(self, session, variables, seconds):
        self._session, self._variables, self._seconds = session, variables, seconds
        self._begin, self._kept = time.monotonic(), []

    def add(self, interval=0.0):
        """Keep the present weights, unless it is too early; stop the job when its time is over."""
        at = time.monotonic() - self._begin
        if self._session.is_chief and (not self._kept or at >= self._kept[-1][0] + interval):
            self._kept.append((at, [variable.value.copy() for variable in self._variables]))
            if at >= self._seconds and not self._session.stopped:
                self._session.stop_all("the time is over")

    def measured(self, train, test):
        """By moment: seconds, the mean cost of the training set, the accuracy on the test set."""
        accuracy = lambda weights: ops.accuracy(logits(test.image, weights), test.label)
        return [
            (at, ops.softmax_cross_entropy(logits(train.image, weights), train.label).item(), accuracy(weights))
            for at, weights in self._kept
        ]


def train(options):
    """A worker of one job."""
    mnist = datasets.mnist()
    data = mnist.train[: options.examples]
    variables = [ps.Variable(value, name=f"v{n}") for n, value in enumerate(weights_at_start(options.hidden))]
    optimizer = ps.Adagrad(options.adagrad_rate)
    if options.method == "sgd":
        optimizer = ps.GradientDescent(options.learning_rate)

    def loss(batch):
        return ops.softmax_cross_entropy(logits(batch.image, variables), batch.label)

    with ps.session() as session:
        while len(session.workers) < options.workers[0]:  # the launcher ends the job if one of them fails
            time.sleep(0.05)
        session.barrier()
        points = Points(session, variables, options.seconds)
        if options.method == "sandblaster":
            portion = -(-len(data) // 16)  # of some milliseconds: this model is small
            session.minimize(loss, data, ps.LBFGS(), portion=portion, on_iteration=lambda point: points.add())
        else:
            points.add()
            for batch in session.batches(data, options.batch_size, epochs=1_000_000):
                optimizer.minimize(loss(batch))
                points.add(interval=options.seconds / 50)
        if session.is_chief:
            options.points.write_text(json.dumps(points.measured(data, mnist.test)))


def run(options, method, workers):
    """One job of processes; the points of its chief."""
    with tempfile.TemporaryDirectory() as folder:
        points = Path(folder) / "points.json"
        launcher = [sys.executable, "-m", "psworker", "local", "--workers", f"{workers}", "--threads", "1"]
        command = [*launcher, "--progress", "off", __file__, "--method", method, "--points", str(points)]
        for name in ("seconds", "hidden", "examples", "batch_size", "learning_rate", "adagrad_rate"):
            command += [f"--{name.replace('_', '-')}", f"{getattr(options, name)}"]
        subprocess.run([*command, "--workers", f"{workers}"], check=True)
        return json.loads(points.read_text())


def seconds_to(points, accuracy):  # None: never
    return next((at for at, _, found in points if found >= accuracy), None)


def compare(options):
    """The points of all jobs, by method and number of workers."""
    print(f"{'':22} workers  moments  training cost  test accuracy  seconds to {100 * options.accuracy:g} %")
    found = {}
    for method, label in METHODS.items():
        for workers in [1] if method == "sgd" else options.workers:
            points = found[method, workers] = run(options, method, workers)
            _, cost, accuracy = points[-1]
            reached = seconds_to(points, options.accuracy)
            row = f"{label:22} {workers:7} {len(points):8} {cost:14.4f} {accuracy:14.4f}"
            print(row, f"{'-' if reached is None else f'{reached:.1f}':>15}", flush=True)
    return found


if __name__ == "__main__":
    arguments = parser.parse_args()
    if arguments.method:
        train(arguments)
    else:
        found = compare(arguments)
        if arguments.plot:
            from _draw_methods import draw

            reached = {one: seconds_to(points, arguments.accuracy) for one, points in found.items()}
            draw(arguments, METHODS, found, reached)
