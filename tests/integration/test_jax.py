"""JAX functions in a session: values as those of the same rule in optax and of plain JAX, in one process.

Skipped without JAX, an extra: `pip install 'paramserver[jax]'`.
"""

import gc
import weakref

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError, NotFinite

pytestmark = pytest.mark.slow  # its import alone takes a second

jax = pytest.importorskip("jax", reason="JAX is not installed")
psj = pytest.importorskip("psworker.jax")
from jax import numpy as jnp  # noqa: E402 - after the check

random = np.random.default_rng(0)
X = random.normal(size=(64, 8)).astype(np.float32)
Y = np.tanh(X @ random.normal(size=(8, 2))).astype(np.float32)


def initial():
    """A tree of dicts and a list, in which a leaf has a scalar's shape."""
    values = np.random.default_rng(1)
    layer = lambda rows, columns: {"kernel": jnp.asarray(values.normal(size=(rows, columns)) / rows, jnp.float32)}
    return {"layers": [layer(8, 16), layer(16, 2)], "scale": jnp.float32(1.0)}


def loss_of(params, x, y):
    first, second = params["layers"]
    return jnp.mean(jnp.square(params["scale"] * jnp.tanh(x @ first["kernel"]) @ second["kernel"] - y))


def plain(params, rate, steps):
    """Gradient descent in JAX alone."""
    step = jax.jit(lambda params: jax.tree.map(lambda w, g: w - rate * g, params, jax.grad(loss_of)(params, X, Y)))
    for _ in range(steps):
        params = step(params)
    return params


def assert_equal(found, expected, tolerance=1e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(wanted, np.float64), 0, tolerance)


def test_a_jitted_function_is_compiled_once_and_steps_are_those_of_plain_jax(open_session):
    compiled = []

    @jax.jit
    def step(params, x, y):
        compiled.append(1)
        return jax.value_and_grad(loss_of)(params, x, y)

    with open_session("w0"):
        params = psj.declare(initial(), ps.GradientDescent(0.1))
        for _ in range(50):
            loss, grads = step(params, X, Y)
            params = psj.push(grads, loss)
        assert {one.name for one in ps.global_variables()} == {"layers/0/kernel", "layers/1/kernel", "scale"}
        assert_equal(psj.pull(), params)
    assert len(compiled) == 1
    assert_equal(params, plain(initial(), 0.1, 50))
    assert not ps.global_variables()


def test_local_steps_are_those_of_the_optimizer_in_the_worker(open_session):
    with open_session("w0", local_steps=5, outer=ps.GradientDescent(1.0)) as session:
        params = psj.declare(initial())
        for _ in range(20):
            loss, grads = jax.value_and_grad(loss_of)(params, X, Y)
            params = psj.local_step(jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), loss)
        assert session.global_step == 4
    assert_equal(params, plain(initial(), 0.1, 20), 1e-5)


def test_the_loss_is_the_cost_of_the_epoch(open_session):
    reports, losses = [], []
    with open_session("w0") as session:
        params = psj.declare(initial(), ps.Adam(0.01))
        for batch in session.batches({"x": X, "y": Y}, 16, epochs=2, on_epoch=reports.append):
            loss, grads = jax.value_and_grad(loss_of)(params, batch.x, batch.y)
            losses.append(float(loss))
            params = psj.push(grads, loss)
    assert [one.cost for one in reports] == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:])], rel=1e-6)


def test_half_precision_is_float32_on_the_servers(open_session):
    with open_session("w0"):
        params = psj.declare({"w": jnp.ones(3, jnp.bfloat16)}, ps.GradientDescent(1e-4))
        for _ in range(100):
            params = psj.push({"w": jnp.ones(3, jnp.bfloat16)})
        [variable] = ps.global_variables()
        np.testing.assert_allclose(variable.value, 0.99, rtol=1e-5)
    assert_equal(params, {"w": jnp.full(3, 0.99, jnp.bfloat16)}, 0)


def test_several_trees_have_names_and_wrong_use_is_refused(open_session):
    with pytest.raises(ConfigurationError, match="no session is open"):
        psj.declare(initial(), ps.Adam())
    with open_session("w0"):
        with pytest.raises(ConfigurationError, match="no tree ''"):
            psj.push(initial())
        params = psj.declare(initial(), ps.GradientDescent(0.1))
        with pytest.raises(ConfigurationError, match="has a tree '' already"):
            psj.declare(initial(), ps.Adam())
        psj.declare({"w": jnp.ones(2)}, name="other")
        with pytest.raises(ConfigurationError, match="without an optimizer"):
            psj.push({"w": jnp.ones(2)}, name="other")
        with pytest.raises(ConfigurationError, match="the gradients are a tree"):
            psj.push({"w": jnp.ones(2)})
        with pytest.raises(ConfigurationError, match="for sessions with local steps"):
            psj.local_step(params)
        with pytest.raises(ConfigurationError, match="two leaves of the tree have the same name"):
            psj.declare({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, name="same")
        with pytest.raises(TypeError, match="n is int32"):
            psj.declare({"n": jnp.arange(3)}, name="third")
        with pytest.raises(NotFinite, match="kernel"):
            psj.push(jax.tree.map(lambda leaf: leaf * np.nan, params))
        assert_equal(psj.pull(), initial())


def test_a_session_that_is_over_keeps_no_tree_alive(open_session):
    session = open_session("w0")
    with session:
        psj.push(psj.declare({"w": jnp.ones(2)}, ps.GradientDescent(0.1)))
    seen = weakref.ref(session)
    del session
    gc.collect()
    assert seen() is None
