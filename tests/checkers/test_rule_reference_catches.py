"""The comparison of a rule with its formula must fail for a wrong rule."""

import dataclasses

import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import rule_for
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST, STEPS, check_against_formula

SEED = 20150508


def catches(rule, case, **options):
    """Whether the comparison fails."""
    try:
        check_against_formula(rule, case, np.random.default_rng(SEED), **options)
    except AssertionError:
        return True
    return False


FIELDS = [
    pytest.param(spec, field.name, id=f"{spec.kind}.{field.name}")
    for spec in optimizers.UpdateSpec.kinds.values()
    for field in dataclasses.fields(spec)
    if field.name != "learning_rate"  # the rate of each step, not the spec's, is what a rule takes
]


def altered(value):
    """Another value of the same field."""
    return not value if isinstance(value, bool) else 2 * value if isinstance(value, int) and value else value / 2 or 0.5


@pytest.mark.parametrize(("spec", "name"), FIELDS)
def test_a_rule_with_another_hyperparameter_does_not_pass(spec, name):
    found = []
    for case in RULES_UNDER_TEST:
        if case.spec.kind == spec.kind:
            rule = rule_for(dataclasses.replace(case.spec, **{name: altered(getattr(case.spec, name))}))
            first = {name: pytest.approx(slot[0]) for name, slot in rule.slots(np.ones(1)).items()}
            found.append(first != case.first_slots or catches(rule, case))
    assert any(found)


class Mistaken:
    """The right slots, and a mistake in the update."""

    def __init__(self, case, mistake):
        self._right, self._mistake = rule_for(case.spec), mistake
        self.slots = self._right.slots

    def dense(self, *arguments):
        self._mistake(self._right, *arguments)

    sparse = dense


def right(rule, w, slots, g, step):
    (rule.dense if isinstance(g, np.ndarray) else rule.sparse)(w, slots, g, step)


def has_one_rate_at_every_step(rule, w, slots, g, step):
    right(rule, w, slots, g, dataclasses.replace(step, learning_rate=0.01))


def counts_every_step_one_too_far(rule, w, slots, g, step):
    right(rule, w, slots, g, dataclasses.replace(step, number=step.number + 1))


def forgets_its_slots(rule, w, slots, g, step):
    right(rule, w, {name: slot.copy() for name, slot in slots.items()}, g, step)


def scales_the_gradient_in_place(rule, w, slots, g, step):
    right(rule, w, slots, g, step)
    (g if isinstance(g, np.ndarray) else g.values)[...] *= 2


def leaves_out_the_last_element(rule, w, slots, g, step):
    last = w.flat[-1]
    right(rule, w, slots, g, step)
    w.flat[-1] = last


def computes_in_half_precision(rule, w, slots, g, step):
    right(rule, w, slots, g.astype("float16").astype("float32"), step)


def keeps_gradients_and_applies_them_all_at_the_end(rule, w, slots, g, step, kept=[]):  # noqa: B006 - it keeps them
    kept.append(g)
    if step.number == STEPS:
        for one in kept:
            right(rule, w, slots, one, step)


def decays_the_slots_of_rows_that_are_not_named(rule, w, slots, rows, step):
    rule.dense(w, slots, rows.to_dense(), step)


def has_its_slots_by_place_in_the_message(rule, w, slots, rows, step):
    part = w[rows.indices]
    rule.dense(part, {name: slot[: len(part)] for name, slot in slots.items()}, rows.values, step)
    w[rows.indices] = part


EVERYWHERE = [forgets_its_slots, scales_the_gradient_in_place, leaves_out_the_last_element]
ON_ARRAYS = [
    *(has_one_rate_at_every_step, counts_every_step_one_too_far, computes_in_half_precision),
    keeps_gradients_and_applies_them_all_at_the_end,
]
ON_ROWS = [decays_the_slots_of_rows_that_are_not_named, has_its_slots_by_place_in_the_message]
ADAM = next(case for case in RULES_UNDER_TEST if case.name == "adam")


@pytest.mark.parametrize(
    ("mistake", "by_rows"),
    [
        *((mistake, False) for mistake in (*EVERYWHERE, *ON_ARRAYS)),
        *((mistake, True) for mistake in (*EVERYWHERE, *ON_ROWS)),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_rule_with_this_mistake_does_not_pass(mistake, by_rows):
    assert catches(Mistaken(ADAM, mistake), ADAM, by_rows=by_rows)
    assert not catches(Mistaken(ADAM, right), ADAM, by_rows=by_rows)
