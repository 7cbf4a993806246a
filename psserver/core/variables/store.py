"""The variables of a shard: values, versions, optimizers and slots.

Checks come apart from changes, so that a message over several variables is whole or not at all: first every
`check_...` (which raises and changes nothing), then the change (which cannot fail). A change counts at once; what it
does to arrays is given out as tasks (`psserver.core.array_tasks`). Knows nothing of workers.

A change whose result may not be finite is no task, but done at once if it is
(`psserver.core.variables.guarded_updates`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from psserver.core.array_tasks import ArrayTask, run
from psserver.core.variables.delay_compensation import Backup
from psserver.core.variables.element_checks import check_finite, check_tensor
from psserver.core.variables.guarded_updates import AN_ADDITION, Guards, Magnitudes, add_to
from psserver.core.variables.reads import copied
from psserver.core.variables.registration import agreed_bytes, begin, declared_bytes, make_slots, slot_specs, tuned
from psserver.core.variables.updates import Update
from psserver.core.variables.variable import Variable
from pswire.errors import InvalidMessage, NoOptimizer, TooLarge, UnknownVariable
from pswire.messages import Assignment, Choice, Declaration, Gradient, Tune, Value
from pswire.messages.sizes import Allocator
from pswire.optimizers import OptimizerSpec, Step, UpdateSpec
from pswire.specs.encodings import ENCODINGS
from pswire.specs.schedules import rate
from pswire.tensors.values import DTYPES, IndexedSlices, magnitude

#: Choices that a pull may have: each costs some microseconds, in which nothing else is served.
MOST_CHOICES = 1000

#: A gradient of a push, and the weights that it was computed with, if it is to be compensated for its delay.
Contribution: TypeAlias = tuple[Gradient, Backup | None]


class Store:
    """The variables by name. What changes or reads arrays appends what is to be done to the `tasks` it is given.

    Args:
        memory_limit: bytes that values and slots may take; None: no limit.
        strength: of the compensation for delay, of gradients that come with a backup.

    Attributes:
        guards: which changes are guarded.
    """

    def __init__(self, memory_limit: int | None = None, strength: float = 0.0) -> None:
        self._variables: dict[str, Variable] = {}
        self._memory_limit = memory_limit
        self._strength = strength
        self.guards = Guards(self._variables)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables.values())

    def __getitem__(self, name: str) -> Variable:
        variable = self._variables.get(name)
        if variable is None:
            raise UnknownVariable(
                f"no variable {name!r} among the {len(self._variables)} of this shard: register it first"
            )
        return variable

    @property
    def nbytes(self) -> int:
        """Bytes of all values and slots."""
        return sum(variable.nbytes for variable in self)

    @property
    def room(self) -> float:
        """Bytes that are left of the memory limit."""
        return math.inf if self._memory_limit is None else self._memory_limit - self.nbytes

    def is_table(self, declaration: Declaration) -> bool:
        """Whether what is declared is a table, or will be."""
        known = self._variables.get(declaration.spec.name)
        return declaration.initial is not None if known is None else known.initial is not None

    # --- reading --------------------------------------------------------------------------------------------------

    def check_names(self, names: Sequence[str], known_versions: Sequence[int], encoding: str) -> None:
        """Raises `UnknownVariable` unless there is a variable for each, `InvalidMessage` if the rest does not fit."""
        for name in names:
            self[name]
        if known_versions and len(known_versions) != len(names):
            raise InvalidMessage(
                f"{len(names)} names and {len(known_versions)} versions: name one for each, "
                "-1 for none, or no version at all"
            )
        if encoding and encoding not in ENCODINGS:
            raise InvalidMessage(f"values come as they are, or as {' or '.join(ENCODINGS)}, not as {encoding!r}")

    def check_choices(self, choices: Sequence[Choice]) -> None:
        """Checks their number, names, slots, and the dtype and shape of row numbers."""
        if len(choices) > MOST_CHOICES:
            raise InvalidMessage(f"{len(choices):,} choices in one pull: {MOST_CHOICES:,} at most")
        for choice in choices:
            variable, rows = self[choice.name], choice.rows
            if rows is not None and (rows.ndim != 1 or rows.dtype.kind not in "iu"):
                raise InvalidMessage(
                    f"rows of {choice.name!r} are integers of shape (n,), not {rows.dtype.name}{list(rows.shape)}"
                )
            variable.chosen_spec(choice)

    def check_rows(self, choices: Iterable[Choice]) -> None:
        """Raises `InvalidMessage` for a row that its variable has not. Call `check_choices` first."""
        for choice in choices:
            if choice.rows is not None and choice.rows.size:
                rows = self._variables[choice.name].spec.shape[0]
                low, high = choice.rows.min(), choice.rows.max()
                if not 0 <= low <= high < rows:
                    raise InvalidMessage(
                        f"rows of {choice.name!r} must be in 0 ... {rows - 1}, but they span {low} ... {high}"
                    )

    def read(
        self,
        names: Iterable[str],
        tasks: list[ArrayTask],
        *,
        known_versions: Sequence[int] = (),
        encoding: str = "",
        allocator: Allocator | None = None,
    ) -> tuple[Value, ...]:
        """The values of `names`, in their order: copies, read-only, once the tasks are done.

        No copy, and no array, of what is still at the version that the asker has. `encoding` and `allocator` are as in
        `copied`.
        """
        found = [self[name] for name in names]
        if not known_versions:
            return tuple([copied(one, one.spec, tasks, encoding=encoding, allocator=allocator) for one in found])
        return tuple(
            [
                Value(one.spec.name, version, None)
                if one.version == version
                else copied(one, one.spec, tasks, encoding=encoding, allocator=allocator)
                for one, version in zip(found, known_versions, strict=True)
            ]
        )

    def choose(
        self,
        choices: Iterable[Choice],
        tasks: list[ArrayTask],
        *,
        encoding: str = "",
        allocator: Allocator | None = None,
    ) -> tuple[Value, ...]:
        """What was chosen, in its order, as `read` gives it; the version is that of the variable."""
        found = [(self[one.name], one) for one in choices]
        return tuple(
            [
                copied(
                    variable,
                    variable.chosen_spec(one),
                    tasks,
                    slot=one.slot,
                    rows=one.rows,
                    encoding=encoding,
                    allocator=allocator,
                )
                for variable, one in found
            ]
        )

    # --- registration ---------------------------------------------------------------------------------------------

    def check_declarations(self, declarations: Iterable[Declaration], *, dry_run: bool = False) -> None:
        """Raises if one of them cannot be: see `declare`. What is `dry_run` may come without its initial values."""
        names: set[str] = set()
        wanted = 0
        for declaration in declarations:
            spec = declaration.spec
            if spec.name in names:
                raise InvalidMessage(f"variable {spec.name!r} is declared twice in one message")
            names.add(spec.name)
            known = self._variables.get(spec.name)
            if declaration.value is not None:
                check_tensor(spec, declaration.value, "initial value")
            if known is None:
                wanted += declared_bytes(declaration, dry_run=dry_run)
            else:
                wanted += agreed_bytes(known, declaration)
        if self._memory_limit is not None and wanted and self.nbytes + wanted > self._memory_limit:
            raise TooLarge(
                f"variables {', '.join(sorted(names))} with their slots need {wanted:,} bytes more; this shard holds "
                f"{self.nbytes:,} and may hold {self._memory_limit:,}: use more shards, or raise --memory-limit"
            )

    def check_room_for(self, pushes: int, declarations: Iterable[Declaration]) -> None:
        """Raises `TooLarge` unless so many pushes of all variables can be held at a time, each with its answer.

        What is under way may take as many bytes as the variables may (`psserver.config`). Of tables only rows travel.
        """
        if self._memory_limit is None:
            return
        specs = {variable.spec.name: variable.spec for variable in self if variable.initial is None}
        specs |= {one.spec.name: one.spec for one in declarations if not self.is_table(one)}
        needed = 2 * pushes * sum([spec.nbytes for spec in specs.values()])
        if needed > self._memory_limit:
            raise TooLarge(
                f"this shard holds {pushes} pushes until they make an update together: that needs {needed:,} bytes for "
                f"what is under way with variable {next(reversed(specs))!r}, and there may be {self._memory_limit:,}: "
                "raise --memory-limit, use more shards, or a smaller N in --consistency sync:N"
            )

    def declare(self, declarations: Iterable[Declaration], tasks: list[ArrayTask], magnitudes: Magnitudes) -> None:
        """Creates what is new, with its initial value, and gives variables their optimizers' slots.

        Call `check_declarations` first; after it this cannot fail. `magnitudes` are those of the initial values.
        """
        for declaration in declarations:
            spec = declaration.spec
            variable = self._variables.get(spec.name)
            if variable is None:
                value = np.empty(spec.shape, DTYPES[spec.dtype])
                variable = Variable(spec, value, declaration.initial, declaration.part)
                self._variables[spec.name] = variable
                first = magnitudes[spec.name] if variable.initial is None else variable.initial.largest
                self.guards.replaced(variable, first)
                tasks.append(ArrayTask(spec.name, spec.nbytes, partial(begin, value, declaration)))
            if declaration.optimizer is not None and variable.optimizer is None:
                self._give_optimizer(variable, declaration.optimizer, tasks)

    def _give_optimizer(self, variable: Variable, optimizer: UpdateSpec, tasks: list[ArrayTask]) -> None:
        variable.declared = optimizer
        rule = variable.follow(optimizer)
        self.guards.grown(variable, 0.0 if math.isfinite(variable.share) else math.inf)
        variable.slot_specs = slot_specs(variable.spec, optimizer)
        tasks.append(ArrayTask(variable.spec.name, variable.nbytes, partial(make_slots, variable, rule)))

    def check_tune(self, message: Tune) -> None:
        """Raises if a variable has no optimizer of this kind, or would need other slots."""
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
                    "would need others: this can be chosen at the start only"
                )

    def tune(self, message: Tune) -> UpdateSpec:
        """Updates from now on follow the new hyperparameters; returns what the last of the variables has by now."""
        optimizer = message.optimizer
        for name in message.names:
            variable = self._variables[name]
            optimizer = tuned(variable, message)
            variable.follow(optimizer)
            self.guards.grown(variable, math.inf)  # slots may be far from what the new hyperparameters make
        return optimizer

    # --- updates --------------------------------------------------------------------------------------------------

    def check_gradients(self, gradients: Iterable[Gradient]) -> None:
        """Checks names, optimizers, shapes, dtypes and versions."""
        names: set[str] = set()
        for gradient in gradients:
            variable = self[gradient.name]
            if gradient.name in names:
                raise InvalidMessage(f"two gradients for variable {gradient.name!r} in one push: add them up first")
            names.add(gradient.name)
            if variable.optimizer is None:
                raise NoOptimizer(f"variable {gradient.name!r} has no optimizer: register it with one before a push")
            check_tensor(variable.spec, gradient.array, variable.optimizer.pushed)
            if gradient.version > variable.version:
                raise InvalidMessage(
                    f"gradient for {gradient.name!r} at version {gradient.version}, but the variable is at "
                    f"{variable.version}: the server has lost state since; register again"
                )

    def check_elements(self, gradients: Iterable[Gradient]) -> Magnitudes:
        """Raises `NotFinite` as `check_finite` does, and `InvalidMessage` for a row that its variable has not.

        Call `check_gradients` first. Returns the magnitudes; of rows, that of the sum of any of them.
        """
        magnitudes = {}
        for gradient in gradients:
            array, optimizer = gradient.array, self._variables[gradient.name].optimizer
            together = 1.0
            assert optimizer is not None, "check_gradients was not called"
            if isinstance(array, IndexedSlices):
                try:
                    array.check_indices()
                except ValueError as error:
                    raise InvalidMessage(f"{optimizer.pushed} for {gradient.name!r}: {error}") from None
                together = math.sqrt(len(array.indices))  # by the inequality of Cauchy and Schwarz
                array = array.values
            magnitudes[gradient.name] = together * check_finite(gradient.name, array, optimizer.pushed)
        return magnitudes

    def staleness(self, gradients: Iterable[Gradient]) -> int:
        """The most changes that a gradient has missed: those of its variable since its weights were served."""
        return max([self._variables[one.name].version - one.version for one in gradients], default=0)

    def update(
        self,
        pushes: Sequence[Sequence[Contribution]],
        global_step: int,
        scale: float,
        tasks: list[ArrayTask],
        magnitudes: Magnitudes,
    ) -> None:
        """One update of each variable that has a gradient, the mean of all that it has, by its rule.

        Gradients must have been checked, also for being finite. A guarded update is done when this returns, and so are
        all tasks.

        Args:
            pushes: the gradients of each.
            global_step: how many updates there were before: learning rates are what they are at that step.
            scale: learning rates are multiplied by it; 1 at most.
            tasks: gets what is to be done.
            magnitudes: of each variable's gradients, the largest.

        Raises:
            NotFinite: of a guarded update, elements of a value or a slot would not be finite; nothing has changed.
        """
        found: dict[str, list[Contribution]] = {}
        for push in pushes:
            for contribution in push:
                found.setdefault(contribution[0].name, []).append(contribution)
        updates = {name: self._update(name, contributions, global_step, scale) for name, contributions in found.items()}
        guarded = self.guards.settled and self.guards.needed(magnitudes)
        if guarded:
            run(tasks)
            tasks.clear()
            self.guards.update(updates)
        for name, update in updates.items():
            variable = self._variables[name]
            if not guarded:
                tasks.append(update.task(name))
                self.guards.grown(variable, variable.share)
            variable.updates += 1
            variable.version += 1

    def _update(self, name: str, contributions: list[Contribution], global_step: int, scale: float) -> Update:
        variable = self._variables[name]
        optimizer, rule = variable.optimizer, variable.rule
        assert rule is not None, "check_gradients was not called"
        assert optimizer is not None, "a rule comes with its optimizer"
        learning_rate = 1.0
        if isinstance(optimizer, OptimizerSpec):
            learning_rate = scale * rate(optimizer.learning_rate, global_step)
        step = Step(variable.updates + 1, global_step, learning_rate)
        return Update(variable, rule, contributions, self._strength, step)

    def check_assignments(self, assignments: Iterable[Assignment]) -> None:
        """Checks names, shapes and dtypes."""
        names: set[str] = set()
        for assignment in assignments:
            check_tensor(self[assignment.name].spec, assignment.array, "assigned value")
            if assignment.name in names:
                raise InvalidMessage(f"two values for variable {assignment.name!r} in one assign")
            names.add(assignment.name)

    def assign(
        self,
        assignments: Sequence[Assignment],
        tasks: list[ArrayTask],
        add: bool,
        magnitudes: Magnitudes,
    ) -> tuple[int, ...]:
        """Sets values, or adds to them; returns the new versions. What is guarded is done when this returns.

        Raises:
            NotFinite: a sum would not be; nothing has changed.
        """
        if add and self.guards.settled and self.guards.needed(magnitudes):
            run(tasks)
            tasks.clear()
            assignments, add = self.guards.sums(assignments), False
            magnitudes = {one.name: magnitude(one.array) for one in assignments}
        versions = []
        for assignment in assignments:
            variable = self._variables[assignment.name]
            change = partial(add_to if add else np.copyto, variable.value, assignment.array)
            tasks.append(ArrayTask(assignment.name, assignment.array.nbytes, change))
            if add:
                self.guards.grown(variable, AN_ADDITION)
            else:
                self.guards.replaced(variable, magnitudes[assignment.name])
            variable.version += 1
            versions.append(variable.version)
        return tuple(versions)
