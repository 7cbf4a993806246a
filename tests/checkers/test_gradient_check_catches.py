"""The gradient check must fail on derivatives that are wrong in common ways."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, op, ops

A = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
B = np.array([[1.0, 2.0], [-0.5, 0.75], [0.3, -1.2]])
DIFFERENCE = "but the finite difference is"
A_BIT = np.array([[0, 0, 0], [0, 0, 0.01]])


def keeps_its_gradient(x):
    kept = []
    return 2 * x, (lambda g: kept[0] if kept else kept.append(2 * g) or kept[0],)


def right_in_float64(x):
    return x * x, (lambda g: g * x * (2 if x.dtype == np.float64 else 2.01),)


def without_a_sum(a, b):
    return a[:1] * b, (lambda g: np.vstack([(g * b)[0], 0 * a[0]]), lambda g: g * a[:1])


def softmax_without_a_term(x):
    y = np.exp(x) / np.exp(x).sum()
    return y, (lambda g: g * y,)


WRONG = {  # functions of A, or of A and 2 A, each with the number of the argument, and the index and the error
    "off by a factor": (lambda x: (x * x, (lambda g: g * x,)), 0, rf"\(0, 2\): the gradient is .* {DIFFERENCE}"),
    "off by a little": (lambda x: (np.exp(x), (lambda g: g * np.exp(x) * (1 + 1e-5),)), 0, f".* {DIFFERENCE}"),
    "in one place": (lambda x: (x**3, (lambda g: g * 3 * x**2 + A_BIT,)), 0, rf"\(1, 2\): .* {DIFFERENCE}"),
    "without a term": (softmax_without_a_term, 0, f".* {DIFFERENCE}"),
    "not a number": (lambda x: (x * 1.0, (lambda g: g * np.nan,)), 0, rf"\(0, 0\): .* is nan, {DIFFERENCE}"),
    "kept": (keeps_its_gradient, 0, r"\(0, 0\): the gradient is nan, but an earlier backward pass gave"),
    "float32 only": (right_in_float64, 0, r".* but the one in float64 is .* \(float32, tolerance"),
    "wrong sign": (lambda a, b: (a - b, (lambda g: g, lambda g: g)), 1, f".* {DIFFERENCE}"),
    "without the sum over a broadcast axis": (without_a_sum, 0, f".* {DIFFERENCE}"),
    "without a derivative": (lambda a, b: (a * b, (lambda g: g * b,)), 1, f".* is 0, {DIFFERENCE}"),
}


@pytest.mark.parametrize(("function", "number", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_derivative_is_caught_and_the_worst_element_named(function, number, message):
    arrays = [A, 2 * A][: function.__code__.co_argcount]
    with pytest.raises(AssertionError, match=rf"argument {number}, index {message}"):
        check_gradients(op(lambda *xs: function(*xs)), *arrays)


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
