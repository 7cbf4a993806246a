"""Softmax regression on MNIST without an optimizer: `ps.gradients` and `session.assign_add`.

`ps.GradientDescent` trains a copy of each variable on the same batches; in one process both stay equal.

python examples/manual_descent.py                                       # in one process
psworker local --workers 2 examples/manual_descent.py                   # a server and two workers
psworker run --servers host:port examples/manual_descent.py             # one worker of a cluster
"""

import argparse

import numpy as np

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser(description="Gradient descent by hand beside the built-in optimizer.")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=0.1)
options = parser.parse_args()

mnist = datasets.mnist()
rate = np.float32(options.learning_rate)
optimizer = ps.GradientDescent(learning_rate=options.learning_rate)


def model(name: str) -> tuple[ps.Variable, ps.Variable]:
    with ps.variable_scope(name):
        return ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")


def loss(batch: ps.Batch, variables: tuple[ps.Variable, ps.Variable]) -> ps.Tensor:
    W, b = variables
    return ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label)


def accuracy(variables: tuple[ps.Variable, ps.Variable]) -> float:
    W, b = variables
    return session.evaluate(lambda batch: ops.accuracy(ops.matmul(batch.image, W) + b, batch.label), mnist.test)


by_hand, by_optimizer = model("by_hand"), model("by_optimizer")

with ps.session() as session:
    for batch in session.batches(mnist.train, options.batch_size, options.epochs):
        gradients = ps.gradients(loss(batch, by_hand), by_hand)
        for variable, gradient in zip(by_hand, gradients, strict=True):
            session.assign_add(variable, -(rate * gradient))
        optimizer.minimize(loss(batch, by_optimizer), by_optimizer)
    if session.is_chief:
        difference = max(np.abs(a.value - b.value).max() for a, b in zip(by_hand, by_optimizer, strict=True))
        print(f"largest difference between the two: {difference:g}")
        print(f"test accuracy: {accuracy(by_hand):.4f} by hand, {accuracy(by_optimizer):.4f} by the optimizer")
