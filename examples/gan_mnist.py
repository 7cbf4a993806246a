"""A generative adversarial network on MNIST: two networks on one server, trained in turns by two optimizers.

python examples/gan_mnist.py                                            # in one process
psworker local --workers 2 examples/gan_mnist.py                        # a server and two workers
psworker run --servers host:port examples/gan_mnist.py                  # one worker of a cluster

The generator draws images out of noise, the discriminator tells them from real ones, and each learns from the other:
I. Goodfellow et al., "Generative Adversarial Nets", 2014, with the generator's loss that does not saturate (section 3).
The first worker writes what the generator draws to samples/samples-STEP.png; digits show after some 5,000 steps.
"""

import argparse
import math
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import datasets, nn, ops

try:
    from PIL import Image
except ImportError:
    raise SystemExit("this example writes images with Pillow: pip install 'paramserver[examples]'") from None

parser = argparse.ArgumentParser(description="A generative adversarial network on MNIST.")
parser.add_argument("--steps", type=int, default=20_000, help="over all workers; each step trains both networks")
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=2e-4)
parser.add_argument("--every", type=int, default=500, help="steps between two grids of samples")
parser.add_argument("--output", type=Path, default=Path("samples"), help="folder for the grids")
parser.add_argument("--seed", type=int, default=0, help="of the initial values, the noise and the order of the images")
options = parser.parse_args()

NOISE, PIXELS, GRID = 64, 28 * 28, 8


def leaky_relu(x):
    return ops.maximum(x, 0.2 * x)


mnist = datasets.mnist()
ps.set_random_seed(options.seed)
with ps.variable_scope("generator"):
    generator = [
        nn.Dense(NOISE, 256, activation=leaky_relu),
        nn.Dense(256, 512, activation=leaky_relu),
        nn.Dense(512, PIXELS, activation=ops.tanh),
    ]
with ps.variable_scope("discriminator"):
    discriminator = [
        nn.Dense(PIXELS, 256, activation=leaky_relu),
        nn.Dense(256, 1),
    ]
generator_variables = ps.trainable_variables("generator")
discriminator_variables = ps.trainable_variables("discriminator")
generator_optimizer = ps.Adam(options.learning_rate, beta1=0.5)
discriminator_optimizer = ps.Adam(options.learning_rate, beta1=0.5)


def through(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def noise(random, count):
    return random.standard_normal((count, NOISE), np.float32)


def judged_as(label, images):
    """The discriminator's loss when it should have said `label` of all images: 1 real, 0 drawn."""
    logits = through(discriminator, images)
    return ops.sigmoid_cross_entropy(logits, np.full(logits.shape, label, np.float32))


def train(real, drawn):
    """One step of both; the generator's forward pass is walked back once, by its own loss."""
    discriminator_loss = judged_as(1, real) + judged_as(0, ps.stop_gradient(drawn))
    discriminator_optimizer.minimize(discriminator_loss, discriminator_variables)
    generator_loss = judged_as(1, drawn)
    generator_optimizer.minimize(generator_loss, generator_variables)
    return discriminator_loss, generator_loss


def save_samples(step):
    """Draws the same codes every time, so that one can watch each digit come out of the noise."""
    with ps.no_grad():
        images = through(generator, noise(np.random.default_rng(options.seed), GRID * GRID)).value
    rows = images.reshape(GRID, GRID, 28, 28).transpose(0, 2, 1, 3).reshape(GRID * 28, GRID * 28)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"samples-{step:05d}.png"
    Image.fromarray(np.uint8(np.rint((rows + 1) * 127.5))).save(path)
    return path


with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])  # every worker draws other images
    epochs = math.ceil(options.steps * options.batch_size / len(mnist.train)) + 1
    next_samples = options.every
    for batch in session.batches(mnist.train, options.batch_size, epochs, seed=options.seed):
        losses = train(2 * batch.image - 1, through(generator, noise(random, len(batch))))
        step = session.global_step // 2  # each step pushes twice
        if session.is_chief and (step >= next_samples or step >= options.steps):
            next_samples += options.every
            print("step {:6,d}: discriminator {:.3f}, generator {:.3f}, {}".format(step, *losses, save_samples(step)), flush=True)
        if step >= options.steps:
            break
