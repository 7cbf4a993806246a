"""The order of an epoch: the row of a dataset at each position. Each worker computes it; servers do not know it."""

import numpy as np
import numpy.typing as npt

from pswire.errors import ConfigurationError


def epoch_order(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits the rows of a dataset: a permutation of 0 ... `size` - 1, int64, new.

    Every worker computes it by itself; shards assign ranges of it. Rows are sorted by the raw 64-bit outputs of PCG64
    (M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
    Generation", 2014), which numpy guarantees in every version, unlike `Generator.permutation`.

    Raises ConfigurationError when an argument is negative.
    """
    for name, value in (("size", size), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise ConfigurationError(f"{name} is {value}; give an integer from 0 up")
    keys = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
