"""The variables of the properties as `tests.properties.model` describes them, and pushes that a shard must refuse."""

import math

import numpy as np
from hypothesis import strategies as st

from pswire import errors
from pswire.messages import Declaration, Gradient
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.initializers import RowConstant
from pswire.specs.schedules import ExponentialDecay
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.properties.model import HALVING, ROW

SHAPES = {"W": (2,), "M": (1, 3), "E": (3, ROW), "A": (2,), "c": (2,)}
SIZES = {name: math.prod(shape) for name, shape in SHAPES.items()}
OPTIMIZERS = {
    "W": GradientDescent(ExponentialDecay(1, decay_steps=HALVING, decay_rate=0.5, staircase=True)),
    "M": Momentum(learning_rate=0.5, momentum=0.5),
    "E": Momentum(learning_rate=0.5, momentum=0.5),
    "A": MovingAverage(decay=0.5),
}
INITIAL = {name: [number] * SIZES[name] for number, name in enumerate(SHAPES, 1)}

#: Multiples of 6: the mean of two or three is a whole number, too.
sixes = st.integers(-4, 4).map(lambda number: 6 * number)
gradients = st.fixed_dictionaries(
    {},
    optional={name: st.lists(sixes, min_size=SIZES[name], max_size=SIZES[name]) for name in "WMA"}
    | {"E": st.lists(st.tuples(st.integers(0, 2), st.tuples(sixes, sixes)), max_size=4)},
)
values = st.dictionaries(st.sampled_from("".join(SHAPES)), sixes, min_size=1)


def declaration(name, number=None):
    """The variable with its initial value, or this number everywhere."""
    spec, number = TensorSpec(name, SHAPES[name], "float64"), INITIAL[name][0] if number is None else number
    if name == "E":
        return Declaration(spec, None, OPTIMIZERS[name], RowConstant(float(INITIAL["E"][0])))
    return Declaration(spec, full(name, number), OPTIMIZERS.get(name))


def gradient(name, numbers, version):
    """As `gradients` draws it: `E` has pairs of an index and its row, and an index may come again."""
    array = np.array([row for _, row in numbers] if name == "E" else numbers, np.float64)
    if name != "E":
        return Gradient(name, version, array.reshape(SHAPES[name]))
    indices = np.array([index for index, _ in numbers], np.int32)
    return Gradient(name, version, IndexedSlices(array.reshape(len(numbers), ROW), indices, SHAPES[name]))


def full(name, number):
    """An array of the variable's shape with one number everywhere."""
    return np.full(SHAPES[name], float(number))


def bad_gradient(name, values, *indices, dtype="f8", version=0):
    """A gradient for the variable; with indices rows as they come over the wire, where these are anything."""
    array = np.array(values, dtype)
    if indices:
        array = IndexedSlices(array, np.array(indices), (3, array.shape[1]), check_range=False)
    return Gradient(name, version, array)


#: Gradients that must be refused, by their fault, and the error. The last five are in the elements.
BAD_PUSHES = {
    "unknown variable": ([bad_gradient("nothing", [0, 0])], errors.UnknownVariable),
    "wrong shape": ([bad_gradient("W", [0, 0, 0])], errors.ShapeMismatch),
    "wrong dtype": ([bad_gradient("W", [0, 0], dtype="f4")], errors.ShapeMismatch),
    "rows of another shape": ([bad_gradient("E", [[1, 1, 1]], 0)], errors.ShapeMismatch),
    "rows of another array": ([bad_gradient("W", [[1, 1]], 0)], errors.ShapeMismatch),
    "rows of another dtype": ([bad_gradient("E", [[1, 1]], 0, dtype="f4")], errors.ShapeMismatch),
    "two for one": ([bad_gradient("W", [0, 0])] * 2, errors.InvalidMessage),
    "from the future": ([bad_gradient("W", [0, 0], version=1000)], errors.InvalidMessage),
    "no optimizer": ([bad_gradient("c", [0, 0])], errors.NoOptimizer),
    "unknown value asked for": ([], errors.UnknownVariable),
    "NaN": ([bad_gradient("W", [1, np.nan])], errors.NotFinite),
    "infinity": ([bad_gradient("W", [-np.inf, np.inf])], errors.NotFinite),
    "NaN in a row": ([bad_gradient("E", [[1, 1], [np.nan, 1]], 2, 2)], errors.NotFinite),
    "row below": ([bad_gradient("E", [[1, 1]], -1)], errors.InvalidMessage),
    "row above": ([bad_gradient("E", [[1, 1], [1, 1]], 0, 3)], errors.InvalidMessage),
}
IN_THE_ELEMENTS = set(list(BAD_PUSHES)[-5:])
