"""Softmax regression on MNIST by batch optimization: L-BFGS with all examples in each step, as in Sandblaster.

python examples/softmax_lbfgs.py                                   # in one process
psworker local --workers 4 --shards 2 examples/softmax_lbfgs.py    # shards hold the vectors, workers take portions
"""

import argparse

import numpy as np

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser(description="Softmax regression on MNIST by L-BFGS.")
parser.add_argument("--examples", type=int, default=55_000, help="the first ones of the training set")
parser.add_argument("--l2", type=float, default=1e-4, help="times the sum of squares of the weights, added to the loss")
parser.add_argument("--memory", type=int, default=10, help="steps that L-BFGS remembers")
parser.add_argument("--gradient", type=float, default=1e-5, help="stop when no element of the gradient is larger")
parser.add_argument("--iterations", type=int, default=500)
parser.add_argument("--portion", type=int, help="examples in a portion")
options = parser.parse_args()

mnist = datasets.mnist()
train = mnist.train[: options.examples]
W = ps.Variable(np.zeros((784, 10)), name="W")  # float64
b = ps.Variable(np.zeros(10), name="b")


def logits(batch):
    return ops.matmul(batch.image.astype(np.float64), W) + b


def loss(batch):
    return ops.softmax_cross_entropy(logits(batch), batch.label) + options.l2 * ops.sum(W * W)


def accuracy(batch):
    return ops.accuracy(logits(batch), batch.label)


def report(point):
    print(f"iteration {point.iterations:3d}: loss {point.loss:.6f}, gradient {point.gradient:.1e}", flush=True)


with ps.session() as session:
    method = ps.LBFGS(memory=options.memory, gradient=options.gradient, iterations=options.iterations)
    found = session.minimize(loss, train, method, portion=options.portion, on_iteration=report)
    if session.is_chief:
        print(f"{found.evaluations} evaluations, {found.reason}")
        print(f"loss {found.loss:.10f}, test accuracy {session.evaluate(accuracy, mnist.test):.4f}")
