"""The variables that the workers of the properties share, and what may be pushed and assigned to them.

What `tests.properties.model` says in exact fractions, told to a real shard. Numbers are small integers.
"""

import math

import numpy as np
from hypothesis import strategies as st

from pswire.messages import Declaration
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.schedules import ExponentialDecay
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.properties.model import HALVING

SHAPES = {"W": (2,), "M": (1, 3), "E": (3, 2), "A": (2,), "c": (2,)}
SIZES = {name: math.prod(shape) for name, shape in SHAPES.items()}
HALVED = ExponentialDecay(1, decay_steps=HALVING, decay_rate=0.5, staircase=True)
OPTIMIZERS = {
    "W": GradientDescent(HALVED),
    "M": Momentum(learning_rate=0.5, momentum=0.5),
    "E": Momentum(learning_rate=0.5, momentum=0.5),
    "A": MovingAverage(decay=0.5),
}
INITIAL = {name: [number] * SIZES[name] for number, name in enumerate(SHAPES, 1)}

integers = st.integers(-8, 8)
rows = st.lists(st.tuples(st.integers(0, 2), st.tuples(integers, integers)), max_size=4)
gradients = st.fixed_dictionaries(
    {},
    optional={name: st.lists(integers, min_size=SIZES[name], max_size=SIZES[name]) for name in "WMA"} | {"E": rows},
)
values = st.dictionaries(st.sampled_from("".join(SHAPES)), integers, min_size=1)


def declaration(name):
    """The variable with its initial value."""
    return Declaration(TensorSpec(name, SHAPES[name], "float64"), array(name, INITIAL[name]), OPTIMIZERS.get(name))


def array(name, numbers):
    """A value or a gradient."""
    return np.array(numbers, np.float64).reshape(SHAPES[name])


def gradient(name, numbers):
    """A gradient as `gradients` draws it: `E` has pairs of an index and its row, and an index may come again."""
    if name != "E":
        return array(name, numbers)
    row_values = np.array([row for _, row in numbers], np.float64).reshape(len(numbers), 2)
    return IndexedSlices(row_values, np.array([index for index, _ in numbers], np.int32), SHAPES[name])


def full(name, number):
    """The variable with one number everywhere."""
    return np.full(SHAPES[name], float(number))
