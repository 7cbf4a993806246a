"""Mutants of update rules and learning rates."""

from dataclasses import replace

import numpy as np

from pswire.optimizers.adam import Adam
from tests.tools.mutant_plugin import mutant

RULES = "tests/unit/pswire/optimizers/test_rules.py"
SCHEDULES = "tests/unit/pswire/specs/test_schedules.py"
GUARDED = "tests/unit/psserver/core/test_guarded_updates.py"
ADAM = "pswire.optimizers.adam"


@mutant("Adam counts its updates from 0", f"{ADAM}:Adam._numbers", RULES)
def _(original, self, step, tiny):
    return original(self, replace(step, number=step.number + 1), tiny)


@mutant("Adam's first moment is not corrected", f"{ADAM}:Adam._numbers", RULES)
def _(original, self, step, tiny):
    numbers = list(original(self, step, tiny))
    numbers[4] *= 1 - self.beta1**step.number
    return tuple(numbers)


@mutant("AdamW's decay does not follow the learning rate", f"{ADAM}:AdamW._numbers", RULES)
def _(original, self, step, tiny):
    return *original(self, step, tiny)[:-1], 1 - self.weight_decay


@mutant("Nesterov's momentum looks one step back", "pswire.optimizers.momentum:Momentum._block", RULES)
def _(original, self, w, g, scratch, slots, *numbers):
    original(self, w, g, scratch, slots, *numbers[:2], 0.0)


@mutant("Rows that are not adjacent are not written back", "pswire.optimizers.element_wise:row_blocks", RULES)
def _(original, value, slots, rows):
    for part, part_slots, gradient in original(value, slots, rows):
        adjacent = np.shares_memory(part, value)
        yield part if adjacent else part.copy(), part_slots, gradient


@mutant("A weight decay by which weights grow counts as bounded", f"{ADAM}:AdamW._growth", GUARDED)
def _(original, self, rate, limits):
    return Adam._growth(self, rate, limits)


@mutant("After a warm-up the schedule begins at the step of the job", "pswire.specs.schedules:WarmUp.at", SCHEDULES)
def _(original, self, step):
    return original(self, step if step < self.steps else step + self.steps)


@mutant(
    "A rate may be larger than the largest of its schedule", "pswire.specs.schedules:PolynomialDecay.largest", SCHEDULES
)
def _(original, self):
    return self.initial
