"""A generative adversarial network on MNIST: two networks on one server, trained alternately by two optimizers.

The generator computes images from noise; the discriminator classifies images as real or generated (Goodfellow et al.,
"Generative Adversarial Nets", 2014, section 3, with the non-saturating loss of the generator).

python examples/gan_mnist.py                                            # in one process
psworker local --workers 2 examples/gan_mnist.py                        # a server and two workers
psworker run --servers host:port examples/gan_mnist.py                  # one worker of a cluster

Every 500 steps the chief saves a grid of generated images, samples/samples-STEP.png: rough digits after about 2,000
steps, good ones after 10,000.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import datasets, nn, ops

try:
    from PIL import Image
except ImportError:
    sys.exit("this example needs Pillow: pip install pillow")

parser = argparse.ArgumentParser(description="A generative adversarial network on MNIST.")
parser.add_argument("--steps", type=int, default=10_000, help="over all workers; each step trains both networks")
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--every", type=int, default=500, help="steps between grids of samples")
parser.add_argument("--output", type=Path, default=Path("samples"), help="folder for the grids")
parser.add_argument("--seed", type=int, default=0, help="seed of initial values, noise and order of the images")
options = parser.parse_args()

NOISE, SIDE, GRID = 64, 28, 8

mnist = datasets.mnist()
ps.set_random_seed(options.seed)
with ps.variable_scope("generator"):
    generator = [
        nn.Dense(NOISE, 256, activation=ops.leaky_relu, name="hidden_1"),
        nn.Dense(256, 512, activation=ops.leaky_relu, name="hidden_2"),
        nn.Dense(512, SIDE * SIDE, activation=ops.tanh, name="image"),
    ]
with ps.variable_scope("discriminator"):
    discriminator = [
        nn.Dense(SIDE * SIDE, 256, activation=ops.leaky_relu, name="hidden_1"),
        nn.Dense(256, 256, activation=ops.leaky_relu, name="hidden_2"),
        nn.Dense(256, 1, name="logit"),
    ]
generator_optimizer = ps.Adam(options.learning_rate, beta1=0.5)
discriminator_optimizer = ps.Adam(options.learning_rate, beta1=0.5)


def through(network, x):
    for layer in network:
        x = layer(x)
    return x


def generate(count, random):
    """Images (count, 784) with pixels from -1 to 1."""
    return through(generator, random.standard_normal((count, NOISE), np.float32))


def loss_for_label(label, images):
    """The loss of the discriminator if `label` is right for the images: 1 real, 0 generated."""
    return ops.sigmoid_cross_entropy(through(discriminator, images), label)


def train(real, generated):
    """One step of the discriminator and one of the generator on the same images; returns both losses."""
    discriminator_loss = loss_for_label(1, real) + loss_for_label(0, ps.stop_gradient(generated))
    discriminator_optimizer.minimize(discriminator_loss, var_list=ps.trainable_variables("discriminator"))
    generator_loss = loss_for_label(1, generated)
    generator_optimizer.minimize(generator_loss, var_list=ps.trainable_variables("generator"))
    return float(discriminator_loss), float(generator_loss)


def save_samples(step):
    """Saves a grid of images generated from the same noise each time; returns its path."""
    with ps.no_grad():
        images = generate(GRID * GRID, np.random.default_rng(options.seed)).value
    grid = images.reshape(GRID, GRID, SIDE, SIDE).swapaxes(1, 2).reshape(GRID * SIDE, GRID * SIDE)
    path = options.output / f"samples-{step:06d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint((grid + 1) * 127.5).astype(np.uint8)).save(path)
    return path


with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])  # different noise in each worker
    epochs = math.ceil(options.steps * options.batch_size / len(mnist.train)) + 1
    next_samples = options.every
    for batch in session.batches(mnist.train, options.batch_size, epochs, seed=options.seed):
        d_loss, g_loss = train(2 * batch.image - 1, generate(len(batch), random))
        step = session.global_step // 2  # two pushes each
        if session.is_chief and step >= min(next_samples, options.steps):
            next_samples += options.every
            saved = save_samples(step)
            print(f"step {step:6,d}: loss of discriminator {d_loss:.3f}, generator {g_loss:.3f}, {saved}", flush=True)
        if step >= options.steps:
            break
