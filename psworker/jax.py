"""JAX programs: trees of arrays, whose leaves are variables on paramserver's shards.

    import psworker as ps
    import psworker.jax as psj

    with ps.session() as session:
        params = psj.declare(params, ps.Adam(1e-3))
        for batch in session.batches(data, batch_size=64, epochs=10):
            loss, grads = value_and_grad(params, batch.x, batch.y)      # jax.jit(jax.value_and_grad(...))
            params = psj.push(grads, loss)

A leaf is named by its path, as in `dense/kernel`. Shapes, dtypes and the structure of the tree stay the same, so jitted
functions are compiled once. Needs the extra `jax`; nothing else of psworker imports JAX.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from pswire.errors import ConfigurationError
from pswire.tensors.values import Array
from psworker.model.collection import context
from psworker.model.optimizers import Optimizer, ParameterGroups
from psworker.sessions.connection import Connection
from psworker.sessions.session import session_here

__all__ = ["declare", "local_step", "pull", "push"]

#: A tree of arrays: nested dicts, lists, tuples and registered classes.
Tree: TypeAlias = Any

_USE = "use psworker.jax inside `with ps.session():`"


class _Declared:
    """The tree of a session under one name: its structure, and of each leaf the name, dtype and present value."""

    def __init__(self, structure: Any, leaves: Mapping[str, Any], connection: Connection) -> None:  # noqa: ANN401 - JAX's
        self.structure, self.connection = structure, connection
        self.dtypes = {name: jnp.result_type(leaf) for name, leaf in leaves.items()}
        self._leaves: dict[str, tuple[Array, Any]] = {}  # an array, and the leaf that is made of it

    def tree(self) -> Tree:
        """The tree of the present values."""
        leaves = []
        for name, dtype in self.dtypes.items():
            value = self.connection.values[name]
            if name not in self._leaves or self._leaves[name][0] is not value:
                self._leaves[name] = value, jnp.asarray(value, dtype)
            leaves.append(self._leaves[name][1])
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def local_step(self, params: Tree, loss: float | None) -> None:
        """Counts a step of this worker, whose tree is the present one unless a round has ended."""
        leaves = self._by_name(params, "the parameters")
        values = _widened(leaves)
        self._leaves = {name: (values[name], leaf) for name, leaf in leaves.items()}
        self.connection.local_step(values, loss)

    def push(self, grads: Tree, loss: float | None) -> None:
        """Pushes gradients. Raises `ConfigurationError` for a tree of another structure."""
        self.connection.push(_widened(self._by_name(grads, "the gradients")), loss)

    def _by_name(self, tree: Tree, what: str) -> dict[str, Any]:
        """The leaves of a tree of this structure. Raises `ConfigurationError`."""
        leaves, structure = jax.tree_util.tree_flatten(tree)
        if structure != self.structure:
            raise ConfigurationError(f"{what} are a tree {structure}, and the declared ones {self.structure}")
        return dict(zip(self.dtypes, leaves, strict=True))


def declare(params: Tree, optimizer: Optimizer | ParameterGroups | None = None, *, name: str = "") -> Tree:
    """Makes variables of the leaves in the open session; returns the tree with the servers' values.

    Args:
        params: a tree of arrays. float16 and bfloat16 are float32 on the servers, so that small updates are not lost.
        optimizer: of all leaves, such as `ps.Adam(1e-3)` or `ps.ParameterGroups`; None: for `local_step`.
        name: of this tree, in programs with several; it comes before the names of its leaves.

    Raises:
        ConfigurationError: no session is open, or it has a tree of this name.
        TypeError: a leaf is not an array of floating point.
    """
    session = session_here(_USE)
    if name in session.trees:
        raise ConfigurationError(
            f"the session has a tree {name!r} already: give each of several a name, as in psj.declare(params, "
            'optimizer, name="generator")'
        )
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    for path, leaf in paths:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"psj.declare: {_name(path)} is {jnp.result_type(leaf)}, and only floating point is trained"
            )
    leaves = {_name(path): leaf for path, leaf in paths}
    if len(leaves) < len(paths):
        raise ConfigurationError("two leaves of the tree have the same name: keys are joined by slashes")
    connection = Connection(session, context.collection, name)
    connection.declare(_widened(leaves), optimizer)
    declared = session.trees[name] = _Declared(structure, leaves, connection)
    return declared.tree()


def push(grads: Tree, loss: float | None = None, *, name: str = "") -> Tree:
    """Pushes gradients; returns the tree with fresh weights.

    Args:
        grads: a tree as the declared one, as `jax.grad` returns it.
        loss: of the batch, for displays and the costs of epochs.
        name: of the tree.

    Raises:
        ConfigurationError: the tree was not declared, or has another structure.
        NotFinite: a gradient has NaN or infinity; nothing is applied.
    """
    declared = _tree(name)
    declared.push(grads, loss)
    return declared.tree()


def local_step(params: Tree, loss: float | None = None, *, name: str = "") -> Tree:
    """Counts a step that an optimizer in this worker has made, such as one of optax; returns the tree to go on with.

        updates, state = optimizer.update(grads, state, params)
        params = psj.local_step(optax.apply_updates(params, updates), loss)

    In a session with `local_steps`: the difference of a round is pushed at its end, and then the tree has the servers'
    values; otherwise it is `params`. Raises `ConfigurationError` in a session without, or for another structure.
    """
    declared = _tree(name)
    declared.local_step(params, loss)
    return declared.tree()


def pull(*, name: str = "") -> Tree:
    """The tree with fresh weights. Raises `ConfigurationError` if it was not declared."""
    declared = _tree(name)
    declared.connection.pull()
    return declared.tree()


def _tree(name: str) -> _Declared:
    declared = session_here(_USE).trees.get(name)
    if not isinstance(declared, _Declared):
        raise ConfigurationError(f"the open session has no tree {name!r}: call psj.declare first")
    return declared


def _name(path: Sequence[Any]) -> str:
    """The name of a leaf: keys, numbers and attributes on its path."""
    return (
        "/".join(str(getattr(one, "key", getattr(one, "idx", getattr(one, "name", one)))) for one in path) or "params"
    )


def _widened(leaves: Mapping[str, Any]) -> dict[str, Array]:
    """Leaves as the servers have them: float32, or float64."""
    return {
        name: np.asarray(leaf, np.float64 if jnp.result_type(leaf) == np.float64 else np.float32)
        for name, leaf in leaves.items()
    }
