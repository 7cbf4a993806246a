"""The line search: its steps satisfy the strong Wolfe conditions, and where there is none it says why."""

import math

import pytest

import psworker as ps
from tests.support.combinations import together

# The first two test functions of J. J. More, D. J. Thuente, Line Search Algorithms with Guaranteed Sufficient Decrease,
# ACM TOMS 20 (3), 1994, section 5, with their minima.
FUNCTIONS = {
    "5.1": (lambda a: (-a / (a * a + 2), (a * a - 2) / (a * a + 2) ** 2), math.sqrt(2)),
    "5.2": (
        lambda a: ((a + 0.004) ** 5 - 2 * (a + 0.004) ** 4, 5 * (a + 0.004) ** 4 - 8 * (a + 0.004) ** 3),
        1.6 - 0.004,
    ),
    "parabola": (lambda a: ((a - 3) ** 2, 2 * (a - 3)), 3.0),
}


def counted(function):
    calls = []

    def counting(step):
        calls.append(step)
        return function(step)

    return counting, calls


@together("curvature", [0.1, 0.9])
@together("first", [1e-3, 0.1, 1.0, 10.0, 1000.0])
@together("name", FUNCTIONS)
def test_a_step_satisfies_the_strong_wolfe_conditions_wherever_the_search_begins(name, first, curvature):
    function, _ = FUNCTIONS[name]
    value, slope = function(0.0)
    counting, calls = counted(function)
    found = ps.line_search(counting, value, slope, first=first, decrease=1e-3, curvature=curvature, limit=30)
    assert (found.problem, found.evaluations, calls[-1]) == ("", len(calls), found.step)
    assert (found.value, found.slope) == function(found.step)
    assert found.value <= value + 1e-3 * found.step * slope
    assert abs(found.slope) <= curvature * abs(slope)


def test_the_minimum_of_a_parabola_is_found_with_two_calls():
    function, minimum = FUNCTIONS["parabola"]
    found = ps.line_search(function, *function(0.0), first=1.0, curvature=1e-3, decrease=1e-4)
    assert (found.step, found.evaluations) == (pytest.approx(minimum), 2)


@pytest.mark.parametrize("beyond", [(math.nan, math.nan), (math.inf, 1.0), (0.0, math.nan), (-math.inf, -1.0)])
def test_steps_where_the_function_is_no_number_are_too_long(beyond):
    def function(step):
        return beyond if step > 2 else (-step, -1.0) if step < 1 else ((step - 1.5) ** 2 - 1.25, 2 * (step - 1.5))

    found = ps.line_search(function, 0.0, -1.0, first=100.0)
    assert found.problem == ""
    assert 1 < found.step < 2


@pytest.mark.parametrize("first", [1e-8, 1e8])
def test_a_first_step_of_another_order_of_magnitude_costs_few_calls(first):
    function, minimum = FUNCTIONS["parabola"]
    counting, calls = counted(function)
    found = ps.line_search(counting, *function(0.0), first=first, curvature=0.1)
    assert found.problem == ""
    assert len(calls) <= 10
    assert found.step == pytest.approx(minimum, rel=0.1)


def test_values_and_slopes_close_to_the_largest_number_are_no_reason_for_a_step_that_is_not_finite():
    calls = []

    def function(step):
        calls.append(step)
        return (1e308, 1e308) if step > 1e-3 else (-1e300 * step, -1e300)

    ps.line_search(function, 0.0, -1e300, first=1e300, longest=1e308)
    ps.line_search(lambda step: (function(step)[0], -1e300), 0.0, -1e300, first=1e300, longest=1.7e308)
    assert all(map(math.isfinite, calls))


def test_a_function_without_an_end_has_no_step():
    found = ps.line_search(lambda step: (-step, -1.0), 0.0, -1.0, longest=50.0)
    assert "decreases up to the longest step, 50" in found.problem
    assert (found.step, found.value) == (50.0, -50.0)


def test_a_gradient_that_is_wrong_ends_the_search_at_the_best_point():
    found = ps.line_search(lambda step: (step, -1.0), 0.0, -1.0, limit=7)
    assert "no step satisfies the conditions after 7 evaluations" in found.problem
    assert (found.step, found.value, found.slope, found.evaluations) == (0.0, 0.0, -1.0, 7)


def test_close_to_a_minimum_where_values_are_rounded_the_slope_decides():
    """With values near 1e8 a decrease of 1e-9 cannot be seen in float64."""
    found = ps.line_search(lambda step: (1e8 + 1e-9 * (step - 1) ** 2, 2e-9 * (step - 1)), 1e8, -2e-9, first=0.5)
    assert (found.problem, found.step) == ("", 0.5)


@pytest.mark.parametrize(("rounding", "problem"), [(1.2e-7, ""), (1e-12, "no step satisfies the conditions")])
def test_values_of_float32_are_compared_to_their_rounding_if_the_program_says_so(rounding, problem):
    """The value at each step is 1e-7 above the first one; the slope is that of a minimum at 1."""

    def function(step):
        return 1.0 + (1e-7 if step else 0.0), 1e-9 * (step - 1)

    found = ps.line_search(function, *function(0.0), first=0.9, rounding=rounding)
    assert found.problem == (problem and f"{problem} after 20 evaluations")
    assert found.step == (0.0 if problem else 0.9)


@pytest.mark.parametrize(
    ("value", "slope", "options", "message"),
    [
        (0.0, 1.0, {}, "does not decrease along the direction: its slope is 1"),
        (0.0, 0.0, {}, "its slope is 0, not below 0"),
        (math.nan, -1.0, {}, "finite value and slope, not nan and -1"),
        (0.0, -1.0, {"decrease": 0.9, "curvature": 0.1}, "0 < decrease < curvature < 1, not 0.9 and 0.1"),
        (0.0, -1.0, {"first": 0.0}, "a first step above 0"),
    ],
)
def test_a_search_that_cannot_be_begun_is_an_error(value, slope, options, message):
    with pytest.raises(ValueError, match=message):
        ps.line_search(lambda step: (step, 1.0), value, slope, **options)
