"""Store: the variables of a shard, with their values, versions, optimizers and slots.

Checks are apart from changes, so that a message over several variables is applied whole or not at all: first every
`check_...`, which raises and changes nothing, then the change, which cannot fail. A change counts at once; its array
work becomes tasks of the step's result, unless it is checked (`psserver.core.variables.array_tasks`).
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TypeAlias

import numpy as np

from psserver.core.members.job_invariants import JobInvariants
from psserver.core.policies.policy import join_names
from psserver.core.variables.array_tasks import (
    ArrayTask,
    Contribution,
    Copy,
    StepResult,
    Update,
    add_to,
    run,
    update_checked,
)
from psserver.core.variables.delay_compensation import ServedWeightsCache
from psserver.core.variables.element_checks import Magnitudes, check_finite, check_tensor, is_gradient
from psserver.core.variables.memory import Memory
from psserver.core.variables.variable import (
    Variable,
    agreed_bytes,
    declared_bytes,
    initialize,
    is_next_optimizer,
    slot_specs,
    tuned,
)
from pswire import messages as ms
from pswire.errors import InvalidMessage, NoOptimizer, TooLarge, Unavailable, UnknownVariable
from pswire.limits import MAX_CHOICES
from pswire.optimizers import OptimizerSpec, Step, UpdateSpec
from pswire.optimizers.optimizer import CHECKED_FROM
from pswire.specs.consistency import Aggregate, Mean
from pswire.specs.encodings import ENCODINGS
from pswire.specs.schedules import largest_rate, scaled_rate
from pswire.tensors.compression import INT16, Packed
from pswire.tensors.values import DTYPES, TensorSpec

#: An upper bound of the growth of a variable to which an ordinary array is added.
ADDITION_GROWTH = 1e-20

#: Variables, and places of variables, that count with the bytes of their elements only; and bytes that each further one
#: takes besides: its name, its optimizer, its entries in tables.
UNCOUNTED, VARIABLE_BYTES, PLACE_BYTES = 1000, 8 << 10, 512

#: A new optimizer, with the names of its variables.
Changed: TypeAlias = tuple[UpdateSpec, list[str]]


class Store:
    """The `variables` by name, and the weights `served` to workers, kept if delay compensation has a `strength`."""

    def __init__(self, memory: Memory, invariants: JobInvariants, strength: float, aggregate: Aggregate) -> None:
        self.variables: dict[str, Variable] = {}
        self._memory, self._invariants, self._aggregate = memory, invariants, aggregate
        self.strength, self.served = strength, ServedWeightsCache()
        self.nbytes = self._plain_bytes = 0  # of all values and slots; of the values of plain variables
        memory.count(lambda: self.nbytes + object_bytes(len(self.variables), invariants.places))

    def restore(self, variables: Iterable[Variable]) -> None:
        """Continue with these variables."""
        self.variables = {variable.spec.name: variable for variable in variables}
        self.nbytes = sum([variable.nbytes for variable in self])
        self._plain_bytes = sum([variable.spec.nbytes for variable in self if variable.initial is None])

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables.values())

    def __getitem__(self, name: str) -> Variable:
        if name not in self.variables:
            count = len(self.variables)
            raise UnknownVariable(f"no variable {name!r} among the {count} of this shard: register it first")
        return self.variables[name]

    # --- reading --------------------------------------------------------------------------------------------------

    def check_pull(self, message: ms.Pull | ms.Push, names: Sequence[str], choices: Sequence[ms.Choice] = ()) -> None:
        """Raise `UnknownVariable` or `InvalidMessage` unless these values can be read, up to the row numbers."""
        known_versions, encoding = message.known_versions, message.encoding
        for name in names:
            if name not in self.variables:
                self[name]  # raises
        if known_versions and len(known_versions) != len(names):
            raise InvalidMessage(
                f"{len(names)} names and {len(known_versions)} versions: name one for each, "
                "-1 for none, or no version at all"
            )
        if encoding and encoding not in ENCODINGS:
            raise InvalidMessage(f"values are encoded as {' or '.join(ENCODINGS)}, or not at all, not as {encoding!r}")
        if len(choices) > MAX_CHOICES:
            raise InvalidMessage(f"{len(choices):,} choices in one pull: {MAX_CHOICES:,} at most")
        for choice in choices:
            variable, rows = self[choice.name], choice.rows
            if rows is not None and (rows.ndim != 1 or rows.dtype.kind not in "iu"):
                raise InvalidMessage(
                    f"rows of {choice.name!r} are integers of shape (n,), not {rows.dtype.name}{list(rows.shape)}"
                )
            variable.chosen_spec(choice)

    def read(
        self,
        message: ms.Pull | ms.Push,
        names: Sequence[str],
        choices: Sequence[ms.Choice],
        result: StepResult,
        allocator: ms.Allocator | None,
        of_cut: Mapping[str, Variable] | None = None,
    ) -> tuple[ms.Value, ...]:
        """Read-only copies of these variables and choices, as a message asks; complete when the tasks have run.

        A value at its known version has no array. Only float32 is encoded. `allocator` is not used for delay
        compensation, which keeps the copies. With `of_cut` the values are those of the variables of a cut.
        """
        encoding, worker = message.encoding, message.sender.worker
        variables, keep = (self.variables, self.strength) if of_cut is None else (of_cut, 0.0)
        if keep:
            allocator = None
        values = []
        for name, version in zip(names, message.known_versions or repeat(-1), strict=False):
            variable = variables[name]
            if variable.version == version:
                values.append(ms.Value(name, version, None))
            else:
                values.append(self._copy(variable, None, result, encoding, allocator))
        for choice in choices:
            values.append(self._copy(variables[choice.name], choice, result, encoding, allocator))
        if keep:
            free = self._memory.free
            for choice, value in zip(choices, values[len(names) :], strict=True):
                if not choice.slot:
                    self.served.keep(worker, value, free, choice.rows)
            for value in values[: len(names)]:
                self.served.keep(worker, value, free)
        return tuple(values)

    def _copy(
        self,
        variable: Variable,
        choice: ms.Choice | None,
        result: StepResult,
        encoding: str,
        allocator: ms.Allocator | None,
    ) -> ms.Value:
        spec = variable.spec if choice is None else variable.chosen_spec(choice)
        slot, rows = ("", None) if choice is None else (choice.slot, choice.rows)
        if spec.dtype != "float32":
            encoding = ""
        layout = TensorSpec(spec.name, spec.shape, INT16.name) if encoding else spec
        out = None if allocator is None else allocator.take(layout)
        if out is None:
            out = np.empty(layout.shape, DTYPES[layout.dtype])
        copy = Copy(variable, slot, rows, encoding, out)
        cost = out.nbytes // 4  # relative to a rule that processes as many bytes
        parts = (copy.part, out.size) if rows is None else ()
        result.tasks.append(ArrayTask(spec.name, cost, copy.run, *parts))
        result.bytes_out += out.nbytes
        variable.bytes_out += out.nbytes
        view = out.view()
        view.flags.writeable = False
        return ms.Value(spec.name, variable.version, Packed(encoding, spec.shape, (view,)) if encoding else view)

    def answer_bytes(self, message: ms.Message, *, modified: bool) -> int:
        """As `Shard.answer_bytes`; unless `modified`, only the message itself changes variables before its answer."""
        if isinstance(message, ms.Register) and not message.dry_run:
            return sum([one.spec.nbytes for one in message.declarations if not self.is_table(one)])
        if not isinstance(message, ms.Push | ms.Pull):
            return 0
        gradients = message.gradients if isinstance(message, ms.Push) else ()
        names, choices = (message.pull, ()) if isinstance(message, ms.Push) else (message.names, message.choices)
        changed = {gradient.name for gradient in gradients}
        total = 0
        for name, version in zip(names, message.known_versions or repeat(-1), strict=False):
            variable = self[name]
            if modified or variable.version != version or name in changed:
                total += ms.whole_bytes(variable.spec, message.encoding)
        for choice in choices:
            total += ms.whole_bytes(self[choice.name].chosen_spec(choice), message.encoding)
        return total

    # --- registration ---------------------------------------------------------------------------------------------

    def is_table(self, declaration: ms.Declaration) -> bool:
        """Whether the declared variable is a table, or will be."""
        known = self.variables.get(declaration.spec.name)
        return declaration.initial is not None if known is None else known.initial is not None

    def check_declarations(
        self, declarations: Iterable[ms.Declaration], *, dry_run: bool = False, new_places: int = 0
    ) -> None:
        """Raise if `declare` cannot do one of them, or there is no memory for so many `new_places` of variables.

        In a `dry_run` the initial values may be left out.
        """
        names: set[str] = set()
        needed = new = 0
        for declaration in declarations:
            spec = declaration.spec
            if spec.name in names:
                raise InvalidMessage(f"variable {spec.name!r} is declared twice in one message")
            names.add(spec.name)
            if declaration.value is not None:
                check_tensor(spec, declaration.value, "initial value")
            known = self.variables.get(spec.name)
            needed += declared_bytes(declaration, dry_run) if known is None else agreed_bytes(known, declaration)
            new += known is None
        count, places = len(self.variables), self._invariants.places
        needed += object_bytes(count + new, places + new_places) - object_bytes(count, places)
        if needed and needed > self._memory.free:
            if needed <= self._memory.free + (copied := self._memory.passing):
                raise Unavailable(
                    f"variables {join_names(sorted(names))} with their slots need {needed:,} bytes more, and a "
                    f"checkpoint that is being written holds {copied:,}: try again when it is written"
                )
            raise TooLarge(
                f"variables {join_names(sorted(names))} with their slots need {needed:,} bytes more; this shard holds "
                f"{self.nbytes:,} and may hold {self._memory.limit:,}: use more shards, or raise --memory-limit"
            )

    def check_held_pushes(self, pushes: int, declarations: Iterable[ms.Declaration]) -> None:
        """Raise `TooLarge` unless this many pushes and their answers fit into the memory for transfers.

        These are as many as for variables (`psserver.config`). Of tables only rows travel.
        """
        if self._memory.limit is None:
            return
        plain = {one.spec.name: one.spec.nbytes for one in declarations if not self.is_table(one)}
        needed = 2 * pushes * (self._plain_bytes + sum([plain[name] for name in plain if name not in self.variables]))
        if needed > self._memory.limit:
            raise TooLarge(
                f"this shard holds {pushes} pushes until they make an update together: that needs {needed:,} bytes of "
                f"transfers with variable {next(reversed(plain), 'none')!r}, and there may be {self._memory.limit:,}: "
                "raise --memory-limit, use more shards, or a smaller N in --consistency sync:N"
            )

    def declare(
        self, declarations: Iterable[ms.Declaration], magnitudes: Magnitudes, result: StepResult
    ) -> list[Changed]:
        """Create new variables with initial values of these magnitudes, and slots for their optimizers.

        Returns the optimizers that have replaced earlier ones.
        """
        changed: list[Changed] = []
        for declaration in declarations:
            spec, optimizer = declaration.spec, declaration.optimizer
            variable = self.variables.get(spec.name)
            if variable is None:
                value = np.empty(spec.shape, DTYPES[spec.dtype])
                variable = Variable(spec, value, declaration.initial, declaration.part)
                self.variables[spec.name] = variable
                self.nbytes += variable.nbytes
                self._plain_bytes += 0 if variable.initial is not None else spec.nbytes
                first = magnitudes[spec.name] if variable.initial is None else variable.initial.max_magnitude
                variable.replaced(first)
                part = partial(initialize, value, declaration)
                cost = spec.nbytes if variable.initial is None else value.size * variable.initial.cost
                whole = partial(part, 0, value.size)
                result.tasks.append(ArrayTask(spec.name, cost, whole, part, value.size, initial=True))
            if optimizer is not None and is_next_optimizer(variable, declaration):
                if variable.optimizer is not None:
                    _note(changed, optimizer, spec.name)
                    if variable.copy is not None:
                        variable.copy.start(result)
                before = variable.nbytes
                variable.declared, variable.stage, variable.updates = optimizer, declaration.stage, 0
                rule = variable.follow(optimizer)
                variable.slot_specs = slot_specs(variable.spec, optimizer)
                self.nbytes += variable.nbytes - before
                make = partial(variable.make_slots, rule)
                result.tasks.append(ArrayTask(spec.name, variable.nbytes, make, initial=True))
        return changed

    def check_tune(self, message: ms.Tune) -> None:
        """Raise if a variable has no optimizer of this kind, or would need other slots."""
        for name in message.names:
            variable = self[name]
            if variable.optimizer is None:
                raise NoOptimizer(f"variable {name!r} has no optimizer whose hyperparameters could change")
            if message.optimizer.kind != variable.optimizer.kind:
                raise InvalidMessage(
                    f"variable {name!r} has the optimizer {variable.optimizer.kind}, and keeps it: its hyperparameters "
                    f"can change, but not to those of {message.optimizer.kind}"
                )
            try:
                optimizer = tuned(variable, message)
            except (TypeError, ValueError) as error:
                raise InvalidMessage(f"variable {name!r}: {error}") from None
            if slot_specs(variable.spec, optimizer) != variable.slot_specs:
                raise InvalidMessage(
                    f"variable {name!r} has the slots {', '.join(variable.slot_specs) or 'none'}, and {optimizer} "
                    "would need others: this can be chosen only when the variable is registered"
                )

    def tune(self, message: ms.Tune) -> UpdateSpec:
        """Change hyperparameters for all later updates; returns the resulting optimizer of the last variable."""
        optimizer = message.optimizer
        for name in message.names:
            variable = self.variables[name]
            optimizer = tuned(variable, message)
            variable.follow(optimizer)
        return optimizer

    def check_scaled(self, factor: float) -> None:
        """Raise `InvalidMessage` if a learning rate times `factor` is none."""
        if not 0 < factor < math.inf:
            raise InvalidMessage(f"learning rates can be multiplied by a finite number above 0, got {factor}")
        for variable in self:
            optimizer = variable.optimizer
            if isinstance(optimizer, OptimizerSpec) and math.isinf(largest_rate(optimizer.learning_rate) * factor):
                raise InvalidMessage(f"the learning rate of {variable.spec.name!r} times {factor} is no number")

    def scale_learning_rates(self, factor: float) -> list[Changed]:
        """Multiply all learning rates for later updates; the new optimizers."""
        changed: list[Changed] = []
        for name, variable in self.variables.items():
            if isinstance(variable.optimizer, OptimizerSpec):
                rate = scaled_rate(variable.optimizer.learning_rate, factor)
                optimizer = dataclasses.replace(variable.optimizer, learning_rate=rate)
                variable.follow(optimizer)
                _note(changed, optimizer, name)
        return changed

    # --- changes --------------------------------------------------------------------------------------------------

    def is_checked(self, magnitudes: Magnitudes) -> bool:
        """Whether a change of these variables together, by arrays of these magnitudes, is checked."""
        for name, magnitude in magnitudes.items():
            variable = self.variables[name]
            limits = variable.limits
            if variable.growth >= CHECKED_FROM or (limits is not None and not magnitude <= limits.gradient / 2):
                return True  # the other half is for the delay compensation
        return False

    def check_gradients(self, gradients: Iterable[ms.Gradient]) -> None:
        """Check names, optimizers, shapes, dtypes and versions."""
        names: set[str] = set()
        for gradient in gradients:
            name, array = gradient.name, gradient.array
            variable = self.variables.get(name) or self[name]
            if name in names:
                raise InvalidMessage(f"two gradients for variable {name!r} in one push: add them up first")
            names.add(name)
            if variable.optimizer is None:
                raise NoOptimizer(f"variable {name!r} has no optimizer: register it with one before a push")
            if array.shape != variable.spec.shape or array.dtype != variable.value.dtype:
                check_tensor(variable.spec, array, variable.optimizer.pushed_noun)
            if gradient.version > variable.version:
                raise InvalidMessage(
                    f"gradient for {name!r} at version {gradient.version}, but the variable is at "
                    f"{variable.version}: the server has lost state since; register again"
                )

    def update(
        self,
        pushes: Iterable[ms.Push],
        count: int,
        global_step: int,
        scale: float,
        magnitudes: Magnitudes,
        result: StepResult,
        factors: Sequence[float] = (),
    ) -> None:
        """Update each variable that has a gradient, by its rule with these gradients in one and `scale` of its rate.

        `count`: of the pushes of the update, also those of which only other shards have a part. `factors`: what the
        gradients of each push are multiplied by; none: 1.

        A checked update runs all tasks, and is done when this returns. If it raises `NotFinite`, nothing has changed.
        """
        contributions: dict[str, list[Contribution]] = {}
        for push, factor in zip(pushes, factors or repeat(1.0), strict=False):
            for gradient in push.gradients:
                served = self.served.find(push.sender.worker, gradient) if self.strength else None
                own = factor if factor == 1.0 or is_gradient(self.variables[gradient.name]) else 1.0
                contributions.setdefault(gradient.name, []).append((gradient, served, own))
        aggregate = None if count == 1 or isinstance(self._aggregate, Mean) else self._aggregate
        updates = []
        for name, mine in contributions.items():
            variable = self.variables[name]
            if variable.copy is not None:
                variable.copy.start(result)
            rule, schedule = variable.rule, variable.schedule
            assert rule is not None, "check_gradients was not called"
            rate = variable.learning_rate if schedule is None else schedule.at(global_step)
            step = Step(variable.updates + 1, global_step, scale * rate)
            updates.append(Update(variable, rule, mine, self.strength, step, aggregate, count))
        checked = result.settled and self.is_checked(magnitudes)
        if checked:
            run(result.tasks)
            result.tasks.clear()
            update_checked(updates)
            result.checked += updates
        for update in updates:
            variable = update.variable
            if not checked:
                result.tasks.append(update.task())
                variable.growth += variable.share
            variable.updates += 1
            variable.version += 1

    def check_assignments(self, assignments: Iterable[ms.Assignment]) -> None:
        """Check names, shapes, dtypes and rows."""
        names: set[str] = set()
        for assignment in assignments:
            spec, array, first = self[assignment.name].spec, assignment.array, assignment.first_row
            if first is not None:
                if not (spec.shape and array.ndim and 0 <= first <= spec.shape[0] - len(array)):
                    rows = f"{array.dtype.name}{list(array.shape)}"
                    raise InvalidMessage(f"variable {spec} has no rows {rows} from row {first} on")
                spec = TensorSpec(spec.name, (len(array), *spec.shape[1:]), spec.dtype)
            check_tensor(spec, array, "assigned value")
            if assignment.name in names:
                raise InvalidMessage(f"two values for variable {assignment.name!r} in one assign")
            names.add(assignment.name)

    def assign(self, message: ms.Assign, magnitudes: Magnitudes, result: StepResult) -> tuple[int, ...]:
        """Set values, or add to them; returns the new versions. If it raises `NotFinite`, nothing has changed."""
        arrays, targets, add = {}, {}, message.add
        for one in message.assignments:
            variable = self.variables[one.name]
            if variable.copy is not None:
                variable.copy.start(result)
            name, value, first = one.name, variable.value, one.first_row
            arrays[name] = one.array
            targets[name] = value if first is None else value[first : first + len(one.array)]
        if add and result.settled and self.is_checked(magnitudes):
            run(result.tasks)
            result.tasks.clear()
            with np.errstate(all="ignore"):
                arrays = {name: np.asarray(targets[name] + array) for name, array in arrays.items()}
            what = "sum of the value and what is added"
            add, magnitudes = False, {name: check_finite(name, total, what) for name, total in arrays.items()}
        versions = []
        for name, array in arrays.items():
            variable = self.variables[name]
            change = partial(add_to if add else np.copyto, targets[name], array)
            result.tasks.append(ArrayTask(name, array.nbytes, change))
            if add:
                variable.growth += ADDITION_GROWTH
            else:
                variable.replaced(magnitudes[name])
            variable.version += 1
            versions.append(variable.version)
        return tuple(versions)

    def wait_for(self, names: Iterable[str], result: StepResult) -> None:
        """Have the reply wait for all tasks of these variables so far."""
        result.tasks += [ArrayTask(name, 0, _nothing) for name in names]


def _note(changed: list[Changed], optimizer: UpdateSpec, name: str) -> None:
    if changed and changed[-1][0] == optimizer:
        changed[-1][1].append(name)
    else:
        changed.append((optimizer, [name]))


def _nothing() -> None:
    """The work of a task that others wait for."""


def object_bytes(variables: int, places: int) -> int:
    """The memory that counts for variables and places, besides elements."""
    return max(0, variables - UNCOUNTED) * VARIABLE_BYTES + max(0, places - UNCOUNTED) * PLACE_BYTES
