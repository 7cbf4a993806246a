"""The tape and the tensor: recording, the order of the backward pass, ownership of arrays, calls of ops, errors."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, no_grad, op, ops, stop_gradient


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


def counted(name, calls):
    """An op, x -> 2 x, that notes its name each time its backward runs."""

    @op
    def double(x, /):
        def gradient(g):
            calls.append(name)
            return 2 * g

        return 2 * x, (gradient,)

    return double


@op
def first_row(x, /):
    return x[0], (lambda g: IndexedSlices(g[np.newaxis], np.array([0]), x.shape),)


# The order of the backward pass.


def test_each_backward_runs_once_in_a_ladder_of_diamonds():
    calls = []
    x = leaf(1.0, 2.0)
    y = x
    for rung in range(30):  # 2^30 paths lead from y to x
        z = counted(rung, calls)(y)
        y = z + z * 0.5
    [gradient] = gradients(y, x)
    assert calls == list(reversed(range(30)))
    np.testing.assert_allclose(gradient, [3.0**30] * 2, rtol=1e-12)


def test_one_pass_serves_all_xs_and_ys_and_visits_only_nodes_between_them():
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


def test_a_vjp_is_not_called_for_an_input_without_gradient():
    calls = []

    @op
    def product(a, b, /):
        return a * b, (lambda g: g * b, lambda g: calls.append("b"))

    x = leaf(2.0)
    assert gradients(product(x, np.array([5.0])), x) == gradients(product(x, Tensor([5.0])), x) == [5]
    assert calls == []


def test_gradients_are_those_of_the_sum_of_all_ys_weighted_by_grad_ys():
    x = leaf([1.0, 2.0], [3.0, 4.0])
    np.testing.assert_array_equal(gradients([x * x, x[0]], x)[0], [[3, 5], [6, 8]])
    x = leaf(1.0, 2.0)
    np.testing.assert_array_equal(gradients(x * 3, x, [10, 100])[0], [30, 300])
    np.testing.assert_array_equal(gradients([x * 3, x], x, [np.array([10, 100]), None])[0], [31, 301])
    first, second = gradients([x, x * 2, x], [x, x])
    np.testing.assert_array_equal([first, second], [[4, 4], [4, 4]])
    assert not np.shares_memory(first, second)


def test_an_x_that_no_y_depends_on_has_gradient_none():
    x, other, constant = leaf(1.0), leaf(1.0), Tensor([1.0])
    assert gradients(x * constant, [other, x, constant, Tensor([1])]) == [None, 1, None, None]
    assert gradients(constant * 2, x) == gradients(constant, constant) == gradients([], x) == [None]
    assert gradients(x, []) == []
    stopped = stop_gradient(x * 2)
    assert (stopped.item(), stopped.requires_grad) == (2, False)
    assert gradients(stopped * x, x) == [2]
    assert gradients(stop_gradient(x), x) == [None]


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_agree_with_forward_mode(seed):
    """Each leaf's gradient, along a random direction, against tangents carried forward through the same graph."""
    random = np.random.default_rng(seed)
    leaves = [leaf(*random.standard_normal(3)) for _ in range(3)]
    directions = [random.standard_normal(3) for _ in leaves]
    for x, direction in zip(leaves, directions, strict=True):
        nodes = [(other, direction if other is x else np.zeros(3)) for other in leaves]
        choices = np.random.default_rng(seed + 1000)  # the same graph for each x
        for _ in range(40):
            (a, da), (b, db) = (nodes[i] for i in choices.integers(max(0, len(nodes) - 8), len(nodes), 2))
            kind = choices.integers(5)
            if kind == 0:
                nodes.append((a + b, da + db))
            elif kind == 1:
                nodes.append((a - b, da - db))
            elif kind == 2:
                nodes.append((ops.tanh(a) * b, (1 - np.tanh(a.value) ** 2) * da * b.value + np.tanh(a.value) * db))
            elif kind == 3:
                nodes.append((a[::-1], da[::-1]))
            else:
                nodes.append((ops.mean(a) + b, da.mean() + db))
        ys = [nodes[i] for i in choices.integers(len(nodes) - 10, len(nodes), 3)]
        inner = nodes[len(nodes) // 2][0]  # asking for it too must not disturb the others
        _, *results = gradients([y for y, _ in ys], [inner, *leaves])
        gradient = results[leaves.index(x)]
        expected = sum(dy.sum() for _, dy in ys)
        np.testing.assert_allclose(0 if gradient is None else gradient @ direction, expected, rtol=1e-9, atol=1e-9)


# Walking a graph again.


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


def test_only_nodes_that_a_walk_visited_are_freed():
    """As with a generator that was walked for its own loss, and a discriminator that learns from its images."""
    generator, discriminator = leaf(2.0), leaf(3.0)
    drawn = generator * generator
    generator_loss, discriminator_loss = drawn * 5, drawn * discriminator
    assert gradients(generator_loss, generator) == [20]
    assert gradients(discriminator_loss, [discriminator, drawn]) == [4, 3]
    y, beside = generator * 5 + discriminator * 7, discriminator * discriminator
    assert gradients(y, generator) == [5]
    assert gradients(beside, discriminator) == [6]


def test_a_value_replaced_after_the_forward_pass_does_not_change_the_gradient():
    x, w = leaf(2.0), leaf(5.0)
    y = x * w
    w.value = np.array([7.0])
    assert gradients(y, [x, w]) == [5, 2]
    assert gradients(x * w, x) == [7]


# Accumulation and ownership.


def test_a_borrowed_gradient_is_never_written_into():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    double, triple = a * 2, a * 3
    y = a + b  # passes one array to a and to b, before double and triple add to that of a
    gradient_a, gradient_b = gradients([double, triple, y], [a, b])
    np.testing.assert_array_equal(gradient_a, [6, 6])
    np.testing.assert_array_equal(gradient_b, [1, 1])


def views_of_one_gradient(x):
    return [x + 0.0, x.reshape(3, 2).reshape(2, 3), x.T.T, ops.getitem(x, ...), x - 0.0]


@pytest.mark.parametrize("number", range(5))
def test_results_belong_to_the_caller(number):
    a, b = leaf([1.0, 2, 3], [4, 5, 6]), leaf([1.0, 2, 3], [4, 5, 6])
    inner = views_of_one_gradient(a)[number] + b
    y = views_of_one_gradient(inner)[number]
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (2, 1), (2, 3), (0, 3)])
def test_a_gradient_has_the_shape_and_dtype_of_its_x(shape, dtype):
    x = Tensor(np.ones(shape, dtype), requires_grad=True)
    wide = np.ones((4, 2, 3)) if 0 not in shape else np.ones((4, 1, 3))
    [gradient] = gradients([x * wide, x], x)
    assert (type(gradient), gradient.shape, gradient.dtype) == (np.ndarray, shape, dtype)
    np.testing.assert_array_equal(gradient, np.full(shape, 1 + (24 / max(x.value.size, 1))))


def test_rows_stay_rows_are_added_to_rows_or_arrays_and_belong_to_the_caller():
    x = leaf([1.0, 2.0], [3.0, 4.0])
    for ys in ([first_row(x) * 3], [first_row(x), first_row(x) * 2]):
        [rows] = gradients(ys, x)
        assert isinstance(rows, IndexedSlices)
        np.testing.assert_array_equal(rows.to_dense(), [[3, 3], [0, 0]])
    for ys in ([first_row(x), x * 5], [x * 5, first_row(x)], [x * 5, x * 1, first_row(x), x * 0]):
        [whole] = gradients(ys, x)
        assert isinstance(whole, np.ndarray)
        np.testing.assert_array_equal(whole[1] + 1, whole[0])
    np.testing.assert_array_equal(gradients(first_row(x * 2), x)[0], [[2, 2], [0, 0]])
    weights = np.array([5.0, 6.0])
    one, two = gradients(first_row(x), [x, x], weights)
    one.values.fill(0)
    np.testing.assert_array_equal(two.values, [weights])
    np.testing.assert_array_equal(weights, [5, 6])


# Depth and memory.


@pytest.mark.parametrize("length", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_chain_of_ops_is_walked_and_dropped_without_recursion(length):
    x = leaf(1.0)
    y = x
    for _ in range(length):
        y = y + x
    assert gradients(y, x) == [length + 1]
    del y


@pytest.fixture
def counted_references():
    """Only reference counts free anything, so that a cycle is detected."""
    gc.disable()
    yield
    gc.enable()


def test_a_dropped_result_frees_its_graph_and_a_dropped_tensor_a_value_that_no_vjp_needs(counted_references):
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

    @op
    def watching(x, /):
        return x * 1.0, (lambda g: alive.append(watched() is not None) or g * 1.0,)

    x = leaf(1.0, 2.0)
    hidden = ops.exp(watching(x))
    watched = weakref.ref(hidden.value)  # which exp's own vjp needs, and none after it
    y = ops.sum(ops.tanh(hidden))
    del hidden
    gradients(y, x)
    assert alive == [False]


# Recording.


def test_no_grad_records_nothing_nests_decorates_and_ends_with_an_exception():
    x = leaf(1.0)
    with no_grad():
        with no_grad():
            pass
        y = x * 2
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


def test_no_grad_in_one_thread_does_not_stop_another_from_recording():
    x = leaf(1.0)
    inside, done = threading.Event(), threading.Event()

    def evaluate():
        with no_grad():
            inside.set()
            assert done.wait(30)
            return (x * 2).requires_grad

    with ThreadPoolExecutor(1) as pool:
        evaluation = pool.submit(evaluate)
        assert inside.wait(30)
        recorded = (x * 2).requires_grad
        done.set()
        assert not evaluation.result()
    assert recorded


# Calls of ops.


def test_an_op_of_any_number_of_tensors_has_a_derivative_for_each():
    @op
    def _total(*xs, factor=1):
        return sum(xs) * factor, [lambda g: g * factor] * len(xs)

    a, b = leaf(1.0), leaf(2.0)
    y = _total(a, 5.0, b, b, factor=3)
    assert (y.item(), gradients(y, [a, b])) == (30, [3, 6])
    with pytest.raises(TypeError, match=r"^total\(xs: \[float64 \(1,\), None\]\)"):
        _total(a, None)


def test_a_tensor_may_be_passed_by_keyword_or_be_optional():
    @op
    def _ratio(a, b, /, scale=1):
        return scale * a / b, (lambda g: scale * g / b, lambda g: -scale * g * a / b**2)

    a, b = leaf(6.0), leaf(2.0)
    for y in (_ratio(a=a, b=b, scale=5), _ratio(b=b, scale=5, a=a), _ratio(a, scale=5, b=b)):
        assert (y.item(), gradients(y, [a, b])) == (15, [2.5, -7.5])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        _ratio(a=a)

    @op
    def shifted(x, by=None, /, scale=1):
        return x * scale + (0 if by is None else by), (lambda g: g * scale, lambda g: g)

    assert gradients(shifted(a, None, 5), a) == [5]
    assert gradients(shifted(a), a) == [1]
    assert gradients(shifted(a, b, scale=5), [a, b]) == [5, 1]


@pytest.mark.parametrize("number", [np.float64(3), np.int64(3), np.uint8(3), 3, 3.0])
def test_a_numpy_number_promotes_as_little_as_a_python_number(number):
    @op
    def power(x, other, /, exponent=1):
        return x * other**exponent, (lambda g: g * other**exponent, lambda g: g * x)

    x = Tensor(np.float32([2]), requires_grad=True)
    for y in (power(x, number), power(number, x), power(x, 3.0, exponent=number / number)):
        assert (y.dtype, y.item()) == (np.float32, 6)
        assert gradients(y, x)[0].dtype == np.float32


def test_wrong_calls_of_gradients_and_ops_are_errors():
    @op
    def broken(x, /):
        return x.sum(), (lambda g: g,)

    x, rows = leaf(1.0, 2.0), IndexedSlices(np.ones((1, 2)), np.array([0]), (4, 2))
    for call, kind, message in (
        (lambda: gradients(x, [np.ones(1)]), TypeError, "xs must be Tensors, but one of them is ndarray"),
        (lambda: gradients([1.0], x), TypeError, "ys must be Tensors, but one of them is float"),
        (lambda: gradients(x, x, np.ones(3)), ValueError, r"grad_ys has shape \(3,\), and its y has shape \(2,\)"),
        (lambda: gradients([x], x, [None, None]), ValueError, "2 grad_ys for 1 ys"),
        (
            lambda: gradients(broken(x), x),
            ValueError,
            r"broken.* a gradient of shape \(\) for an input of shape \(2,\)",
        ),
        (lambda: ops.clip(rows, -1, 1), TypeError, r"clip\(x=IndexedSlices.* use psworker.clip_by_value"),
        (lambda: Tensor([1, 2], requires_grad=True), TypeError, "int64"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert not (Tensor([1, 2]) * 2).requires_grad


# The tensor.


def test_a_tensor_shares_the_array_it_is_given_and_reads_like_one():
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


def test_a_subclass_is_a_leaf_like_any_other_and_its_name_is_in_errors():
    class Variable(Tensor):
        __slots__ = ("name",)

        def __init__(self, value, name):
            super().__init__(value, requires_grad=True)
            self.name = name

    w = Variable(np.ones((2, 3)), name="hidden/W")
    y = w * 2
    assert type(y) is Tensor
    np.testing.assert_array_equal(gradients(y, w)[0], np.full((2, 3), 2))
    with pytest.raises(ValueError, match=r"matmul\(a: float64 \(2, 3\) 'hidden/W', b: float64 \(2,\)\)"):
        w @ np.ones(2)
