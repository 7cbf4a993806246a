"""What a shard must not let be pushed, by what is wrong, and the error.

`W` is float64[2], `E` is float64[3, 2], `c` has no optimizer.
"""

import numpy as np

from pswire import errors
from pswire.messages import Gradient
from pswire.tensors.values import IndexedSlices


def rows(values, indices):
    """Rows as they come over the wire, where the indices are anything."""
    array = np.array(values, np.float64)
    return IndexedSlices(array, np.array(indices), (3, array.shape[1]), check_range=False)


BAD_PUSHES = {
    "unknown variable": ([Gradient("nothing", 0, np.zeros(2))], errors.UnknownVariable),
    "wrong shape": ([Gradient("W", 0, np.zeros(3))], errors.ShapeMismatch),
    "wrong dtype": ([Gradient("W", 0, np.zeros(2, np.float32))], errors.ShapeMismatch),
    "NaN": ([Gradient("W", 0, np.array([1, np.nan]))], errors.NotFinite),
    "infinity": ([Gradient("W", 0, np.array([-np.inf, np.inf]))], errors.NotFinite),
    "NaN in a row": ([Gradient("E", 0, rows([[1, 1], [np.nan, 1]], [2, 2]))], errors.NotFinite),
    "row below": ([Gradient("E", 0, rows([[1, 1]], [-1]))], errors.InvalidMessage),
    "row above": ([Gradient("E", 0, rows([[1, 1], [1, 1]], [0, 3]))], errors.InvalidMessage),
    "rows of another shape": ([Gradient("E", 0, rows([[1, 1, 1]], [0]))], errors.ShapeMismatch),
    "rows of another array": ([Gradient("W", 0, rows([[1, 1]], [0]))], errors.ShapeMismatch),
    "rows of another dtype": ([Gradient("E", 0, rows([[1, 1]], [0]).astype("f4"))], errors.ShapeMismatch),
    "two for one": ([Gradient("W", 0, np.zeros(2)), Gradient("W", 0, np.zeros(2))], errors.InvalidMessage),
    "from the future": ([Gradient("W", 1000, np.zeros(2))], errors.InvalidMessage),
    "no optimizer": ([Gradient("c", 0, np.zeros(2))], errors.NoOptimizer),
    "unknown wish": ([], errors.UnknownVariable),
}

#: Those that nobody can find who has not looked at the elements.
IN_THE_ELEMENTS = {"NaN", "infinity", "NaN in a row", "row below", "row above"}
