"""Encoding of gradients: what is sent, and what stays as residual."""

import numpy as np
import pytest

from pswire.errors import NotFinite
from pswire.messages import Gradient
from pswire.specs.encodings import NONE, Int8, TopK
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import IndexedSlices
from psworker.client.error_feedback import LEAST, GradientEncoder

COMPRESSIONS = [Int8(), TopK(0.01), TopK(1.0)]


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def send(encoder, array, shard=0, name="W"):
    sent = encoder.encode(shard, Gradient(name, 7, array))
    assert (sent.name, sent.version) == (name, 7)
    return sent.array


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_sent_gradients_and_the_residual_are_the_sum_of_the_gradients(compression):
    encoder = GradientEncoder(compression=compression)
    total = {(shard, name): np.zeros((40, 50)) for shard in (0, 1) for name in ("W", "V")}
    sent = {key: np.zeros((40, 50)) for key in total}
    for step in range(200):
        for number, (shard, name) in enumerate(total):
            gradient = noise(4 * step + number, 40, 50) * np.float32(10.0 ** (number - 2))
            before = gradient.copy()
            one = send(encoder, gradient, shard, name)
            assert isinstance(one, Packed)
            np.testing.assert_array_equal(gradient, before)
            total[shard, name] += gradient
            sent[shard, name] += one.unpacked()
    for number, (shard, name) in enumerate(total):
        rest = total[shard, name] - sent[shard, name]
        # one more gradient, of zeros, sends of the rest what fits: all of it within half a step, or its largest
        last = send(encoder, np.zeros((40, 50), np.float32), shard, name).unpacked()
        scale = 10.0 ** (number - 2)
        if isinstance(compression, Int8):
            assert np.abs(rest).max() < 0.02 * scale
            np.testing.assert_allclose(last, rest, atol=np.abs(rest).max() / 127)
        else:
            chosen = np.abs(last) > 0
            np.testing.assert_allclose(last[chosen], rest[chosen], atol=2e-5 * scale)
            others = np.abs(rest[~chosen])
            assert not others.size or others.max() <= np.abs(last[chosen]).min(initial=np.inf) + 2e-5 * scale


@pytest.mark.parametrize(("size", "count"), [(1024, 1), (1400, 1), (1600, 2), (2400, 2), (2600, 3)])
def test_top_k_sends_the_nearest_number_of_elements_and_one_at_least(size, count):
    assert len(send(GradientEncoder(compression=TopK(0.001)), noise(1, size)).parts[0]) == count


def test_top_k_sends_the_largest_of_gradient_and_rest():
    encoder, rest = GradientEncoder(compression=TopK(0.02)), np.zeros(2000, np.float32)
    for step in range(20):
        gradient = noise(step, 2000)
        c = rest + gradient
        places, values = send(encoder, gradient).parts
        np.testing.assert_array_equal(places, np.sort(np.argsort(-np.abs(c), kind="stable")[:40]))
        np.testing.assert_array_equal(values, c[places])
        rest = c.copy()
        rest[places] = 0


def test_an_encoded_message_stays_the_same_while_later_ones_are_encoded():
    for compression in COMPRESSIONS:
        encoder = GradientEncoder("bfloat16", compression)
        first = [send(encoder, noise(0, 2000)), send(encoder, noise(1, 10), name="b")]
        before = [one.unpacked() for one in first]
        for step in range(5):
            send(encoder, noise(step, 2000))
            send(encoder, noise(step, 10), name="b")
        for one, values in zip(first, before, strict=True):
            np.testing.assert_array_equal(one.unpacked(), values)


def test_a_gradient_that_is_small_or_of_another_dtype_or_has_rows_is_not_compressed():
    small, double = noise(0, LEAST - 1), np.zeros(2 * LEAST)
    rows = IndexedSlices(noise(1, LEAST, 3), np.arange(LEAST), (10 * LEAST, 3))
    for array in (small, double, rows):
        assert send(GradientEncoder(compression=TopK(0.01)), array) is array
    assert isinstance(send(GradientEncoder(compression=TopK(0.01)), noise(0, LEAST)), Packed)


@pytest.mark.parametrize(("encoding", "error"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_uncompressed_gradients_travel_in_the_encoding(encoding, error):
    for compression in (NONE, Int8()):
        encoder = GradientEncoder(encoding, compression)
        array, rows = noise(0, 7, 9), IndexedSlices(noise(1, 4, 3), np.array([9, 0, 9, 2]), (10, 3))
        for _ in range(2):  # nothing of the first is in the second
            one, some = send(encoder, array), send(encoder, rows)
            assert (one.form, some.values.form, encoder.encoding) == (encoding, encoding, encoding)
            np.testing.assert_allclose(one.unpacked(), array, rtol=error, atol=1e-7)
            np.testing.assert_allclose(unpacked(some).values, rows.values, rtol=error, atol=1e-7)
            assert some.indices is rows.indices
    double = np.zeros(3)
    assert send(GradientEncoder(encoding), double) is double
    assert send(GradientEncoder(encoding), noise(0, 5000)).form == encoding
    assert send(GradientEncoder(encoding, Int8()), noise(0, 5000)).form == "int8"


def test_without_a_form_every_gradient_is_the_same_object():
    gradient = Gradient("W", 7, noise(0, 5000))
    assert GradientEncoder().encode(0, gradient) is gradient
    assert not GradientEncoder("bfloat16").keeps_residual
    assert GradientEncoder("", Int8()).keeps_residual


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_the_rest_stays_as_it_was(compression, bad):
    encoder, witness = GradientEncoder(compression=compression), GradientEncoder(compression=compression)
    poison = noise(1, 2000)
    poison[77] = bad
    for one in (encoder, witness):
        send(one, noise(0, 2000))
    with pytest.raises(NotFinite, match="gradient for 'W' has 1 elements that are NaN or infinite"):
        send(encoder, poison)
    for expected, found in zip(send(witness, noise(2, 2000)).parts, send(encoder, noise(2, 2000)).parts, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("compression", [Int8(), TopK(0.001)], ids=str)
def test_a_residual_that_overflows_is_refused_and_discarded(compression):
    encoder, huge = GradientEncoder(compression=compression), np.full(2000, 3e38, np.float32)
    if compression == Int8():
        huge[1:] = 0.49 / 127 * 3e38  # all rest
        huge[0] = 3.4e38

    def send_again_and_again():
        for _ in range(3):
            send(encoder, huge)

    with pytest.raises(NotFinite, match="gradient for 'W', with the residual of earlier ones, has"):
        send_again_and_again()
    one = send(encoder, noise(0, 2000))
    one.check()
    assert np.abs(one.unpacked()).max() < 10
