"""The network of examples/deep_mnist.py in JAX: two convolutions, two poolings, dropout, Adam.

python examples/jax/deep_mnist.py                                       # in one process
psworker local --workers 2 examples/jax/deep_mnist.py                   # a server and two workers
psworker local --workers 3 examples/mixed/deep_mnist.py                 # beside workers of numpy and PyTorch

The tree of parameters has the names, shapes and axes of the numpy program's variables, so that workers of both train
one model.
"""

import argparse
import math
import time

import jax
from jax import lax
from jax import numpy as jnp

import psworker as ps
import psworker.jax as psj
from psworker import datasets

parser = argparse.ArgumentParser(description="A convolutional network on MNIST, in JAX.")
parser.add_argument("--steps", type=int, default=20_000, help="pushes over all workers")
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--learning-rate", type=float, default=1e-4)
parser.add_argument("--report", type=int, default=1_000, help="steps between reports of the test accuracy")
parser.add_argument("--test-images", type=int, default=10_000, help="number of test images in a report")
parser.add_argument("--seed", type=int, default=0, help="seed of initial values and order of the examples")
options = parser.parse_args()

SHAPES = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (7 * 7 * 64, 1024), "fc2": (1024, 10)}


def initial(key):
    """Kernels of small random numbers, and biases of 0.1."""
    keys = zip(jax.random.split(key, len(SHAPES)), SHAPES.items(), strict=True)
    kernel = lambda key, shape: 0.1 * jax.random.truncated_normal(key, -2, 2, shape)
    return {name: {"kernel": kernel(key, shape), "bias": jnp.full(shape[-1], 0.1)} for key, (name, shape) in keys}


def logits(params, images, key=None):
    """Logits (n, 10) of images (n, 784); with a key a random half of the hidden units is 0, as in training."""

    def layer(name, x):
        return lax.conv_general_dilated(
            x, params[name]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def block(name, x):
        x = jax.nn.relu(layer(name, x) + params[name]["bias"])
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    x = block("conv2", block("conv1", images.reshape(-1, 28, 28, 1))).reshape(len(images), -1)
    x = jax.nn.relu(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    if key is not None:
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)
    return x @ params["fc2"]["kernel"] + params["fc2"]["bias"]


@jax.jit
def loss_and_gradients(params, images, labels, key):
    def loss(params):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(params, images, key)), labels[:, None], axis=1)
        return -jnp.mean(chosen)

    return jax.value_and_grad(loss)(params)


@jax.jit
def accuracy(params, images, labels):
    return jnp.mean(logits(params, images).argmax(axis=1) == labels)


def report(loss):
    minutes = (time.monotonic() - began) / 60
    latest = psj.pull()
    images = mnist.test[: options.test_images]
    right = session.evaluate(lambda batch: accuracy(latest, batch.image, batch.label), images, 100)
    print(f"step {session.global_step:6,d}: loss {loss:.4f}, test accuracy {right:.4f}, {minutes:.1f} min", flush=True)


mnist = datasets.mnist()

with ps.session() as session:
    params = psj.declare(initial(jax.random.key(options.seed)), ps.Adam(options.learning_rate))
    began = time.monotonic()
    next_report = session.global_step // options.report * options.report + options.report
    epochs = math.ceil(options.steps * options.batch_size / len(mnist.train)) + 1
    key = jax.random.key(options.seed + session.number)  # each worker draws its own masks of dropout
    for batch in session.batches(mnist.train, options.batch_size, epochs, seed=options.seed):
        key, drawn = jax.random.split(key)
        loss, gradients = loss_and_gradients(params, batch.image, batch.label, drawn)
        params = psj.push(gradients, loss)
        if session.is_chief and session.global_step >= min(next_report, options.steps):
            next_report += options.report
            report(loss)
        if session.global_step >= options.steps:
            break
