"""Every update rule against its formula, and what holds for all of them: slots, layouts, memory and odd numbers."""

import math
import tracemalloc

import numpy as np
import pytest

from pswire import optimizers
from pswire.errors import InvalidMessage
from pswire.optimizers import COMPUTE_DTYPES, compiled, element_wise, rule_for
from pswire.tensors.values import DTYPES
from tests.unit.pswire.optimizers.rules_under_test import (
    FLOATING,
    LAYOUTS,
    RULES_UNDER_TEST,
    at,
    check_against_formula,
    check_same,
    slot_dtype,
)

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)
every_optimizer_that_rests = pytest.mark.parametrize(
    "case",
    [case for case in RULES_UNDER_TEST if isinstance(case.spec, optimizers.OptimizerSpec) and not case.pulls],
    ids=lambda case: case.name,
)


BLOCK = 1 << 14


@pytest.fixture(autouse=True)
def no_fused_loops_and_small_blocks(monkeypatch):
    """The loops have the same bits: `test_rules_fused.py`."""
    monkeypatch.setattr(compiled, "USE_NUMBA", False)
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)


@pytest.fixture(params=[20130616], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


# --- against the formulas -------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_rule_follows_its_formula_for_100_steps_in_every_dtype(case, dtype, random):
    check_against_formula(rule_for(case.spec), case, random, dtype=dtype)


@every_rule
@pytest.mark.parametrize("shape", [(), (1,), (9,), (0,), (0, 3), (2, 3, 4)], ids=str)
def test_a_rule_follows_its_formula_for_100_steps_in_every_shape(case, shape, random):
    check_against_formula(rule_for(case.spec), case, random, shape=shape)


@every_rule
def test_a_rule_follows_its_formula_over_several_blocks(case, random):
    check_against_formula(rule_for(case.spec), case, random, shape=(3, BLOCK // 2 + 1), steps=10)


# --- slots ----------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("shape", [(), (4, 3), (0, 3)], ids=str)
def test_slots_have_their_names_and_first_values_and_the_variables_shape_and_precision_enough(case, dtype, shape):
    value = np.ones(shape, dtype)
    slots = rule_for(case.spec).slots(value)
    assert tuple(slots) == case.spec.slot_names() == tuple(case.first_slots)
    for name, first in case.first_slots.items():
        slot = slots[name]
        assert (slot.shape, slot.dtype, slot.flags.c_contiguous) == (shape, slot_dtype(dtype), True)
        assert not np.shares_memory(slot, value)
        assert slot.flags.writeable
        assert slot.ctypes.data % 64 == 0 or not slot.size, "fused loops are slow where vectors cross cache lines"
        np.testing.assert_allclose(slot, first, rtol=np.finfo(slot.dtype).eps)
        assert f"`{name}`" in type(case.spec).__doc__


@every_rule
def test_slots_of_two_variables_are_apart(case):
    value = np.ones(3, "float32")
    one, other = rule_for(case.spec).slots(value), rule_for(case.spec).slots(value)
    assert not any(np.shares_memory(one[name], slot) for name in one for slot in other.values())


@every_rule
@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - set(FLOATING)))
def test_a_variable_that_is_not_floating_is_refused_and_its_dtype_named(case, dtype):
    with pytest.raises(InvalidMessage, match=f"float16, float32, float64, not of {dtype}"):
        rule_for(case.spec).slots(np.zeros(3, dtype))


# --- the gradient ---------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradients_layout_in_memory_does_not_change_a_bit_of_the_result(case, dtype, layout, random):
    shape = (7, BLOCK // 5)  # more than a block, and a row's end is not a block's
    first, rule = random.normal(size=shape).astype(dtype), rule_for(case.spec)
    gradient = LAYOUTS[layout](random.normal(size=shape).astype(dtype))
    gradient.flags.writeable = False
    results = []
    for lent in (gradient, np.array(gradient, order="C")):
        value = first.copy()
        slots = rule.slots(value)
        for step in (1, 2):
            rule.dense(value, slots, lent, at(step, case.rate))
        results.append([value, *slots.values()])
    for given, plain in zip(*results, strict=True):
        check_same(case, given, plain)


@every_rule
def test_a_gradient_of_another_shape_is_never_stretched_to_fit(case):
    rule, value = rule_for(case.spec), np.ones((4, 3), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        rule.dense(value, rule.slots(value), np.ones(3, "float32"), at(1, case.rate))
    np.testing.assert_array_equal(value, 1)


@every_optimizer_that_rests
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_zero_gradient_leaves_a_new_variable_as_it_is(case, dtype):
    rule, value = rule_for(case.spec), np.array([1.5, -2.0, 0.0], dtype)
    rule.dense(value, rule.slots(value), np.zeros(3, dtype), at(1, case.rate))
    np.testing.assert_array_equal(value, np.array([1.5, -2.0, 0.0], dtype))


@every_rule
def test_an_update_takes_a_few_blocks_of_memory_whatever_the_size_of_the_variable(case):
    rule, value = rule_for(case.spec), np.ones((1024, 1024), "float32")
    slots, gradient = rule.slots(value), np.ones((1024, 1024), "float32").T
    tracemalloc.start()
    try:
        rule.dense(value, slots, gradient, at(1, case.rate))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * BLOCK * value.itemsize < value.nbytes / 8


# --- numbers --------------------------------------------------------------------------------------------------------


@every_rule
def test_equal_updates_give_equal_bits_also_when_one_rule_serves_two_variables(case, random):
    first = random.normal(size=(5, 999)).astype("float32")
    gradients = random.normal(size=(10, 5, 999)).astype("float32")
    rule, values = rule_for(case.spec), [first.copy(), first.copy()]
    slots = [rule.slots(value) for value in values]
    for step, gradient in enumerate(gradients, 1):
        for value, own in zip(values, slots, strict=True):
            rule.dense(value, own, gradient, at(step, case.rate))
    alone, own = first.copy(), rule_for(case.spec).slots(first)
    for step, gradient in enumerate(gradients, 1):
        rule_for(case.spec).dense(alone, own, gradient, at(step, case.rate))
    for value, others in zip(values, slots, strict=True):
        assert value.tobytes() == alone.tobytes()
        assert all(others[name].tobytes() == own[name].tobytes() for name in own)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(
    "spec",
    [
        *(case.spec for case in RULES_UNDER_TEST),
        optimizers.GradientDescent(1e308),
        optimizers.Momentum(1e308, nesterov=True),
        optimizers.Adagrad(1e308, 1e308, 1e308),
        optimizers.AdagradDecay(1e308, 1e308, 1, 1e-308),
        optimizers.RMSProp(1e308, 0, epsilon=1e-308),
        optimizers.RMSProp(1e308, 0.5, 0.9, centered=True),
        optimizers.Adam(1e308, epsilon=1e308),
        optimizers.Adam(1e308, epsilon=1e-308, amsgrad=True),
        optimizers.AdamW(1e308, weight_decay=1e308),
        optimizers.Lamb(1e308, weight_decay=1e308),
        optimizers.Ftrl(1e308, 1e308, 1e308, 1, 1e308),
        optimizers.Ftrl(1e-308, 1e-308, 1e-308, 1, 1e-308),
    ],
    ids=str,
)
def test_what_overflows_is_silent(spec, dtype):
    rule, value = rule_for(spec), np.array([0.0, 1.0, -1.0], dtype)
    largest = np.finfo(dtype).max
    with np.errstate(all="raise"):
        slots = rule.slots(value)
        for step in (1, 2, 3):
            rate = getattr(spec, "learning_rate", 1.0)
            rule.dense(value, slots, np.array([largest, -largest, 0.0], dtype), at(step, rate))


def test_a_value_that_overflows_becomes_infinite():
    value = np.array([-3e38, 1.0], "float32")
    rule_for(optimizers.GradientDescent(1.0)).dense(value, {}, np.array([3e38, 1.0], "float32"), at(1, 1.0))
    np.testing.assert_array_equal(value, np.array([-np.inf, 0.0], "float32"))


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(
    "spec",
    [
        optimizers.Adagrad(0.1, 1e-320),
        optimizers.AdagradDecay(0.1, 1e-320, 1, 0),
        optimizers.RMSProp(epsilon=1e-320),
        optimizers.RMSProp(epsilon=1e-320, centered=True, momentum=0.9),
        optimizers.Adam(epsilon=1e-320),
        optimizers.Adam(epsilon=1e-320, amsgrad=True),
        optimizers.AdamW(epsilon=1e-320, weight_decay=0),
        optimizers.Lamb(epsilon=1e-320, weight_decay=0),
        optimizers.Ftrl(0.1, initial_accumulator=1e-320),
        optimizers.Ftrl(0.1, initial_accumulator=1e-320, learning_rate_power=1),
    ],
    ids=str,
)
def test_an_epsilon_too_small_for_the_dtype_makes_no_nan(spec, dtype):
    rule, value = rule_for(spec), np.ones(2, dtype)
    slots = rule.slots(value)
    for step in (1, 2):
        rule.dense(value, slots, np.zeros(2, dtype), at(step, 0.1))
    np.testing.assert_array_equal(value, 1)


@every_rule
def test_a_subclass_of_a_spec_has_the_rule_of_its_spec(case):
    subclass = type("Optimizer", (type(case.spec),), {})
    assert type(rule_for(subclass(**vars(case.spec)))) is type(rule_for(case.spec))


def test_a_spec_of_an_unknown_kind_is_refused_and_the_known_ones_are_named():
    class Own(optimizers.OptimizerSpec):
        kind = "own"

    with pytest.raises(InvalidMessage, match="'own'; there are adagrad, adagrad_decay, adam, adamw, ftrl, "):
        rule_for(Own(0.1))


# --- the loop they share --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (BLOCK,), (3, BLOCK - 1), (301, 701)], ids=str)
def test_the_blocks_pass_every_element_once_in_order_and_bring_back_what_is_written(shape, dtype, transposed):
    count = math.prod(shape)
    value, slot = np.zeros(shape, dtype), np.zeros(shape, dtype)
    gradient = (np.arange(count) % 2048).astype(dtype).reshape(shape)
    gradient = np.array(gradient, order="F" if transposed else "C")
    seen = 0
    for w, g, scratch, (s,) in element_wise.blocks(value, gradient, [slot]):
        assert {block.shape for block in (w, g, scratch, s)} == {(g.size,)}
        assert 0 < g.size <= BLOCK
        assert {block.dtype for block in (w, g, scratch, s)} == {COMPUTE_DTYPES[value.dtype]}
        np.copyto(scratch, g)
        w += scratch
        s -= scratch
        seen += g.size
    assert seen == count
    np.testing.assert_array_equal(value, gradient)
    np.testing.assert_array_equal(slot, -gradient)
