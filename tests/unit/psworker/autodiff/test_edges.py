"""Ops beyond their cases in `cases.py`: at kinks, ties and infinities, far from 0, at random; dtypes; long sums."""

import json
import math
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.sums import add_rows
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, op, ops
from psworker.autodiff.gradient_check import dense
from psworker.autodiff.ops.elementwise.activations import dropout_state, seed_dropout, set_dropout_state
from psworker.autodiff.ops.normalization import batch_norm_with_moments
from tests.support.combinations import together

SEED = 19981127
INF, NAN = np.inf, np.nan
HALF = np.float16
FLOATS = [HALF, np.float32, np.float64]


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
    (lambda x: ops.segment_max(x, [1, 0, 1, 1])[:2], [[3, 1, 3, 2]], [1, 4], [[2, 1, 2, 0]]),
    (lambda x: ops.segment_softmax(x, [0, 1, 1]), [[-INF, -INF, -INF]], None, [[0, 0, 0]]),
    (lambda x: ops.segment_softmax(x, [0, 1, 1, 0]), [[1e300, 0, -1e300, 0]], [1, 2, 3, 4], [[0, 0, 0, 0]]),
    (ops.sort, [[2, 1, 2, 1]], [1, 2, 3, 4], [[3, 1, 4, 2]]),
    (lambda x: ops.sort(x, descending=True), [[2, 1, 2, 1]], [1, 2, 3, 4], [[1, 3, 2, 4]]),
    (lambda x: ops.top_k(x, 2)[0], [[1, 3, 3, 3]], [1, 2], [[0, 1, 2, 0]]),
    (ops.prod, [[0, 2, 3]], None, [[6, 0, 0]]),
    (ops.prod, [[0, 0, 3]], None, [[0, 0, 0]]),
    (lambda x: ops.prod(x, axis=1), [[[1e-200, 1e-200, 1e200], [2, 0, 3]]], None, [[[1, 1, 0], [0, 6, 0]]]),
    (ops.cumprod, [[2, 0, 3]], None, [[1, 8, 0]]),
    (lambda x: ops.std(x, axis=0), [[[5, -1], [5, 1]]], None, [[[0, -0.5], [0, 0.5]]]),
    (lambda x: ops.norm(x, axis=1), [[[0, 0], [-3e200, 0]]], None, [[[0, 0], [-1, 0]]]),
    (ops.arctan2, [[0, 0, 2, 0], [0, 2, 0, -2]], None, [[0, 0.5, 0, -0.5], [0, 0, -0.5, 0]]),
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


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_inverse_functions_at_the_ends_of_their_domains_and_beyond_and_at_poles():
    end = leaf(-1, 1, 2)
    for f, values, slopes in (
        (ops.arcsin, [-np.pi / 2, np.pi / 2, NAN], [INF, INF, NAN]),
        (ops.arccos, [np.pi, 0, NAN], [-INF, -INF, NAN]),
        (ops.log1p, [-INF, math.log(2), math.log(3)], [INF, 1 / 2, 1 / 3]),
    ):
        y = f(end)
        np.testing.assert_allclose(y.value, values, rtol=1e-15)
        np.testing.assert_allclose(gradients(y, end)[0], slopes, rtol=1e-15)
    zero = leaf(0, INF)
    for f, values in ((ops.reciprocal, [INF, 0]), (ops.rsqrt, [INF, 0]), (ops.log2, [-INF, INF])):
        np.testing.assert_array_equal(f(zero).value, values)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_slope_of_the_inverse_tangent_of_a_large_number_does_not_overflow(dtype):
    x = leaf(np.finfo(dtype).max, -np.finfo(dtype).max, INF, 0, dtype=dtype)
    np.testing.assert_array_equal(gradients(ops.arctan(x), x)[0], [0, 0, 0, 1])


def test_elementary_functions_take_integers_as_float32():
    assert ops.reciprocal(np.int8([2, 4])).value.tolist() == [0.5, 0.25]
    functions = [ops.sin, ops.cos, ops.tan, ops.arcsin, ops.arccos, ops.arctan, ops.sinh, ops.cosh, ops.log1p]
    functions += [ops.expm1, ops.log2, ops.log10, ops.reciprocal, ops.rsqrt]
    assert {f(np.int8([1])).dtype for f in functions} == {np.dtype(np.float32)}
    assert ops.arctan2(np.int8([1]), np.int8([1])).dtype == np.float32


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


def test_sorts_are_stable_in_both_directions_and_nan_is_the_largest():
    x = [2, NAN, 1, 2, INF, 1]
    assert ops.argsort(x).tolist() == [2, 5, 0, 3, 4, 1]
    assert ops.argsort(x, descending=True).tolist() == [1, 4, 0, 3, 2, 5]
    np.testing.assert_array_equal(ops.sort(x).value, [1, 1, 2, 2, INF, NAN])
    np.testing.assert_array_equal(ops.sort(x, descending=True).value, [NAN, INF, 2, 2, 1, 1])
    assert ops.argsort([[3, 1], [2, 0]], axis=0).tolist() == [[1, 1], [0, 0]]
    assert ops.argsort([[3, 1], [2, 0]], axis=None).tolist() == [3, 1, 2, 0]
    assert ops.argsort(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_top_k_are_the_first_of_the_descending_order_with_their_indices_and_only_they_get_gradients(dtype, axis):
    x = Tensor(normal(4, 5, dtype=dtype), requires_grad=True)
    for k in (0, 1, 3, 4):
        values, indices = ops.top_k(x, k, axis)
        np.testing.assert_array_equal(values.value, np.take(-np.sort(-x.value, axis), range(k), axis))
        np.testing.assert_array_equal(np.take_along_axis(x.value, indices, axis), values.value)
        assert (values.dtype, indices.dtype) == (dtype, np.int64)
        [gradient] = gradients(values, x, 2 * np.ones(values.shape))
        assert gradient.sum() == 2 * values.value.size
        assert (np.take_along_axis(gradient, indices, axis) == 2).all()
    assert ops.top_k([1, 5, 5, 2], 2)[1].tolist() == [1, 2]


def test_empty_segments_and_segments_of_minus_infinity_and_nan():
    x, ids = np.array([[1.0, -INF], [4, -INF], [NAN, 2]]), [3, 3, 0]
    np.testing.assert_array_equal(ops.segment_sum(x, ids, 5).value[[1, 3, 4]], [[0, 0], [5, -INF], [0, 0]])
    np.testing.assert_array_equal(ops.segment_mean(x, ids, 5).value[[1, 3, 4]], [[0, 0], [2.5, -INF], [0, 0]])
    np.testing.assert_array_equal(ops.segment_max(x, ids).value, [[NAN, 2], [-INF] * 2, [-INF] * 2, [4, -INF]])
    np.testing.assert_array_equal(ops.segment_softmax([-INF, -INF, 3], [0, 0, 2]).value, [0, 0, 1])
    lowest = ops.segment_max(np.int8([3, -7]), [2, 0])
    assert lowest.value.tolist() == [-7, -128, 3]
    assert ops.segment_max([True], [1]).value.tolist() == [False, True]
    assert ops.segment_sum(np.int8([3, -7]), [0, 0]).dtype == np.int8


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


@together("dtype", FLOATS)
@together(
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


@pytest.mark.slow
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


def test_dropout_continues_from_a_state_that_went_through_json_with_the_very_same_masks():
    """Of shapes with an odd number of elements: half of a 64-bit number is left for the next mask."""
    masks = lambda: [ops.dropout(np.ones(size, np.float32), 0.5).value.tobytes() for size in (3, 5, 400)]
    seed_dropout(SEED)
    ops.dropout(np.ones(7, np.float32), 0.5)
    state = json.loads(json.dumps(dropout_state()))
    expected = masks()
    assert masks() != expected
    set_dropout_state(state)
    assert masks() == expected
    set_dropout_state(state)
    for wrong in ({}, {**state, "inc": "x"}, {**state, "bit_generator": "MT19937"}, {**state, "state": str(1 << 200)}):
        with pytest.raises(ValueError, match="not a state of the generator of dropout"):
            set_dropout_state(wrong)
    assert masks() == expected, "nothing has changed"


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
    assert (gradient.dense_shape, gradient.indices.dtype) == ((100_000, 32), np.int64)
    np.testing.assert_array_equal(gradient.indices, ids.ravel())
    np.testing.assert_array_equal(gradient.values, g.reshape(6, 32))
    assert peak < table.value.nbytes / 50


# Which dtype a result has. For the result of each op on tensors of one dtype see `test_ops.py`.

MATRIX = [[1.5, 2.0], [1.0, 3.0]]
NO_TENSORS = [2.5, True, np.array(0.5), np.float64(0.5), np.float32(0.5), np.int64(2), MATRIX, [[1, 2], [3, 4]]]
NO_TENSORS += [np.array(MATRIX, dtype) for dtype in (np.uint8, bool, HALF, np.float64)]
BINARY = [  # each with the same in numpy
    *((getattr(ops, name), getattr(np, name)) for name in ("add", "subtract", "multiply", "divide", "power")),
    *((getattr(ops, name), getattr(np, name)) for name in ("maximum", "minimum")),
    (lambda a, b: ops.where([[True], [False]], a, b), lambda a, b: np.where([[True], [False]], a, b)),
    (lambda a, b: ops.einsum("...,...->...", a, b), np.multiply),
]


@together("dtype", FLOATS)
@together("other", NO_TENSORS, ids=repr)
def test_an_operand_that_is_no_tensor_takes_the_dtype_of_the_tensor_beside_it(other, dtype):
    x = leaf((0.5, 1.0), (2.0, 3.0), dtype=dtype)
    in_float64 = x.value.astype(np.float64), np.array(other, np.float64)
    for function, reference in BINARY:
        for args, exact in (((x, other), in_float64), ((other, x), in_float64[::-1])):
            y = function(*args)
            assert y.dtype == gradients(y, x)[0].dtype == dtype
            np.testing.assert_allclose(y.value, reference(*exact), rtol=4 * np.finfo(dtype).eps)
    if np.ndim(other) == 2:
        pairs = [(x, other), (other, x)]
        results = [f(a, b) for a, b in pairs for f in (ops.matmul, ops.mean_squared_error, ops.huber_loss)]
        results += [join(pair) for pair in pairs for join in (ops.concatenate, ops.stack)]
        results += [ops.layer_norm(x, other[0], other[1]), ops.batch_norm(x, other[0], other[1])]
        results += [ops.batch_norm_inference(x, other[0], [1, 2], other[1]), ops.batch_norm(other, None, x[0])]
        results += [ops.conv2d(np.reshape(other, (1, 2, 2, 1)), ops.reshape(x, (2, 2, 1, 1)), np.array([1.0]))]
        results += [f(x, other) for f in (ops.softmax_cross_entropy, ops.sigmoid_cross_entropy)]
        assert [y.dtype for y in results] == [dtype] * len(results)


@together("dtype", FLOATS)
@together("number", [2, 2.0, True, np.float64(2), np.array(2.0)], ids=repr)
def test_numbers_that_are_constants_change_no_dtype(number, dtype):
    x = leaf((0.5, 1.0), (2.0, 3.0), dtype=dtype)
    results = [ops.clip(x, 0, number), ops.pad(x, 1, number), ops.leaky_relu(x, number / 4), ops.dropout(x, number / 4)]
    results += [ops.stack([x[0, 0], number]), ops.einsum("ij,->ij", x, number), ops.hinge_loss(x, number == 2)]
    results += [ops.huber_loss(x, 0 * x.value, number), ops.layer_norm(x, epsilon=number)]
    assert {y.dtype for y in results} == {gradients(y, x)[0].dtype for y in results} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (np.float32, np.int64, np.float32),
        (np.float16, np.int64, np.float16),
        (np.float32, np.bool_, np.float32),
        (np.int32, np.int64, np.int64),
    ],
)
def test_among_tensors_the_widest_of_floating_point_decides_and_for_norms_that_of_x(a, b, expected):
    x, y = (Tensor(np.array([[1, 2], [3, 4]], dtype), np.dtype(dtype).kind == "f") for dtype in (a, b))
    for function in (ops.add, ops.multiply, ops.matmul, ops.maximum, lambda a, b: ops.concatenate([a, b])):
        assert function(x, y).dtype == function(y, x).dtype == expected
    mixed = ops.concatenate([[[5.0, 6]], x, y, np.array([[3, 4]])])
    assert mixed.dtype == (expected if np.dtype(expected).kind == "f" else np.float64)
    if np.dtype(b).kind == "f":
        assert ops.mean_squared_error(x, y).dtype == expected
        for one, other in ((x, y), (y, x)):
            gamma, beta = leaf(1, 2, dtype=other.dtype), leaf(3, 4, dtype=other.dtype)
            norms = [f(one, gamma, beta) for f in (ops.layer_norm, ops.batch_norm)]
            for result in (*norms, ops.batch_norm_inference(one, [0, 0], [1, 1], gamma, beta)):
                assert result.dtype == one.dtype
                found = gradients(result, [one, gamma, beta])
                assert [g.dtype for g in found] == [one.dtype, other.dtype, other.dtype]
            images, filters = ops.reshape(one, (1, 2, 2, 1)), ops.reshape(other, (2, 2, 1, 1))
            convolved = ops.conv2d(images, filters, bias := leaf(1, dtype=one.dtype))
            assert convolved.dtype == expected
            assert [g.dtype for g in gradients(convolved, [one, other, bias])] == [one.dtype, other.dtype, one.dtype]


def test_without_a_tensor_numpy_decides_and_functions_of_real_numbers_take_integers_as_float32():
    assert ops.add(np.float32([1]), np.float64([1])).dtype == np.float64
    assert ops.matmul([[1.0]], np.float32([[1]])).dtype == np.float64
    assert ops.add(Tensor(np.array([1])), np.float32([1, 2])).dtype == np.float64  # int64 and float32
    real = ["erf", "exp", "gelu", "log", "log_softmax", "logsumexp", "sigmoid", "softmax", "softplus", "sqrt", "tanh"]
    assert {f([3, 1], [0, 0]).dtype for f in (ops.segment_mean, ops.segment_softmax)} == {np.dtype(np.float32)}
    real += ["norm", "std", "var"]
    for function in (getattr(ops, name) for name in real):
        for dtype in (np.uint8, np.int8, np.int64, bool):
            x = np.array([1, 3, 20, 80], dtype)
            assert function(x).dtype == np.float32
            np.testing.assert_array_equal(function(x).value, function(x.astype(np.float32)).value)
    for loss in (ops.huber_loss, ops.mean_squared_error):
        y = loss(np.uint8([0, 3]), np.uint8([200, 1]))
        assert y.dtype == np.float32
        np.testing.assert_allclose(y.value, loss([0.0, 3], [200.0, 1]).value, rtol=1e-6)


# Long sums: float16 in float32, rounded once, without overflow on the way; float32 as precise as pairwise addition.

TENTH = float(HALF(0.1))
ROWS = 100_000  # tenths, of which a sequential sum stalls at 256 in float16 and errs by 0.4 % in float32
IDS = np.zeros(20_000, int)
TENTHS = np.full((ROWS, 4), TENTH)
FOUR, ROW, TALL = np.full(4, TENTH), np.full((1, 4), TENTH), TENTHS[:, 0]
IMAGES = np.random.default_rng(SEED).uniform(0.2, 0.4, (20, 24, 24, 3))

# A function, and the arrays with respect to which it has long sums, in its value or its gradients.
SUMS = [
    (lambda b: ops.subtract(TENTHS, b), FOUR),
    (lambda b: np.full((2, ROWS, 3), TENTH) * b, np.full((2, 1, 3), TENTH)),
    (lambda b: ops.power(b, 0 * TENTHS + 2), FOUR),
    (lambda b: ops.where(np.ones((ROWS, 1), bool), b, 0.0), FOUR),
    (lambda b: ops.concatenate([ops.expand_dims(b, 0)] * 5000), FOUR),
    (ops.matmul, TENTHS.T.copy(), TENTHS),
    (lambda x: ops.matmul(x, TALL), TENTHS.T.copy()),
    (lambda x: ops.einsum("ij,k->k", TENTHS, x), FOUR[:2]),
    (lambda a, b: ops.einsum("ij,ik->jk", a, b), TENTHS, TENTHS[:, :3]),
    (lambda b: ops.mean(TENTHS + b) * (ROWS * 4 * TENTH), FOUR),
    (ops.mean, 20 * TALL),
    (lambda x: ops.sum(x, axis=0), TENTHS),
    (lambda x: ops.nansum(x, axis=0), TENTHS),
    (ops.nanmean, 20 * TALL),
    (lambda x: ops.average(x, 0, TENTHS), 20 * TENTHS),
    (lambda x: ops.trace(ops.broadcast_to(x, (ROWS // 10, 4, 4)), 0, 1, 2), np.full((1, 4, 4), TENTH)),
    (ops.vdot, TALL, TALL),
    (lambda a: ops.outer(a, TALL), FOUR),
    (lambda a: ops.kron(a, TALL), FOUR),
    (lambda a, b: ops.tensordot(a, b, 1), TENTHS.T.copy(), TENTHS),
    (lambda x: ops.cumsum(x, axis=0)[-1], TENTHS),
    (lambda x: ops.segment_sum(x, IDS), TENTHS[: len(IDS)]),
    (lambda x: ops.segment_mean(x, IDS) * 20, TENTHS[: len(IDS)]),
    (lambda x: ops.segment_softmax(x, IDS)[:2], 0 * TENTHS[: len(IDS)]),
    (lambda x: ops.tile(x, (ROWS // 4, 1)), FOUR),
    (lambda x: ops.repeat(x, ROWS), FOUR),
    (lambda x: ops.take_along_axis(x, IDS, 0), FOUR),
    (ops.logsumexp, 0 * TALL),
    (lambda x: ops.var(x, axis=0), 30 * TENTHS * np.where(np.arange(ROWS) % 2, 1, -1)[:, np.newaxis]),
    (lambda x: ops.std(x), 30 * TALL * np.where(np.arange(ROWS) % 2, 1, -1)),
    (ops.norm, TALL),
    (lambda x: ops.softmax(x, 0)[:2], 0 * TALL),
    (lambda x: ops.log_softmax(x, 0)[0], 0 * TENTHS),
    (lambda x: ops.mean_squared_error(x, 0 * TALL), 40 * TALL),
    (lambda x: ops.huber_loss(x, 0 * TALL), 40 * TALL),
    (lambda x: ops.hinge_loss(x, 0), 40 * TALL),
    (lambda x: ops.sigmoid_cross_entropy(x, 0), 0 * TALL),
    (lambda x: ops.softmax_cross_entropy(x, IDS.repeat(5)), 0 * TENTHS),
    (lambda x: ops.softmax_cross_entropy(x, np.full(x.shape, 0.5)), np.zeros((9_000, 100))),
    (lambda x: ops.moments(x)[0] + 0 * x[0], 30 * TENTHS),
    (lambda b: ops.batch_norm_inference(TENTHS, [0.0] * 4, [1.0] * 4, None, b), FOUR),
    (lambda b: ops.layer_norm(TENTHS, None, b), FOUR),
    (lambda x: ops.avg_pool2d(x, 3, 1, "SAME"), np.full((1, 6, 6, 1), 60_000.0)),
    (lambda f: ops.conv2d(IMAGES.astype(HALF), f, groups=3), np.full((3, 3, 1, 3), TENTH)),
    (lambda f, b: ops.conv2d_transpose(IMAGES.astype(HALF), f, b), np.full((2, 2, 2, 3), TENTH), FOUR[:2]),
    (lambda f: ops.conv1d(IMAGES[..., 0].astype(HALF), f), np.full((3, 24, 2), TENTH)),
    (lambda b: ops.conv2d(np.full((2, 100, 500, 1), TENTH), np.full((1, 1, 1, 4), TENTH), b), FOUR),
]
HALF_SUMS = [  # in float32 added one after the other, or by BLAS
    (lambda x: ops.take(x, IDS), ROW),
    (lambda x: ops.take(ops.transpose(x), IDS, axis=1), ROW),
    (lambda x: ops.gather(x, IDS), ROW),
    (lambda x: ops.getitem(x, (IDS, slice(None))), ROW),
    (lambda x: ops.embedding(x, IDS), ROW),
    (lambda x: ops.concatenate([ops.embedding(x, IDS[:2500]), ops.take(x, IDS[:2500])]), ROW),
    (lambda x: ops.concatenate([ops.take(x, IDS[:2500]), ops.embedding(x, IDS[:2500])]), ROW),
    (lambda b: ops.matmul(TENTHS, b), FOUR),
    (lambda b: ops.einsum("ij,j->i", TENTHS, b), FOUR),
    (lambda x: ops.avg_pool2d(x, 12, 1, "SAME"), IMAGES[:2, :, :, :1]),
    (lambda x: ops.max_pool2d(x, 12, 1), IMAGES[:2, :, :, :1]),
    (lambda x: ops.conv2d(x, np.full((250, 400, 1, 1), TENTH), padding="VALID"), np.full((1, 250, 400, 1), TENTH)),
    (lambda x, w: ops.conv2d(x, w, strides=2, padding="VALID"), IMAGES, IMAGES[:4, :4, :3, :1] + 0),
]


@pytest.mark.parametrize(
    ("dtype", "precision", "f", "arrays"),
    [(HALF, 1.01 * 2.0**-11, f, arrays) for f, *arrays in (SUMS + HALF_SUMS)[::2]]
    + [
        pytest.param(HALF, 1.01 * 2.0**-11, f, arrays, marks=pytest.mark.slow)
        for f, *arrays in (SUMS + HALF_SUMS)[1::2]
    ]
    + [pytest.param(np.float32, 5e-6, f, arrays, marks=pytest.mark.slow) for f, *arrays in SUMS],
)
def test_values_and_gradients_of_long_sums_are_those_of_float64_rounded_once(dtype, precision, f, arrays):
    def results(dtype):
        xs = [Tensor(array.astype(HALF).astype(dtype), requires_grad=True) for array in arrays]
        y = f(*xs)
        return y.value, *map(dense, gradients(y, xs, np.full(y.shape, TENTH)))

    for found, expected in zip(results(dtype), results(np.float64), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=precision, atol=np.finfo(dtype).smallest_subnormal)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 4), (2, ROWS // 4, 3), (257, 5), (4, 2**15 + 257)])
def test_a_float32_sum_along_any_axis_in_any_layout_is_that_of_float64_to_some_roundings(shape):
    numbers = np.random.default_rng(SEED).uniform(0.05, 0.15, shape).astype(np.float32)
    gaps = np.repeat(numbers[..., np.newaxis], 2, axis=-1)[..., 0]
    for x in (numbers, np.asfortranarray(numbers), gaps, numbers[::-1].copy()[::-1]):
        for axis in (None, *range(len(shape))):
            np.testing.assert_allclose(ops.sum(x, axis=axis).value, numbers.sum(axis, np.float64), rtol=2e-6)


def test_gradients_of_one_node_are_added_in_float32_and_reach_its_op_in_float16():
    seen = []

    @op
    def watching(x, /):
        return x * 1, (lambda g: seen.append(g.dtype) or g,)

    x = Tensor(np.zeros((2, 3), HALF), requires_grad=True)
    inner = watching(x)
    for ys in ([inner * 1 for _ in range(3000)], [inner] * 3000):
        for gradient in gradients(ys, [x, inner], retain_graph=True):
            assert gradient.dtype == HALF
            np.testing.assert_array_equal(gradient, np.full((2, 3), 3000))
    assert set(seen) == {np.dtype(HALF)}
    np.testing.assert_array_equal(gradients([x * 6e4, x * 6e4, x * -6e4], x)[0], np.full((2, 3), 60000, HALF))
    more, fewer = np.zeros((70000, 2, 3), HALF), np.zeros((60000, 2, 3), HALF)
    np.testing.assert_array_equal(gradients([more + x, fewer - x], x)[0], np.full((2, 3), 10000))


def test_rows_of_float16_with_one_index_are_summed_in_float32():
    rows = IndexedSlices(np.ones((5000, 2), HALF), np.ones(5000, int), (3, 2)).summed()
    assert (rows.dtype, rows.values.tolist()) == (HALF, [[5000, 5000]])
    total = np.full((3, 2), -60000, HALF)
    add_rows(total, np.array([0, -1] * 1500), np.full((3000, 2), 45, HALF))  # 67,500 in each
    np.testing.assert_array_equal(total, np.full((3, 2), [[7500], [-60000], [7500]]))
