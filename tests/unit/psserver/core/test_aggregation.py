"""Median and trimmed mean of gradients, against numpy in float64."""

import itertools

import numpy as np
import pytest

from psserver.core.variables import aggregation
from psserver.core.variables.aggregation import robust
from pswire.errors import InvalidMessage
from pswire.messages import ChangeId, Gradient, Push, Sender, UpdateGroup
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Median, TrimmedMean, parse_consistency
from pswire.tensors.compression import quantize_int8, top_k
from pswire.tensors.values import IndexedSlices
from tests.support.combinations import together
from tests.support.shards import ShardDriver, declared

AGGREGATES = [Median(), TrimmedMean(0.1), TrimmedMean(0.2), TrimmedMean(0.4)]


def reference(arrays, aggregate, pushes):
    """By the definition, in float64, one element after the other."""
    padded = [np.asarray(one, np.float64) for one in arrays]
    padded += [np.zeros_like(padded[0])] * (pushes - len(arrays))
    stack, out = np.stack(padded), np.empty(padded[0].shape)
    for place in np.ndindex(out.shape):
        numbers = sorted(stack[(slice(None), *place)])
        if isinstance(aggregate, TrimmedMean):
            cut = int(np.ceil(round(aggregate.share * pushes, 9)))
            cut = min(cut, (pushes - 1) // 2)
            out[place] = np.mean(numbers[cut : pushes - cut])
        else:
            out[place] = np.median(numbers)
    return out


@pytest.fixture(params=[1 << 18, 20], ids=["at once", "in stretches"])
def stretches(request, monkeypatch):
    monkeypatch.setattr(aggregation, "SORTED_ELEMENTS", request.param)


@together("aggregate", AGGREGATES, ids=str)
@together(("gradients", "pushes"), [(1, 1), (2, 2), (3, 3), (5, 5), (10, 10), (3, 5), (1, 4)])
@together("dtype", ["float16", "float32", "float64"])
def test_the_aggregate_of_arrays_is_that_of_numpy_and_absent_ones_are_zero(
    aggregate, gradients, pushes, dtype, stretches
):
    random = np.random.default_rng(gradients * 100 + pushes)
    arrays = [random.normal(size=(3, 4)).astype(dtype) for _ in range(gradients)]
    found = robust(arrays, aggregate, pushes)
    exact = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(found, reference(arrays, aggregate, pushes), rtol=exact, atol=exact)


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=str)
def test_rows_that_a_push_has_not_touched_are_zero_and_repeated_ones_are_added_up(aggregate, stretches):
    random = np.random.default_rng(3)
    slices = []
    for rows in (4, 9, 0, 6, 2):
        indices = random.integers(0, 7, rows)
        slices.append(IndexedSlices(random.normal(size=(rows, 2, 3)).astype(np.float32), indices, (7, 2, 3)))
    found = robust(slices, aggregate, 6)
    assert isinstance(found, IndexedSlices)
    touched = np.unique(np.concatenate([one.indices for one in slices]))
    np.testing.assert_array_equal(found.indices, touched)
    dense = [one.to_dense() for one in slices]
    np.testing.assert_allclose(found.to_dense(), reference(dense, aggregate, 6), rtol=1e-5, atol=1e-6)
    mixed = robust([*slices[:-1], dense[-1]], aggregate, 6)
    np.testing.assert_allclose(mixed, reference(dense, aggregate, 6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=str)
def test_every_order_of_arrival_gives_the_same_bits(aggregate):
    arrays = [np.array(one, np.float32) for one in ([0.0, 1e30, 3], [-0.0, 1e-30, 3], [0.1, -1e30, 3], [-0.1, 7, 0.7])]
    results = {robust(order, aggregate, 4).tobytes() for order in itertools.permutations(arrays)}
    rows = [IndexedSlices(one.reshape(3, 1), np.arange(3), (5, 1)) for one in arrays]
    results |= {robust(order, aggregate, 4).values.tobytes() for order in itertools.permutations(rows)}
    assert len(results) == 1


def test_a_synchronous_shard_updates_by_the_aggregate_also_of_compressed_gradients():
    start = np.arange(6, dtype=np.float32)
    options = {"workers": "abcde", "consistency": parse_consistency("sync:5,aggregate=median")}
    driver = ShardDriver(declared("W", start, GradientDescent(1.0)), **options)
    random = np.random.default_rng(5)
    arrays = [random.normal(size=6).astype(np.float32) for _ in range(4)] + [np.full(6, 3e6, np.float32)]
    packed = [
        arrays[0],
        quantize_int8(arrays[1], np.zeros(6, np.float32)),
        top_k(arrays[2], np.zeros(6, np.float32), 2),
        *arrays[3:],
    ]
    for number, array in enumerate(packed):
        sender = Sender("abcde"[number], 1)
        answers = driver.step(
            Push(sender=sender, sequence=1, gradients=(Gradient("W", 0, array),), pull=("W",)), number
        )
    exact = [one if isinstance(one, np.ndarray) else one.unpacked() for one in packed]
    np.testing.assert_allclose(answers[4].values[0].array, start - np.median(np.stack(exact), axis=0), rtol=1e-6)


def test_a_follower_counts_the_pushes_of_the_group_without_a_part_here_as_zero_and_refuses_an_impossible_number():
    options = {"workers": "ab", "shard": 1, "shards": 2, "consistency": parse_consistency("sync:3,aggregate=median")}
    driver = ShardDriver(declared("W", [0.0], GradientDescent(1.0)), **options)
    members = tuple([ChangeId(Sender(name, 1), 1) for name in "ab"])

    def push(name, pushes):
        gradient = Gradient("W", 0, np.array([-2.0 if name == "a" else 5.0]))
        return Push(
            sender=Sender(name, 1),
            sequence=1,
            gradients=(gradient,),
            pull=("W",),
            group=UpdateGroup(number=0, members=members, pushes=pushes),
        )

    alone = UpdateGroup(number=0, members=(ChangeId(Sender("a", 1), 1, (1,)), ChangeId(Sender("b", 1), 1)))
    follower = ShardDriver(declared("W", [0.0], GradientDescent(1.0)), **options)
    first = Push(
        sender=Sender("a", 1), sequence=1, gradients=(Gradient("W", 0, np.array([-2.0])),), pull=("W",), group=alone
    )
    np.testing.assert_array_equal(follower.answer(first, 1).values[0].array, [1.0])  # of -2 and 0; it waits for no part

    driver.refuse(push("a", 4), InvalidMessage, "an update of 4 pushes, with --consistency sync:3,aggregate=median")
    driver.step(push("a", 3), 1)
    np.testing.assert_array_equal(driver.step(push("b", 3), 2)[2].values[0].array, [0.0])  # the median of -2, 0, 5
