"""A program's variables as copies of those that servers keep: declared there, pushed for, and brought up to date here.

A worker has one push or pull of values under way at a time: it is kept here, and its answer is taken before the next,
or anything else that changes what servers have. Rows may be looked up meanwhile. When to push and to pull is
`strategy`'s business. May import the client, variables, specs and the engine.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError, InvalidMessage
from pswire.messages import Declaration, Outcome
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff.ops.sparse import checked_ids
from psworker.autodiff.tape import is_recording
from psworker.autodiff.tensor import TensorLike
from psworker.client import partitions
from psworker.client.client import Client, Handle, PushResult
from psworker.client.placement import Whole
from psworker.model.tables import Table
from psworker.model.variables import Variable, check_variable

logger = logging.getLogger(__name__)

#: Whose hyperparameters change.
Target: TypeAlias = optimizers.UpdateSpec | Variable | Iterable[Variable]


class Replica:
    """The variables of one program, as a client's servers have them.

    Args:
        client: speaks to the servers.
        known: the program's variables by name, at every moment.

    Attributes:
        client: what was given; whoever uses it says `settle()` first, but for rows.
        known: what was given.
        global_step: how many updates the servers had made, when they last spoke.
        staleness: how many changes the weights of the last push that was answered had missed.
        dropped: pushes that the servers' policy has refused.
    """

    def __init__(self, client: Client, known: Callable[[], Mapping[str, Variable]]) -> None:
        self.client, self.known = client, known
        self.global_step = self.staleness = self.dropped = 0
        self._specs: dict[optimizers.UpdateSpec, optimizers.UpdateSpec] = {}
        self._whole: dict[str, None] = {}
        self._declared: dict[str, optimizers.UpdateSpec] = {}
        self._tuned: dict[
            str, optimizers.UpdateSpec
        ] = {}  # what a variable follows by now, where that is not as declared
        self._looked_up: dict[str, tuple[int, ...]] = {}  # the least versions of rows that have no gradient yet
        self._taken: dict[str, Whole] = {}  # what came last of each variable, just as it came
        self._under_way: Handle[PushResult] | Handle[list[Whole]] | None = None

    @property
    def names(self) -> list[str]:
        """The variables that are registered and whose values travel whole: all but tables."""
        known = self.known()
        return [name for name in self._whole if name in known]  # a layer that fails midway forgets its variables

    def register(self, variables: Sequence[Variable]) -> None:
        """Makes variables known to the servers, and takes their values of them."""
        self.settle()
        self._take(self.client.register([_declaration(variable) for variable in variables]))
        for variable in variables:
            if isinstance(variable, Table):
                none = self.client.choose(variable.name, np.empty(0, np.int64))
                variable.versions, variable.served_at = none.versions, none.served_at
            else:
                self._whole[variable.name] = None

    def declare(self, optimizer: optimizers.UpdateSpec, names: Iterable[str]) -> None:
        """Tells the servers what is to be done with what is pushed for these variables, when that is news."""
        spec = self._plain(optimizer)
        new = [name for name in names if self._declared.get(name) != spec]
        if new:
            self.settle()
            known = self.known()
            self.client.register([Declaration(known[name].spec, None, spec) for name in new])
            self._declared |= dict.fromkeys(new, spec)

    def pull(self, names: Sequence[str]) -> None:
        """Takes fresh values of these variables."""
        self.start_pull(names)
        self.settle()

    def start_pull(self, names: Sequence[str]) -> None:
        """Asks for fresh values of these variables, which `settle` takes."""
        self.settle()
        if names:
            self._under_way = self.client.start_pull(names, self._have(names))

    def start_push(self, gradients: Sequence[Whole], loss: float | None, pull: Sequence[str]) -> None:
        """Sends one push, whose arrays are borrowed until `settle`, which takes the values of `pull`.

        Raises:
            NotFinite: of several shards one would have applied its part already, and a packer that keeps what it leaves
                out would keep that too, so this is looked at here.
        """
        self.settle()
        if self.client.shards > 1 or self.client.packer.keeps_rest:
            check_finite(gradients)
        self._under_way = self.client.push(gradients, loss, pull, self._have(pull))

    def settle(self) -> None:
        """Takes the answer of what is under way, if anything is; a push that was dropped is counted."""
        if self._under_way is None:
            return
        handle, self._under_way = self._under_way, None
        answer = handle.wait()
        if isinstance(answer, PushResult):
            self._note(answer)
            self._take(answer.values)
        else:
            self._take(answer)

    def tune(self, target: Target, changes: Mapping[str, Any]) -> None:
        """Gives variables new hyperparameters, all that is asked for being checked first.

        Only the fields that change are sent: others may have been changed by another worker, which this one does not
        hear of. So what goes with the others, slots above all, is checked here as far as it is known, and there again.

        Args:
            target: variables, or the optimizer of those that are meant.
            changes: fields of the optimizer.

        Raises:
            ConfigurationError: there is no such field or variable, or slots would have to change.
            ValueError, TypeError: a value that the field cannot have, or a target that is none.
        """
        self.known()
        groups: dict[optimizers.UpdateSpec, list[str]] = {}
        for name in self._targets(target):
            groups.setdefault(self._current(name), []).append(name)
        tuned = [(names, _changed(spec, changes, names)) for spec, names in groups.items()]
        self.settle()
        for names, spec in tuned:
            self.client.tune(names, spec, tuple(changes))
            self._tuned |= dict.fromkeys(names, spec)

    def slot(self, variable: Variable, name: str) -> Array:
        """A slot of a variable, of its shape; `ConfigurationError` when it has none of this name, or none yet."""
        self.known()  # raises when the session is over
        check_variable(variable, "session.slot")
        spec = self._declared.get(variable.name)
        if spec is not None and name not in spec.slot_names():
            raise ConfigurationError(
                f"{variable.name!r} has no slot {name!r}: its optimizer, {type(spec).__name__}, keeps "
                f"{', '.join(spec.slot_names()) or 'none'}"
            )
        self.settle()
        try:
            array = self.client.choose(variable.name, slot=name).array
        except InvalidMessage as error:  # this worker has not trained it, but another may have
            raise ConfigurationError(
                f"{variable.name!r} has no slot {name!r}: slots are made by the first push for a variable, as its "
                f"optimizer needs them ({error})"
            ) from None
        assert not isinstance(array, IndexedSlices)
        return array

    def rows(self, variable: Variable, ids: TensorLike) -> Array:
        """The rows variable[ids], (*ids.shape, *variable.shape[1:]), as the servers have them now; read-only.

        Raises:
            TypeError: it is no variable, or ids are not integers.
            IndexError: there is no such row.
            ValueError: the variable has no axis.
        """
        self.known()  # raises when the session is over
        check_variable(variable, "session.rows")
        if not variable.shape:
            raise ValueError(f"rows of {variable.name!r}: it is a single number, and has none")
        numbers = checked_ids(f"session.rows: ids for {variable.spec}", ids, variable.shape[0])
        array = self.client.choose(variable.name, numbers.reshape(-1)).array
        assert not isinstance(array, IndexedSlices)
        return array.reshape(*numbers.shape, *variable.shape[1:])

    def look_up(self, table: Variable, indices: Array) -> Array:
        """The rows with these numbers, (n,), checked, for a model; they move the table's versions if ops are recorded.

        Of several lookups before a gradient is computed (`computed`) the least versions count, the stalest rows.
        """
        self.known()
        whole = self.client.choose(table.name, indices)
        assert not isinstance(whole.array, IndexedSlices)
        if is_recording():
            if table.name not in self._looked_up:
                table.served_at = whole.served_at
            earlier = self._looked_up.get(table.name, whole.versions)
            table.versions = self._looked_up[table.name] = tuple(map(min, earlier, whole.versions))
        return whole.array

    def computed(self, names: Iterable[str]) -> None:
        """What was looked up of these variables has its gradient; the next lookup begins anew."""
        for name in names:
            self._looked_up.pop(name, None)

    def follows(self, optimizer: optimizers.UpdateSpec) -> list[str]:
        """The variables that have this optimizer, as it was declared or as it was changed to."""
        spec = self._plain(optimizer)
        return [name for name in self._declared if spec in (self._declared[name], self._tuned.get(name))]

    def _targets(self, target: Target) -> list[str]:
        if isinstance(target, optimizers.UpdateSpec):
            names = self.follows(target)
            if not names:
                raise ConfigurationError(f"no variable was trained with {target} in this session yet: name variables")
            return names
        variables = [target] if isinstance(target, Variable) or not isinstance(target, Iterable) else list(target)
        for variable in variables:
            if not isinstance(variable, Variable):
                raise TypeError(f"session.set_hyperparameters takes an optimizer or variables, got {variable!r}")
        names = [variable.name for variable in variables]
        without = [name for name in names if name not in self._declared]
        if without or not names:
            raise ConfigurationError(
                f"{', '.join(without) or 'no variable'}: an optimizer's hyperparameters are changed for variables that "
                "this worker has trained in this session"
            )
        return names

    def _current(self, name: str) -> optimizers.UpdateSpec:
        return self._tuned.get(name, self._declared[name])

    def _note(self, pushed: PushResult) -> None:
        self.global_step, self.staleness = pushed.global_step, pushed.staleness
        if pushed.outcome is Outcome.DROPPED:
            self.dropped += 1
            level = logging.WARNING if self.dropped == 1 else logging.INFO
            logger.log(level, "the servers have dropped a push, number %d: %s", self.dropped, pushed.reason)

    def _plain(self, optimizer: optimizers.UpdateSpec) -> optimizers.UpdateSpec:
        """The spec that an optimizer is, as it comes back from a server."""
        spec = self._specs.get(optimizer)
        if spec is None:
            spec = self._specs[optimizer] = optimizers.from_plain(optimizers.to_plain(optimizer))
        return spec

    def _have(self, names: Iterable[str]) -> list[Whole]:
        """What the servers have sent of these and is still there; what was put in its place is nothing they know."""
        known, taken = self.known(), self._taken
        return [taken[name] for name in names if name in taken and known[name].value is taken[name].array]

    def _take(self, values: Iterable[Whole]) -> None:
        known = self.known()
        for whole in values:
            assert not isinstance(whole.array, IndexedSlices)
            variable = known[whole.name]
            variable.value, variable.versions, variable.served_at = whole.array, whole.versions, whole.served_at
            self._taken[whole.name] = whole


def check_finite(gradients: Iterable[Whole]) -> None:
    """Raises `NotFinite`, naming the variable, if an element is NaN or infinite."""
    for one in gradients:
        partitions.check_finite(one.name, one.array, "gradient")


def _declaration(variable: Variable) -> Declaration:
    if isinstance(variable, Table):
        return Declaration(variable.spec, initial=variable.initializer)
    return Declaration(variable.spec, variable.value)


def _changed(spec: optimizers.UpdateSpec, changes: Mapping[str, Any], names: Sequence[str]) -> optimizers.UpdateSpec:
    kind, of = type(spec).__name__, ", ".join(names)
    fields = [field.name for field in dataclasses.fields(spec)]
    unknown = [name for name in changes if name not in fields]
    if unknown or not changes:
        problem = f"has no hyperparameter {', '.join(unknown)}" if unknown else "was given nothing to change"
        raise ConfigurationError(f"{kind}, the optimizer of {of}, {problem}: give one or more of {', '.join(fields)}")
    changed = dataclasses.replace(spec, **changes)
    if changed.slot_names() != spec.slot_names():
        raise ConfigurationError(
            f"{kind}, the optimizer of {of}, keeps the slots {', '.join(spec.slot_names()) or 'none'} and with "
            f"{', '.join(f'{name}={value!r}' for name, value in changes.items())} would keep "
            f"{', '.join(changed.slot_names()) or 'none'}: slots are made once, so start a new job for that"
        )
    return changed
