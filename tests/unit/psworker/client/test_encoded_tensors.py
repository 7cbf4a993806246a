"""Encoded gradients and values: encoded once after splitting, decoded when joined."""

from dataclasses import replace

import numpy as np
import pytest

from pswire.errors import NotFinite, ShapeMismatch, UnknownVariable
from pswire.messages import Declaration, Push, Value
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.encodings import TopK
from pswire.tensors.compression import Packed, to_16_bits
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client import push_pull, splitting
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


def declared(name, shape, optimizer=SGD):
    return Declaration(TensorSpec(name, shape), np.zeros(shape, np.float32), optimizer)


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
@pytest.mark.parametrize(("shards", "rows"), [(1, 5), (3, 7), (2, 40_000)])  # more than a block, and no multiple
def test_encoded_partitions_are_joined_with_unchanged_ones(shards, rows, form):
    variable = Placement(shards).extended([TensorSpec("v", (rows, 3))])["v"]
    value, old = some((rows, 3)), VersionedArray("v", ReadVersion(tuple(range(shards))), some((rows, 3), 2))
    parts, known = (splitting.split_array(variable, array) for array in (value, old.array))
    values = [
        Value("v", shard, None) if shard == 1 else Value("v", shard + 10, to_16_bits(part, form))
        for shard, part in enumerate(parts)
    ]
    joined = push_pull.join(variable, values, old)
    expected = [mine if one.array is None else one.array.unpacked() for one, mine in zip(values, known, strict=True)]
    np.testing.assert_array_equal(joined, np.concatenate(expected), strict=True)
    assert not joined.flags.writeable


class Sixteen:
    """An encoder that asks for values in 16 bits, and sends gradients so; `given` has its input, in order."""

    encoding, keeps_residual = "bfloat16", False

    def __init__(self):
        self.given = []

    def encode(self, shard, gradient):
        self.given.append((shard, gradient.name))
        array = gradient.array
        return (
            gradient if isinstance(array, IndexedSlices) else replace(gradient, array=to_16_bits(array, self.encoding))
        )


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_gradient_is_encoded_once_and_values_are_asked_for_in_the_encoding(shards):
    transport, encoder = ShardsInProcess(shards), Sixteen()
    client, known = transport.client(
        "w0", declared("mean", (3,), MovingAverage(0.5)), declared("w", (ROWS, 2)), encoder=encoder
    )
    exact = np.float32(2.0) ** np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)  # 16 bits can have these
    seen = np.float32([1.1, 2.2, 3.3])  # which 16 bits cannot have
    lost = iter([True])
    transport.lose = lambda shard, message: isinstance(message, Push) and next(lost, False)
    entries = [replace(known["w"], array=exact), replace(known["mean"], array=seen)]
    pushed = client.push(entries, pull=["w"], known_values=[known["w"]]).result()
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


@pytest.mark.parametrize("shards", [1, 2])
def test_slots_come_as_they_are_whatever_values_come_in(shards):
    client, known = ShardsInProcess(shards).client(
        "w0", declared("w", (ROWS, 2), Momentum(0.5, 0.9)), encoder=Sixteen()
    )
    for _ in range(2):
        client.push([replace(known["w"], array=np.ones((ROWS, 2), np.float32))]).result()
    expected = np.float32(0.9) * np.float32(1) + np.float32(1)  # which 16 bits cannot have
    np.testing.assert_array_equal(client.choose("w", slot="momentum").array, np.full((ROWS, 2), expected), strict=True)


def test_a_push_that_the_client_refuses_is_not_encoded():
    encoder = Sixteen()
    client, known = ShardsInProcess(1).client("w0", declared("a", (3,)), declared("b", (3,)), encoder=encoder)
    good, bad = (replace(known[name], array=np.ones(size, np.float32)) for name, size in (("a", 3), ("b", 4)))
    for wrong, names in (([good, bad], ["a"]), ([good], ["unknown"])):
        with pytest.raises((ShapeMismatch, UnknownVariable)):
            client.push(wrong, pull=names)
    assert encoder.given == []


def test_of_several_shards_none_gets_its_part_when_a_gradient_is_too_large_for_its_encoding():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", declared("a", (3,)), declared("b", (3,)), encoder=GradientEncoder("float16"))
    dense = [replace(known[name], array=np.full(3, size, np.float32)) for name, size in (("a", 1.0), ("b", 1e5))]
    rows = [replace(known["a"], array=IndexedSlices(np.full((1,), 1e5, np.float32), np.array([2]), (3,)))]
    for entries, name in ((dense, "b"), (rows, "a")):
        with pytest.raises(NotFinite, match=f"gradient for '{name}' has elements that are too large for float16: not"):
            client.push(entries)
    assert not transport.messages(Push)
    assert client.push([replace(one, array=np.ones(3, np.float32)) for one in dense]).result().global_step == 1


@pytest.mark.parametrize("shards", [1, 2])
def test_a_gradient_that_is_not_finite_leaves_no_residual_of_those_pushed_with_it(shards):
    with collection():
        weights = {name: Variable(np.zeros((40, 40), np.float32), name) for name in ("good", "bad")}
    client, _ = ShardsInProcess(shards).client(encoder=GradientEncoder(compression=TopK(0.01)))
    replica = Replica(client, lambda: weights, lambda: None)
    replica.register(list(weights.values()))
    replica.declare(SGD, weights)
    good, bad = some((40, 40)), np.full((40, 40), np.nan, np.float32)
    entries = [VersionedArray(name, weights[name].read, array) for name, array in (("good", good), ("bad", bad))]
    with pytest.raises(NotFinite, match="'bad'"):
        replica.start_push(entries, None, list(weights))
    replica.start_push([replace(entries[0], array=0 * good)], None, list(weights))
    replica.complete()
    np.testing.assert_array_equal(weights["good"].value, 0 * good, strict=True)
