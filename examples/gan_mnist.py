"""A generative adversarial network on MNIST: two networks on one server, trained in turns by two optimizers.

The generator draws images out of noise, the discriminator tells them from real ones, and each learns from the other
(Goodfellow et al., "Generative Adversarial Nets", 2014, section 3, with the generator's loss that does not saturate).

python examples/gan_mnist.py                                            # in one process
psworker local --workers 2 examples/gan_mnist.py                        # a server and two workers
psworker run --servers host:port examples/gan_mnist.py                  # one worker of a cluster

Every 500 steps the chief saves a grid of what the generator draws, samples/samples-STEP.png: rough digits after
some 2,000 steps, good ones after 10,000.
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
    sys.exit("this example saves images with Pillow: pip install pillow")

parser = argparse.ArgumentParser(description="A generative adversarial network on MNIST.")
parser.add_argument("--steps", type=int, default=10_000, help="over all workers; each step trains both networks")
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--every", type=int, default=500, help="steps between two grids of samples")
parser.add_argument("--output", type=Path, default=Path("samples"), help="folder of the grids")
parser.add_argument("--seed", type=int, default=0, help="of the initial values, the noise and the order of the images")
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


def draw(count, random):
    """Images (count, 784) with pixels from -1 to 1."""
    return through(generator, random.standard_normal((count, NOISE), np.float32))


def loss_of_saying(label, images):
    """What it costs the discriminator that it does not say `label` of the images: 1 real, 0 drawn."""
    return ops.sigmoid_cross_entropy(through(discriminator, images), label)


def train(real, drawn):
    """A step of the discriminator, then one of the generator, on the same images; returns both losses."""
    discriminator_loss = loss_of_saying(1, real) + loss_of_saying(0, ps.stop_gradient(drawn))
    discriminator_optimizer.minimize(discriminator_loss, var_list=ps.trainable_variables("discriminator"))
    generator_loss = loss_of_saying(1, drawn)
    generator_optimizer.minimize(generator_loss, var_list=ps.trainable_variables("generator"))
    return float(discriminator_loss), float(generator_loss)


def save_samples(step):
    """A grid of the images of the same noise each time, so that one can watch digits come out of it."""
    with ps.no_grad():
        images = draw(GRID * GRID, np.random.default_rng(options.seed)).value
    grid = images.reshape(GRID, GRID, SIDE, SIDE).swapaxes(1, 2).reshape(GRID * SIDE, GRID * SIDE)
    path = options.output / f"samples-{step:06d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint((grid + 1) * 127.5).astype(np.uint8)).save(path)
    return path


with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])  # other noise in each worker
    epochs = math.ceil(options.steps * options.batch_size / len(mnist.train)) + 1
    next_samples = options.every
    for batch in session.batches(mnist.train, options.batch_size, epochs, seed=options.seed):
        d_loss, g_loss = train(2 * batch.image - 1, draw(len(batch), random))
        step = session.global_step // 2  # of two pushes each
        if session.is_chief and step >= min(next_samples, options.steps):
            next_samples += options.every
            saved = save_samples(step)
            print(f"step {step:6,d}: loss of discriminator {d_loss:.3f}, generator {g_loss:.3f}, {saved}", flush=True)
        if step >= options.steps:
            break
