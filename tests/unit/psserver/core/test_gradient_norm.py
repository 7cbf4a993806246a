"""The norm of a push, and its limit, against numpy in float64."""

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.variables.element_checks import norm_of_gradients
from pswire.errors import ConfigurationError
from pswire.messages import Gradient, Push
from pswire.optimizers import Adam, GradientDescent, MovingAverage
from pswire.specs.consistency import parse_consistency
from pswire.specs.gradient_norm import GradientNormLimit, parse_gradient_norm
from pswire.tensors.compression import quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices
from tests.support.combinations import together
from tests.support.shards import A, ShardDriver, declared

random = np.random.default_rng(1)
LARGE = random.normal(size=(300, 700)).astype(np.float32)  # several stretches
ROWS = IndexedSlices(random.normal(size=(5, 4)).astype(np.float32), np.array([2, 0, 2, 2, 1]), (3, 4))
RESIDUAL = np.zeros(LARGE.size, np.float32)
GRADIENTS = {
    "one": [LARGE],
    "several": [LARGE, LARGE[:, 0], np.array(3.0)],
    "other order": [LARGE.T, LARGE[::2, ::-3]],
    "rows that repeat": [ROWS],
    "no rows": [IndexedSlices(np.empty((0, 4), np.float32), np.empty(0, np.int64), (3, 4))],
    "packed": [
        quantize_int8(LARGE, RESIDUAL.copy()),
        top_k(LARGE, RESIDUAL.copy(), 100),
        to_16_bits(LARGE, "bfloat16"),
    ],
    "float16": [LARGE.astype(np.float16) * np.float16(1e4)],
    "float32 beyond its squares": [np.full(3, 3e38, np.float32)],
    "float64 beyond its squares": [np.full(3, 1e300), np.ones(2)],
    "none": [],
}


def dense(array):
    if isinstance(array, IndexedSlices):
        return array.to_dense()
    return array if isinstance(array, np.ndarray) else array.unpacked()


@pytest.mark.parametrize("arrays", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_the_norm_of_a_push_is_that_of_all_its_gradients_together(arrays):
    named = {f"v{number}": array for number, array in enumerate(arrays)}
    values = [declared(name, np.zeros(one.shape, one.dtype), GradientDescent(1.0)) for name, one in named.items()]
    driver = ShardDriver(*values, declared("average", np.zeros(2, np.float32), MovingAverage(0.5)))
    gradients = [Gradient(name, 0, array) for name, array in named.items()]
    gradients.append(Gradient("average", 0, np.full(2, 1e9, np.float32)))
    every = np.concatenate([[0.0], *[dense(one).astype(np.longdouble).ravel() for one in arrays]])
    expected = float(np.sqrt(np.sum(every * every)))
    found = norm_of_gradients(driver.shard.variables, Push(sender=A, sequence=1, gradients=tuple(gradients)))
    assert found == pytest.approx(expected, rel=1e-6 if arrays and arrays[0] is ROWS else 1e-12)


def test_a_limit_is_read_as_it_is_written():
    limits = {"10:clip": GradientNormLimit(10.0, "clip"), "0.5:reject": GradientNormLimit(0.5, "reject")}
    assert {text: parse_gradient_norm(text) for text in limits} == limits
    assert [str(limit) for limit in limits.values()] == list(limits)
    assert parse_gradient_norm("off") is None
    for text in ("10", "clip", "0:clip", "-1:clip", "nan:clip", "inf:reject", "10:drop"):
        with pytest.raises(ConfigurationError, match=r"N:clip or N:reject|norm must be more than 0"):
            parse_gradient_norm(text)


FORMS = {
    "an array": lambda x: x,
    "rows": lambda x: IndexedSlices(x, np.arange(len(x)), x.shape),
    "int8": lambda x: quantize_int8(x, np.zeros(x.size, np.float32)),
}


@together("form", FORMS.values())
@together("consistency", ["async", "sync:1", "sync:1,aggregate=median"])
@together("optimizer", [GradientDescent(0.5), Adam(0.1)])
@together("size", [3.0, 1e25])
def test_a_clipped_push_changes_a_variable_as_its_gradient_of_the_largest_norm_does(form, consistency, optimizer, size):
    start, gradient = np.zeros((4, 3), np.float32), form(np.float32(size) * LARGE[:4, :3].copy())
    exact = dense(gradient).astype(np.float64)
    small = (exact * (2 / np.linalg.norm(exact))).astype(np.float32)
    values = []
    for limit, pushed in (("2:clip", gradient), ("off", small)):
        options = {"consistency": parse_consistency(consistency), "max_gradient_norm": parse_gradient_norm(limit)}
        driver = ShardDriver(declared("W", start, optimizer), **options)
        (answer,) = driver.step(Push(sender=A, sequence=1, gradients=(Gradient("W", 0, pushed),), pull=("W",))).values()
        values.append(answer.values[0].array)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5)
    assert np.abs(values[0]).max() > 0.01


def test_a_server_of_several_shards_clips_and_does_not_reject():
    ServerConfig(shards=2, max_gradient_norm=parse_gradient_norm("10:clip"))
    with pytest.raises(ConfigurationError, match=r"10:reject needs a single shard: .* use 10:clip"):
        ServerConfig(shards=2, max_gradient_norm=parse_gradient_norm("10:reject"))
