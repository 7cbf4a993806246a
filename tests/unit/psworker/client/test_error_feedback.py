"""Encoding of gradients: the part that is sent, and the part that stays as residual."""

import numpy as np
import pytest

from pswire.errors import NotFinite
from pswire.messages import Gradient
from pswire.specs.encodings import NONE, Int8, TopK
from pswire.tensors.compression import unpacked
from pswire.tensors.values import IndexedSlices
from psworker.client.error_feedback import MIN_COMPRESSED_ELEMENTS, GradientEncoder

COMPRESSIONS = pytest.mark.parametrize("compression", [Int8(), TopK(0.01), TopK(1.0)], ids=str)
ROWS = IndexedSlices(
    np.ones((MIN_COMPRESSED_ELEMENTS, 3), np.float32),
    np.arange(MIN_COMPRESSED_ELEMENTS),
    (10 * MIN_COMPRESSED_ELEMENTS, 3),
)


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def send(encoder, array, shard=0, name="W"):
    sent = encoder.encode(shard, Gradient(name, 7, array))
    assert (sent.name, sent.version) == (name, 7)
    return sent.array


@COMPRESSIONS
def test_sent_gradients_and_the_residual_are_the_sum_of_the_gradients(compression):
    """For each shard and variable by itself; what was sent stays the same while later gradients are encoded."""
    encoder, keys = GradientEncoder(compression=compression), [(shard, name) for shard in (0, 1) for name in "WV"]
    total, sent, kept = np.zeros((4, 40, 50)), np.zeros((4, 40, 50)), []
    for step in range(200):
        for number, key in enumerate(keys):
            gradient = noise(4 * step + number, 40, 50) * np.float32(10.0 ** (number - 2))
            before = gradient.copy()
            one = send(encoder, gradient, *key)
            np.testing.assert_array_equal(gradient, before)
            total[number] += gradient
            sent[number] += one.unpacked()
            if step == 0:
                kept.append((one, one.unpacked().copy()))
    for one, values in kept:
        np.testing.assert_array_equal(one.unpacked(), values)
    for number, key in enumerate(keys):
        rest, scale = total[number] - sent[number], 10.0 ** (number - 2)
        # one more gradient, of zeros, sends of the rest what fits: all of it within half a step, or its largest
        last = send(encoder, np.zeros((40, 50), np.float32), *key).unpacked()
        if isinstance(compression, Int8):
            assert np.abs(rest).max() < 0.02 * scale
            np.testing.assert_allclose(last, rest, atol=np.abs(rest).max() / 127)
        else:
            chosen = np.abs(last) > 0
            np.testing.assert_allclose(last[chosen], rest[chosen], atol=2e-5 * scale)
            others = np.abs(rest[~chosen])
            assert not others.size or others.max() <= np.abs(last[chosen]).min(initial=np.inf) + 2e-5 * scale


@pytest.mark.parametrize(("size", "count"), [(1024, 1), (1400, 1), (1600, 2), (2400, 2), (2600, 3)])
def test_top_k_sends_the_nearest_number_of_largest_elements_of_gradient_and_residual(size, count):
    encoder, rest = GradientEncoder(compression=TopK(0.001)), np.zeros(size, np.float32)
    for step in range(20):
        gradient = noise(step, size)
        rest = rest + gradient
        places, values = send(encoder, gradient).parts
        np.testing.assert_array_equal(places, np.sort(np.argsort(-np.abs(rest), kind="stable")[:count]))
        np.testing.assert_array_equal(values, rest[places])
        rest[places] = 0


@pytest.mark.parametrize(
    ("encoding", "compression", "array", "form"),
    [
        ("", NONE, noise(0, 5000), None),
        ("", TopK(0.01), noise(0, MIN_COMPRESSED_ELEMENTS - 1), None),
        ("", TopK(0.01), np.zeros(2 * MIN_COMPRESSED_ELEMENTS), None),
        ("", TopK(0.01), ROWS, None),
        ("", TopK(0.01), noise(0, MIN_COMPRESSED_ELEMENTS), "topk"),
        ("float16", NONE, np.zeros(3), None),
        ("float16", NONE, noise(0, 5000), "float16"),
        ("float16", Int8(), noise(0, 5000), "int8"),
    ],
)
def test_small_gradients_rows_and_other_dtypes_are_not_compressed_and_those_not_encoded_stay_the_same_object(
    encoding, compression, array, form
):
    encoder = GradientEncoder(encoding, compression)
    sent = send(encoder, array)
    assert (sent is array) if form is None else (sent.form == form)
    assert encoder.keeps_residual == (compression != NONE)


@pytest.mark.parametrize(("encoding", "error"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
@pytest.mark.parametrize("compression", [NONE, Int8()])
def test_uncompressed_gradients_travel_in_the_encoding(encoding, error, compression):
    encoder = GradientEncoder(encoding, compression)
    array, rows = noise(0, 7, 9), IndexedSlices(noise(1, 4, 3), np.array([9, 0, 9, 2]), (10, 3))
    for _ in range(2):  # nothing of the first is in the second
        one, some = send(encoder, array), send(encoder, rows)
        assert (one.form, some.values.form, encoder.encoding) == (encoding, encoding, encoding)
        np.testing.assert_allclose(one.unpacked(), array, rtol=error, atol=1e-7)
        np.testing.assert_allclose(unpacked(some).values, rows.values, rtol=error, atol=1e-7)
        assert some.indices is rows.indices


@COMPRESSIONS
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
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
        huge[0], huge[1:] = 3.4e38, 0.49 / 127 * 3e38  # all but the first are residual

    with pytest.raises(NotFinite, match="gradient for 'W', plus the residual of earlier ones, has"):  # noqa: PT012
        for _ in range(3):
            send(encoder, huge)
    one = send(encoder, noise(0, 2000))
    one.check()
    assert np.abs(one.unpacked()).max() < 10
