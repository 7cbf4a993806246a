"""Mutants of update rules and learning rates."""

import math
from dataclasses import replace

import numpy as np

from pswire.optimizers import Momentum
from tests.tools.mutant_plugin import mutant

RULES = "tests/unit/pswire/optimizers/test_rules.py"
SCHEDULES = "tests/unit/pswire/specs/test_schedules.py"
CHECKED = "tests/unit/psserver/core/test_checked_updates.py"
CUSTOM = "tests/unit/pswire/optimizers/test_custom.py"
ADAM = "pswire.optimizers.adam"


@mutant(
    "Adam counts its updates from 0",
    f"{ADAM}:Adam._numbers",
    f"{RULES}::test_a_rule_follows_its_formula_and_numpy_compiled_and_all_rows_have_the_same_bits",
)
def _(original, self, step, tiny):
    return original(self, replace(step, number=step.number + 1), tiny)


@mutant(
    "AdamW's decay does not follow the learning rate",
    f"{ADAM}:AdamW._numbers",
    f"{RULES}::test_a_rule_follows_its_formula_and_numpy_compiled_and_all_rows_have_the_same_bits",
)
def _(original, self, step, tiny):
    return *original(self, step, tiny)[:-1], 1 - self.weight_decay


@mutant(
    "Nesterov's momentum looks one step back",
    "pswire.optimizers.momentum:Momentum._block",
    f"{RULES}::test_a_rule_follows_its_formula_and_numpy_compiled_and_all_rows_have_the_same_bits",
)
def _(original, self, w, g, scratch, slots, *numbers):
    original(self, w, g, scratch, slots, *numbers[:2], 0.0)


@mutant(
    "Rows that are not adjacent are not written back",
    "pswire.optimizers.element_wise:row_blocks",
    f"{RULES}::test_a_rule_follows_its_formula_and_numpy_compiled_and_all_rows_have_the_same_bits",
)
def _(original, value, slots, rows):
    for part, part_slots, gradient in original(value, slots, rows):
        adjacent = np.shares_memory(part, value)
        yield part if adjacent else part.copy(), part_slots, gradient


@mutant(
    "Updates of custom optimizers are ordinary",
    "psserver.core.variables.variable:ordinary_growth",
    f"{CUSTOM}::test_an_update_that_is_not_finite_or_raises_changes_nothing_of_any_variable_and_training_goes_on",
)
def _(original, spec, limits):
    return original(Momentum(0.1), limits)


@mutant(
    "Updates of any hyperparameters are ordinary",
    "psserver.core.variables.variable:ordinary_growth",
    f"{CHECKED}::test_after_any_push_all_is_finite_or_it_was_refused_and_nothing_has_changed_with_numba_and_without[30]",
)
def _(original, spec, limits):
    return math.inf if limits is None else 1e-10


@mutant(
    "After a warm-up the schedule begins at the step of the job",
    "pswire.specs.schedules:WarmUp.at",
    f"{SCHEDULES}::test_a_warm_up_rises_evenly_and_its_schedule_begins_where_it_ends",
)
def _(original, self, step):
    return original(self, step if step < self.steps else step + self.steps)
