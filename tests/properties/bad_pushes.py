"""What a shard must not let be pushed, by what is wrong, and the error. `W` is float64[2], `c` has no optimizer."""

import numpy as np

from pswire import errors
from pswire.messages import Gradient

BAD_PUSHES = {
    "unknown variable": ([Gradient("nothing", 0, np.zeros(2))], errors.UnknownVariable),
    "wrong shape": ([Gradient("W", 0, np.zeros(3))], errors.ShapeMismatch),
    "wrong dtype": ([Gradient("W", 0, np.zeros(2, np.float32))], errors.ShapeMismatch),
    "NaN": ([Gradient("W", 0, np.array([1, np.nan]))], errors.NotFinite),
    "infinity": ([Gradient("W", 0, np.array([-np.inf, np.inf]))], errors.NotFinite),
    "two for one": ([Gradient("W", 0, np.zeros(2)), Gradient("W", 0, np.zeros(2))], errors.InvalidMessage),
    "from the future": ([Gradient("W", 1000, np.zeros(2))], errors.InvalidMessage),
    "no optimizer": ([Gradient("c", 0, np.zeros(2))], errors.NoOptimizer),
    "unknown wish": ([], errors.UnknownVariable),
}
