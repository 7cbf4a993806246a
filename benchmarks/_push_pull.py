"""The work of transport.py and links.py: the variables of Deep MNIST, 13.1 MB, pushed and pulled; and an empty call."""

import math
import time
from collections.abc import Sequence

import numpy as np

from pswire import optimizers
from pswire.messages import Declaration, Join, Pull, Sender
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport import Transport
from psworker.versions import VersionedArray

SHAPES = {
    "W_conv1": (5, 5, 1, 32),
    "b_conv1": (32,),
    "W_conv2": (5, 5, 32, 64),
    "b_conv2": (64,),
    "W_fc1": (3136, 1024),
    "b_fc1": (1024,),
    "W_fc2": (1024, 10),
    "b_fc2": (10,),
}
ELEMENTS = sum(map(math.prod, SHAPES.values()))
RATE = 1e-4
MB = 1e6


def arrays(scale: float, seed: int) -> dict[str, np.ndarray]:
    """One for each variable, normally distributed."""
    random = np.random.default_rng(seed)
    return {name: random.normal(0, scale, shape).astype(np.float32) for name, shape in SHAPES.items()}


def declaration(name: str, value: np.ndarray) -> Declaration:
    """Declaration of a variable with Adam."""
    return Declaration(TensorSpec.of(name, value), value, optimizers.Adam(RATE))


def push_pull(
    client: Client, weights: Sequence[VersionedArray], gradients: dict[str, np.ndarray]
) -> Sequence[VersionedArray]:
    """One step: pushes all gradients, receives all fresh weights."""
    pushed = [VersionedArray(weight.name, weight.read, gradients[weight.name]) for weight in weights]
    return client.push(pushed, None, list(gradients), known_values=weights).result().values


def empty(transport: Transport, count: int) -> list[float]:
    """Milliseconds of each of `count` round trips without tensors, of a call of a training loop."""
    sender = Sender("empty", transport.call(0, Join(worker="empty"), 30.0).result().incarnation)
    seen = []
    for _ in range(count):
        began = time.perf_counter()
        transport.call(0, Pull(sender=sender, names=()), 30.0).result()
        seen.append((time.perf_counter() - began) * 1e3)
    return seen
