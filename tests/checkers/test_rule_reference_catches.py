"""The comparison of a rule with its formula must fail for a wrong rule."""

import dataclasses

import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import rule_for
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST, STEPS, check_against_formula


def catches(rule, case, **options):
    """Whether the comparison fails."""
    try:
        check_against_formula(rule, case, np.random.default_rng(20150508), **options)
    except AssertionError:
        return True
    return False


def altered(value):
    """Another value of the same field."""
    return not value if isinstance(value, bool) else 2 * value if isinstance(value, int) and value else value / 2 or 0.5


@pytest.mark.parametrize("spec", optimizers.UpdateSpec.kinds.values(), ids=lambda spec: spec.kind)
def test_a_rule_with_another_hyperparameter_does_not_pass(spec):
    cases = [case for case in RULES_UNDER_TEST if case.spec.kind == spec.kind]
    names = {field.name for field in dataclasses.fields(spec)} - {"learning_rate"}  # each step has a rate of its own
    for case in cases:
        for name in sorted(names):
            rule = rule_for(dataclasses.replace(case.spec, **{name: altered(getattr(case.spec, name))}))
            first = {name: pytest.approx(slot[0]) for name, slot in rule.slots(np.ones(1)).items()}
            if first != case.first_slots or catches(rule, case):
                names.discard(name)
    assert names == set()


class Mistaken:
    """The right slots, and a mistake in the update."""

    def __init__(self, mistake):
        self._mistake, self._right = mistake, rule_for(ADAM.spec)
        self.slots = self._right.slots

    def dense(self, *arguments):
        self._mistake(self._right.dense, *arguments)

    def sparse(self, *arguments):
        self._mistake(self._right.sparse, *arguments)


def has_one_rate_at_every_step(update, w, slots, g, step):
    update(w, slots, g, dataclasses.replace(step, learning_rate=0.01))


def counts_every_step_one_too_far(update, w, slots, g, step):
    update(w, slots, g, dataclasses.replace(step, number=step.number + 1))


def forgets_its_slots(update, w, slots, g, step):
    update(w, {name: slot.copy() for name, slot in slots.items()}, g, step)


def scales_the_gradient_in_place(update, w, slots, g, step):
    update(w, slots, g, step)
    (g if isinstance(g, np.ndarray) else g.values)[...] *= 2


def leaves_out_the_last_element(update, w, slots, g, step):
    last = w.flat[-1]
    update(w, slots, g, step)
    w.flat[-1] = last


def computes_in_half_precision(update, w, slots, g, step):
    update(w, slots, g.astype("float16").astype("float32"), step)


def keeps_gradients_and_applies_them_all_at_the_end(update, w, slots, g, step, kept=[]):  # noqa: B006 - it keeps them
    kept.append(g)
    for one in kept if step.number == STEPS else ():
        update(w, slots, one, step)


def decays_the_slots_of_rows_that_are_not_named(update, w, slots, rows, step):
    rule_for(ADAM.spec).dense(w, slots, rows.to_dense(), step)


def has_its_slots_by_place_in_the_message(update, w, slots, rows, step):
    part = w[rows.indices]
    rule_for(ADAM.spec).dense(part, {name: slot[: len(part)] for name, slot in slots.items()}, rows.values, step)
    w[rows.indices] = part


ADAM = next(case for case in RULES_UNDER_TEST if case.name == "adam")
EVERYWHERE = [forgets_its_slots, scales_the_gradient_in_place, leaves_out_the_last_element]
ON_ARRAYS = [has_one_rate_at_every_step, counts_every_step_one_too_far, computes_in_half_precision]
ON_ARRAYS += [keeps_gradients_and_applies_them_all_at_the_end]
ON_ROWS = [decays_the_slots_of_rows_that_are_not_named, has_its_slots_by_place_in_the_message]


def test_a_rule_with_a_mistake_does_not_pass():
    for by_rows, mistakes in ((False, EVERYWHERE + ON_ARRAYS), (True, EVERYWHERE + ON_ROWS)):
        missed = [mistake for mistake in mistakes if not catches(Mistaken(mistake), ADAM, by_rows=by_rows)]
        assert missed == []
        assert not catches(rule_for(ADAM.spec), ADAM, by_rows=by_rows)
