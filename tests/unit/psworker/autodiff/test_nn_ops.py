"""What the rows of `test_ops.py` cannot say about dropout, normalisation, activations and embedding."""

import math
import os
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.normalization import batch_norm_with_moments

SEED = 20150211


def normal(*shape, dtype=np.float64):
    return np.random.default_rng(SEED).standard_normal(shape, dtype)


# --- dropout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_leaves_out_its_rate_and_scales_the_rest_so_that_the_mean_stays(rate):
    x = Tensor(np.ones((300, 400), np.float32), requires_grad=True)
    y = ops.dropout(x, rate, generator=np.random.default_rng(SEED))
    dropped = y.value == 0
    np.testing.assert_allclose(y.value[~dropped], 1 / (1 - rate), rtol=1e-6)
    assert abs(dropped.mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / dropped.size)  # four standard errors
    np.testing.assert_array_equal(gradients(y, x)[0], y.value)


def test_a_generator_decides_what_dropout_leaves_out():
    x = np.ones((20, 20), np.float32)
    first, again, other = (ops.dropout(x, 0.5, generator=np.random.default_rng(s)).value for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_a_generator_every_call_and_every_thread_leaves_out_others():
    x = np.ones((20, 20), np.float32)
    drawn = [ops.dropout(x, 0.5).value for _ in range(2)]
    thread = threading.Thread(target=lambda: drawn.extend(ops.dropout(x, 0.5).value for _ in range(2)))
    thread.start()
    thread.join()
    assert len({y.tobytes() for y in drawn}) == 4


def test_forked_processes_leave_out_others():
    program = (
        "import os; import numpy as np; from psworker.autodiff import ops\n"
        "x = np.ones((20, 20), np.float32); ops.dropout(x, 0.5)\n"  # now there is a generator to inherit
        "for _ in range(2):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        print(ops.dropout(x, 0.5).value.tobytes().hex(), flush=True); os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print(ops.dropout(x, 0.5).value.tobytes().hex())\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # without threads, which should not be forked
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert len(set(found.stdout.split())) == 3


def test_a_random_seed_decides_what_dropout_leaves_out_in_its_thread_and_by_the_name_of_the_worker(monkeypatch):
    x = np.ones((20, 20), np.float32)

    def drawn(seed, name=""):
        monkeypatch.setenv("PSWORKER_NAME", name)
        ps.set_random_seed(seed)
        return [ops.dropout(x, 0.5).value.tobytes() for _ in range(2)]

    with ps.collection():
        first, again = drawn(7), drawn(7)
        thread = threading.Thread(target=lambda: again.append(ops.dropout(x, 0.5).value.tobytes()))
        thread.start()
        thread.join()
        assert again[:2] == first
        assert len({*again, *drawn(8), *drawn(7, "worker-0"), *drawn(7, "worker-1")}) == 9
        assert drawn(7, "worker-1") == drawn(7, "worker-1")


def test_dropout_does_nothing_when_not_training_and_draws_nothing():
    x = Tensor(normal(3, 4), requires_grad=True)
    generator = np.random.default_rng(SEED)
    for y in (ops.dropout(x, 0.5, training=False, generator=generator), ops.dropout(x, 0.0, generator=generator)):
        np.testing.assert_array_equal(y.value, x.value)
        np.testing.assert_array_equal(gradients(y, x)[0], np.ones((3, 4)))
    assert generator.random() == np.random.default_rng(SEED).random()


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, math.nan])
def test_dropout_refuses_a_rate_that_leaves_nothing(rate):
    with pytest.raises(ValueError, match=r"dropout\(x: float64 \(2,\), rate=.*at least 0 and below 1"):
        ops.dropout(np.ones(2), rate)


# --- activations ----------------------------------------------------------------------------------------------------


def test_activations_pass_on_what_is_not_a_number_and_hold_what_is_infinite():
    x = np.array([math.nan, -math.inf, math.inf])
    np.testing.assert_array_equal(ops.relu(x).value, [math.nan, 0, math.inf])
    np.testing.assert_array_equal(ops.leaky_relu(x).value, [math.nan, -math.inf, math.inf])
    np.testing.assert_array_equal(ops.sigmoid(x).value, [math.nan, 0, 1])


def test_leaky_relu_has_the_derivative_of_its_slope_at_0():
    x = Tensor(np.array([-1.0, 0, 1]), requires_grad=True)
    np.testing.assert_allclose(gradients(ops.leaky_relu(x, 0.3), x)[0], [0.3, 0.3, 1], rtol=1e-15)
    with pytest.raises(ValueError, match=r"leaky_relu\(.*slope=1.5\): slope must be from 0 to 1"):
        ops.leaky_relu(x, 1.5)


# --- normalisation --------------------------------------------------------------------------------------------------


def test_moments_are_those_of_all_axes_but_the_last():
    x = normal(4, 5, 6, 3) * [1, 2, 3] + [10, 0, -10]
    mean, variance = ops.moments(Tensor(x, requires_grad=True))
    np.testing.assert_allclose(mean, [np.mean(x[..., f]) for f in range(3)], rtol=1e-12)
    np.testing.assert_allclose(variance, [np.var(x[..., f]) for f in range(3)], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_batch_norm_with_its_moments_is_batch_norm_and_moments(dtype):
    x, gamma, beta = (Tensor(normal(*shape).astype(dtype), requires_grad=True) for shape in [(6, 3), (3,), (3,)])
    y, mean, variance = batch_norm_with_moments(x, gamma, beta, 0.01)
    alone = ops.batch_norm(x, gamma, beta, 0.01)
    precision = 4 * np.finfo(dtype).eps
    for got, expected in zip((mean, variance), ops.moments(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=precision)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.value, alone.value, rtol=precision)
    weights = np.random.default_rng(SEED).random((6, 3)).astype(dtype)
    found = [gradients(each, [x, gamma, beta], weights) for each in (y, alone)]
    for given, own in zip(*found, strict=True):
        np.testing.assert_allclose(given, own, rtol=10 * precision, atol=10 * precision)


def test_normalisation_of_float16_counts_in_float32():
    x = Tensor((normal(5000, 2) + 100).astype(np.float16), requires_grad=True)
    exact = x.value.astype(np.float64)
    mean, variance = ops.moments(x)
    assert mean.dtype == variance.dtype == np.float16
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(variance, exact.var(axis=0), rtol=1e-3)
    for y in (ops.batch_norm(x), ops.batch_norm_inference(x, exact.mean(axis=0), exact.var(axis=0))):
        assert y.dtype == np.float16
        np.testing.assert_allclose(y.value, ops.batch_norm(exact).value, atol=2e-3)
    assert ops.layer_norm(x).dtype == np.float16


def test_the_gradient_of_batch_norm_in_inference_takes_the_moments_for_constants():
    x = Tensor(np.array([[1.0], [3.0]]), requires_grad=True)
    y = ops.batch_norm_inference(x, mean=[2.0], variance=[4.0], epsilon=0)
    np.testing.assert_array_equal(y.value, [[-0.5], [0.5]])
    np.testing.assert_array_equal(gradients(y, x, [[1.0], [0.0]])[0], [[0.5], [0]])


@pytest.mark.parametrize(
    ("args", "kind", "message"),
    [
        ((np.zeros((2, 3)), np.zeros(2), np.ones(3)), ValueError, r"mean must have shape \(3,\), .* \(2,\)"),
        ((np.zeros((2, 3)), np.zeros(3), 1.0), ValueError, r"variance must have shape \(3,\), but its shape is \(\)"),
        ((np.zeros((2, 3)), np.zeros(3), np.ones(3), np.ones((1, 3))), ValueError, r"gamma must have shape \(3,\)"),
        ((np.zeros((2, 3)), np.zeros(3), np.ones(3), None, 0.0), ValueError, r"beta must have shape \(3,\)"),
        ((np.zeros((2, 3), int), np.zeros(3), np.ones(3)), TypeError, "x must be floating point"),
        ((np.zeros(3), Tensor(np.zeros(3), requires_grad=True), np.ones(3)), TypeError, "requires a gradient"),
    ],
)
def test_batch_norm_in_inference_refuses_what_does_not_fit(args, kind, message):
    with pytest.raises(kind, match=rf"(?s)batch_norm_inference\(x: .*{message}"):
        ops.batch_norm_inference(*args)


def test_a_normalised_batch_does_not_change_with_the_scale_and_the_offset_of_its_features():
    x = normal(50, 4)
    moved = x * [0.5, 1, 10, 100] + [5, -3, 0, 70]
    np.testing.assert_allclose(ops.batch_norm(moved, epsilon=0).value, ops.batch_norm(x, epsilon=0).value, atol=1e-12)


def test_the_gradient_of_a_batch_norm_neither_moves_nor_stretches_a_feature():
    """A consequence of the invariance: it is orthogonal to 1 and to x, for every gradient that comes in."""
    x = Tensor(normal(50, 4), requires_grad=True)
    [gradient] = gradients(ops.batch_norm(x, epsilon=0), x, np.random.default_rng(SEED).random((50, 4)))
    np.testing.assert_allclose(gradient.sum(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose((gradient * x.value).sum(axis=0), 0, atol=1e-13)


@pytest.mark.parametrize("offset", [0, 10, 1000])
@pytest.mark.parametrize("norm", [ops.batch_norm, ops.layer_norm])
def test_normalisation_in_float32_is_as_good_far_from_0_as_the_numbers_are(norm, offset):
    x = (normal(2000, 64) + offset).astype(np.float32)
    exact = norm(x.astype(np.float64)).value
    np.testing.assert_allclose(norm(x).value, exact, rtol=1e-5, atol=1e-6 * max(offset, 2))


@pytest.mark.parametrize("norm", [ops.batch_norm, ops.layer_norm])
def test_normalisation_refuses_what_does_not_fit(norm):
    name = norm.__name__
    with pytest.raises(ValueError, match=rf"{name}\(x: .*gamma must have shape \(3,\), but its shape is \(2,\)"):
        norm(np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(ValueError, match=rf"{name}\(x: .*beta must have shape \(3,\), but its shape is \(1, 3\)"):
        norm(np.zeros((2, 3)), None, np.zeros((1, 3)))
    with pytest.raises(ValueError, match=rf"{name}\(x: .*no elements"):
        norm(np.zeros((0, 3) if norm is ops.batch_norm else (3, 0)))
    with pytest.raises(TypeError, match=rf"{name}\(x: .*x must be floating point"):
        norm(np.zeros((2, 3), np.int64))
    with pytest.raises(ValueError, match=r"moments: there are no elements"):
        ops.moments(np.zeros((0, 3)))


# --- embedding ------------------------------------------------------------------------------------------------------


def test_the_gradient_of_an_embedding_is_the_rows_that_were_looked_up():
    table = Tensor(normal(5, 2), requires_grad=True)
    ids = np.uint8([[4, 1, 4], [0, 4, 1]])
    g = normal(2, 3, 2)
    [gradient] = gradients(ops.embedding(table, ids), table, g)
    assert isinstance(gradient, IndexedSlices)
    assert gradient.dense_shape == (5, 2)
    assert gradient.indices.dtype == np.int64
    np.testing.assert_array_equal(gradient.indices, ids.ravel())
    np.testing.assert_array_equal(gradient.values, g.reshape(6, 2))


def test_looking_up_a_table_twice_gives_the_rows_of_both_and_using_all_of_it_a_whole_array():
    table = Tensor(normal(5, 2), requires_grad=True)
    twice = ops.sum(ops.embedding(table, [1, 3])) + 2 * ops.sum(ops.embedding(table, np.uint64([3])))
    [gradient] = gradients(twice, table)
    assert isinstance(gradient, IndexedSlices)
    expected = np.array([[0, 0], [1, 1], [0, 0], [3, 3], [0, 0]])
    np.testing.assert_array_equal(gradient.to_dense(), expected)
    [gradient] = gradients(ops.sum(ops.embedding(table, [1, 3, 3, 3])) + ops.sum(table), table)
    np.testing.assert_array_equal(gradient, expected + 1)


def test_the_gradient_of_a_large_table_is_never_made_whole():
    table = Tensor(np.zeros((100_000, 32), np.float32), requires_grad=True)
    ids = np.arange(0, 100_000, 5_000)
    tracemalloc.start()
    try:
        [gradient] = gradients(ops.embedding(table, ids), table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(gradient, IndexedSlices)
    assert peak < table.value.nbytes / 50


@pytest.mark.parametrize(
    ("table", "ids", "kind", "message"),
    [
        (
            np.zeros((3, 2)),
            [0, 3],
            IndexError,
            r"embedding\(table: .*ids must be in 0 \.\.\. 2, but they span 0 \.\.\. 3",
        ),
        (np.zeros((3, 2)), [-1], IndexError, r"but they span -1 \.\.\. -1"),
        (np.zeros((0, 2)), [0], IndexError, r"ids must be in 0 \.\.\. -1"),
        (np.zeros((3, 2)), [0.0], TypeError, "ids must be integers, but they are float64"),
        (np.zeros((3, 2)), [True], TypeError, "ids must be integers, but they are bool"),
        (np.zeros(()), [0], ValueError, "a table must have at least one axis"),
    ],
)
def test_an_embedding_refuses_what_is_not_in_its_table(table, ids, kind, message):
    with pytest.raises(kind, match=message):
        ops.embedding(table, ids)
