"""Dropout, normalisation and embedding beyond their cases in `cases_*.py`."""

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
ONES = np.ones((20, 20), np.float32)


def normal(*shape, dtype=np.float64):
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


def dropped(**options):
    return ops.dropout(ONES, 0.5, **options).value.tobytes()


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_dropout_zeroes_its_rate_and_scales_the_rest_to_keep_the_mean(rate):
    x = Tensor(np.ones((300, 400), np.float32), requires_grad=True)
    y = ops.dropout(x, rate, generator=np.random.default_rng(SEED))
    zeros = y.value == 0
    np.testing.assert_allclose(y.value[~zeros], 1 / (1 - rate), rtol=1e-6)
    assert abs(zeros.mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / zeros.size)  # four standard errors
    np.testing.assert_array_equal(gradients(y, x)[0], y.value)


def test_dropout_draws_by_its_generator_and_otherwise_anew_in_every_call_and_thread():
    by_seed = [dropped(generator=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert len({dropped(), dropped(), in_a_thread(dropped), in_a_thread(dropped)}) == 4
    generator = np.random.default_rng(SEED)
    ops.dropout(ONES, 0.5, training=False, generator=generator)
    ops.dropout(ONES, 0.0, generator=generator)
    assert generator.random() == np.random.default_rng(SEED).random(), "nothing is drawn without need"


def test_dropout_in_forked_processes_differs():
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


def test_a_random_seed_and_the_name_of_the_worker_determine_dropout_in_their_thread(monkeypatch):
    def drawn(seed, name=""):
        monkeypatch.setenv("PSWORKER_NAME", name)
        ps.set_random_seed(seed)
        return [dropped(), dropped()]

    with ps.collection():
        first = drawn(7)
        other_thread = in_a_thread(dropped)
        assert drawn(7) == first
        assert len({*first, other_thread, *drawn(8), *drawn(7, "worker-0"), *drawn(7, "worker-1")}) == 9
        assert drawn(7, "worker-1") == drawn(7, "worker-1")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_batch_norm_with_its_moments_is_batch_norm_and_moments_over_all_axes_but_the_last(dtype):
    x, gamma, beta = (Tensor(normal(*shape, dtype=dtype), requires_grad=True) for shape in [(3, 2, 3), (3,), (3,)])
    y, mean, variance = batch_norm_with_moments(x, gamma, beta, 0.01)
    alone = ops.batch_norm(x, gamma, beta, 0.01)
    precision = 8 * np.finfo(dtype).eps
    exact = x.value.astype(np.float64)
    for got, own, expected in zip(
        (mean, variance), ops.moments(x), (exact.mean((0, 1)), exact.var((0, 1))), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=precision)
        np.testing.assert_allclose(own, expected, rtol=precision)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.value, alone.value, rtol=precision)
    weights = np.random.default_rng(SEED).random(x.shape).astype(dtype)
    found = [gradients(each, [x, gamma, beta], weights) for each in (y, alone)]
    for given, own in zip(*found, strict=True):
        np.testing.assert_allclose(given, own, rtol=5 * precision, atol=5 * precision)


@pytest.mark.parametrize("norm", [ops.batch_norm, ops.layer_norm])
def test_normalisation_in_float32_is_as_precise_far_from_0_as_its_input(norm):
    for offset in (0, 10, 1000):
        x = (normal(2000, 64) + offset).astype(np.float32)
        exact = norm(x.astype(np.float64)).value
        np.testing.assert_allclose(norm(x).value, exact, rtol=1e-5, atol=1e-6 * max(offset, 2))


def test_the_gradient_of_an_embedding_is_the_rows_that_were_looked_up():
    table = Tensor(normal(5, 2), requires_grad=True)
    ids, g = np.uint8([[4, 1, 4], [0, 4, 1]]), normal(2, 3, 2)
    [gradient] = gradients(ops.embedding(table, ids), table, g)
    assert isinstance(gradient, IndexedSlices)
    assert (gradient.dense_shape, gradient.indices.dtype) == ((5, 2), np.int64)
    np.testing.assert_array_equal(gradient.indices, ids.ravel())
    np.testing.assert_array_equal(gradient.values, g.reshape(6, 2))


def test_the_gradient_of_a_large_table_is_never_dense():
    table = Tensor(np.zeros((100_000, 32), np.float32), requires_grad=True)
    tracemalloc.start()
    try:
        [gradient] = gradients(ops.embedding(table, np.arange(0, 100_000, 5_000)), table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(gradient, IndexedSlices)
    assert peak < table.value.nbytes / 50
