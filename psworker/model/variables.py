"""Variables, their names and scopes, the collections they are in, and update ops of moving averages.

Each thread has its own collection, so workers in threads do not see each other's variables. May import the engine.
"""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import weakref
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pswire.errors import ConfigurationError, ShapeMismatch
from pswire.optimizers import UpdateSpec
from pswire.specs.initializers import Initializer
from pswire.tensors.sums import widened
from pswire.tensors.values import Array, TensorSpec
from psworker.autodiff import Tensor
from psworker.autodiff.ops.elementwise.activations import seed_dropout
from psworker.autodiff.tensor import Gradient, Node, TensorLike, as_array
from psworker.config import worker_name
from psworker.model.interactive import attach, detach, is_interactive
from psworker.model.push_reports import PushReport
from psworker.versions import ReadVersion, VersionedArray

__all__ = ["UpdateOp", "Variable", "collection", "discard_update_ops", "global_variables", "note_update"]
__all__ += ["reset", "set_random_seed", "trainable_variables", "update_ops", "variable_scope"]

logger = logging.getLogger(__name__)

#: Sets the value of a variable, which programs cannot set; faster than a method that is overridden.
set_value: Callable[[Tensor, Array], None] = Tensor.__dict__["value"].__set__


class BaseVariable(Tensor):
    """A named array that servers hold: a `Variable`, or a `Table`.

    `name` includes its scope; `trainable` is whether it is trained by default; `read` is the version that this worker
    has read of it.
    """

    __slots__ = ("__weakref__", "name", "read", "trainable")

    def _enter(self, name: str | None, trainable: bool) -> None:
        """Adds it to the collection, and registers it if a session is open; shape and dtype are set."""
        here = context.collection
        full = _first_free(f"{here.scope}variable", here.variables) if name is None else here.scope + name
        here.check_free(full)
        self.name, self.read = full, ReadVersion()
        self.trainable = trainable and here.trainable and self.dtype.kind == "f"
        self._node = Node(self) if self.trainable else None
        try:
            self.spec  # noqa: B018 - it checks itself
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if trainable and here.trainable and self.dtype.kind != "f":
            logger.warning(
                "variable %r is %s, and is not trained: only floating point is; pass trainable=False if intended",
                full,
                self.dtype,
            )
        here.add(self)

    @property
    def versions(self) -> tuple[int, ...]:
        """Updates of each partition when the value was sent; () until a server has sent one."""
        return self.read.versions

    @property
    def version(self) -> int:
        """The largest of `versions`, 0 at first."""
        return max(self.versions, default=0)

    @property
    def spec(self) -> TensorSpec:
        """Name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec}, version {self.version})"


#: Sets `read`, without the check of `Variable.__setattr__`: a session does this for each variable in each step.
set_read: Callable[[BaseVariable, ReadVersion], None] = BaseVariable.__dict__["read"].__set__


class Variable(BaseVariable):
    """A named array that is trained, and held by servers while a session is open.

        W = Variable(ops.zeros((784, 10)), name="W")
        V = Variable(initializers.he_normal(), shape=(784, 10), name="V")

    Args:
        value: the initial value, of any shape; copied. Python numbers and lists of them become float32; bools and
            arrays keep their dtype. Or an initializer, a function of a shape and a generator, which is seeded by
            `set_random_seed` and the full name as for layers. A server that already has the variable replaces this by
            its own value.
        name: unique in its collection, and the same in every worker; prefixed by the current scope. By default
            `variable`, `variable_1`, ... In an interactive interpreter a variable replaces an earlier one of its name,
            unless a session is open; what was computed with the earlier one has no gradient any more.
        trainable: whether `compute_gradients` includes it by default; only floating point can be trainable, and
            nothing in a scope that is not. A variable of another dtype is logged unless this is False.
        shape: of the value that an initializer makes; None for any other value.

    Attributes:
        value: the last value from the servers, read-only; `assign` changes it. AttributeError if it is set.

    Raises:
        ConfigurationError: the name is taken, or the dtype cannot be sent.
        TypeError: an initializer without a shape or the reverse, or one that fails or does not make floating point.
        ValueError: an initializer makes another shape.
    """

    __slots__ = ()

    def __init__(
        self,
        value: TensorLike | Initializer,
        name: str | None = None,
        trainable: bool = True,
        *,
        shape: Sequence[int] | None = None,
    ) -> None:
        if callable(value):
            here = context.collection
            if name is None:
                name = _first_free(f"{here.scope}variable", here.variables).removeprefix(here.scope)
            value = initialized(name, shape, value)
        elif shape is not None:
            raise TypeError(
                f"Variable: shape={shape!r} is for an initializer such as psworker.initializers.zeros(), and the value "
                f"is {type(value).__name__}: leave shape out"
            )
        array = np.array(value.value if isinstance(value, Tensor) else value)
        if array.dtype.kind in "iuf" and not isinstance(value, Tensor | np.ndarray | np.generic):
            array = array.astype(np.float32)
        array.flags.writeable = False
        set_value(self, array)
        self._enter(name, trainable)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "value":
            raise AttributeError(
                f"the value of {self.name!r} cannot be set, since the next pull would replace it: use "
                "variable.assign(value), which sets it on the servers too"
            )
        super().__setattr__(name, value)

    def assign(self, value: TensorLike) -> None:
        """Sets the value, on the servers and here; without a session only here, as the initial value of the next one.

            W.assign(np.zeros(W.shape))

        Raises:
            ShapeMismatch: `value`, an array, a number or a tensor, does not have the variable's shape.
            TypeError: it would lose its fraction, or its sign.
            NotFinite: it has NaN or infinity, in a session.
            ConfigurationError: the variable belongs to another thread or collection.
        """
        self._assign(value, add=False)

    def assign_add(self, value: TensorLike) -> None:
        """Adds to the present value on the servers, which may be newer than the one here; otherwise as `assign`."""
        self._assign(value, add=True)

    def _assign(self, value: TensorLike, *, add: bool) -> None:
        here = context.collection
        here.check_member(self)
        if here.session is not None:
            here.session.assign_all({self: value}, add=add)
            return
        array = as_assigned(self, value)
        if array.shape != self.shape:
            raise ShapeMismatch(
                f"assigned value for {self.name!r} is {array.dtype}{list(array.shape)}, the variable is "
                f"{self.dtype}{list(self.shape)}"
            )
        array = np.array(self.value + array if add else array, self.dtype)
        array.flags.writeable = False
        set_value(self, array)
        self.read = ReadVersion()


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOp:
    """An observation, such as the mean of a batch, for a variable that keeps a moving average.

    Attributes:
        variable: keeps the average; TypeError unless it is of floating point, ValueError if it is trainable.
        value: the observation; ValueError unless it has the shape of the variable; cast to its dtype.
        decay: the server does `variable <- decay * variable + (1 - decay) * value`; ValueError unless it is from 0 up
            and below 1.
    """

    variable: Variable
    value: Array
    decay: float

    def __post_init__(self) -> None:
        variable = self.variable
        if variable.dtype.kind != "f":
            raise TypeError(f"UpdateOp: an average is of floating point, but {variable.name!r} is {variable.dtype}")
        if variable.trainable:
            raise ValueError(
                f"UpdateOp: {variable.name!r} is trainable, and a variable has an optimizer or an average: make it "
                "with trainable=False"
            )
        if np.shape(self.value) != variable.shape:
            raise ValueError(
                f"UpdateOp: value must have the shape of {variable.name!r}, {variable.shape}, "
                f"but its shape is {np.shape(self.value)}"
            )
        if not 0 <= self.decay < 1:
            raise ValueError(f"UpdateOp: decay must be from 0 up and below 1, got {self.decay}")
        object.__setattr__(self, "value", np.asarray(self.value, variable.dtype))
        object.__setattr__(self, "decay", float(self.decay))


def as_assigned(variable: BaseVariable, value: TensorLike) -> Array:
    """An assigned value in the variable's dtype; TypeError if it would lose its fraction, or its sign."""
    array = as_array(value)
    if array.dtype is variable.dtype:
        return array
    if not np.can_cast(array.dtype, variable.dtype, "same_kind"):
        raise TypeError(
            f"assigned value for {variable.name!r}: Cannot cast {array.dtype} to {variable.dtype} without loss of more "
            "than precision; convert it before"
        )
    return array.astype(variable.dtype, copy=False)


def check_variable(given: object, call: str) -> None:
    """Raises `TypeError` unless the argument of `call` is a variable or a table."""
    if not isinstance(given, BaseVariable):
        raise TypeError(f"{call} takes a psworker.Variable or Table, got {given!r}")


class OpenSession(Protocol):
    """The methods of an open `psworker.Session` that variables, tables, optimizers and model files call."""

    @property
    def global_step(self) -> int: ...

    def close(self, *, failed: bool = False) -> None: ...

    def register(self, variables: Sequence[BaseVariable]) -> None: ...

    def look_up(self, table: BaseVariable, indices: Array) -> VersionedArray: ...

    def fetch(self, variables: Sequence[BaseVariable]) -> list[Array]: ...

    def fetch_rows(self, table: BaseVariable, first: int, count: int) -> Array: ...

    def assign_all(self, values: Mapping[BaseVariable, TensorLike], *, add: bool = False) -> None: ...

    def assign_rows(self, table: BaseVariable, pieces: Iterable[Array], first: int = 0) -> None: ...

    def note_loss(self, loss: float, variables: Iterable[BaseVariable]) -> None: ...

    def push(
        self,
        optimizer: UpdateSpec,
        grads_and_vars: Iterable[tuple[Gradient | None, BaseVariable]],
        updates: Iterable[UpdateOp] = (),
    ) -> PushReport: ...


class UpdateMeans:
    """The mean of several observations of each variable, of float16 in float32."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[UpdateOp, Array, int]] = {}  # the last op of a variable, mean and number of all

    def add(self, update: UpdateOp) -> None:
        """Adds an observation."""
        name, mean, count = update.variable.name, widened(update.value), 1
        if name in self._means:
            op, earlier, number = self._means[name]
            if op.variable is update.variable:  # and not an earlier one of its name
                count = number + 1
                mean = earlier * (1 - 1 / count) + mean / count  # without a difference: inf - inf is nan
        self._means[name] = update, mean, count

    def ops(self, scope: str | None = None) -> list[UpdateOp]:
        """One update op per variable named `scope/...`."""
        means = self._means.values()
        return [UpdateOp(op.variable, mean, op.decay) for op, mean, _ in means if _in_scope(op.variable, scope)]

    def take(self, chosen: Iterable[UpdateOp] | None = None) -> list[UpdateOp]:
        """The update ops to be sent, by default all; removes what is kept for their variables."""
        if chosen is None and not self._means:
            return []
        taken = self.ops() if chosen is None else list(chosen)
        for update in taken:
            self._means.pop(update.variable.name, None)
        return taken


class Collection:
    """The variables of one program by name, the scope of new ones, and the open session, if any."""

    def __init__(self) -> None:
        self.variables: dict[str, BaseVariable] = {}
        self.scope = ""
        self.trainable = True
        self.seed = 0  # of initial values
        self.noted = UpdateMeans()  # not sent yet
        self.session: OpenSession | None = None

    def check_free(self, name: str) -> None:
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

    def add(self, variable: BaseVariable) -> None:
        """Adds a variable whose name is free, or replaces the earlier one; registers it if a session is open."""
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
        """Removes the variables made since there were only those of `before`, which become members again."""
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
    outer, context.collection = context.collection, Collection()
    try:
        yield context.collection
    finally:
        context.collection = outer


def reset() -> None:
    """Forgets the variables of this thread's collection, and leaves its open session, as after an exception.

        ps.reset()                      # the first line of a cell that makes a model
        model = nn.Sequential(nn.Dense(784, 100), ops.relu, nn.Dense(100, 10))      # dense, dense_1 in each run

    For notebooks: names are free again, those of layers are counted anew, and the seed of `set_random_seed` is that of
    the beginning. A gradient through a variable that was forgotten raises `ConfigurationError`.
    """
    here = context.collection
    try:
        if here.session is not None:
            here.session.close(failed=True)
    finally:
        for variable in here.variables.values():
            detach(variable, f"the variable {variable.name!r} of before psworker.reset()")
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
        here.restore(before)  # without those of an incomplete layer
        raise


def global_variables(scope: str | None = None) -> list[BaseVariable]:
    """All variables in the order of creation; with `scope`, only those named `scope/...`."""
    return [variable for variable in context.collection.variables.values() if _in_scope(variable, scope)]


def trainable_variables(scope: str | None = None) -> list[BaseVariable]:
    """The trainable variables in the order of creation; with `scope`, only those named `scope/...`."""
    return [variable for variable in global_variables(scope) if variable.trainable]


def _in_scope(variable: BaseVariable, scope: str | None) -> bool:
    return not scope or variable.name.startswith(scope.rstrip("/") + "/")


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


def initialized(name: str, shape: Sequence[int] | None, initializer: Initializer) -> Array:
    """The initial value of the variable `name` of the current scope. Raises as `Variable` does."""
    what = f"variable {context.collection.scope + name!r}"
    if shape is None:
        raise TypeError(f"{what}: an initializer needs a shape: Variable(initializer, shape=(784, 10))")
    if isinstance(shape, int) or not all(isinstance(size, int | np.integer) for size in shape):
        raise TypeError(f"{what}: shape must be a tuple of integers, got {shape!r}")
    sizes = tuple(shape)
    try:
        value = np.asarray(initializer(sizes, random_for(name)))
    except TypeError as error:
        raise TypeError(
            f"{what}: an initializer is called as initializer(shape, generator), such as the result of he_normal() "
            f"(with parentheses), but {initializer!r} fails: {error}"
        ) from error
    if value.shape != sizes:
        raise ValueError(f"{what}: its initializer returned an array of shape {value.shape} instead of {sizes}")
    if value.dtype.kind != "f":
        raise TypeError(f"{what}: its initializer returned {value.dtype} instead of floating point")
    return value


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
