"""Sessions with encoding or compression: values on the servers, and values that come back."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError, NotFinite
from pswire.specs.encodings import Int8, TopK

SIZE = 4000  # of which each of two shards has enough to be compressed
TARGET = np.linspace(0.5, 1.5, SIZE, dtype=np.float32)


def zeros(name):
    return ps.Variable(np.zeros(SIZE, np.float32), name=name)


def test_weights_travel_in_the_encoding_and_servers_store_float32(open_session):
    W, little = zeros("W"), np.full(SIZE, 2.0**-12, np.float32)
    with open_session("w0", encoding="bfloat16") as session:
        session.assign(W, TARGET)
        before = W.value.copy()
        assert not np.any(before.view(np.uint32) & 0xFFFF)
        np.testing.assert_allclose(before, TARGET, rtol=2.0**-8)
        for _ in range(16):  # each is less than 16 bits can show
            session.assign_add(W, little)
        exact = TARGET + 16 * little
        np.testing.assert_allclose(W.value, exact, rtol=2.0**-8)
        assert abs(np.mean(W.value - exact)) < 2.0**-12


@pytest.mark.parametrize("compression", [Int8(), TopK(0.01)], ids=str)
def test_a_step_that_is_not_finite_is_refused_and_those_after_it_are_as_if_it_had_not_been(open_session, compression):
    bad = np.full(SIZE, np.nan, np.float32)

    def train(prefix, poisoned):
        W, V, optimizer = zeros(prefix + "W"), zeros(prefix + "V"), ps.GradientDescent(0.1)
        with open_session(prefix, compression=compression) as session:
            for number in range(4):
                if number == 2 and poisoned:
                    with pytest.raises(NotFinite, match=prefix + "V"):
                        session.push(optimizer, [(TARGET, W), (bad, V)])
                session.push(optimizer, [(W.value - TARGET, W), (V.value + TARGET, V)])
        return np.stack([W.value, V.value])

    np.testing.assert_array_equal(train("poisoned", True), train("healthy", False))


def test_invalid_options_are_refused_before_a_server_is_called():
    for arguments in ({"encoding": "float8"}, {"compress": "topk"}, {"shared_memory": "yes"}):
        with pytest.raises(ConfigurationError):
            ps.session("127.0.0.1:1", **arguments)
