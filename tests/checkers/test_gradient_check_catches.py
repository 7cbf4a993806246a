"""The gradient check must fail on derivatives that are wrong in common ways."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, op, ops

A = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
B = np.array([[1.0, 2.0], [-0.5, 0.75], [0.3, -1.2]])
DIFFERENCE = "but the finite difference is"
IN_ONE_PLACE = np.array([[0, 0, 0], [0, 0, 0.01]])


def keeps_its_gradient(x):
    kept = []
    return 2 * x, (lambda g: kept[0] if kept else kept.append(2 * g) or kept[0],)


def softmax_without_a_term(x):
    y = np.exp(x) / np.exp(x).sum()
    return y, (lambda g: g * y,)


WRONG = {  # functions of one array, each with the error
    "off by a factor": (lambda x: (x * x, (lambda g: g * x,)), rf"index \(0, 2\): the gradient is .* {DIFFERENCE}"),
    "off by a little": (lambda x: (np.exp(x), (lambda g: g * np.exp(x) * (1 + 1e-5),)), rf"index .* {DIFFERENCE}"),
    "in one place": (lambda x: (x**3, (lambda g: g * 3 * x**2 + IN_ONE_PLACE,)), rf"index \(1, 2\): .* {DIFFERENCE}"),
    "without a term": (softmax_without_a_term, rf"index .* {DIFFERENCE}"),
    "not a number": (lambda x: (x * 1.0, (lambda g: g * np.nan,)), rf"index \(0, 0\): .* is nan, {DIFFERENCE}"),
    "kept": (keeps_its_gradient, r"index \(0, 0\): the gradient is nan, but an earlier backward pass gave"),
    "float32 only": (
        lambda x: (x * x, (lambda g: g * x * (2 if x.dtype == np.float64 else 2.01),)),
        r"index .* but the one in float64 is .* \(float32, tolerance",
    ),
}
WRONG_IN_ONE_OF_TWO = {  # functions of two arrays, each with the number of the argument and the gradient
    "wrong sign": (lambda a, b: (a - b, (lambda g: g, lambda g: g)), 1, ".*"),
    "without the sum over a broadcast axis": (
        lambda a, b: (a[:1] * b, (lambda g: np.vstack([(g * b)[0], 0 * a[0]]), lambda g: g * a[:1])),
        0,
        ".*",
    ),
    "without a derivative": (lambda a, b: (a * b, (lambda g: g * b,)), 1, "0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_derivative_is_caught_and_the_worst_element_named(name):
    function, message = WRONG[name]
    with pytest.raises(AssertionError, match=rf"argument 0, {message}"):
        check_gradients(op(lambda x, /: function(x)), A)


@pytest.mark.parametrize("name", WRONG_IN_ONE_OF_TWO)
def test_a_wrong_derivative_of_one_of_two_arguments_is_caught(name):
    function, number, gradient = WRONG_IN_ONE_OF_TWO[name]
    with pytest.raises(AssertionError, match=rf"argument {number}, index .* is {gradient}, {DIFFERENCE}"):
        check_gradients(op(lambda a, b, /: function(a, b)), A, 2 * A)


def test_right_derivatives_pass_and_results_cut_off_from_the_graph_or_of_a_wrong_type_do_not():
    check_gradients(lambda x, y: ops.sum(ops.tanh(x @ y)) * x, A, B)
    check_gradients(lambda x, i: x[i] * 2.0, A, np.array([1, 1, 0]))
    check_gradients(lambda x: x * np.float64([1.0, 2, 3]), A, float32=False)
    for f, error, message in (
        (lambda x: Tensor(2 * x.value), AssertionError, f"argument 0, index .* the gradient is 0, {DIFFERENCE}"),
        (op(lambda x, /: (x * np.float64(2), (lambda g: g * 2,))), AssertionError, "gave a result of float64"),
        (op(lambda x, /: (2 * x, (lambda g: np.multiply(g, 2, out=g),))), ValueError, "read-only"),
        (lambda x: x.value, TypeError, "must return a Tensor, but it returned ndarray"),
    ):
        with pytest.raises(error, match=message):
            check_gradients(f, A)
