"""The job of `consistency.py`: Deep MNIST's network, 6,000 images once. Run by workers, imported by the observer."""

import argparse
import time

import _report

import psworker as ps
from pswire.specs import initializers
from psworker import datasets, nn, ops

IMAGES = _report.size(6_000, 300)
BATCH = 50


class Network:
    """Two convolutions, two poolings and two dense layers, as in examples/deep_mnist.py, without its dropout."""

    def __init__(self) -> None:
        initial = {"kernel_initializer": initializers.truncated_normal(0.1)}
        self.conv1 = nn.Conv2D(1, 32, 5, activation=ops.relu, name="conv1", **initial)
        self.conv2 = nn.Conv2D(32, 64, 5, activation=ops.relu, name="conv2", **initial)
        self.hidden = nn.Dense(7 * 7 * 64, 1024, activation=ops.relu, name="fc1", **initial)
        self.output = nn.Dense(1024, 10, name="fc2", **initial)

    def cost(self, images, labels):
        """The mean cross entropy over a batch."""
        x = ops.reshape(images, (-1, 28, 28, 1))
        x = ops.max_pool2d(self.conv1(x), 2)
        x = ops.max_pool2d(self.conv2(x), 2)
        return ops.softmax_cross_entropy(self.output(self.hidden(ops.reshape(x, (-1, 7 * 7 * 64)))), labels)


def main() -> None:
    """One worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.0, help="additional seconds of each step")
    options = parser.parse_args()
    network, optimizer = Network(), ps.Adam(1e-3)
    images = datasets.mnist().train[:IMAGES]
    with ps.session() as session:
        for batch in session.batches(images, BATCH):
            loss = network.cost(batch.image, batch.label)
            pairs = optimizer.compute_gradients(loss)
            time.sleep(options.pause)
            optimizer.apply_gradients(pairs)


if __name__ == "__main__":
    main()
