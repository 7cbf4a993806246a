"""The replica of the model: a worker's copies of the variables, and the default strategy, a push every step.

The replicas in `strategies` push and pull at other times. A worker has one push or pull of values open at a time: its
answer is taken before anything else that changes values; rows may be looked up meanwhile. May import the client,
variables and the engine.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pswire.errors import ConfigurationError, InvalidMessage
from pswire.messages import Declaration, Outcome, Progress, QueueSpec
from pswire.optimizers import OptimizerSpec, UpdateSpec
from pswire.specs.consistency import Asynchronous
from pswire.specs.schedules import rate
from pswire.tensors.values import Array, IndexedSlices
from psworker.client.begun_push import BegunPush
from psworker.client.client import Client
from psworker.client.push_pull import PushResult
from psworker.model.base_variable import BaseVariable, set_read, set_value
from psworker.model.tables import Table
from psworker.model.update_ops import UpdateOp
from psworker.sessions.data_loop import DataLoop
from psworker.sessions.variable_optimizers import Target, VariableOptimizers
from psworker.transport import Future
from psworker.versions import VersionedArray

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Step:
    """The results of one step of the program's `optimizers`, checked; no server has them yet.

    `entries` has one array a variable: the gradients of `names`, then the observations of `updates`. `all_variables`
    are those of all pairs, also without a gradient.
    """

    optimizers: tuple[UpdateSpec, ...]
    names: list[str]
    entries: list[VersionedArray]
    updates: Sequence[UpdateOp]
    loss: float | None
    all_variables: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class Replica:
    """The variables of one program and their values on the servers: each step is pushed, its answer has weights.

    Subclasses are the other strategies: they override `step`, `flush` and other methods as needed. `variables` are the
    program's by name, once the session is open; `loops` are the data loops that run: each prepares its next batch while
    the servers apply a push. `values` has, except for tables, the last ones that the servers sent; `names` are those
    variables, in the program's order. The `receivers` are called with all values that the servers send.
    """

    client: Client
    loops: Sequence[DataLoop]

    def __post_init__(self) -> None:
        self.variables: Mapping[str, BaseVariable] = {}
        self.values: dict[str, VersionedArray] = {}
        self.names: list[str] = []
        self.optimizers = VariableOptimizers()
        self.staleness = self.dropped = self._clipped = 0
        self.receivers: list[Callable[[Sequence[VersionedArray]], object]] = []
        self.pushed: PushResult | None = None  # the last answered push since `Session.push` has reset it
        self._open: Future[PushResult] | Future[list[VersionedArray]] | None = None
        self._left: list[QueueSpec] = []  # queues whose loop was left, with a block that is still to be given back
        self.client.registration.value_of, self.client.rollback.on_rollback = self._value_of, self._refresh

    def check(self) -> None:
        """Raises `ConfigurationError` if the servers' policies would drop most of the pushes."""

    def step(self, step: Step) -> None:
        """Processes a step of declared optimizers, whose arrays are borrowed meanwhile.

        The gradients of a push that fails are discarded: it may not be known whether the servers have applied it, and
        nothing is applied twice.
        """
        self.push(step.entries, step.loss, self.names, self.progress() if self.loops else ())

    def flush(self) -> None:
        """Pushes everything that steps have computed; returns when the servers have acknowledged it."""

    def is_flushed(self) -> bool:
        """True if the servers have acknowledged everything that steps have computed."""
        return self._open is None

    def progress(self) -> tuple[Progress, ...]:
        """How far the blocks of the data loops are with the step that is being processed."""
        return tuple([one for loop in self.loops if (one := loop.progress()) is not None])

    def give_back(self, queue: QueueSpec) -> None:
        """Gives back the block of a data loop that was left early: once all that was computed from it is pushed.

        Otherwise the examples of gradients that are pushed later would be handed out again. The worker is idle then.
        """
        self.client.take_back()
        if self.is_flushed():
            self.client.blocks.give_back(queue)
        else:
            self._left.append(queue)
        if not isinstance(self.client.consistency, Asynchronous):
            self.client.defer_idle()

    def finish(self) -> None:
        """Flushes, and pulls weights that include all pushes of this worker."""
        self.flush()

    def register(self, variables: Sequence[BaseVariable]) -> None:
        """Flushes; registers variables with the servers, and takes the servers' values.

        Raises `ConfigurationError` for a table with the rows of a file, which servers do not have.
        """
        self.flush()
        loaded = [one.name for one in variables if isinstance(one, Table) and one.stored is not None]
        if loaded:
            raise ConfigurationError(
                f"{', '.join(map(repr, loaded))} has rows of a file, loaded without a session, which only predict: to "
                "train them, make the table anew and call psworker.load in the session"
            )
        declarations = [
            Declaration(variable.spec, initial=variable.initializer)
            if isinstance(variable, Table)
            else Declaration(variable.spec, variable.value)
            for variable in variables
        ]
        self._take(self.client.register(declarations))
        self.names = [name for name in self.variables if name in self.values]
        for variable in variables:
            if isinstance(variable, Table):
                variable.read = self.client.choose(variable.name, np.empty(0, np.int64)).read

    def declare(self, optimizer: UpdateSpec, names: Sequence[str]) -> None:
        """Declares the optimizer of these variables to the servers, where they do not have it yet.

        What was computed for an earlier optimizer is pushed before. Raises as `VariableOptimizers.check_not_in_turn`.
        """
        declared, spec = self.optimizers.declared, self.optimizers.specs.get(optimizer)
        for name in names:
            if spec is None or declared.get(name) is not spec:
                break
        else:
            return
        spec = self.optimizers.spec(optimizer)
        new = [name for name in names if declared.get(name) is not spec]
        if changed := self.optimizers.others_than(spec, new):
            self.flush()
            self.optimizers.check_not_in_turn(changed, spec, self.client.membership.sequence)
        self.complete()
        known, stage, replaced = self.variables, self.client.blocks.queues_read, self.optimizers.replaced
        stages = [stage + replaced.get(name, 0) + (name in changed) for name in new]
        self.client.register(
            [Declaration(known[name].spec, None, spec, stage=one) for name, one in zip(new, stages, strict=True)]
        )
        self.optimizers.add(new, spec, self.client.membership.sequence)

    def pull(self, names: Sequence[str]) -> None:
        """Flushes; takes fresh values of these variables, or in a generation its values."""
        self.flush()
        if self.client.cuts.generation:
            self._take([self.values[name] for name in names])
            return
        self.start_pull(names)
        self.complete()

    def fetch(self, names: Sequence[str]) -> list[VersionedArray]:
        """Flushes; the servers' values of these variables, without an encoding; the variables stay as they are."""
        self.flush()
        if self.client.cuts.generation:
            return [self.values[name] for name in names]
        return self.client.pull(names, exact=True)

    def hold(self, timeout: float | None) -> None:
        """Flushes; begins a generation and takes its values, which `values` has until its end: no server is needed."""
        self.flush()
        self.complete()
        self._take(self.client.hold_cut(self.names, self._known_values(self.names), timeout))

    def start_pull(self, names: Sequence[str]) -> None:
        """Asks for fresh values of these variables, which `complete` takes."""
        self.complete()
        if names:
            self._open = self.client.start_pull(names, self._known_values(names))

    def push(
        self,
        entries: Sequence[VersionedArray],
        loss: float | None,
        pull: Sequence[str],
        progress: tuple[Progress, ...] = (),
        *,
        wait: bool = True,
    ) -> None:
        """Sends one push, whose arrays are borrowed until `complete`, which takes the values of `pull`.

        By default it waits for that; the next batches are prepared while the push is under way.
        """
        if self._open is not None:
            self.complete()
        self._open = self.client.push(entries, loss, pull, self._known_values(pull), progress)
        if wait:
            try:
                for loop in self.loops:
                    loop.prepare()
            finally:
                self.complete()

    def begin(self, entries: Sequence[VersionedArray], loss: float | None) -> BegunPush | None:
        """Begins to send a step whose gradients are not there yet; None if this strategy, or the client, cannot.

        Nothing of it counts: the same `step` completes it, and whatever else is pushed takes it back.
        """
        if type(self) is not Replica or not self.is_flushed():
            return None
        noted = [] if loss is None else [loss]
        progress = tuple([one for loop in self.loops if (one := loop.progress(noted)) is not None])
        return self.client.begin_push(entries, loss, self.names, self._known_values(self.names), progress)

    def complete(self) -> None:
        """Waits for the open push or pull, if any, and takes its values; a push that was dropped is counted."""
        if self._open is None:
            return
        future, self._open = self._open, None
        result = future.result()
        if not isinstance(result, PushResult):
            self._take(result)
            return
        self.pushed, self.staleness = result, result.staleness
        noted = result.reason or result.outcome is Outcome.DROPPED
        if noted and not result.half_applied:  # the client has counted and logged those
            self._note(result)
        self._take(result.values)

    def _note(self, result: PushResult) -> None:
        """Counts and logs a push that was dropped, or scaled down."""
        if result.outcome is Outcome.DROPPED:
            self.dropped += 1
            level = logging.WARNING if self.dropped == 1 else logging.INFO
            logger.log(level, "the servers have dropped a push, number %d: %s", self.dropped, result.reason)
        else:
            self._clipped += 1
            level = logging.WARNING if self._clipped == 1 else logging.INFO
            logger.log(level, "the servers have scaled down a push, number %d: %s", self._clipped, result.reason)

    def tune(self, target: Target, changes: Mapping[str, Any]) -> None:
        """Flushes; changes hyperparameters on the servers, which check them again: other workers change them too."""
        self.flush()
        for names, spec in self.optimizers.changes(target, changes):
            self.client.tune(names, spec, tuple(changes))
            self.optimizers.current |= dict.fromkeys(names, spec)

    def learning_rate(self, name: str) -> float | None:
        """The present learning rate of a variable, as far as this worker knows; None if it was not trained."""
        spec = self.optimizers.current.get(name)
        return rate(spec.learning_rate, self.client.membership.global_step) if isinstance(spec, OptimizerSpec) else None

    def slot(self, variable: BaseVariable, name: str) -> Array:
        """A slot of a variable, after a `flush`; raises `ConfigurationError` if it does not have this slot."""
        self.flush()
        self.optimizers.check_slot(variable.name, name)
        try:
            array = self.client.choose(variable.name, slot=name).array
        except InvalidMessage as error:  # this worker has not trained it, but another may have
            raise ConfigurationError(
                f"{variable.name!r} has no slot {name!r}: slots are made by the first push for a variable, as its "
                f"optimizer needs them ({error})"
            ) from None
        assert not isinstance(array, IndexedSlices)
        return array

    def _give_back_left(self) -> None:
        """After a flush, gives back the blocks of loops that were left before it."""
        left, self._left = self._left, []
        for queue in left:
            self.give_back(queue)

    def _known_values(self, names: Sequence[str]) -> list[VersionedArray]:
        """The servers' values of these variables that are still in use: the program may have replaced others."""
        known, values, found = self.variables, self.values, []
        for name in names:
            if name in values and known[name].value is values[name].array:
                found.append(values[name])
        return found

    def _refresh(self) -> None:
        """Takes fresh values after the servers went back: gradients of older ones would be dropped."""
        if self.values:
            self._take(self.client.pull(self.names))

    def _value_of(self, name: str) -> Array | None:
        """The last value from the servers, with which they can begin again if they have lost it."""
        value = self.values.get(name)
        if value is None:
            return None
        assert not isinstance(value.array, IndexedSlices), "a value has all rows"
        return value.array

    def _take(self, values: Sequence[VersionedArray]) -> None:
        known = self.variables
        for value in values:
            assert not isinstance(value.array, IndexedSlices)
            variable = known[value.name]
            set_value(variable, value.array)
            set_read(variable, value.read)
            self.values[value.name] = value
        for receive in self.receivers:
            receive(values)
