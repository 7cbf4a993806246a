"""The order of an epoch: the same on every worker and with every numpy, and a uniform shuffle."""

import numpy as np
import pytest

from pswire.errors import ConfigurationError
from psworker.data.dataset import permutation


def test_the_order_is_frozen():
    """Every worker and every version of numpy must give these."""
    assert permutation(10, seed=0, epoch=1).tolist() == [1, 3, 8, 6, 2, 0, 7, 5, 4, 9]
    assert permutation(10, seed=0, epoch=2).tolist() == [1, 4, 9, 8, 5, 2, 6, 3, 0, 7]
    assert permutation(10, seed=2**64 + 7, epoch=1).tolist() == [5, 8, 4, 0, 2, 3, 6, 1, 7, 9]
    assert permutation(55_000, seed=0, epoch=1)[:5].tolist() == [788, 42714, 35978, 11549, 18753]


def test_every_row_occurs_exactly_once():
    for size in (0, 1, 2, 1000, 55_000):
        order = permutation(size, seed=3, epoch=1)
        assert (order.dtype, order.shape) == (np.int64, (size,))
        np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_epochs_and_seeds_differ_and_an_epoch_of_one_seed_is_no_epoch_of_the_next():
    orders = {tuple(permutation(100, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100
    assert not np.array_equal(permutation(100, 2**32 + 5, 0), permutation(100, 5, 1))


@pytest.mark.parametrize("name", ["size", "seed", "epoch"])
def test_a_negative_argument_is_refused_by_name(name):
    with pytest.raises(ConfigurationError, match=f"{name} is -1"):
        permutation(**{"size": 3, "seed": 0, "epoch": 1, name: -1})
