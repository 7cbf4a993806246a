"""Collections: the variables of a program by name, with their scopes, seeds, noted update ops and open session.

Each thread has its own collection, so workers in threads do not see each other's variables.
"""

import gc
import itertools
import logging
import threading
import weakref
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import Array
from psworker.autodiff.ops.elementwise.activations import seed_dropout
from psworker.autodiff.tensor import Gradient, Node, Tensor, TensorLike
from psworker.environment import worker_name
from psworker.model.base_variable import BaseVariable, in_scope
from psworker.model.interactive import attach, detach, is_interactive
from psworker.model.push_reports import PushReport
from psworker.model.update_ops import UpdateMeans, UpdateOp
from psworker.versions import ReadVersion, VersionedArray

__all__ = ["collection", "discard_update_ops", "global_variables", "note_update", "reset", "set_random_seed"]
__all__ += ["trainable_variables", "update_ops", "variable_scope"]

logger = logging.getLogger(__name__)


class OpenSession(Protocol):
    """The methods of an open `psworker.Session` that variables, tables, optimizers and model files call."""

    @property
    def global_step(self) -> int: ...

    @property
    def over(self) -> bool: ...

    def close(self, *, failed: bool = False) -> None: ...

    def register(self, variables: Sequence[BaseVariable]) -> None: ...

    def look_up(self, table: BaseVariable, indices: Array) -> VersionedArray: ...

    def fetch(self, variables: Sequence[BaseVariable]) -> list[Array]: ...

    def fetch_rows(self, table: BaseVariable, first: int, count: int) -> Array: ...

    def assign_all(self, values: Mapping[BaseVariable, TensorLike], *, add: bool = False) -> None: ...

    def assign_rows(self, table: BaseVariable, pieces: Iterable[Array], first: int = 0) -> None: ...

    def note_loss(self, loss: Tensor, variables: Iterable[BaseVariable]) -> None: ...

    def push(
        self,
        optimizer: UpdateSpec | Callable[[str], UpdateSpec],
        grads_and_vars: Iterable[tuple[Gradient | None, BaseVariable]],
        updates: Iterable[UpdateOp] = (),
    ) -> PushReport: ...


class Collection:
    """The variables of one program by name, the scope of new ones, and the open session, if any."""

    def __init__(self) -> None:
        self.variables: dict[str, BaseVariable] = {}
        self.scope = ""
        self.trainable = True
        self.seed = 0  # of initial values
        self.noted = UpdateMeans()  # not sent yet
        self.session: OpenSession | None = None

    def enter(self, variable: BaseVariable, name: str | None, trainable: bool) -> None:
        """Names a new variable, whose shape and dtype are set, and adds it; registers it if a session is open.

        In place of an earlier one of its name, if `_check_free` allows that. Raises `ConfigurationError`.
        """
        full = self.free_name() if name is None else self.scope + name
        self._check_free(full)
        variable.name, variable.read = full, ReadVersion()
        variable.trainable = trainable and self.trainable and variable.dtype.kind == "f"
        variable._node = Node(variable) if variable.trainable else None
        try:
            variable.spec  # noqa: B018 - it checks itself
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if trainable and self.trainable and variable.dtype.kind != "f":
            logger.warning(
                "variable %r is %s, and is not trained: only floating point is; pass trainable=False if intended",
                full,
                variable.dtype,
            )
        self._add(variable)

    def free_name(self) -> str:
        """The full name of a variable without one: `variable`, `variable_1`, ... of the present scope."""
        return _first_free(f"{self.scope}variable", self.variables)

    def _check_free(self, name: str) -> None:
        """Raises `ConfigurationError` if a new variable can neither have this name nor replace the one that has it."""
        if name not in self.variables:
            return
        if not is_interactive():
            raise ConfigurationError(
                f"there is already a variable {name!r}: choose another name, or use a variable_scope "
                "(or `with psworker.collection():` to begin a new set of variables)"
            )
        if self.session is not None:
            raise ConfigurationError(
                f"there is already a variable {name!r}, which the open session trains: close the session by "
                "session.close(), or by psworker.reset(), which forgets all variables too, and make it again"
            )

    def _add(self, variable: BaseVariable) -> None:
        name = variable.name
        earlier = self.variables.pop(name, None)
        if earlier is not None:
            detach(earlier, f"the variable {name!r} that another one of this name, made later, has replaced")
        self.variables[name] = variable
        try:
            if self.session is not None:
                self.session.register([variable])
        except BaseException:
            del self.variables[name]  # refused by the server
            raise

    def restore(self, before: Mapping[str, BaseVariable]) -> None:
        """Removes all variables but those in `before`, which become members again."""
        self.variables.clear()
        self.variables.update(before)
        for variable in before.values():
            attach(variable)

    def check_member(self, variable: BaseVariable) -> None:
        """Raises `ConfigurationError` unless this is the variable of its name here."""
        name, there = variable.name, self.variables.get(variable.name)
        if there is variable:
            return
        if there is not None:
            raise ConfigurationError(
                f"this variable {name!r} is not the one of this thread's collection: one made later has replaced it, "
                "or it was made in another thread or `with psworker.collection():`. Run the code that uses it again, "
                "with the present one"
            )
        raise ConfigurationError(
            f"{name!r} is not a variable of this thread's collection: use it in the thread, and inside the "
            "`with psworker.collection():`, that it was made in; after psworker.reset() make it again"
        )

    def forget_unreferenced(self) -> None:
        """Removes the variables that nothing but this collection refers to, as of a layer that a cell made again."""
        known = {name: weakref.ref(variable) for name, variable in self.variables.items()}
        self.variables.clear()
        try:
            gc.collect()  # a variable and its node refer to each other
        finally:
            alive = {name: reference() for name, reference in known.items()}
            self.variables.update((name, variable) for name, variable in alive.items() if variable is not None)


class _Context(threading.local):
    """The collection of each thread."""

    def __init__(self) -> None:
        self.collection = Collection()


context = _Context()


def _first_free(name: str, taken: Container[str]) -> str:
    """The first of `name`, `name_1`, `name_2`, ... that is not taken."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(1)))
    return next(name for name in names if name not in taken)


@contextmanager
def collection() -> Iterator[Collection]:
    """A new, empty collection of variables for a `with` block; for notebooks and tests."""
    with use(Collection()) as new:
        yield new


@contextmanager
def use(chosen: Collection) -> Iterator[Collection]:
    """A collection as that of this thread, for a `with` block."""
    outer, context.collection = context.collection, chosen
    try:
        yield chosen
    finally:
        context.collection = outer


def reset() -> None:
    """Forgets the variables of this thread's collection, and leaves its open session, as after an exception.

        ps.reset()                      # the first line of a cell that makes a model
        model = nn.Sequential(nn.Dense(784, 100), ops.relu, nn.Dense(100, 10))      # dense, dense_1 in each run

    For notebooks: names are free again, names of layers are counted anew, and the seed of `set_random_seed` is the
    initial one. A gradient through a variable that was forgotten raises `ConfigurationError`.
    """
    here = context.collection
    try:
        if here.session is not None:
            here.session.close(failed=True)
    finally:
        for variable in here.variables.values():
            detach(variable, f"the variable {variable.name!r} from before psworker.reset()")
        here.variables.clear()
        here.noted, here.seed = UpdateMeans(), 0
        seed_dropout()


@contextmanager
def variable_scope(name: str, trainable: bool = True) -> Iterator[None]:
    """Variables created in the block are named `name/...`; scopes nest.

    With `trainable=False` none of them is trained, including those of layers, as for a target network. Raises
    `ConfigurationError` if the name is empty, or begins or ends with a slash.
    """
    if not name or name.startswith("/") or name.endswith("/"):
        raise ConfigurationError(f"a variable scope needs a name without slashes at its ends, got {name!r}")
    here = context.collection
    outer = here.scope, here.trainable
    here.scope, here.trainable = f"{here.scope}{name}/", here.trainable and trainable
    try:
        yield
    finally:
        here.scope, here.trainable = outer


@contextmanager
def layer_scope(name: str | None, kind: str) -> Iterator[str]:
    """The scope of a layer's variables: `name`, or a free one of `kind`, `kind_1`, ...; yields the full scope.

    If the block raises, the variables that it has created are removed.
    """
    here = context.collection
    before = dict(here.variables)
    inside = [key.removeprefix(here.scope) for key in before if key.startswith(here.scope)]
    taken = {key.partition("/")[0] for key in inside if "/" in key}
    try:
        with variable_scope(_first_free(kind, taken) if name is None else name):
            yield here.scope.removesuffix("/")
    except BaseException:
        here.restore(before)  # without the variables of an incomplete layer
        raise


def global_variables(scope: str | None = None) -> list[BaseVariable]:
    """All variables in the order of creation; with `scope`, only those named `scope/...`."""
    return [variable for variable in context.collection.variables.values() if in_scope(variable, scope)]


def trainable_variables(scope: str | None = None) -> list[BaseVariable]:
    """The trainable variables in the order of creation; with `scope`, only those named `scope/...`."""
    return [variable for variable in global_variables(scope) if variable.trainable]


def set_random_seed(seed: int) -> None:
    """Sets the seed, 0 or more, of this thread's initial values (0 by default) and of the masks of `ops.dropout`.

    Workers draw the same initial values, and different masks if a launcher has given them names (`$PSWORKER_NAME`, as
    `psworker local` does). Without a seed masks differ in each run. Raises `ConfigurationError` if it is negative.
    """
    if seed < 0:
        raise ConfigurationError(f"the seed must not be negative, got {seed}")
    context.collection.seed = seed
    seed_dropout(seed, zlib.crc32(worker_name().encode()))


def random_for(name: str) -> np.random.Generator:
    """The generator of a new variable's initial value: a function of seed and full name, the same in all workers."""
    here = context.collection
    return np.random.default_rng([here.seed, zlib.crc32((here.scope + name).encode())])


def note_update(update: UpdateOp) -> None:
    """Keeps an update op for the next push; layers do this in training.

    Several observations of one variable before a push are replaced by their mean.
    """
    context.collection.noted.add(update)


def update_ops(scope: str | None = None) -> list[UpdateOp]:
    """The update ops noted and not sent yet, one a variable; with `scope`, only of variables named `scope/...`."""
    return context.collection.noted.ops(scope)


def discard_update_ops(scope: str | None = None) -> None:
    """Discards the update ops noted and not sent: of a batch that is skipped, or of an evaluation."""
    context.collection.noted.take(update_ops(scope))
