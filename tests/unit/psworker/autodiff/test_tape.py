"""The tape and the tensor: recording, the order of the backward pass, ownership of arrays, calls of ops."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, op, ops, stop_gradient


def leaf(*values):
    return Tensor(np.array(values, np.float64), requires_grad=True)


def counted(name, calls):
    """An op, x -> 2 x, that notes its name each time its backward runs."""
    return op(lambda x, /: (2 * x, (lambda g: calls.append(name) or 2 * g,)))


@op
def first_row(x, /):
    return x[0], (lambda g: IndexedSlices(g[np.newaxis], np.array([0]), x.shape),)


def test_each_backward_runs_once_in_a_ladder_of_diamonds():
    calls = []
    x = y = leaf(1.0, 2.0)
    for rung in range(30):  # 2^30 paths lead from y to x
        z = counted(rung, calls)(y)
        y = z + z * 0.5
    np.testing.assert_allclose(gradients(y, x)[0], [3.0**30] * 2, rtol=1e-12)
    assert calls == list(reversed(range(30)))


def test_one_pass_serves_all_xs_and_ys_and_visits_only_nodes_between_them_and_no_constant():
    calls = []
    a, b = leaf(1.0), leaf(10.0)
    shared = counted("shared", calls)(a * b)
    assert gradients([shared, shared * 3], [a, b]) == [80, 8]
    middle = counted("above", calls)(a)
    y = counted("below", calls)(middle) + counted("beside", calls)(b)
    assert gradients(y, middle) == [2]
    assert calls == ["shared", "below"]
    square = a * a
    assert gradients(square * square, [square, a]) == [2, 4]
    product = op(lambda a, b, /: (a * b, (lambda g: g * b, lambda g: pytest.fail("a vjp of a constant"))))
    x = leaf(2.0)
    assert gradients(product(x, np.array([5.0])), x) == gradients(product(x, Tensor([5.0])), x) == [5]


def test_gradients_are_those_of_the_sum_of_all_ys_weighted_by_grad_ys_and_a_borrowed_one_is_not_written_into():
    x = leaf([1.0, 2.0], [3.0, 4.0])
    np.testing.assert_array_equal(gradients([x * x, x[0]], x)[0], [[3, 5], [6, 8]])
    x = leaf(1.0, 2.0)
    np.testing.assert_array_equal(gradients(x * 3, x, [10, 100])[0], [30, 300])
    np.testing.assert_array_equal(gradients([x * 3, x], x, [np.array([10, 100]), None])[0], [31, 301])
    first, second = gradients([x, x * 2, x], [x, x])
    np.testing.assert_array_equal([first, second], [[4, 4], [4, 4]])
    assert not np.shares_memory(first, second)
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    double, triple = a * 2, a * 3
    y = a + b  # passes one array to a and to b, before double and triple add to that of a
    np.testing.assert_array_equal(gradients([double, triple, y], [a, b]), [[6, 6], [1, 1]])


def test_an_x_that_no_y_depends_on_has_gradient_none():
    x, other, constant = leaf(1.0), leaf(1.0), Tensor([1.0])
    assert gradients(x * constant, [other, x, constant, Tensor([1])]) == [None, 1, None, None]
    assert gradients(constant * 2, x) == gradients(constant, constant) == gradients([], x) == [None]
    assert gradients(x, []) == []
    stopped = stop_gradient(x * 2)
    assert (stopped.item(), stopped.requires_grad) == (2, False)
    assert gradients(stopped * x, x) == [2]


@pytest.mark.parametrize("seed", range(10))
def test_gradients_of_random_graphs_are_those_of_finite_differences(seed):
    kinds = [ops.add, ops.subtract, lambda a, b: ops.tanh(a) * b, lambda a, b: a[::-1], lambda a, b: ops.mean(a) + b]

    def graph(*leaves):
        nodes, choices = list(leaves), np.random.default_rng(seed)
        for kind in choices.integers(len(kinds), size=40):
            nodes.append(kinds[kind](*(nodes[i] for i in choices.integers(max(0, len(nodes) - 8), len(nodes), 2))))
        return ops.stack([nodes[i] for i in choices.integers(len(nodes) - 10, len(nodes), 3)]) * 1e-3

    check_gradients(graph, *np.random.default_rng(seed).standard_normal((3, 3)), float32=False)


def test_a_retained_graph_can_be_walked_again_and_a_freed_one_raises():
    x, other = leaf(2.0), leaf(3.0)
    y = ops.sum(ops.exp(x) * x)
    [first] = gradients(y, x, retain_graph=True)
    expected = first.copy()
    first.fill(np.nan)
    np.testing.assert_array_equal(gradients(y, x)[0], expected)
    shared = x * x
    left, right = shared * 2, shared * other
    assert gradients(left, x) == [8]
    for walked in (right, left):
        with pytest.raises(RuntimeError, match=r"freed this graph.*retain_graph=True"):
            gradients(walked, x)
    # Only nodes that a walk visited are freed: here those of a generator, and not those of its discriminator.
    generator, discriminator = leaf(2.0), leaf(3.0)
    drawn = generator * generator
    generator_loss, discriminator_loss = drawn * 5, drawn * discriminator
    assert gradients(generator_loss, generator) == [20]
    assert gradients(discriminator_loss, [discriminator, drawn]) == [4, 3]


def test_value_and_grad_is_of_the_chosen_arguments():
    """Of sum(a^2 b) / c: 2 a b / c, a^2 / c and -sum(a^2 b) / c^2, in float64."""

    def function(a, b, c, /, scale=1):
        return ops.sum(a * a * b) / c * scale

    a, b, c = np.array([1.0, 2.0]), np.array([3.0, 5.0]), 4.0
    value, gradient = ps.value_and_grad(function)(a, b, c, scale=2)
    assert (value, type(value)) == (2 * 23 / 4, float)
    np.testing.assert_array_equal(gradient, 2 * 2 * a * b / 4)
    value, (of_c, of_b) = ps.value_and_grad(function, argnums=(2, 1))(
        a, ps.Variable(b, name="b"), ps.Tensor(np.float64(c))
    )
    assert (value, float(of_c)) == (23 / 4, -23 / 16)
    np.testing.assert_array_equal(of_b, a * a / 4)
    assert ps.value_and_grad(lambda a, b: ops.sum(b * leaf(1.0)))(a, b) == (8, None)
    for error, message, call in (
        (TypeError, "must return a Tensor made by ops, not float", lambda: ps.value_and_grad(lambda a: 1.0)(a)),
        (ValueError, r"returned shape \(2,\): take its mean", lambda: ps.value_and_grad(lambda a: a * 1)(a)),
        (TypeError, "only floating point", lambda: ps.value_and_grad(function)(np.arange(2), b, c)),
        (IndexError, "argnums has 3, but there are 3", lambda: ps.value_and_grad(function, 3)(a, b, c)),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_gradient_within_a_function_that_is_differentiated_is_refused(order):
    """The numbers would be wrong: of x^3 + sum((x^3)'^2) the gradient is 3 x^2 + 36 x^3, not 3 x^2."""
    cube = lambda x: ops.sum(x * x * x)
    x = np.array([1.0, 2.0])

    def penalized(x):
        _, gradient = ps.value_and_grad(cube)(x)
        return cube(x) + ops.sum(ops.square(gradient))

    def of_gradients(x):
        y = cube(x)
        return y + ops.sum(ops.square(ps.gradients(y, x, retain_graph=True)[0]))

    W = leaf(1.0, 2.0)
    mixed = lambda x: ops.sum(x * ps.value_and_grad(lambda z: ops.sum(z * W))(np.ones(2))[1])
    function = (penalized, of_gradients, mixed)[order - 1]
    with pytest.raises(RuntimeError, match="no second derivatives: within a function that is differentiated itself"):
        ps.value_and_grad(function)(x)
    value, gradient = ps.value_and_grad(cube)(x)  # as ever after an error
    assert value == 9
    np.testing.assert_array_equal(gradient, 3 * x**2)


def test_a_gradient_of_constants_within_a_function_that_is_differentiated_is_a_constant():
    square = lambda x: ops.sum(x * x)

    def function(x):
        _, direction = ps.value_and_grad(square)(np.array([1.0, 3.0]))
        _, of_x = ps.value_and_grad(square)(ps.stop_gradient(x))
        return ops.sum(x * direction) + ops.sum(x * of_x)

    value, gradient = ps.value_and_grad(function)(np.array([1.0, 2.0]))
    assert value == 2 + 12 + 2 + 8
    np.testing.assert_array_equal(gradient, [2 + 2, 6 + 4])


def test_a_value_replaced_after_the_forward_pass_does_not_change_the_gradient():
    x, w = leaf(2.0), leaf(5.0)
    y = x * w
    w.value = np.array([7.0])
    assert gradients(y, [x, w]) == [5, 2]
    assert gradients(x * w, x) == [7]


@pytest.mark.parametrize(
    "view", [lambda x: x + 0.0, lambda x: x.reshape(3, 2).reshape(2, 3), lambda x: x.T.T, lambda x: ops.getitem(x, ...)]
)
def test_results_belong_to_the_caller(view):
    a, b = leaf([1.0, 2, 3], [4, 5, 6]), leaf([1.0, 2, 3], [4, 5, 6])
    inner = view(a) + b
    y = view(inner)
    weights = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(gradients(y, a, weights, retain_graph=True)[0], weights)
    results = gradients(y, [a, b, inner, y, a], weights)
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.arange(6.0).reshape(2, 3))
        assert result.flags.c_contiguous
        result.fill(i)  # fails unless it is writeable; shows below unless it is unshared
    assert [float(result.mean()) for result in results] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(weights, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(a.value, [[1, 2, 3], [4, 5, 6]])


def test_rows_stay_rows_are_added_to_rows_or_arrays_and_belong_to_the_caller():
    x, weights = leaf([1.0, 2.0], [3.0, 4.0]), np.array([5.0, 6.0])
    for ys in ([first_row(x) * 3], [first_row(x), first_row(x) * 2]):
        [rows] = gradients(ys, x)
        assert isinstance(rows, IndexedSlices)
        np.testing.assert_array_equal(rows.to_dense(), [[3, 3], [0, 0]])
    for ys in ([first_row(x), x * 5], [x * 5, first_row(x)], [x * 5, x * 1, first_row(x), x * 0]):
        [whole] = gradients(ys, x)
        assert isinstance(whole, np.ndarray)
        np.testing.assert_array_equal(whole[1] + 1, whole[0])
    np.testing.assert_array_equal(gradients(first_row(x * 2), x)[0], [[2, 2], [0, 0]])
    one, two = gradients(first_row(x), [x, x], weights)
    one.values.fill(0)
    np.testing.assert_array_equal([two.values[0], weights], [[5, 6], [5, 6]])


@pytest.mark.parametrize("length", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_chain_of_ops_is_walked_and_dropped_without_recursion(length):
    x = y = leaf(1.0)
    for _ in range(length):
        y = y + x
    assert gradients(y, x) == [length + 1]
    del y


def test_a_dropped_result_frees_its_graph_and_a_dropped_tensor_a_value_that_no_vjp_needs(request):
    request.addfinalizer(gc.enable)
    gc.disable()  # only reference counts free anything, so that a cycle is detected
    x = leaf([1.0, 2.0])
    hidden, unneeded = ops.exp(x), x + 1.0
    watched, freed = weakref.ref(hidden.value), weakref.ref(unneeded.value)  # exp's own vjp needs its value
    y = ops.sum(hidden + unneeded)
    del hidden, unneeded
    assert watched() is not None
    assert freed() is None
    np.testing.assert_array_equal(gradients(y, x, retain_graph=True)[0], np.exp(x.value) + 1)
    del y
    assert watched() is None


def test_backward_frees_a_node_before_it_comes_to_the_next():
    alive = []
    watching = op(lambda x, /: (x * 1.0, (lambda g: alive.append(watched() is not None) or g * 1.0,)))
    x = leaf(1.0, 2.0)
    hidden = ops.exp(watching(x))
    watched = weakref.ref(hidden.value)  # which exp's own vjp needs, and none after it
    y = ops.sum(ops.tanh(hidden))
    del hidden
    gradients(y, x)
    assert alive == [False]


def test_no_grad_records_nothing_nests_decorates_ends_with_an_exception_and_is_of_its_own_thread():
    x = leaf(1.0)
    with no_grad(), ThreadPoolExecutor(1) as pool:
        with no_grad():
            pass
        y = x * 2
        assert pool.submit(lambda: (x * 2).requires_grad).result()
    assert not y.requires_grad
    assert gradients(y, x) == [None]

    @no_grad()
    def evaluate(depth):
        if depth == 0:
            raise KeyError("deep")
        assert not (x * 2).requires_grad
        evaluate(depth - 1)

    with pytest.raises(KeyError):
        evaluate(3)
    assert (x * 2).requires_grad


def test_tensors_of_an_op_may_be_any_number_optional_or_passed_by_keyword():
    @op
    def _total(*xs, factor=1):
        return sum(xs) * factor, [lambda g: g * factor] * len(xs)

    a, b = leaf(1.0), leaf(2.0)
    y = _total(a, 5.0, b, b, factor=3)
    assert (y.item(), gradients(y, [a, b])) == (30, [3, 6])
    with pytest.raises(TypeError, match=r"^total\(xs: \[float64 \(1,\), None\]\)"):
        _total(a, None)

    @op
    def ratio(a, b, /, scale=1):
        return scale * a / b, (lambda g: scale * g / b, lambda g: -scale * g * a / b**2)

    @op
    def shifted(x, by=None, /, scale=1):
        return x * scale + (0 if by is None else by), (lambda g: g * scale, lambda g: g)

    a, b = leaf(6.0), leaf(2.0)
    for y in (ratio(a=a, b=b, scale=5), ratio(b=b, scale=5, a=a), ratio(a, scale=5, b=b)):
        assert (y.item(), gradients(y, [a, b])) == (15, [2.5, -7.5])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        ratio(a=a)
    assert gradients(shifted(a, None, 5), a) == [5]
    assert gradients(shifted(a), a) == [1]
    assert gradients(shifted(a, b, scale=5), [a, b]) == [5, 1]


def test_a_tensor_shares_the_array_it_is_given_and_reads_like_one_and_a_subclass_is_a_leaf_whose_name_is_in_errors():
    array = np.array([[1.5, 2.5]])
    x = Tensor(array)
    assert x.value is array
    assert (x.shape, x.dtype, x.ndim, len(x)) == ((1, 2), np.float64, 2, 1)
    assert [row.shape for row in x] == [(2,)]
    assert float(x[0, 1]) == x[0, 1].item() == 2.5
    assert f"{x[0, 0]:.2f}" == "1.50"
    assert bool(Tensor(1.0))
    np.testing.assert_array_equal(np.asarray(x), array)
    assert repr(Tensor(1.5)) == f"{Tensor(1.5)}" == "Tensor(array(1.5))"
    assert repr(leaf(1.0)) == "Tensor(array([1.]), requires_grad=True)"
    assert not (Tensor([1, 2]) * 2).requires_grad
    w = type("Variable", (Tensor,), {"name": "hidden/W"})(np.ones((2, 3)), requires_grad=True)
    assert type(w * 2) is Tensor
    np.testing.assert_array_equal(gradients(w * 2, w)[0], np.full((2, 3), 2))
    with pytest.raises(ValueError, match=r"matmul\(a: float64 \(2, 3\) 'hidden/W', b: float64 \(2,\)\)"):
        w @ np.ones(2)


def test_a_tensor_compared_with_an_array_is_an_error_and_not_false():
    x = leaf(1.0)
    for other in (np.ones(1), np.float64(1), 1.0, 1):
        for compare in (lambda other=other: x == other, lambda other=other: other == x):
            with pytest.raises(TypeError, match=r"compare its \.value, or use ops\.equal"):
                bool(compare())
    assert x == x
    assert x != leaf(1.0)
    assert x is not None
    assert x in [leaf(1.0), x]
