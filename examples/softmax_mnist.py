"""Softmax regression on MNIST: 784 x 10 weights, plain gradient descent, ten passes over the data.

python examples/softmax_mnist.py                                        # in one process
psworker local --workers 2 examples/softmax_mnist.py                    # a server and two workers
psworker run --servers host:port examples/softmax_mnist.py              # one worker of a cluster
python examples/softmax_mnist.py --save softmax.safetensors             # for examples/predict_mnist.py
python examples/softmax_mnist.py --checkpoint-dir runs/a                # continues where it was stopped
"""

import argparse

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser(description="Softmax regression on MNIST.")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=0, help="seed of the order of the examples")
parser.add_argument("--save", metavar="PATH", help="write the trained model to this safetensors file")
parser.add_argument("--checkpoint-dir", metavar="DIR", help="continue from this folder, and keep the best model there")
options = parser.parse_args()

mnist = datasets.mnist()
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
optimizer = ps.GradientDescent(learning_rate=options.learning_rate)


def logits(batch):
    return ops.matmul(batch.image, W) + b


def report(epoch):
    if session.is_chief:
        print(f"epoch {epoch.epoch:2d}: mean cost {epoch.cost:.4f} over {epoch.examples:,} examples", flush=True)
        if options.checkpoint_dir and session.is_latest(epoch):
            with session.generation():  # the model that is evaluated is the one that is saved
                found = accuracy(mnist.validation)
                best = ", the best so far" if session.save_best(found, maximize=True) else ""
            print(f"          validation accuracy {found:.4f}{best}", flush=True)


def accuracy(dataset):
    return session.evaluate(lambda batch: ops.accuracy(logits(batch), batch.label), dataset)


with ps.session(checkpoint_dir=options.checkpoint_dir) as session:
    for batch in session.batches(mnist.train, options.batch_size, options.epochs, seed=options.seed, on_epoch=report):
        optimizer.minimize(ops.softmax_cross_entropy(logits(batch), batch.label))
    if session.is_chief:
        print(f"test accuracy: {accuracy(mnist.test[:3000]):.4f} on the first 3,000, {accuracy(mnist.test):.4f} on all")
        if options.save:
            session.save(options.save)
