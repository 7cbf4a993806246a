"""The gradient check must fail on derivatives that are wrong in common ways."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, op, ops

A = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
B = np.array([[1.0, 2.0], [-0.5, 0.75], [0.3, -1.2]])


def wrong_in_one_place(x):
    def gradient(g):
        wrong = g * 3 * x**2
        wrong[1, 2] += 0.01
        return wrong

    return x**3, (gradient,)


def wrong_term_of_softmax(x):
    y = np.exp(x) / np.exp(x).sum()
    return y, (lambda g: g * y,)


def keeps_its_gradient(x):
    kept = []
    return 2 * x, (lambda g: kept[0] if kept else kept.append(2 * g) or kept[0],)


def sums_as_it_goes(x):
    total = np.zeros_like(x)

    def gradient(g):
        nonlocal total
        total = total + 2 * g
        return total.copy()

    return 2 * x, (gradient,)


DIFFERENCE = "the finite difference is"
WRONG_UNARY = {
    "off by a factor": (lambda x: (x * x, (lambda g: g * x,)), rf"index \(0, 2\): the gradient is .* but {DIFFERENCE}"),
    "off by a little": (lambda x: (np.exp(x), (lambda g: g * np.exp(x) * (1 + 1e-5),)), rf"index .* {DIFFERENCE}"),
    "in one place": (wrong_in_one_place, rf"index \(1, 2\): .* {DIFFERENCE}"),
    "without a term": (wrong_term_of_softmax, rf"index .* {DIFFERENCE}"),
    "not a number": (lambda x: (x * 1.0, (lambda g: g * np.nan,)), rf"index \(0, 0\): .* is nan, but {DIFFERENCE}"),
    "kept": (keeps_its_gradient, r"index \(0, 0\): the gradient is nan, but an earlier backward pass gave"),
    "summed": (sums_as_it_goes, "index .* but an earlier backward pass gave"),
    "float32 only": (
        lambda x: (x * x, (lambda g: g * x * (2 if x.dtype == np.float64 else 2.01),)),
        r"index .* but the one in float64 is .* \(float32, tolerance",
    ),
}
WRONG_BINARY = {
    "wrong sign": (lambda a, b: (a - b, (lambda g: g, lambda g: g)), 1, rf"index .* {DIFFERENCE}"),
    "without the sum over a broadcast axis": (
        lambda a, b: (a[:1] * b, (lambda g: np.vstack([(g * b)[0], 0 * a[0]]), lambda g: g * a[:1])),
        0,
        rf"index .* {DIFFERENCE}",
    ),
    "without a derivative": (
        lambda a, b: (a * b, (lambda g: g * b,)),
        1,
        rf"index .* is 0, but {DIFFERENCE}",
    ),
}


def as_op(function, tensors):
    if tensors == 1:
        return op(lambda x, /: function(x))
    return op(lambda a, b, /: function(a, b))


@pytest.mark.parametrize("name", WRONG_UNARY)
def test_a_wrong_derivative_is_caught_and_the_worst_element_named(name):
    function, message = WRONG_UNARY[name]
    with pytest.raises(AssertionError, match=rf"argument 0, {message}"):
        check_gradients(as_op(function, 1), A)


@pytest.mark.parametrize("name", WRONG_BINARY)
def test_a_wrong_derivative_of_one_of_two_arguments_is_caught(name):
    function, number, message = WRONG_BINARY[name]
    with pytest.raises(AssertionError, match=rf"argument {number}, {message}"):
        check_gradients(as_op(function, 2), A, 2 * A)


def test_right_derivatives_pass_and_results_cut_off_from_the_graph_or_of_a_wrong_type_do_not():
    check_gradients(lambda x, y: ops.sum(ops.tanh(x @ y)) * x, A, B)
    check_gradients(lambda x, i: x[i] * 2.0, A, np.array([1, 1, 0]))
    check_gradients(lambda x: x * np.float64([1.0, 2, 3]), A, float32=False)
    with pytest.raises(AssertionError, match=f"argument 0, index .* the gradient is 0, but {DIFFERENCE}"):
        check_gradients(lambda x: Tensor(2 * x.value), A)
    with pytest.raises(AssertionError, match="float32 arguments gave a result of float64"):
        check_gradients(as_op(lambda x: (x * np.float64(2), (lambda g: g * 2,)), 1), A)
    with pytest.raises(ValueError, match="read-only"):
        check_gradients(as_op(lambda x: (2 * x, (lambda g: np.multiply(g, 2, out=g),)), 1), A)
    with pytest.raises(TypeError, match="must return a Tensor, but it returned ndarray"):
        check_gradients(lambda x: x.value, A)
