"""The gradient check must fail on derivatives that are wrong in the ways in which people get them wrong."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, check_gradients, op, ops

A = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
B = np.array([[1.0, 2.0], [-0.5, 0.75], [0.3, -1.2]])


@op
def off_by_a_factor(x, /):
    return x * x, (lambda g: g * x,)


@op
def off_by_a_little(x, /):
    return np.exp(x), (lambda g: g * np.exp(x) * (1 + 1e-5),)


@op
def wrong_sign(a, b, /):
    return a - b, (lambda g: g, lambda g: g)


@op
def wrong_in_one_place(x, /):
    def gradient(g):
        wrong = g * 3 * x**2
        wrong[1, 2] += 0.01
        return wrong

    return x**3, (gradient,)


@op
def transposed(a, /):
    return a @ a, (lambda g: a.T @ g + a @ g,)


@op
def missing_sum(row, matrix, /):
    """The row is stretched over the matrix, and its gradient taken from the first line instead of all."""
    return row * matrix, (lambda g: (g * matrix)[0], lambda g: g * row)


@op
def missing_term(x, /):
    y = np.exp(x) / np.exp(x).sum()
    return y, (lambda g: g * y,)


@op
def not_a_number(x, /):
    return x * 1.0, (lambda g: g * np.nan,)


@op
def no_derivative(a, b, /):
    return a * b, (lambda g: g * b,)


@op
def keeps_its_gradient(x, /):
    kept = []

    def gradient(g):
        if not kept:
            kept.append(2 * g)
        return kept[0]

    return 2 * x, (gradient,)


@op
def sums_as_it_goes(x, /):
    total = np.zeros_like(x)

    def gradient(g):
        nonlocal total
        total = total + 2 * g
        return total.copy()

    return 2 * x, (gradient,)


@op
def writes_into_what_it_was_lent(x, /):
    return 2 * x, (lambda g: np.multiply(g, 2, out=g),)


@op
def float64_result(x, /):
    return x * np.float64(2), (lambda g: g * 2,)


@op
def wrong_in_float32_only(x, /):
    return x * x, (lambda g: g * x * (2 if x.dtype == np.float64 else 2.01),)


def test_right_derivatives_pass():
    check_gradients(lambda x, y: ops.sum(ops.tanh(x @ y)) * x, A, B)
    check_gradients(lambda x, i: x[i] * 2.0, A, np.array([1, 1, 0]))
    check_gradients(lambda x: x * np.float64([1.0, 2, 3]), A, float32=False)


@pytest.mark.parametrize(
    ("f", "args", "message"),
    [
        (off_by_a_factor, [A], r"argument 0, index \(0, 2\): the gradient is .* but the finite difference is"),
        (off_by_a_little, [A], r"argument 0, index \(\d, \d\): .* finite difference"),
        (wrong_sign, [A, 2 * A], r"argument 1, index .* finite difference"),
        (wrong_in_one_place, [A], r"argument 0, index \(1, 2\): .* finite difference"),
        (transposed, [A[:, :2]], r"argument 0, index .* finite difference"),
        (missing_sum, [A[0], A], r"argument 0, index \(\d,\): .* finite difference"),
        (missing_term, [A], r"argument 0, index .* finite difference"),
        (not_a_number, [A], r"argument 0, index \(0, 0\): the gradient is nan, but the finite difference is"),
        (no_derivative, [A, A], r"argument 1, index .* the gradient is 0, but the finite difference is"),
        (lambda x: Tensor(2 * x.value), [A], r"argument 0, index .* the gradient is 0, but the finite difference is"),
        (
            keeps_its_gradient,
            [A],
            r"argument 0, index \(0, 0\): the gradient is nan, but an earlier backward pass gave",
        ),
        (sums_as_it_goes, [A], r"argument 0, index .* but an earlier backward pass gave"),
        (float64_result, [A], "float32 arguments gave a result of float64"),
        (wrong_in_float32_only, [A], r"argument 0, index .* but the one in float64 is .* \(float32, tolerance"),
    ],
)
def test_a_wrong_derivative_is_caught_and_the_worst_element_named(f, args, message):
    with pytest.raises(AssertionError, match=message):
        check_gradients(f, *args)


def test_a_vjp_that_writes_into_what_it_was_lent_is_caught():
    with pytest.raises(ValueError, match="read-only"):
        check_gradients(writes_into_what_it_was_lent, A)


def test_a_function_that_returns_no_tensor_is_refused():
    with pytest.raises(TypeError, match="must return a Tensor, but it returned ndarray"):
        check_gradients(lambda x: x.value, A)
