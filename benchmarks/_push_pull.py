"""The variables of Deep MNIST for transport.py: gradients and weights, 13.1 MB each."""

import math

import numpy as np

from pswire import optimizers
from pswire.messages import Declaration
from pswire.tensors.values import TensorSpec

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
