"""The tape: what is recorded, in which order gradients flow back, and whose arrays they are."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

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


def test_one_pass_serves_all_xs_and_all_ys():
    calls = []
    a, b = leaf(1.0), leaf(10.0)
    shared = counted("shared", calls)(a * b)
    gradient_a, gradient_b = gradients([shared, shared * 3], [a, b])
    assert calls == ["shared"]
    assert (gradient_a, gradient_b) == (80, 8)


def test_only_nodes_that_lead_to_xs_are_visited():
    calls = []
    a, b = leaf(1.0), leaf(2.0)
    middle = counted("above", calls)(a)
    y = counted("below", calls)(middle) + counted("beside", calls)(b)
    [gradient] = gradients(y, middle)
    assert calls == ["below"]
    assert gradient == 2


def test_the_gradient_of_an_inner_tensor_comes_with_that_of_its_leaf():
    x = leaf(3.0)
    square = x * x
    assert gradients(square * square, [square, x]) == [18, 108]


def test_a_vjp_is_not_called_for_an_input_without_gradient():
    calls = []

    @op
    def product(a, b, /):
        return a * b, (lambda g: g * b, lambda g: calls.append("b"))

    x = leaf(2.0)
    assert gradients(product(x, np.array([5.0])), x) == [5]
    assert gradients(product(x, Tensor([5.0])), x) == [5]
    assert calls == []


def test_gradients_of_ys_of_any_shape_are_those_of_their_sum():
    x = leaf([1.0, 2.0], [3.0, 4.0])
    np.testing.assert_array_equal(gradients([x * x, x[0]], x)[0], [[3, 5], [6, 8]])


def test_grad_ys_weight_the_sum():
    x = leaf(1.0, 2.0)
    np.testing.assert_array_equal(gradients(x * 3, x, [10, 100])[0], [30, 300])
    np.testing.assert_array_equal(gradients([x * 3, x], x, [np.array([10, 100]), None])[0], [31, 301])


def test_an_x_may_be_a_y_and_may_be_asked_for_twice():
    x = leaf(1.0, 2.0)
    first, second = gradients([x, x * 2, x], [x, x])
    np.testing.assert_array_equal(first, [4, 4])
    np.testing.assert_array_equal(second, [4, 4])
    assert not np.shares_memory(first, second)


def test_an_x_that_no_y_depends_on_has_gradient_none():
    x, other = leaf(1.0), leaf(1.0)
    constant = Tensor([1.0])
    results = gradients(x * constant, [other, x, constant, Tensor([1])])
    assert results == [None, 1, None, None]
    assert gradients(constant * 2, x) == [None]
    assert gradients(constant, constant) == [None]
    assert gradients([], x) == [None]
    assert gradients(x, []) == []


def test_stop_gradient_is_the_same_value_as_a_constant():
    x = leaf(2.0, 3.0)
    stopped = stop_gradient(x * x)
    np.testing.assert_array_equal(stopped.value, [4, 9])
    assert not stopped.requires_grad
    np.testing.assert_array_equal(gradients(stopped * x, x)[0], [4, 9])
    assert gradients(stop_gradient(x), x) == [None]


def test_a_graph_that_is_retained_can_be_walked_again():
    x = leaf(2.0, 3.0)
    y = ops.sum(ops.exp(x) * x)
    [first] = gradients(y, x, retain_graph=True)
    expected = first.copy()
    first.fill(np.nan)
    np.testing.assert_array_equal(gradients(y, x)[0], expected)


def test_a_graph_that_was_freed_says_so_when_it_is_walked_again():
    x, other = leaf(2.0), leaf(3.0)
    shared = x * x
    left, right = shared * 2, shared * other
    assert gradients(left, x) == [8]
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        gradients(right, x)
    with pytest.raises(RuntimeError, match="walked before"):
        gradients(left, x)


def test_what_was_freed_may_lie_behind_what_is_asked_for():
    """A generator that was walked for its own loss, and a discriminator that learns from what it has drawn."""
    generator, discriminator = leaf(2.0), leaf(3.0)
    drawn = generator * generator
    generator_loss, discriminator_loss = drawn * 5, drawn * discriminator
    assert gradients(generator_loss, generator) == [20]
    assert gradients(discriminator_loss, [discriminator, drawn]) == [4, 3]


def test_what_a_walk_did_not_visit_stays():
    x, other = leaf(2.0), leaf(3.0)
    y = x * 5 + other * 7
    beside = other * other
    assert gradients(y, x) == [5]
    assert gradients(beside, other) == [6]


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
    y = a + b  # hands one array to a and to b, before double and triple add to that of a
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
        result.fill(i)  # fails unless it is writeable; shows below unless it is nobody else's
    assert [float(result.mean()) for result in results] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(weights, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(a.value, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (2, 1), (2, 3), (0, 3)])
def test_a_gradient_has_the_shape_and_dtype_of_its_x(shape, dtype):
    x = Tensor(np.ones(shape, dtype), requires_grad=True)
    wide = np.ones((4, 2, 3)) if 0 not in shape else np.ones((4, 1, 3))
    [gradient] = gradients([x * wide, x], x)
    assert type(gradient) is np.ndarray
    assert (gradient.shape, gradient.dtype) == (shape, dtype)
    np.testing.assert_array_equal(gradient, np.full(shape, 1 + (24 / max(x.value.size, 1))))


@pytest.mark.parametrize("seed", range(40))
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


# Depth and memory.


def test_a_chain_of_100_000_ops_is_walked_and_dropped_without_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + x
    assert gradients(y, x) == [100_001]
    del y


@pytest.fixture
def counted_references():
    """Only reference counts free anything, so that a cycle is found out."""
    gc.disable()
    yield
    gc.enable()


def test_a_result_dropped_frees_its_graph_at_once(counted_references):
    x = leaf([1.0, 2.0])
    hidden = ops.exp(x)
    watched = weakref.ref(hidden.value)  # which exp's own derivative needs
    y = ops.sum(hidden)
    del hidden
    assert watched() is not None
    gradients(y, x, retain_graph=True)
    del y
    assert watched() is None


def test_a_value_that_no_derivative_needs_is_freed_with_its_tensor(counted_references):
    x = leaf([1.0, 2.0])
    hidden = x + 1.0
    watched = weakref.ref(hidden.value)
    y = ops.sum(hidden + 1.0)
    del hidden
    assert watched() is None
    np.testing.assert_array_equal(gradients(y, x)[0], [[1, 1]])


def test_backward_frees_what_a_node_holds_before_it_comes_to_the_next():
    alive = []

    @op
    def watching(x, /):
        return x * 1.0, (lambda g: alive.append(watched() is not None) or g * 1.0,)

    x = leaf(1.0, 2.0)
    hidden = ops.exp(watching(x))
    watched = weakref.ref(hidden.value)  # which exp's own derivative needs, and nobody after it
    y = ops.sum(ops.tanh(hidden))
    del hidden
    gradients(y, x)
    assert alive == [False]


# Recording.


def test_no_grad_records_nothing_and_nests():
    x = leaf(1.0)
    with no_grad():
        with no_grad():
            pass
        y = x * 2
    assert not y.requires_grad
    assert gradients(y, x) == [None]
    assert (x * 2).requires_grad


def test_no_grad_ends_with_an_exception_and_decorates():
    x = leaf(1.0)

    @no_grad()
    def evaluate(depth):
        if depth == 0:
            raise KeyError("deep")
        assert not (x * 2).requires_grad
        evaluate(depth - 1)

    for _ in range(2):
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


def test_threads_that_share_a_leaf_do_not_disturb_each_other():
    x = leaf(*range(50))

    def work(factor):
        for _ in range(30):
            y = x
            for _ in range(20):
                y = y + x * factor
            [gradient] = gradients(y, x)
            assert np.all(gradient == 1 + 20 * factor)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
