"""Mutants of the store: updates, checked changes, delay compensation and memory."""

import functools
import math
import operator
from dataclasses import replace

import numpy as np

from pswire.optimizers.optimizer import CHECKED_FROM
from tests.tools.mutant_plugin import mutant, scenario, without

STORE = "psserver.core.variables.store:Store"
SERVED = "psserver.core.variables.delay_compensation:ServedWeightsCache"
TASKS = "psserver.core.variables.array_tasks"
UPDATES = "tests/unit/psserver/core/test_updates.py"
GROWTH = "tests/unit/psserver/core/test_growth_of_a_job.py"
AGGREGATION = "tests/unit/psserver/core/test_aggregation.py"
UNRELIABLE = "tests/simulation/test_unreliable_transport.py"


@mutant(
    "A gradient of a version that the variable never had is taken", f"{STORE}.check_gradients", scenario("bad_pushes")
)
def _(original, self, gradients):
    original(self, [replace(one, version=0) for one in gradients])


@mutant("Rows may be assigned behind the end of the variable", f"{STORE}.check_assignments", scenario("assign"))
def _(original, self, assignments):
    original(self, [replace(one, first_row=one.first_row and 0) for one in assignments])


@mutant("The learning rate of a stale push is not scaled", f"{STORE}.update", scenario("stale_pushes"))
def _(original, self, pushes, count, global_step, scale, *rest):
    original(self, pushes, count, global_step, 1.0, *rest)


@mutant(
    "One push of a group is lost",
    f"{STORE}.update",
    f"{UNRELIABLE}::test_held_and_dropped_pushes_count_once_too_and_none_has_more_staleness_than_promised[0-sync:3-none-0-1]",
)
def _(original, self, pushes, *rest):
    original(self, list(pushes)[:2], *rest)


@mutant("Gradients of any magnitude are ordinary", f"{STORE}.is_checked", scenario("assign"))
def _(original, self, magnitudes):
    return any(self.variables[name].growth >= CHECKED_FROM for name in magnitudes)


@mutant(
    "Of a refused push the variables before the faulty one are changed", f"{TASKS}:update_checked", scenario("checked")
)
def _(original, updates):
    for update in updates:
        original([update])


without("The results of checked updates are not checked", f"{TASKS}:check_result", scenario("checked"))


@mutant(
    "New hyperparameters are ordinary from the first update on",
    "psserver.core.variables.variable:Variable.follow",
    scenario("checked_waits"),
)
def _(original, self, optimizer):
    growth = self.growth
    rule = original(self, optimizer)
    self.growth = growth if math.isfinite(self.share) else math.inf
    return rule


@mutant(
    "The mean of gradients is their sum",
    f"{TASKS}:mean",
    f"{UPDATES}::test_an_update_of_several_gradients_takes_their_mean_rows_or_arrays",
)
def _(original, gradients):
    return original(gradients) / (1 / len(gradients))


@mutant(
    "float16 gradients are added in float16",
    f"{TASKS}:mean",
    f"{UPDATES}::test_an_update_of_several_gradients_takes_their_mean_rows_or_arrays",
)
def _(original, gradients):
    with np.errstate(all="ignore"):
        return functools.reduce(operator.add, gradients) / len(gradients)


@mutant(
    "Rows that a push has not touched are left out of the median",
    "psserver.core.variables.aggregation:robust",
    f"{AGGREGATION}::test_the_aggregate_of_arrays_is_that_of_numpy_and_absent_ones_are_zero",
)
def _(original, gradients, aggregate, pushes):
    return original(gradients, aggregate, len(gradients))


# --- delay compensation -----------------------------------------------------------------------------------------------


@mutant(
    "A gradient of other weights than those served last is compensated",
    f"{SERVED}.find",
    scenario("delay_compensation"),
)
def _(original, self, worker, gradient):
    return self._served.get(worker, {}).get(gradient.name)


@mutant(
    "The correction for delay has no bound",
    "psserver.core.variables.delay_compensation:corrected",
    scenario("delay_compensation_rows"),
)
def _(original, gradient, moved, strength):
    with np.errstate(all="ignore"):
        return gradient + strength * gradient * gradient * moved


# --- optimizers -------------------------------------------------------------------------------------------------------


@mutant(
    "A worker that is behind gives a variable its earlier optimizer back",
    "psserver.core.variables.variable:is_next_optimizer",
    scenario("next_optimizer"),
)
def _(original, known, declaration):
    return original(known, replace(declaration, stage=10**9))


@mutant(
    "The slots of an earlier optimizer stay",
    "psserver.core.variables.variable:Variable.make_slots",
    scenario("next_optimizer"),
)
def _(original, self, rule):
    if not self.slots:
        original(self, rule)


# --- memory -----------------------------------------------------------------------------------------------------------


@mutant(
    "Slots take no memory",
    f"{STORE}.declare",
    f"{GROWTH}::test_bytes_are_counted_as_variables_come_and_not_added_up_each_time",
)
def _(original, self, declarations, magnitudes, result):
    changed = original(self, declarations, magnitudes, result)
    self.nbytes = sum([one.spec.nbytes for one in self])
    return changed
