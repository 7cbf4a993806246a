"""The comparison in `test_rules_rows.py` must fail when given a rule that is wrong about rows."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from pswire.optimizers import Adam, Momentum, rule_for

SEED = 20150508
TEST_ROWS = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "pswire" / "optimizers" / "test_rules_rows.py"))
RULES_UNDER_TEST, check_lazily = TEST_ROWS["RULES_UNDER_TEST"], TEST_ROWS["check_lazily"]


class Mistaken:
    """The right slots, and a mistake in the update of rows."""

    def __init__(self, spec, sparse):
        self._right, self._sparse = rule_for(spec), sparse
        self.slots = self._right.slots

    def sparse(self, value, slots, rows, step):
        self._sparse(self._right, value, slots, rows, step)


def right(rule, *arguments):
    rule.sparse(*arguments)


def decays_the_slots_of_the_rows_that_are_not_named(rule, value, slots, rows, step):
    rule.dense(value, slots, rows.to_dense(), step)


def keeps_the_slots_as_they_were(rule, value, slots, rows, step):
    rule.sparse(value, {name: slot.copy() for name, slot in slots.items()}, rows, step)


def has_its_slots_by_place_in_the_message(rule, value, slots, rows, step):
    count = len(rows.indices)
    part = value[rows.indices]
    rule.dense(part, {name: slot[:count] for name, slot in slots.items()}, rows.values, step)
    value[rows.indices] = part


def leaves_out_the_last_row(rule, value, slots, rows, step):
    fewer = type(rows)(rows.values[:-1], rows.indices[:-1], rows.dense_shape)
    rule.sparse(value, slots, fewer, step)


def takes_side_by_side_what_is_not(rule, value, slots, rows, step):
    start = rows.indices[0] if len(rows.indices) else 0
    run = slice(start, start + len(rows.indices))
    room = min(len(rows.indices), len(value) - start)
    rule.dense(value[run], {name: slot[run] for name, slot in slots.items()}, rows.values[:room], step)


MISTAKES = [
    decays_the_slots_of_the_rows_that_are_not_named,
    keeps_the_slots_as_they_were,
    has_its_slots_by_place_in_the_message,
    leaves_out_the_last_row,
    takes_side_by_side_what_is_not,
]


def check(kind, sparse):
    for case in RULES_UNDER_TEST:
        if case.spec.kind == kind:
            check_lazily(Mistaken(case.spec, sparse), case, np.random.default_rng(SEED))


@pytest.mark.parametrize("kind", [Momentum.kind, Adam.kind])
@pytest.mark.parametrize("sparse", MISTAKES, ids=lambda sparse: sparse.__name__)
def test_a_rule_with_this_mistake_does_not_pass(kind, sparse):
    with pytest.raises(AssertionError):
        check(kind, sparse)


@pytest.mark.parametrize("kind", [Momentum.kind, Adam.kind])
def test_a_rule_without_a_mistake_passes(kind):
    check(kind, right)
