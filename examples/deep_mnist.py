"""The classic convolutional network on MNIST, "Deep MNIST for Experts": two convolutions, two poolings, dropout, Adam.

python examples/deep_mnist.py                                           # in one process
psworker local --workers 2 examples/deep_mnist.py                       # a server and two workers
psworker run --servers host:port examples/deep_mnist.py                 # one worker of a cluster

Test accuracy exceeds 99 % after 20,000 steps with batches of 50.
"""

import argparse
import math
import time

import psworker as ps
from psworker import datasets, initializers, nn, ops

parser = argparse.ArgumentParser(description="A convolutional network on MNIST.")
parser.add_argument("--steps", type=int, default=20_000, help="pushes over all workers")
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--learning-rate", type=float, default=1e-4)
parser.add_argument("--report", type=int, default=1_000, help="steps between reports of the test accuracy")
parser.add_argument("--test-images", type=int, default=10_000, help="number of test images in a report")
parser.add_argument("--seed", type=int, default=0, help="seed of initial values and order of the examples")
options = parser.parse_args()

mnist = datasets.mnist()
ps.set_random_seed(options.seed)
initial = {"kernel_initializer": initializers.truncated_normal(0.1), "bias_initializer": initializers.constant(0.1)}
conv1 = nn.Conv2D(1, 32, 5, activation=ops.relu, name="conv1", **initial)
conv2 = nn.Conv2D(32, 64, 5, activation=ops.relu, name="conv2", **initial)
hidden = nn.Dense(7 * 7 * 64, 1024, activation=ops.relu, name="fc1", **initial)
output = nn.Dense(1024, 10, name="fc2", **initial)
optimizer = ps.Adam(options.learning_rate)


def logits(images, training):
    x = ops.reshape(images, (-1, 28, 28, 1))
    x = ops.max_pool2d(conv1(x), 2)
    x = ops.max_pool2d(conv2(x), 2)
    x = hidden(ops.reshape(x, (-1, 7 * 7 * 64)))
    return output(ops.dropout(x, 0.5, training))


def report(loss):
    minutes = (time.monotonic() - began) / 60
    images = mnist.test[: options.test_images]
    accuracy = session.evaluate(lambda batch: ops.accuracy(logits(batch.image, False), batch.label), images, 100)
    session.summary.scalar("accuracy", accuracy)
    print(
        f"step {session.global_step:6,d}: loss {loss:.4f}, test accuracy {accuracy:.4f}, {minutes:.1f} min", flush=True
    )


with ps.session() as session:
    began = time.monotonic()
    next_report = session.global_step // options.report * options.report + options.report
    epochs = math.ceil(options.steps * options.batch_size / len(mnist.train)) + 1
    for batch in session.batches(mnist.train, options.batch_size, epochs, seed=options.seed):
        loss = ops.softmax_cross_entropy(logits(batch.image, True), batch.label)
        optimizer.minimize(loss)
        if session.is_chief and session.global_step >= min(next_report, options.steps):
            next_report += options.report
            report(loss)
        if session.global_step >= options.steps:
            break
