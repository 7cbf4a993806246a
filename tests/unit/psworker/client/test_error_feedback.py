"""Encoded gradients and values: the part that is sent, the residual, and pushes that are refused."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from pswire.errors import NotFinite, ShapeMismatch, UnknownVariable
from pswire.messages import Declaration, Gradient, Push
from pswire.optimizers import GradientDescent, Momentum, MovingAverage
from pswire.specs.encodings import NONE, Int8, TopK
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client.error_feedback import MIN_COMPRESSED_ELEMENTS as LEAST
from psworker.client.error_feedback import GradientEncoder
from tests.support.shards import ShardsInProcess

pytestmark = pytest.mark.usefixtures("split_small")


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def send(encoder, array, shard=0, name="W"):
    sent = encoder.encode(shard, Gradient(name, 7, array))
    assert (sent.name, sent.version) == (name, 7)
    return sent.array


@pytest.mark.parametrize("compression", [Int8(), TopK(0.01), TopK(1.0)], ids=str)
def test_all_that_was_sent_is_in_the_end_the_sum_of_the_gradients(compression):
    """For each shard and variable by itself; what was sent stays the same while later gradients are encoded."""
    encoder, keys = GradientEncoder(compression=compression), [(shard, name) for shard in (0, 1) for name in "WV"]
    scales = np.float32([[[0.01]], [[0.1]], [[1]], [[10]]])
    gradients = [noise(step, 4, 40, 50) * scales for step in range(50)]
    gradients += [np.zeros((4, 40, 50), np.float32)] * 100  # the residual is sent with them
    before, total, first = np.copy(gradients), np.zeros((4, 40, 50)), []
    for of_step in gradients:
        sent = [send(encoder, array, *key) for array, key in zip(of_step, keys, strict=True)]
        total += [one.unpacked() for one in sent]
        first = first or [(one, one.unpacked().copy()) for one in sent]
    np.testing.assert_array_equal(gradients, before)
    np.testing.assert_allclose(total / scales, np.sum(gradients, axis=0, dtype=float) / scales, atol=1e-4)
    for one, values in first:
        np.testing.assert_array_equal(one.unpacked(), values)


@pytest.mark.parametrize("compression", [Int8(), TopK(0.01)], ids=str)
def test_a_variable_of_another_size_under_the_same_name_begins_without_a_residual(compression):
    encoder, large, small = GradientEncoder(compression=compression), noise(1, 3 * LEAST), noise(2, 2 * LEAST)
    for first, second in ((large, small), (small, large)):
        send(encoder, first)
        sent = send(encoder, second)
        expected = send(GradientEncoder(compression=compression), second)
        np.testing.assert_array_equal(sent.unpacked(), expected.unpacked())


def test_top_k_sends_the_nearest_number_of_elements_from_one_up():
    for size, count in ((1024, 1), (1400, 1), (1600, 2), (2600, 3)):
        places, _ = send(GradientEncoder(compression=TopK(0.001)), noise(0, size)).parts
        assert len(places) == count


ALL_ROWS = IndexedSlices(noise(1, LEAST, 3), np.arange(LEAST)[::-1], (10 * LEAST, 3))


@pytest.mark.parametrize(
    ("encoding", "compression", "array", "form"),
    [
        ("", NONE, noise(0, 5000), None),
        ("", TopK(0.01), noise(0, LEAST - 1), None),
        ("", TopK(0.01), np.zeros(2 * LEAST), None),
        ("", TopK(0.01), ALL_ROWS, None),
        ("", TopK(0.01), noise(0, LEAST), "topk"),
        ("float16", NONE, np.zeros(3), None),
        ("float16", NONE, noise(0, 5000), "float16"),
        ("float16", Int8(), noise(0, 5000), "int8"),
        ("bfloat16", Int8(), noise(0, 7, 9), "bfloat16"),
        ("bfloat16", Int8(), ALL_ROWS, "bfloat16"),
    ],
)
def test_large_gradients_are_compressed_others_encoded_or_the_same_object(encoding, compression, array, form):
    encoder = GradientEncoder(encoding, compression)
    for _ in range(2):  # nothing of the first is in the second
        sent = send(encoder, array)
        assert (sent is array) if form is None else (getattr(sent, "values", sent).form == form)
        if form == encoding != "":
            found, expected = (getattr(one, "values", one) for one in (unpacked(sent), array))
            np.testing.assert_allclose(found, expected, rtol={"bfloat16": 2.0**-8, "float16": 2.0**-11}[form])
            assert getattr(sent, "indices", None) is getattr(array, "indices", None)
    assert encoder.keeps_residual == (compression != NONE)


@pytest.mark.parametrize("compression", [Int8(), TopK(0.001)], ids=str)
def test_a_residual_that_overflows_is_refused_and_discarded(compression):
    encoder, huge = GradientEncoder(compression=compression), np.full(2000, 3e38, np.float32)
    if compression == Int8():
        huge[0], huge[1:] = 3.4e38, 0.49 / 127 * 3e38  # all but the first are residual
    with pytest.raises(NotFinite, match="gradient for 'W', plus the residual of earlier ones, has"):  # noqa: PT012
        for _ in range(3):
            send(encoder, huge)
    one = send(encoder, noise(0, 2000))
    one.check()
    assert np.abs(one.unpacked()).max() < 10


@pytest.mark.parametrize(
    ("encoding", "compression"), [("", Int8()), ("", TopK(0.5)), ("bfloat16", NONE)], ids=["int8", "topk", "bfloat16"]
)
def test_gradients_up_to_the_largest_number_are_sent(encoding, compression):
    """int8 sends the rest of an element beyond 127 of its largest steps with the next gradient, as any residual."""
    largest, at_most = np.finfo(np.float32).max, np.float32(3.3895314e38 if encoding else np.inf)
    for size in (largest, np.nextafter(largest, np.float32(0)), largest * np.float32(0.993)):
        array = np.linspace(-1, 1, 2 * LEAST, dtype=np.float32) * min(size, at_most)
        encoder = GradientEncoder(encoding, compression)
        total = np.zeros(2 * LEAST)
        for one in (array, np.zeros_like(array), np.zeros_like(array)):
            sent = send(encoder, one)
            sent.check()
            assert np.isfinite(sent.unpacked()).all()
            total += sent.unpacked()
        np.testing.assert_allclose(total / float(size), array / float(size), atol=2.0**-8 if encoding else 1e-6)


def declared(name, shape, optimizer=GradientDescent(1.0)):  # noqa: B008
    return Declaration(TensorSpec(name, shape), np.zeros(shape, np.float32), optimizer)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_gradient_is_encoded_once_and_values_but_no_slots_and_observations_travel_in_the_encoding(shards):
    transport, encoder = ShardsInProcess(shards), GradientEncoder("bfloat16")
    encode = encoder.encode = mock.Mock(wraps=encoder.encode)
    variables = declared("mean", (3,), MovingAverage(0.5)), declared("w", (12, 2), Momentum(1.0, 0.9))
    client, known = transport.client("w0", *variables, encoder=encoder)
    exact = np.float32(2.0) ** np.arange(24, dtype=np.float32).reshape(12, 2)  # 16 bits can have these
    seen = np.float32([1.1, 2.2, 3.3])  # which 16 bits cannot have
    lost = iter([True])
    transport.lose = lambda shard, message: isinstance(message, Push) and next(lost, False)
    entries = [replace(known["w"], array=exact), replace(known["mean"], array=seen)]
    pushed = client.push(entries, pull=["w"], known_values=[known["w"]]).result()
    encoded = [(call.args[0], call.args[1].name) for call in encode.call_args_list]
    assert encoded == [(shard, "w") for shard in range(shards)], "once, though it was sent again"
    for _, push in transport.messages(Push):
        assert all(isinstance(one.array, Packed) == (one.name == "w") for one in push.gradients)
        assert push.encoding == "bfloat16"
    assert all(isinstance(value.array, Packed) for _, answer in transport.answers[-shards:] for value in answer.values)
    np.testing.assert_array_equal(pushed.values[0].array, -exact, strict=True)
    np.testing.assert_array_equal(client.choose("w", np.array([5, 0])).array, -exact[[5, 0]], strict=True)
    np.testing.assert_array_equal(client.choose("w").array, -exact, strict=True)
    client.push(entries[:1]).result()
    np.testing.assert_array_equal(client.choose("w", slot="momentum").array, np.float32(0.9) * exact + exact)
    encoder.encoding = ""
    np.testing.assert_array_equal(client.pull(["mean"])[0].array, seen * np.float32(0.5), strict=True)


def test_of_several_shards_none_gets_its_part_when_a_gradient_is_too_large_for_its_encoding():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", declared("a", (3,)), declared("b", (3,)), encoder=GradientEncoder("float16"))
    dense = [replace(known[name], array=np.full(3, size, np.float32)) for name, size in (("a", 1.0), ("b", 1e5))]
    rows = [replace(known["a"], array=IndexedSlices(np.full((1,), 1e5, np.float32), np.array([2]), (3,)))]
    for entries, name in ((dense, "b"), (rows, "a")):
        with pytest.raises(NotFinite, match=f"gradient for '{name}' has elements that are too large for float16: not"):
            client.push(entries)
    assert not transport.messages(Push)


@pytest.mark.parametrize(
    ("bad", "pull", "error", "message"),
    [
        (np.full((40, 40), np.nan, np.float32), "good", NotFinite, "'bad' has 1,600 of 1,600 elements that are NaN"),
        (np.ones((40, 3), np.float32), "good", ShapeMismatch, "'bad'"),
        (np.ones((40, 40), np.float32), "unknown", UnknownVariable, "'unknown'"),
    ],
)
def test_a_push_that_is_refused_leaves_no_residual_of_the_gradients_in_it(bad, pull, error, message):
    variables = declared("good", (40, 40)), declared("bad", (40, 40))
    client, known = ShardsInProcess(1).client("w0", *variables, encoder=GradientEncoder(compression=TopK(0.01)))
    good = replace(known["good"], array=noise(1, 40, 40))
    with pytest.raises(error, match=message):
        client.push([good, replace(known["bad"], array=bad)], pull=[pull])
    pushed = client.push([replace(good, array=0 * good.array)], pull=["good"]).result()
    assert not pushed.values[0].array.any()
