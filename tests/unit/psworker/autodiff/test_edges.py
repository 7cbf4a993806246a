"""Ops beyond their cases in `cases.py`: at kinks, ties and infinities, far from 0, at random, with large tables."""

import math
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, ops
from psworker.autodiff.ops.normalization import batch_norm_with_moments

SEED = 19981127
INF, NAN = np.inf, np.nan
FLOATS = [np.float16, np.float32, np.float64]


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


def normal(*shape, dtype=np.float64):
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


KINKS = [  # an op, its operands, the gradient that comes in (None: ones), and those that come out
    (ops.abs, [[-2, 0, 3]], None, [[-1, 0, 1]]),
    (ops.relu, [[-1, 0, 1]], None, [[0, 0, 1]]),
    (lambda x: ops.leaky_relu(x, 0.25), [[-1, 0, 1]], None, [[0.25, 0.25, 1]]),
    (lambda x: ops.clip(x, 0, 1), [[-1, 0, 1, 2]], None, [[0, 1, 1, 0]]),
    (ops.maximum, [[1, 5, -INF], [1]], [8, 0, 2], [[4, 0, 0], [6]]),
    (ops.minimum, [[1, 5, -INF], [1]], [8, 0, 2], [[4, 0, 2], [4]]),
    (lambda x: ops.maximum(x, -INF), [[1, 5, -INF]], None, [[1, 1, 0.5]]),
    (lambda x: ops.max(x, axis=1), [[[1, 3, 3], [2, 2, 2]]], [1, 6], [[[0, 0.5, 0.5], [2, 2, 2]]]),
    (lambda x: ops.min(x, axis=1), [[[1, 1, 3], [2, 2, 2]]], [1, 6], [[[0.5, 0.5, 0], [2, 2, 2]]]),
    (ops.power, [[0, 0, 0, 2], [0, 1, 2, 0]], None, [[0, 1, 0, 0], [0, 0, 0, math.log(2)]]),
    (ops.power, [[-2], 3], None, [[12]]),
    (lambda x: ops.hinge_loss(x, [1, 1, 1, 0, 0]), [[2, 1, 0.5, -1, 0.5]], 5, [[0, 0, -1, 0, 1]]),
    (lambda x: ops.huber_loss(x, np.zeros(4), 2), [[1e4, -1e4, 1e200, 0.5]], 4, [[2, -2, 2, 0.5]]),
]


@pytest.mark.parametrize(("op", "operands", "grad_y", "expected"), KINKS)
def test_gradients_at_kinks_ties_and_repeated_elements(op, operands, grad_y, expected):
    xs = [leaf(*values) if np.ndim(values) else values for values in operands]
    leaves = [x for x in xs if isinstance(x, Tensor)]
    y = op(*xs)
    assert np.isfinite(y.value).all() or np.isinf(leaves[0].value).any()
    found = gradients(y, leaves, None if grad_y is None else np.array(grad_y, float))
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(gradient, wanted)


def test_the_power_of_0_and_the_derivative_of_a_negative_base_by_its_exponent():
    np.testing.assert_array_equal(ops.power(leaf(0, 0, 0, 2), leaf(0, 1, 2, 0)).value, [1, 0, 0, 1])
    exponent = leaf(3)
    with pytest.warns(RuntimeWarning, match="invalid value encountered in log"):
        np.testing.assert_array_equal(gradients(leaf(-2) ** exponent, exponent)[0], [NAN])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_stay_finite_and_precise_far_out_and_propagate_nan(dtype):
    x = leaf(-1e4, -50, 0, 50, 1e4, dtype=dtype)
    small = np.exp(dtype(-50))
    np.testing.assert_allclose(ops.sigmoid(x).value, [0, small, 0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(ops.softmax(x).value, [0, 0, 0, 0, 1])
    np.testing.assert_allclose(ops.log_softmax(x).value, x.value - dtype(1e4))
    y = ops.softplus(x)
    np.testing.assert_allclose(y.value, np.array([0, small, np.log(2), 50, 1e4], dtype), rtol=1e-6)
    np.testing.assert_allclose(gradients(y, x)[0], [0, small, 0.5, 1, 1], rtol=1e-6)
    for labels, loss in (([1, 1, 1, 0, 0], 2e4 + 100 + math.log(2)), ([0, 0, 1, 1, 1], math.log(2))):
        np.testing.assert_allclose(5 * ops.sigmoid_cross_entropy(x, labels).value, loss, rtol=1e-6)
    np.testing.assert_allclose(ops.sigmoid_cross_entropy(x.value[3:4], [1]).value, small, rtol=1e-6)
    ends = np.array([NAN, -INF, INF], dtype)
    for f, expected in ((ops.relu, [NAN, 0, INF]), (ops.leaky_relu, [NAN, -INF, INF]), (ops.sigmoid, [NAN, 0, 1])):
        np.testing.assert_array_equal(f(ends).value, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_of_infinity_and_nan(dtype):
    x = leaf([1e4, 1e4], [-1e4, -1e4], [-INF, 3], [-INF, -INF], [NAN, 3], [-INF, NAN], [INF, 0], dtype=dtype)
    y = ops.logsumexp(x, axis=1)
    log2 = math.log(2)
    np.testing.assert_allclose(y.value, [1e4 + log2, -1e4 + log2, 3, -INF, NAN, NAN, INF], rtol=1e-3)
    expected = [[0.5, 0.5], [0.5, 0.5], [0, 1], [0, 0], [NAN, NAN], [NAN, NAN], [NAN, 0]]
    np.testing.assert_allclose(gradients(y, x)[0], expected, rtol=5e-3)


@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 5), (np.float32, 8)])
def test_erf_is_within_a_few_units_in_the_last_place_of_the_standard_library(dtype, bound):
    small = np.logspace(-37, 1, 501)  # from the smallest normal numbers on, where it is 2 / sqrt(pi) * x
    x = np.concatenate([np.linspace(-7, 7, 4001), small, -small]).astype(dtype)
    exact = np.array([math.erf(v) for v in x])
    y = ops.erf(x).value
    assert y.dtype == dtype
    assert np.max(np.abs(y.astype(np.float64) - exact) / np.spacing(np.abs(exact.astype(dtype)))) <= bound
    assert np.max(np.abs(y)) == 1
    np.testing.assert_array_equal(ops.erf(-x).value, -y)


@pytest.mark.parametrize(("sections", "ends"), [(3, [2, 4]), ([1, 5], [1]), ((0, 6), [0]), ([6], [])])
def test_split_cuts_into_equal_sections_or_sections_of_given_sizes(sections, ends):
    x = Tensor(np.arange(12.0).reshape(2, 6), requires_grad=True)
    pieces = ops.split(x, sections, axis=-1)
    for piece, wanted in zip(pieces, np.split(x.value, ends, axis=1), strict=True):
        np.testing.assert_array_equal(piece.value, wanted)
    [gradient] = gradients(pieces[-1], x, np.full(pieces[-1].shape, 7.0))
    np.testing.assert_array_equal(gradient[0], [0] * (6 - pieces[-1].shape[1]) + [7] * pieces[-1].shape[1])


@pytest.mark.parametrize("choose", [ops.take, ops.gather, ops.getitem])
def test_ids_of_a_small_dtype_select_from_more_rows_than_it_counts(choose):
    x = Tensor(np.arange(300.0), requires_grad=True)
    y = choose(x, np.int8([127, -1, -1]))
    np.testing.assert_array_equal(y.value, [127, 299, 299])
    [gradient] = gradients(y, x)
    assert {place: gradient[place] for place in np.flatnonzero(gradient)} == {127: 1, 299: 2}


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_elements_that_where_did_not_select_get_no_gradient_even_if_not_finite():
    x, unused = leaf(0, 4), leaf(1, 1)
    positive = x.value > 0
    y = ops.where(positive, ops.where(positive, ops.log(ops.where(positive, x, 1)), NAN), 0)
    np.testing.assert_array_equal(y.value, [0, np.log(4)])
    np.testing.assert_array_equal(gradients(y, x)[0], [0, 0.25])
    np.testing.assert_array_equal(gradients(ops.where(positive, x, unused), unused, [1.0, INF])[0], [1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_cross_entropy_of_large_infinite_and_masked_logits_is_alike_by_ids_and_one_hot(dtype):
    huge, share = np.finfo(dtype).max, 1 / (1 + np.e) / 3
    far = [[1e4, -1e4, 0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4]]
    far_gradient = np.array([[1, -1, 0], [0, 0.5, -0.5], [1 / 3 - 1, 1 / 3, 1 / 3]]) / 3
    ends = [[-huge, huge, 0], [-INF, 1, 2], [3, -INF, -INF]]
    ends_gradient = [[0, 0, 0], [0, share, -share], [0, 0, 0]]
    ids = [1, 2, 0]
    for logits, loss, gradient in (
        (far, (2e4 + np.log(2) + np.log(3)) / 3, far_gradient),
        (ends, np.log(1 + np.exp(-1)) / 3, ends_gradient),
    ):
        for labels in (ids, np.eye(3, dtype=dtype)[ids], np.eye(3)[ids] == 1):
            x = leaf(*logits, dtype=dtype)
            y = ops.softmax_cross_entropy(x, labels)
            np.testing.assert_allclose(y.value, loss, rtol=1e-6)
            np.testing.assert_allclose(gradients(y, x)[0], gradient, rtol=1e-6, atol=1e-7)
    assert ops.softmax_cross_entropy(np.array(ends[1], dtype), np.array([1, 0, 0], dtype)).value == INF
    assert np.isnan(ops.softmax_cross_entropy(np.array([NAN, 1], dtype), np.array([0, 1], dtype)).value)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("logit", "label", "loss", "slope"),
    [
        *((INF, 0, INF, 1), (INF, 1, 0, 0), (INF, 0.25, INF, 0.75), (-INF, 0, 0, 0), (-INF, 1, INF, -1)),
        *((NAN, 1, NAN, NAN), (2, NAN, NAN, NAN)),
    ],
)
def test_the_sigmoid_cross_entropy_of_an_infinite_logit_is_its_limit(logit, label, loss, slope, dtype):
    x = leaf(logit, 3, -3, dtype=dtype)
    y = ops.sigmoid_cross_entropy(x, np.array([label, 1, 0]))
    np.testing.assert_allclose(y.value, (loss + 2 * np.log1p(np.exp(-3))) / 3, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(gradients(y, x)[0][0], slope / 3, rtol=np.finfo(dtype).eps)
    np.testing.assert_equal(ops.sigmoid_cross_entropy(np.array([[logit]], dtype), label).item(), loss)


def test_losses_of_infinite_logits_and_differences_are_infinite():
    for far in (INF, -INF):
        x = leaf(far, 1, dtype=np.float32)
        huber = ops.huber_loss(x, [0, 1])
        assert huber.value == ops.mean_squared_error(x, [0, 1]).value == ops.hinge_loss(x, [far < 0, 1]).value == INF
        np.testing.assert_array_equal(gradients(huber, x)[0], [np.sign(far) / 2, 0])
        assert ops.hinge_loss(x, [far > 0, 1]).value == 0
    for count in (10, 10_000):  # overflows without a warning
        assert ops.mean_squared_error(np.full(count, 1e25, np.float32), np.zeros(count, np.float32)).value == INF


def test_accuracy_is_the_fraction_of_largest_logits_at_the_label():
    x = leaf([0.1, 0.9, 0], [5, 1, 2], [0, 0, 0], [1, 2, 3])
    assert ops.accuracy(x, [1, 0, 1, 0]) == 0.5
    assert ops.accuracy(x, ops.one_hot([1, 0, 0, 2], 3)) == 1.0
    assert type(ops.accuracy(x, [1, 0, 1, 0])) is float


def dropped(**options):
    return ops.dropout(np.ones((20, 20), np.float32), 0.5, **options).value.tobytes()


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


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
    dropped(training=False, generator=generator)
    ops.dropout(np.ones(3), 0.0, generator=generator)
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


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_norm_with_its_moments_is_batch_norm_and_moments_over_all_axes_but_the_last(dtype):
    xs = [Tensor(normal(*shape, dtype=dtype), requires_grad=True) for shape in [(3, 2, 3), (3,), (3,)]]
    precision = 8 * np.finfo(dtype).eps
    y, *moments = batch_norm_with_moments(*xs, 0.01)
    x = xs[0].value.astype(np.float64)
    for found in (moments, ops.moments(xs[0])):
        np.testing.assert_allclose(found, [x.mean((0, 1)), x.var((0, 1))], rtol=precision)
    alone = ops.batch_norm(*xs, 0.01)
    assert y.dtype == dtype
    assert [moment.dtype for moment in ops.moments(xs[0])] == [dtype, dtype]
    np.testing.assert_allclose(y.value, alone.value, rtol=precision)
    for given, own in zip(*(gradients(each, xs, x.astype(dtype)) for each in (y, alone)), strict=True):
        np.testing.assert_allclose(given, own, rtol=5 * precision, atol=5 * precision)


@pytest.mark.parametrize("norm", [ops.batch_norm, ops.layer_norm])
def test_normalisation_in_float32_is_as_precise_far_from_0_as_its_input(norm):
    for offset in (0, 10, 1000):
        x = (normal(2000, 64) + offset).astype(np.float32)
        exact = norm(x.astype(np.float64)).value
        np.testing.assert_allclose(norm(x).value, exact, rtol=1e-5, atol=1e-6 * max(offset, 2))


def test_the_gradient_of_an_embedding_is_the_rows_that_were_looked_up_and_never_dense():
    table = Tensor(np.zeros((100_000, 32), np.float32), requires_grad=True)
    ids = np.uint16([[4, 1, 4], [0, 60_000, 1]])
    g = normal(2, 3, 32, dtype=np.float32)
    tracemalloc.start()
    try:
        [gradient] = gradients(ops.embedding(table, ids), table, g)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(gradient, IndexedSlices)
    assert (gradient.dense_shape, gradient.indices.dtype) == ((100_000, 32), np.int64)
    np.testing.assert_array_equal(gradient.indices, ids.ravel())
    np.testing.assert_array_equal(gradient.values, g.reshape(6, 32))
    assert peak < table.value.nbytes / 50
