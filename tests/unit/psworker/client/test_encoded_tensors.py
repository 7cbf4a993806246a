"""Encoded gradients and values: encoded once after splitting, decoded when joined."""

from dataclasses import replace

import numpy as np
import pytest

from pswire.errors import NotFinite, ShapeMismatch, UnknownVariable
from pswire.messages import Declaration, Push, Value
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.encodings import TopK
from pswire.tensors.compression import Packed, packed
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client import partitions, push_pull
from psworker.client.client import Client
from psworker.client.error_feedback import GradientEncoder
from psworker.client.placement import Placement
from psworker.model.variables import Variable, collection
from psworker.sessions.replica import Replica
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
ROWS = 12


pytestmark = pytest.mark.usefixtures("split_small")


def some(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
@pytest.mark.parametrize(("shards", "rows"), [(1, 5), (3, 7), (2, 40_000)])  # more than a block, and no multiple
def test_encoded_partitions_are_joined_with_unchanged_ones(shards, rows, form):
    variable = Placement(shards).extended([TensorSpec("v", (rows, 3))])["v"]
    value, old = some((rows, 3)), VersionedArray("v", ReadVersion(tuple(range(shards))), some((rows, 3), 2))
    parts = partitions.split_array(variable, value)
    values = [
        Value("v", shard, None) if shard == 1 else Value("v", shard + 10, packed(part, form))
        for shard, part in enumerate(parts)
    ]
    joined = push_pull.join(variable, values, old)
    exact = [one.array.unpacked() if one.array is not None else None for one in values]
    known = partitions.split_array(variable, old.array)
    expected = [part if part is not None else mine for part, mine in zip(exact, known, strict=True)]
    np.testing.assert_array_equal(joined, np.concatenate(expected), strict=True)
    assert not joined.flags.writeable


class Sixteen:
    """A encoder that asks for values in 16 bits, and sends gradients so; what it was given, in order."""

    encoding, keeps_residual = "bfloat16", False

    def __init__(self):
        self.given = []

    def encode(self, shard, gradient):
        self.given.append((shard, gradient.name))
        array = gradient.array
        return gradient if isinstance(array, IndexedSlices) else replace(gradient, array=packed(array, self.encoding))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_gradient_is_encoded_once_and_values_are_asked_for_in_the_encoding(shards):
    transport, encoder = ShardsInProcess(shards), Sixteen()
    client = Client(transport, "w0", 60, encoder)
    client.join()
    exact = np.float32(2.0) ** np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)  # 16 bits can have these
    (mean, weights) = client.register(
        [
            Declaration(TensorSpec("mean", (3,)), np.zeros(3, np.float32), MovingAverage(0.5)),
            Declaration(TensorSpec("w", (ROWS, 2)), np.zeros((ROWS, 2), np.float32), SGD),
        ]
    )
    lost = iter([True])
    transport.lose = lambda shard, message: isinstance(message, Push) and next(lost, False)
    seen = np.float32([1.1, 2.2, 3.3])  # which 16 bits cannot have
    entries = [replace(weights, array=exact), replace(mean, array=seen)]
    pushed = client.push(entries, pull=["w"], known_values=[weights]).result()
    assert encoder.given == [(shard, "w") for shard in range(shards)], "once, though it was sent again"
    for _, push in transport.messages(Push):
        assert all(isinstance(one.array, Packed) == (one.name == "w") for one in push.gradients)
        assert push.encoding == "bfloat16"
    assert all(isinstance(value.array, Packed) for _, answer in transport.answers[-shards:] for value in answer.values)
    np.testing.assert_array_equal(pushed.values[0].array, -exact, strict=True)
    np.testing.assert_array_equal(client.choose("w", np.array([5, 0])).array, -exact[[5, 0]], strict=True)
    np.testing.assert_array_equal(client.choose("w").array, -exact, strict=True)
    encoder.encoding = ""
    np.testing.assert_array_equal(client.pull(["mean"])[0].array, (seen * np.float32(0.5)), strict=True)


def test_a_push_that_the_client_refuses_is_not_encoded():
    encoder = Sixteen()
    client = Client(ShardsInProcess(1), "w0", 60, encoder)
    client.join()
    known = client.register([Declaration(TensorSpec(name, (3,)), np.zeros(3, np.float32), SGD) for name in "ab"])
    good, bad = (replace(one, array=np.ones(size, np.float32)) for one, size in zip(known, (3, 4), strict=True))
    for wrong, names in (([good, bad], ["a"]), ([good], ["nobody"])):
        with pytest.raises((ShapeMismatch, UnknownVariable)):
            client.push(wrong, pull=names)
    assert encoder.given == []


@pytest.mark.parametrize("shards", [1, 2])
def test_slots_come_as_they_are_whatever_values_come_in(shards):
    client = Client(ShardsInProcess(shards), "w0", 60, Sixteen())
    client.join()
    (w,) = client.register(
        [Declaration(TensorSpec("w", (ROWS, 2)), np.zeros((ROWS, 2), np.float32), Momentum(0.5, 0.9))]
    )
    for _ in range(2):
        client.push([replace(w, array=np.ones((ROWS, 2), np.float32))]).result()
    expected = np.float32(0.9) * np.float32(1) + np.float32(1)  # which 16 bits cannot have
    np.testing.assert_array_equal(client.choose("w", slot="momentum").array, np.full((ROWS, 2), expected), strict=True)


def test_of_several_shards_none_gets_its_part_when_a_gradient_is_too_large_for_its_form():
    transport = ShardsInProcess(2)
    client = Client(transport, "w0", 60, GradientEncoder("float16"))
    client.join()
    known = client.register([Declaration(TensorSpec(name, (3,)), np.zeros(3, np.float32), SGD) for name in "ab"])
    entries = [replace(one, array=np.full(3, size, np.float32)) for one, size in zip(known, (1.0, 1e5), strict=True)]
    with pytest.raises(NotFinite, match="gradient for 'b' has elements that are too large for float16: nothing was"):
        client.push(entries)
    assert not transport.messages(Push)
    rows = IndexedSlices(np.full((1,), 1e5, np.float32), np.array([2]), (3,))
    with pytest.raises(NotFinite, match="gradient for 'a'"):
        client.push([replace(known[0], array=rows)])
    assert client.push([replace(one, array=np.ones(3, np.float32)) for one in known]).result().global_step == 1


@pytest.mark.parametrize("shards", [1, 2])
def test_a_gradient_that_is_not_finite_leaves_nothing_behind_of_what_is_pushed_with_it(shards):
    """What compression keeps of `good` would go with the next gradient, of a push that has never been."""
    with collection():
        weights = {name: Variable(np.zeros((40, 40), np.float32), name) for name in ("good", "bad")}
    encoder = GradientEncoder(compression=TopK(0.01))
    client = Client(ShardsInProcess(shards), "w0", 60, encoder)
    client.join()
    replica = Replica(client, lambda: weights, lambda: None)
    replica.register(list(weights.values()))
    replica.declare(SGD, weights)
    arrays = {"good": some((40, 40)), "bad": np.full((40, 40), np.nan, np.float32)}
    with pytest.raises(NotFinite, match="'bad'"):
        replica.start_push(
            [VersionedArray(name, weights[name].read, arrays[name]) for name in weights], None, list(weights)
        )
    replica.start_push(
        [VersionedArray("good", weights["good"].read, np.zeros((40, 40), np.float32))], None, list(weights)
    )
    replica.complete()
    np.testing.assert_array_equal(weights["good"].value, np.zeros((40, 40), np.float32), strict=True)
