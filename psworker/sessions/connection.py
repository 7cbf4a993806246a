"""The plain client: arrays by name on the servers, for programs that compute gradients with code of their own.

May import sessions, variables and optimizers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from pswire.errors import ConfigurationError
from pswire.specs.initializers import RowInitializer
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff.ops.selection.indexing import checked_ids
from psworker.model.base_variable import BaseVariable
from psworker.model.collection import Collection, use, variable_scope
from psworker.model.gradient_transforms import GradientAndVariable
from psworker.model.optimizers import Optimizer, ParameterGroups
from psworker.model.push_reports import PushReport
from psworker.model.tables import Table
from psworker.model.variables import Variable
from psworker.sessions.opening import session
from psworker.sessions.session import Session
from psworker.versions import VersionedArray

__all__ = ["Connection", "connect"]

#: An array of any library: with `__array__` or `__dlpack__`, or what numpy takes.
AnyArray: TypeAlias = Any


class Connection:
    """A session with arrays by name in place of variables, made by `psworker.connect`. Used by one thread at a time.

    It belongs to a `with` block, or to the session if that is open already.

    Attributes:
        session: has all that concerns the job, such as data, barriers and checkpoints.
        values: the last values from the servers by name, read-only, without tables.
        report: of the last push.
    """

    def __init__(self, session: Session, collection: Collection, scope: str = "") -> None:
        self.session = session
        self.values: dict[str, Array] = {}
        self.report = PushReport("none", 0, 0)
        self._collection, self._scope = collection, scope
        self._variables: dict[str, BaseVariable] = {}
        self._optimizers: dict[str, Optimizer | ParameterGroups] = {}

    def __enter__(self) -> Self:
        """Opens the session, and raises as it does."""
        with use(self._collection):
            self.session.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the session."""
        self.session.close(failed=kind is not None)

    def declare(
        self, values: Mapping[str, AnyArray], optimizer: Optimizer | ParameterGroups | None = None
    ) -> dict[str, Array]:
        """Makes arrays known to the servers, with their initial values; returns the servers' values.

            values = model.declare({"W": np.zeros((784, 10), "f"), "b": np.zeros(10, "f")}, ps.Adam(0.001))

        Args:
            values: of any shapes, the same names, shapes and dtypes in every worker. The servers keep the values that
                they have already.
            optimizer: applies the gradients that are pushed for these arrays; None: they get none.

        Raises:
            ConfigurationError: a name is taken, or a dtype cannot be sent.
            AlreadyRegistered: another worker has declared an array of this name that differs.
        """
        with self._scoped():
            made = {name: Variable(_as_numpy(value), name, optimizer is not None) for name, value in values.items()}
        self._add(made, optimizer)
        found = {name: variable.value for name, variable in made.items()}
        self.values |= found
        return found

    def declare_table(
        self,
        name: str,
        shape: Sequence[int],
        initializer: RowInitializer,
        optimizer: Optimizer | ParameterGroups | None = None,
    ) -> None:
        """Makes a table, whose rows stay on the servers, known to them: see `psworker.Table`, also for its errors."""
        with self._scoped():
            table = Table(shape, initializer, name)
        self._add({name: table}, optimizer)

    def push(
        self, gradients: Mapping[str, AnyArray | tuple[AnyArray, AnyArray]], loss: float | None = None
    ) -> dict[str, Array]:
        """Pushes the gradients of one step; returns fresh values of all arrays, as `values`.

        Args:
            gradients: by name, of the arrays' shapes; of a table a pair (ids, rows), with repeats, or `IndexedSlices`.
                They are borrowed until this returns.
            loss: of the batch, for displays and the costs of epochs.

        Raises:
            ConfigurationError: a name was not declared, or without an optimizer.
            ShapeMismatch, DtypeMismatch: a gradient does not fit its array.
            NotFinite: one has NaN or infinity; nothing is applied.
            ParamServerError: a server's refusal, or a server that cannot be reached in time.
        """
        self._check(gradients)
        if missing := [name for name in gradients if name not in self._optimizers]:
            raise ConfigurationError(
                f"{', '.join(missing)}: declared without an optimizer, which applies gradients: give one, such as "
                "psworker.Adam(0.001)"
            )
        pairs, optimizers = self._pairs(gradients)
        if loss is not None:
            self.session.note_loss(float(loss), [variable for _, variable in pairs])
        self.report = self.session.push(optimizers.__getitem__, pairs)
        return dict(self.values)

    def pull(self, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Fetches fresh values, by default of all arrays but tables; returns `values`."""
        chosen = [name for name in self._variables if name in self.values] if names is None else names
        self._check(chosen)
        self.session.pull([self._variables[name] for name in chosen])
        return dict(self.values)

    def assign(self, values: Mapping[str, AnyArray]) -> dict[str, Array]:
        """Sets arrays on the servers, for all workers; returns `values`. Raises as `Session.assign_all`."""
        self._check(values)
        self.session.assign_all({self._variables[name]: _as_numpy(value) for name, value in values.items()})
        return dict(self.values)

    def rows(self, name: str, ids: AnyArray) -> Array:
        """The present rows of a table, (*ids.shape, *shape[1:]), read-only, of which gradients may be pushed.

        Raises `TypeError` unless the ids are integers, `IndexError` for a bad row, `ConfigurationError` for a name that
        was not declared.
        """
        self._check([name])
        table, given = self._variables[name], _as_numpy(ids)
        numbers = checked_ids(f"rows: ids for {table.spec}", given, len(table))
        found = self.session.look_up(table, numbers.reshape(-1))
        if isinstance(table, Table):
            table.note_lookup(found.read)
        assert not isinstance(found.array, IndexedSlices)
        return found.array.reshape(*numbers.shape, *table.shape[1:])

    def local_step(self, values: Mapping[str, AnyArray], loss: float | None = None) -> dict[str, Array]:
        """Counts a step of an optimizer in this worker, with local steps; returns the `values` to go on with.

        At the end of a round their difference is pushed as one gradient, and `values` are the servers'; otherwise they
        are the given ones, which are read when the round ends. Raises `ConfigurationError` in a session without.
        """
        if not self.session.local_steps:
            raise ConfigurationError(
                "local_step is for sessions with local steps: local_steps=50 as an option of the session, or psworker "
                "local --local-steps 50"
            )
        self._check(values)
        arrays = {name: np.asarray(_as_numpy(value), self._variables[name].dtype) for name, value in values.items()}
        self.values |= arrays
        by_variable = {self._variables[name]: array for name, array in arrays.items()}
        self.session.step_outside(by_variable, None if loss is None else float(loss))
        return dict(self.values)

    @contextmanager
    def _scoped(self) -> Iterator[None]:
        """New variables in the block belong to the session, in the scope."""
        before = dict(self._collection.variables)
        with use(self._collection), variable_scope(self._scope) if self._scope else nullcontext():
            try:
                yield
            except BaseException:
                self._collection.restore(before)  # without some of a declaration that has failed
                raise

    def _add(self, made: Mapping[str, BaseVariable], optimizer: Optimizer | ParameterGroups | None) -> None:
        self._variables |= made
        if optimizer is not None:
            self._optimizers |= dict.fromkeys(made, optimizer)
        names = {variable.name: name for name, variable in made.items()}
        self.session.mirror(made.values(), lambda values: self._receive(values, names))

    def _receive(self, values: Sequence[VersionedArray], names: Mapping[str, str]) -> None:
        """Takes values that the servers have sent, of the variables of these names."""
        for value in values:
            if value.name in names:
                assert not isinstance(value.array, IndexedSlices)
                self.values[names[value.name]] = value.array

    def _pairs(self, gradients: Mapping[str, AnyArray]) -> tuple[list[GradientAndVariable], dict[str, Optimizer]]:
        """Pairs with the transforms of their optimizers; and by variable the optimizer that the servers get."""
        groups: dict[int, list[str]] = {}
        for name in gradients:
            groups.setdefault(id(self._optimizers[name]), []).append(name)
        pairs: list[GradientAndVariable] = []
        of: dict[str, Optimizer] = {}
        for names in groups.values():
            optimizer = self._optimizers[names[0]]
            found: list[GradientAndVariable] = [
                (_gradient(gradients[name], self._variables[name]), self._variables[name]) for name in names
            ]
            of |= {variable.name: optimizer.optimizer_of(variable.name) for _, variable in found}
            for transform in optimizer.transforms:
                found = transform(found)
            pairs += found
        return pairs, of

    def _check(self, names: Iterable[str]) -> None:
        if unknown := [name for name in names if name not in self._variables]:
            raise ConfigurationError(
                f"{', '.join(map(repr, unknown))} was not declared; there are: {', '.join(self._variables) or 'none'}"
            )


def connect(
    servers: str | Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
    **options: Any,  # noqa: ANN401 - each of its own type
) -> Connection:
    """Arrays by name on the servers, for programs that compute gradients with code of their own.

        with ps.connect("h:7000,h:7001") as model:
            weights = model.declare({"W": W, "b": b}, ps.Adam(0.001))
            for batch in model.session.batches({"x": x, "y": y}, batch_size=100, epochs=10):
                loss, gradients = my_gradients(weights, batch.x, batch.y)
                weights = model.push(gradients, loss)

    Takes the arguments of `psworker.session`, with the same defaults, and raises as it does: it is one, with the same
    guarantees. All that concerns the job, such as barriers, checkpoints and the data, is in `model.session`.
    """
    return Connection(session(servers, name, timeout, **options), Collection())


def _as_numpy(given: AnyArray) -> Array:
    """The array of another library, in its own memory where that is possible."""
    if hasattr(given, "__dlpack__") and not hasattr(given, "__array__"):
        return np.from_dlpack(given)
    return np.asarray(given)


def _gradient(given: AnyArray, variable: BaseVariable) -> Array | IndexedSlices:
    if isinstance(given, IndexedSlices):
        return given
    if isinstance(given, tuple) and isinstance(variable, Table):
        ids, rows = given
        numbers = _as_numpy(ids).reshape(-1)
        return IndexedSlices(_as_numpy(rows).reshape(-1, *variable.shape[1:]), numbers, variable.shape)
    return _as_numpy(given)
