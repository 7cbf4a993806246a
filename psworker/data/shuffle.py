"""The order of an epoch as a pure function, which every worker computes by itself; shards assign ranges of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pswire.errors import ConfigurationError


def permutation(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits the rows of a dataset: a permutation of 0 ... `size` - 1, int64, new.

    Row i gets the i-th raw 64-bit output of PCG64 (M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
    Statistically Good Algorithms for Random Number Generation", 2014), seeded by
    `SeedSequence(seed, spawn_key=(epoch,))`; rows are sorted by it, ties (some 2^-33 likely at 60,000 rows) by i.
    numpy guarantees PCG64's raw stream of a seed in every version, but not `Generator.permutation`.

    Raises:
        ConfigurationError: one of the three arguments is negative.
    """
    for name, value in (("size", size), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise ConfigurationError(f"{name} is {value}; give an integer from 0 up")
    keys = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(size)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
