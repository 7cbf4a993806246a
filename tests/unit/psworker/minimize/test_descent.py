"""L-BFGS, conjugate gradients and OWL-QN find minima that are known, and say why they stop."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from pswire.specs.vectors import VARIABLES, Axpy, Copy
from psworker.minimize.conjugate_gradient import ConjugateGradient
from psworker.minimize.descent import DIRECTION, Limits, descend
from psworker.minimize.lbfgs import LBFGS
from psworker.minimize.owlqn import DESCENT, OWLQN
from psworker.minimize.space import POINT, POINT_GRADIENT
from tests.support.combinations import few_fast
from tests.unit.psworker.minimize.numpy_space import NumpySpace

METHODS = [LBFGS, lambda: LBFGS(memory=3), ConjugateGradient]
NAMES = ["L-BFGS", "L-BFGS with 3 pairs", "conjugate gradients"]
methods = pytest.mark.parametrize("method", METHODS, ids=NAMES)
methods_with_owlqn = pytest.mark.parametrize("method", [*METHODS, lambda: OWLQN(0.1)], ids=[*NAMES, "OWL-QN"])


def rosenbrock(x):
    """The chained function of H. H. Rosenbrock, 1960; its minimum is 0, at ones."""
    value = np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    gradient = np.zeros_like(x)
    gradient[1:] += 200 * (x[1:] - x[:-1] ** 2)
    gradient[:-1] += -400 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2 * (1 - x[:-1])
    return value, gradient


def quadratic(seed, size):
    """A quadratic function, and its minimum, by numpy's solver."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(size, size)) / np.sqrt(size)
    matrix, vector = root @ root.T + np.eye(size), generator.normal(size=size)
    return lambda x: (x @ matrix @ x / 2 - vector @ x, matrix @ x - vector), np.linalg.solve(matrix, vector)


@methods
def test_the_minimum_of_a_quadratic_function_is_that_of_a_solver(method):
    function, minimum = quadratic(1, 30)
    space = NumpySpace(function, np.zeros(30))
    result = descend(method(), space, Limits(gradient=1e-9, decrease=0.0))
    assert (result.converged, result.reason) == (True, "no element of the gradient is above 1e-09")
    np.testing.assert_allclose(space.point, minimum, atol=1e-8)
    assert result.progress.evaluations == space.evaluations


@methods
def test_the_minimum_of_rosenbrocks_function_is_found_through_its_valley(method):
    space = NumpySpace(rosenbrock, [-1.2, 1.0] * 5)
    result = descend(method(), space, Limits(gradient=1e-8, decrease=0.0))
    assert result.converged, result
    np.testing.assert_allclose(space.point, 1.0, atol=1e-7)


def test_on_a_quadratic_function_exact_searches_with_all_pairs_end_after_as_many_iterations_as_there_are_variables():
    """Both methods are conjugate directions then (Nocedal and Wright, theorems 5.1 and 6.4)."""
    function, _ = quadratic(2, 6)
    for method in (LBFGS(memory=6, curvature=1e-3), ConjugateGradient(curvature=1e-3)):
        result = descend(method, NumpySpace(function, np.zeros(6)), Limits(gradient=1e-6, decrease=0.0))
        assert result.progress.iterations <= 7, type(method)


def test_the_direction_of_lbfgs_is_that_of_the_matrix_of_its_pairs():
    """The matrix of Nocedal and Wright, equations 7.16 to 7.20, with arrays; two of five pairs are forgotten."""
    function, start = rosenbrock, np.array([-1.2, 1.0, 0.5, 2.0])
    space, method = NumpySpace(function, start), LBFGS(memory=3)
    space.evaluate()
    space.accept(method.measure())
    points, gradients = [start], [function(start)[1]]
    for _ in range(5):
        method.direct(space)
        space.run([Copy(VARIABLES, POINT), Axpy(VARIABLES, 1e-4, DIRECTION)])
        space.evaluate()
        method.learn(space)
        space.accept(method.measure())
        points.append(space.point)
        gradients.append(function(space.point)[1])
    steps, changes = np.diff(points, axis=0)[-3:], np.diff(gradients, axis=0)[-3:]
    matrix = np.eye(4) * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1])
    for s, y in zip(steps, changes, strict=True):
        project = np.eye(4) - np.outer(y, s) / (y @ s)
        matrix = project.T @ matrix @ project + np.outer(s, s) / (y @ s)
    slope = method.direct(space)
    np.testing.assert_allclose(space.vectors[DIRECTION], -matrix @ gradients[-1], rtol=1e-6)
    assert slope == pytest.approx(-gradients[-1] @ matrix @ gradients[-1], rel=1e-6)


@methods_with_owlqn
def test_after_a_method_has_forgotten_it_begins_again_with_steepest_descent(method):
    space, method = NumpySpace(rosenbrock, [-1.2, 1.0, 0.5, 2.0]), method()
    descend(method, space, Limits(gradient=0.0, decrease=0.0, iterations=5))
    method.direct(space)
    assert method.forget()
    method.direct(space)
    steepest = space.vectors.get(DESCENT, -space.vectors[POINT_GRADIENT])
    np.testing.assert_array_equal(space.vectors[DIRECTION], steepest)
    assert not method.forget()


@methods_with_owlqn
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13, 21, 22, 23])
def test_a_line_search_goes_on_to_the_limit_of_evaluations_and_not_beyond(method, limit):
    space = NumpySpace(rosenbrock, [-12.0, 10.0, 0.5, 2.0])
    result = descend(method(), space, Limits(gradient=0.0, decrease=0.0, evaluations=limit))
    assert result.progress.evaluations == space.evaluations == limit
    assert result.reason == f"the limit of {limit:,} evaluations is reached"


def test_owlqn_satisfies_the_conditions_of_a_minimum_and_finds_the_elements_that_are_not_zero():
    generator = np.random.default_rng(4)
    matrix, true = generator.normal(size=(120, 50)), np.zeros(50)
    true[:6] = [3, -4, 5, -3, 4, -5]
    target, l1 = matrix @ true + 0.05 * generator.normal(size=120), 10.0

    def function(x):
        rest = matrix @ x - target
        return rest @ rest / 2, matrix.T @ rest

    space = NumpySpace(function, generator.normal(size=50))
    result = descend(OWLQN(l1), space, Limits(gradient=1e-7, decrease=0.0))
    x, gradient = space.point, function(space.point)[1]
    assert result.progress.loss == pytest.approx(function(x)[0] + l1 * np.abs(x).sum(), rel=1e-12)
    assert np.flatnonzero(x).tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(gradient[:6], -l1 * np.sign(x[:6]), atol=1e-5)
    assert np.abs(gradient[6:]).max() <= l1


def run(function, start, method=LBFGS, **limits):
    seen = []
    space = NumpySpace(function, start)
    result = descend(method(), space, Limits(**limits), lambda progress: seen.append(progress) or limits == {})
    return result, seen, space


ALL = pytest.mark.parametrize(
    "method", [LBFGS, ConjugateGradient, lambda: OWLQN(0.01)], ids=["L-BFGS", "conjugate gradients", "OWL-QN"]
)


def scaled(function, factor):
    """The function in variables that are multiplied by a factor."""

    def of_scaled(x):
        value, gradient = function(x / factor)
        return value, gradient / factor

    return of_scaled


@pytest.mark.parametrize("exponent", few_fast([-27, -300, 27, 300]), ids=lambda exponent: f"2^{exponent}")
@ALL
def test_with_variables_or_a_loss_of_another_scale_a_descent_is_the_same(method, exponent):
    """Powers of 2, so that nothing is rounded differently: 2^-27 is 7e-9."""
    factor, start = 2.0**exponent, np.linspace(-1.5, 1.5, 6)
    limits = Limits(gradient=1e-6, decrease=0.0, iterations=60)
    space = NumpySpace(rosenbrock, start)
    expected = descend(method(), space, limits)
    assert expected.progress.iterations >= 30
    scaled_method = method()
    if isinstance(scaled_method, OWLQN):
        scaled_method = OWLQN(0.01 / factor)
    in_scaled = NumpySpace(scaled(rosenbrock, factor), start * factor)
    result = descend(scaled_method, in_scaled, replace(limits, gradient=limits.gradient / factor))
    assert (in_scaled.point / factor).tobytes() == space.point.tobytes()
    assert (result.progress.evaluations, result.converged) == (expected.progress.evaluations, expected.converged)


@ALL
@pytest.mark.parametrize("factor", few_fast([1e-8, 1e8]))
def test_variables_that_begin_at_0_need_few_more_evaluations_in_another_scale(method, factor):
    """Where loss and variables are 0 nothing says the scale of the first step. Over several functions."""
    more = []
    for seed in range(4, 12):
        function, _ = quadratic(seed, 20)
        counts = []
        for scale in (1.0, factor):
            one = method() if method is not ALL.args[1][2] else OWLQN(0.01 / scale)
            limits = Limits(gradient=1e-8 / scale, decrease=0.0)
            space = NumpySpace(scaled(function, scale), np.zeros(20))
            result = descend(one, space, limits)
            assert result.converged, result
            counts.append(result.progress.evaluations)
        more.append(counts[1] - counts[0])
    assert np.mean(more) <= 10, more


@pytest.mark.parametrize("seed", range(12))
@methods
def test_quadratic_functions_are_minimized_to_the_last_digits_without_an_error(method, seed):
    function, minimum = quadratic(seed, 4)
    space = NumpySpace(function, np.zeros(4))
    result = descend(method(), space, Limits(gradient=1e-13, decrease=0.0))
    np.testing.assert_allclose(space.point, minimum, atol=1e-12, err_msg=str(result))


@ALL
def test_a_start_with_a_tiny_gradient_is_one_like_others(method):
    """The gradient at the start is 1e-13, so that a step of length 1 is 1e13 times as long as it."""
    space = NumpySpace(lambda x: (0.5 * 1e-12 * (x - 1) @ (x - 1), 1e-12 * (x - 1)), np.array([0.9]))
    if isinstance(method(), OWLQN):
        method = lambda: OWLQN(1e-20)
    result = descend(method(), space, Limits(gradient=1e-20, decrease=0.0))
    assert space.point[0] == pytest.approx(1, abs=1e-6), result


@pytest.mark.parametrize("size", [1e160, 1e-170])
@ALL
def test_a_gradient_whose_square_overflows_or_underflows_is_a_reason_to_stop(method, size):
    one = method() if not isinstance(method(), OWLQN) else OWLQN(1e-200)
    result = descend(one, NumpySpace(lambda x: (size * x.sum(), np.full(3, size)), np.zeros(3)), Limits(gradient=0.0))
    said = "the gradient has up to 1e+160, and products of its elements are too large for float64: the slope is -inf"
    expected = said if size > 1 else "the loss does not decrease along its direction: the slope is 0"
    assert (result.converged, result.reason) == (False, f"the line search has failed: {expected}")


@ALL
def test_products_that_overflow_in_the_middle_of_a_descent_end_it_with_a_reason(method):
    """From the third evaluation on, gradients are 1e150 and then 1e200 times as large."""
    for large in (1e150, 1e200, 1e308):
        calls = []

        def function(x, calls=calls, large=large):
            calls.append(1)
            value, gradient = rosenbrock(x)
            return value, gradient * (large if len(calls) > 2 else 1)

        with np.errstate(all="ignore"):
            result = descend(method(), NumpySpace(function, np.array([-1.2, 1.0, 0.5])), Limits(evaluations=300))
        assert result.reason


@pytest.mark.parametrize("seed", range(4))
def test_owlqn_with_more_variables_than_examples_says_that_it_has_converged(seed):
    """The conditions of a minimum, by the function itself: subgradients of elements that are 0, gradients of others."""
    generator = np.random.default_rng(seed)
    matrix, true, l1 = generator.normal(size=(30, 100)), np.zeros(100), 0.1
    true[:5] = 2 * generator.normal(size=5)
    target = matrix @ true + 0.1 * generator.normal(size=30)

    def function(x):
        rest = matrix @ x - target
        return rest @ rest / 30, 2 * matrix.T @ rest / 30

    space = NumpySpace(function, np.zeros(100))
    result = descend(OWLQN(l1), space, Limits(gradient=1e-9, decrease=0.0))
    x, gradient = space.point, function(space.point)[1]
    violation = np.where(x == 0, np.abs(gradient) - l1, np.abs(gradient + l1 * np.sign(x)))
    assert violation.max() <= 1e-9
    assert (result.converged, result.reason) == (True, "no element of the gradient is above 1e-09")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["L-BFGS-B", "CG"])
def test_evaluations_are_about_as_many_as_those_of_scipy(name):
    """Over several functions, starts and scales of their variables, of 1e-8 as well: one run depends on rounding."""
    optimize = pytest.importorskip("scipy.optimize")
    ours = theirs = 0
    generator = np.random.default_rng(0)
    starts = [np.array([-1.2, 1.0] * size) for size in (1, 3, 5)]
    cases = [(quadratic(seed, 30)[0], np.ones(30)) for seed in range(3)]
    cases += [(rosenbrock, start + 1e-3 * generator.normal(size=start.size)) for start in starts for _ in range(5)]
    for factor in (1.0, 1e-8):
        for function, start in cases:
            limit = 1e-6 / factor
            space = NumpySpace(scaled(function, factor), start * factor)
            result = descend(
                LBFGS() if name == "L-BFGS-B" else ConjugateGradient(), space, Limits(gradient=limit, decrease=0.0)
            )
            assert result.converged, result
            options = {"gtol": limit, "ftol": 0.0} if name == "L-BFGS-B" else {"gtol": limit, "norm": np.inf}
            found = optimize.minimize(scaled(function, factor), start * factor, jac=True, method=name, options=options)
            ours, theirs = ours + result.progress.evaluations, theirs + found.nfev
    assert ours <= 1.2 * theirs


def test_each_reason_to_stop_is_said():
    function, start = quadratic(5, 8)[0], np.zeros(8)
    results = [
        run(function, start, gradient=1e-3)[0],
        run(function, start, gradient=0.0, decrease=1e-2)[0],
        run(function, start, gradient=0.0, decrease=0.0, evaluations=4)[0],
        run(function, start, gradient=0.0, decrease=0.0, iterations=2)[0],
        run(function, start)[0],
        run(lambda x: (math.nan, x), start)[0],
    ]
    expected = [
        (True, "no element of the gradient is above 0.001"),
        (True, "less than 0.01 of it"),
        (False, "the limit of 4 evaluations is reached"),
        (False, "the limit of 2 iterations is reached"),
        (False, "it was stopped"),
        (False, "the loss at the start is nan"),
    ]
    for result, (converged, reason) in zip(results, expected, strict=True):
        assert (result.converged, reason in result.reason) == (converged, True), result


def test_the_limit_of_the_decrease_is_that_of_rounding_if_no_other_is_given():
    assert Limits().least_decrease == Limits().for_dtypes([np.dtype("float64")]).least_decrease == 1e-9
    single = Limits(gradient=1e-3).for_dtypes([np.dtype("float64"), np.dtype("float32")])
    assert single == Limits(gradient=1e-3, rounding=2**-23)
    assert single.least_decrease == 2**-23
    assert Limits(rounding=1e-3).for_dtypes([np.dtype("float32")]).least_decrease == 1e-3
    for given in (0.0, 1e-12, 0.1):
        assert Limits(decrease=given).for_dtypes([np.dtype("float16")]).least_decrease == given


def test_an_increase_by_rounding_ends_the_descent_and_is_said_to_be_one():
    values = iter([1.0, 1.0 + 2e-8])
    result, _, space = run(lambda x: (next(values), 0.14 * x), np.ones(8), gradient=0.0, rounding=1e-7)
    assert (result.converged, result.reason) == (True, "the loss increased by 2e-08, which is rounding")
    assert result.progress.evaluations == space.evaluations == 2


def test_a_descent_that_ends_before_its_gradient_is_reached_says_how_far_that_is():
    result, _, _ = run(lambda x: (0.5 * float(x @ x), x), np.ones(8), gradient=1e-6, decrease=1e9)
    assert re.search(r"of it; the gradient has up to \S+, above 1e-06 \(decrease=0 goes on\)$", result.reason)
    assert result.converged


def test_a_search_along_the_plain_gradient_that_reaches_the_limit_of_evaluations_says_that():
    result, *_ = run(lambda x: (float(-x[0]), -np.ones(1)), np.zeros(1), gradient=0.0, decrease=0.0, evaluations=3)
    assert result.reason == "the limit of 3 evaluations is reached"


def test_a_search_of_owlqn_in_which_values_and_slopes_do_not_decrease_and_values_differ_by_rounding_says_so():
    """Everywhere but at the start the loss is larger by rounding, and the gradient has the other sign."""
    function = lambda x: (1.0 + (1e-13 if x[0] != 1 else 0.0), np.where(x == 1, 1e-7, -3e-7))
    result, *_ = run(function, np.ones(1), lambda: OWLQN(1e-20), gradient=0.0)
    assert not result.converged
    assert result.reason.endswith("after 20 evaluations: short ones change it by rounding only")


def test_a_failed_search_goes_back_to_the_last_point_and_tries_steepest_descent_before_it_gives_up():
    """The gradient has the wrong sign from the third point on."""
    calls = []

    def function(x):
        calls.append(1)
        value, gradient = rosenbrock(x)
        return value, gradient if len(calls) < 5 else -gradient

    result, seen, space = run(function, [-1.2, 1.0], gradient=1e-8, decrease=0.0)
    assert not result.converged
    assert "the line search has failed: " in result.reason
    assert result.progress.loss == seen[-1].loss == rosenbrock(space.point)[0]
    assert result.progress.evaluations == len(calls)


def test_a_loss_that_is_no_number_far_away_is_minimized_all_the_same():
    def function(x):
        inside = 1 - x @ x  # the logarithm of a barrier
        return (math.nan, x * math.nan) if inside <= 0 else (-math.log(inside) - 3 * x[0], 2 * x / inside - [3, 0])

    result, _, space = run(function, [0.0, 0.5], gradient=1e-9, decrease=0.0)
    best = (-1 + math.sqrt(10)) / 3  # 2x / (1 - x^2) = 3
    assert result.converged
    np.testing.assert_allclose(space.point, [best, 0.0], atol=1e-8)


LIMITS = Limits(gradient=1e-6, decrease=0.0, iterations=100)


@pytest.mark.parametrize("after", few_fast([7, 0, 1, 23]))
@pytest.mark.parametrize("method", [LBFGS, lambda: OWLQN(1e-3)], ids=["L-BFGS", "OWL-QN"])
def test_a_descent_that_goes_on_from_what_was_saved_ends_as_if_it_had_not_been_interrupted(method, after):
    start = np.linspace(-1.5, 1.5, 12)
    whole = NumpySpace(rosenbrock, start)
    expected = descend(method(), whole, LIMITS)
    space = NumpySpace(rosenbrock, start)

    class Died(Exception):
        pass

    def evaluate():
        if json.loads(space.saved)["progress"]["iterations"] == after:
            raise Died  # in a line search
        return NumpySpace.evaluate(space)

    space.saved = json.dumps({"progress": {"iterations": -1}})
    space.evaluate = evaluate
    with pytest.raises(Died):
        descend(method(), space, LIMITS)
    space.vectors[VARIABLES] = np.full(12, np.nan)
    del space.evaluate
    result = descend(method(), space, LIMITS, saved=json.loads(space.saved))
    assert result == expected
    assert space.point.tobytes() == whole.point.tobytes()
