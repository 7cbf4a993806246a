"""Every update rule on the rows of a gradient: as dense on those rows, and nothing at all on the others."""

import math
import tracemalloc

import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import Step, compiled, element_wise, rule_for
from pswire.optimizers.element_wise import ROWS_BLOCK
from pswire.tensors.values import IndexedSlices
from tests.unit.pswire.optimizers.rules_under_test import (
    FLOATING,
    RULES_UNDER_TEST,
    at,
    check_close,
    check_same,
    slot_dtype,
)

SEED = 20110701
STEPS = 30

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def no_fused_loops(monkeypatch):
    """These have the same bits: `test_rules_fused.py`."""
    monkeypatch.setattr(compiled, "USE_NUMBA", False)


@pytest.fixture(params=[SEED], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def rows_of(gradient, indices, count):
    return IndexedSlices(gradient, np.asarray(indices), (count, *gradient.shape[1:]))


def lazily(case, value, slots, indices, gradient, step):
    """The formula on the rows that are named; copies of everything."""
    value, slots = value.copy(), {name: slot.copy() for name, slot in slots.items()}
    named = {name: slot[indices] for name, slot in slots.items()}
    value[indices], new = case.formula(case.spec, value[indices], named, gradient, step)
    for name, slot in new.items():
        slots[name][indices] = slot
    return value, slots


def check_lazily(rule, case, random, dtype="float32", shape=(40, 5), steps=STEPS):
    """Fails unless `rule` follows the case's formula on random rows, step after step, and only borrows them."""
    value = random.normal(size=shape).astype(dtype)
    slots = rule.slots(value)
    expected = value.astype("float64"), {name: slot.astype("float64") for name, slot in slots.items()}
    for t in range(1, steps + 1):
        indices = np.flatnonzero(random.random(shape[0]) < random.choice([0.1, 0.5, 1.0]))
        gradient = random.normal(size=(len(indices), *shape[1:])).astype(dtype)
        rows = rows_of(gradient.copy(), indices, shape[0])
        rows.values.flags.writeable = rows.indices.flags.writeable = False
        step = at(t, case.rate * random.uniform(0.5, 1.5))
        rule.sparse(value, slots, rows, step)
        np.testing.assert_array_equal(rows.values, gradient)
        wide = gradient.astype("float64")
        expected = lazily(case, *expected, indices, wide, step)
        if dtype == "float16":
            expected = expected[0].astype(dtype).astype("float64"), expected[1]
    check_close("value", value, expected[0], dtype, shape)
    for name, slot in slots.items():
        check_close(name, slot, expected[1][name], slot_dtype(dtype).name, shape)


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
def test_rows_follow_the_formula_in_every_dtype(case, dtype, random):
    check_lazily(rule_for(case.spec), case, random, dtype=dtype)


@every_rule
@pytest.mark.parametrize("shape", [(1,), (9,), (0, 3), (5, 0), (1, 4), (6, 2, 3), (3, ROWS_BLOCK // 2 + 1)], ids=str)
def test_rows_follow_the_formula_in_every_shape(case, shape, random):
    check_lazily(rule_for(case.spec), case, random, shape=shape, steps=5 if math.prod(shape) > 10_000 else STEPS)


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
def test_all_rows_are_the_dense_update_bit_by_bit_wherever_they_lie(case, dtype, random):
    """Once side by side, once as every other row of an array twice as large, whose other rows stay as they are."""
    shape = (ROWS_BLOCK // 100, 257)  # several blocks
    rule, first = rule_for(case.spec), random.normal(size=shape).astype(dtype)
    dense, near, far = first.copy(), first.copy(), np.repeat(first, 2, axis=0)
    slots = [rule.slots(value) for value in (dense, near, far)]
    for step in (1, 2, 3):
        gradient = random.normal(size=shape).astype(dtype)
        rule.dense(dense, slots[0], gradient, at(step, case.rate))
        rule.sparse(near, slots[1], rows_of(gradient, np.arange(shape[0]), shape[0]), at(step, case.rate))
        rule.sparse(far, slots[2], rows_of(gradient, np.arange(shape[0]) * 2, 2 * shape[0]), at(step, case.rate))
    check_same(case, near, dense)
    check_same(case, far[::2], dense)
    assert far[1::2].tobytes() == first.tobytes()
    untouched = rule.slots(first)
    for name, slot in slots[0].items():
        check_same(case, slots[1][name], slot)
        check_same(case, slots[2][name][::2], slot)
        assert slots[2][name][1::2].tobytes() == untouched[name].tobytes()


def test_a_row_catches_up_with_all_decays_of_its_accumulator_when_it_is_touched():
    rule, value = rule_for(optimizers.AdagradDecay(0.1, 1.0, decay_steps=10, decay_rate=0.5)), np.zeros((3, 2))
    slots = rule.slots(value)
    for number, (global_step, rows, gradient) in enumerate([(0, [0, 1, 2], 8.0), (15, [1], 0.0), (39, [0, 1], 0.0)], 1):
        update = rows_of(np.full((len(rows), 2), gradient), rows, 3)
        rule.sparse(value, slots, update, Step(number, global_step, 0.1))
    np.testing.assert_array_equal(slots["accumulator"], [[65 / 8] * 2, [65 / 8] * 2, [65] * 2])
    np.testing.assert_array_equal(slots["accumulator_decay_power"], [[3, 3], [3, 3], [0, 0]])


@every_rule
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", ">i4", "uint8", "uint16", "uint64"])
def test_indices_may_be_of_any_integer_dtype(case, kind, random):
    rule, value = rule_for(case.spec), random.normal(size=(100, 3)).astype("float32")
    results = []
    for indices in (np.array([2, 3, 50, 99]), np.array([2, 3, 50, 99], kind)):
        own = value.copy()
        rule.sparse(own, rule.slots(own), rows_of(np.ones((4, 3), "float32"), indices, 100), at(1, case.rate))
        results.append(own)
    np.testing.assert_array_equal(*results)


@every_rule
def test_no_rows_change_nothing(case, random):
    rule, value = rule_for(case.spec), random.normal(size=(4, 3)).astype("float32")
    own, slots = value.copy(), rule.slots(value)
    rule.sparse(own, slots, rows_of(np.zeros((0, 3), "float32"), np.zeros(0, int), 4), at(1, case.rate))
    np.testing.assert_array_equal(own, value)
    assert all(np.array_equal(slot, rule.slots(value)[name]) for name, slot in slots.items())


@every_rule
@pytest.mark.parametrize("shape", [(1 << 15, 64), (3, 1 << 20)], ids=str)
def test_an_update_of_rows_takes_a_few_blocks_of_memory_whatever_their_number_and_size(case, shape, monkeypatch):
    monkeypatch.setattr(element_wise, "BLOCK", ROWS_BLOCK)
    rule, value = rule_for(case.spec), np.ones(shape, "float32")
    indices = np.arange(0, shape[0], 2)
    rows, slots = rows_of(np.ones((len(indices), *shape[1:]), "float32"), indices, shape[0]), rule.slots(value)
    tracemalloc.start()
    try:
        rule.sparse(value, slots, rows, at(1, case.rate))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * element_wise.BLOCK * value.itemsize < value.nbytes / 2
