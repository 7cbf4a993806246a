"""The order of an epoch: the same on every worker and with every numpy, and a uniform shuffle."""

import itertools

import numpy as np
import pytest

from pswire.errors import ConfigurationError
from psworker.data.shuffle import permutation

MASK32, MASK64, MASK128 = 2**32 - 1, 2**64 - 1, 2**128 - 1


def seed_words(seed: int, spawn: int) -> list[int]:
    """Four 64-bit words: M. O'Neill's `seed_seq_fe128` over a seed and a spawn key, both below 2^32."""
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & MASK32
        value = value * constant & MASK32
        return value ^ value >> 16

    def mixed(x: int, y: int) -> int:
        value = (0xCA01F9DD * x - 0x4973F715 * y) & MASK32
        return value ^ value >> 16

    pool = [hashed(word) for word in (seed, 0, 0, 0)]
    for source, target in itertools.permutations(range(4), 2):
        pool[target] = mixed(pool[target], hashed(pool[source]))
    for target in range(4):
        pool[target] = mixed(pool[target], hashed(spawn))

    words, constant = [], 0x8B51F9DD
    for i in range(8):
        value = pool[i % 4] ^ constant
        constant = constant * 0x58F38DED & MASK32
        value = value * constant & MASK32
        words.append(value ^ value >> 16)
    return [words[i] | words[i + 1] << 32 for i in range(0, 8, 2)]


def pcg64(words: list[int], count: int) -> list[int]:
    """PCG XSL RR 128/64 in Python's integers."""
    increment = (words[2] << 64 | words[3]) << 1 & MASK128 | 1

    def step(state: int) -> int:
        return (state * 0x2360ED051FC65DA44385DF649FCCF645 + increment) & MASK128

    state = step(increment + (words[0] << 64 | words[1]) & MASK128)
    keys = []
    for _ in range(count):
        state = step(state)
        value, rotation = (state >> 64) ^ (state & MASK64), state >> 122
        keys.append((value >> rotation | value << (-rotation & 63)) & MASK64)
    return keys


@pytest.mark.parametrize(("seed", "epoch"), [(0, 1), (0, 2), (1, 1), (12345, 40), (2**32 - 1, 2**32 - 1)])
def test_the_order_is_that_of_pcg64_written_out_by_hand(seed, epoch):
    keys = pcg64(seed_words(seed, epoch), 500)
    assert permutation(500, seed, epoch).tolist() == sorted(range(500), key=keys.__getitem__)


def test_the_order_is_the_frozen_one():
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


def test_every_order_of_four_rows_is_equally_likely():
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        order = tuple(permutation(4, seed=0, epoch=epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    expected = 2400 / 24
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 24
    assert chi_squared < 49.73  # the 99.9 % point of chi-squared with 23 degrees of freedom


@pytest.mark.parametrize("name", ["size", "seed", "epoch"])
def test_a_negative_argument_is_refused_by_name(name):
    with pytest.raises(ConfigurationError, match=f"{name} is -1"):
        permutation(**{"size": 3, "seed": 0, "epoch": 1, name: -1})
