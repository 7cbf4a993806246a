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

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import numpy as jnp

from pswire.errors import ConfigurationError
from pswire.tensors.values import Array
from psworker.autodiff import Tensor
from psworker.model.collection import variable_scope
from psworker.model.optimizers import Optimizer
from psworker.model.variables import Variable
from psworker.sessions.session import Session, session_here
from psworker.versions import VersionedArray

__all__ = ["declare", "local_step", "pull", "push"]

#: A tree of arrays: nested dicts, lists, tuples and registered classes.
Tree: TypeAlias = Any

_USE = "use psworker.jax inside `with ps.session():`"


@dataclass(eq=False)
class _Declared:
    """The tree of a session under one name: its structure, and of each leaf the variable, dtype and present value."""

    structure: Any
    variables: list[Variable]
    dtypes: list[Any]
    optimizer: Optimizer | None
    leaves: list[Any]

    def receive(self, values: Sequence[VersionedArray]) -> None:
        """Takes values that the servers have sent."""
        arrays = {value.name: value.array for value in values}
        for place, (variable, dtype) in enumerate(zip(self.variables, self.dtypes, strict=True)):
            if variable.name in arrays:
                self.leaves[place] = jnp.asarray(arrays[variable.name], dtype)

    def tree(self) -> Tree:
        return jax.tree_util.tree_unflatten(self.structure, self.leaves)

    def arrays_of(self, tree: Tree, what: str) -> list[Array]:
        """The leaves of a tree of this structure as arrays of the variables' dtypes. Raises `ConfigurationError`."""
        leaves, structure = jax.tree_util.tree_flatten(tree)
        if structure != self.structure:
            raise ConfigurationError(f"{what} are a tree {structure}, and the declared ones {self.structure}")
        return [np.asarray(leaf, one.dtype) for leaf, one in zip(leaves, self.variables, strict=True)]


_sessions: WeakKeyDictionary[Session, dict[str, _Declared]] = WeakKeyDictionary()


def declare(params: Tree, optimizer: Optimizer | None = None, *, name: str = "") -> Tree:
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
    trees = _sessions.setdefault(session, {})
    if name in trees:
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
    with variable_scope(name) if name else nullcontext():
        variables = [Variable(_widened(leaf), name=_name(path)) for path, leaf in paths]
    declared = _Declared(structure, variables, [leaf.dtype for _, leaf in paths], optimizer, [None] * len(paths))
    declared.receive([VersionedArray(one.name, one.read, one.value) for one in variables])
    session.mirror(variables, declared.receive)
    trees[name] = declared
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
    session, declared = _tree(name)
    if declared.optimizer is None:
        raise ConfigurationError("the tree was declared without an optimizer: give psj.declare one, such as ps.Adam()")
    pairs = list(zip(declared.arrays_of(grads, "the gradients"), declared.variables, strict=True))
    if loss is not None:
        session.note_loss(Tensor(np.float64(loss)), declared.variables)
    declared.optimizer.apply_gradients(pairs)
    return declared.tree()


def local_step(params: Tree, loss: float | None = None, *, name: str = "") -> Tree:
    """Counts a step that an optimizer in this worker has made, such as one of optax; returns the tree to go on with.

        updates, state = optimizer.update(grads, state, params)
        params = psj.local_step(optax.apply_updates(params, updates), loss)

    In a session with `local_steps`: the difference of a round is pushed at its end, and then the tree has the servers'
    values; otherwise it is `params`. Raises `ConfigurationError` in a session without, or for another structure.
    """
    session, declared = _tree(name)
    if not session.local_steps:
        raise ConfigurationError(
            "psj.local_step is for sessions with local steps: ps.session(local_steps=50) or psworker local "
            "--local-steps 50"
        )
    arrays = declared.arrays_of(params, "the parameters")
    declared.leaves = jax.tree_util.tree_leaves(params)
    session.step_outside(dict(zip(declared.variables, arrays, strict=True)), None if loss is None else float(loss))
    return declared.tree()


def pull(*, name: str = "") -> Tree:
    """The tree with fresh weights. Raises `ConfigurationError` if it was not declared."""
    session, declared = _tree(name)
    session.pull(declared.variables)
    return declared.tree()


def _tree(name: str) -> tuple[Session, _Declared]:
    session = session_here(_USE)
    trees = _sessions.get(session, {})
    if name not in trees:
        raise ConfigurationError(f"the open session has no tree {name!r}: call psj.declare first")
    return session, trees[name]


def _name(path: Sequence[Any]) -> str:
    """The name of a leaf: keys, numbers and attributes on its path."""
    return (
        "/".join(str(getattr(one, "key", getattr(one, "idx", getattr(one, "name", one)))) for one in path) or "params"
    )


def _widened(leaf: Any) -> Array:  # noqa: ANN401 - an array of JAX
    return np.asarray(leaf, np.float64 if leaf.dtype == np.float64 else np.float32)
