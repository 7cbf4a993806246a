"""Lion, an optimizer of one's own: softmax regression on MNIST with an update rule that paramserver does not have.

This file is the program, which workers run, and the rule, which servers load at their start:

    python examples/custom_optimizer.py
    psworker local --optimizers examples/custom_optimizer.py examples/custom_optimizer.py

    psserver serve --optimizers examples/custom_optimizer.py
    psworker run examples/custom_optimizer.py
"""

import argparse
from dataclasses import dataclass

import numpy as np

import psworker as ps
from psworker import datasets, ops


@dataclass(frozen=True)
class Lion(ps.CustomOptimizer):
    """The sign of a gradient that is mixed with the average of earlier ones. Slot: `momentum`.

        w <- w - learning_rate * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
        m <- beta2 * m + (1 - beta2) * g

    Source: X. Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, algorithm 2.
    """

    slots = ("momentum",)
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    def update(self, value, gradient, slots, step):
        """The new value and slots, of a block of elements."""
        m = slots["momentum"]
        direction = np.sign(self.beta1 * m + (1 - self.beta1) * gradient) + self.weight_decay * value
        return value - step.learning_rate * direction, {"momentum": self.beta2 * m + (1 - self.beta2) * gradient}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    mnist = datasets.mnist()
    W, b = ps.Variable(ops.zeros((784, 10)), name="W"), ps.Variable(ops.zeros((10,)), name="b")
    logits = lambda batch: ops.matmul(batch.image, W) + b
    optimizer = Lion(ps.schedules.CosineDecay(1e-3, decay_steps=550 * epochs), weight_decay=0.01)
    with ps.session() as session:
        for batch in session.batches(mnist.train, batch_size=100, epochs=epochs):
            optimizer.minimize(ops.softmax_cross_entropy(logits(batch), batch.label))
        if session.is_chief:
            accuracy = session.evaluate(lambda batch: ops.accuracy(logits(batch), batch.label), mnist.test)
            print(f"test accuracy with Lion: {accuracy:.4f}")


if __name__ == "__main__":
    main()
