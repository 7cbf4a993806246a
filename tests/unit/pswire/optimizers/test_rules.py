"""Every update rule in numpy: formula on arrays and on rows, slots, layouts, memory, extreme numbers, and promises."""

import math
import tracemalloc

import numpy as np
import pytest

from pswire import optimizers
from pswire.errors import InvalidMessage
from pswire.optimizers import Step, element_wise, numba_compiler, rule_for
from pswire.tensors.values import DTYPES, IndexedSlices
from tests.unit.pswire.optimizers.rules_under_test import (
    FLOATING,
    LAYOUTS,
    RULES_UNDER_TEST,
    at,
    check_against_formula,
    check_same,
    slot_dtype,
)

BLOCK = 1 << 14

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def numpy_and_small_blocks(monkeypatch):
    """Compiled loops have the same bits: `test_numba_compiler.py`."""
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)


@pytest.fixture(params=[20130616], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def rows_of(gradient, indices, count):
    return IndexedSlices(gradient, np.asarray(indices), (count, *gradient.shape[1:]))


# --- formulas -------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize(
    ("dtype", "shape", "by_rows"),
    [
        ("float16", (31, 7), False),
        ("float32", (3, BLOCK // 2 + 1), False),
        ("float64", (), False),
        ("float16", (0, 3), False),
        ("float16", (40, 5), True),
        ("float32", (3, 2 * BLOCK + 1), True),
        ("float32", (9,), True),
        ("float64", (5, 2, 3), True),
        ("float64", (5, 0), True),
    ],
    ids=str,
)
def test_a_rule_follows_its_formula_and_rows_that_are_not_named_stay_as_they_are(case, dtype, shape, by_rows, random):
    steps = 100 if math.prod(shape) < BLOCK else 5
    check_against_formula(rule_for(case.spec), case, random, dtype, shape, steps, by_rows)


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
def test_all_rows_are_the_dense_update_bit_by_bit_wherever_they_lie(case, dtype, random, monkeypatch):
    """Once adjacent, once as every other row of an array twice as large, whose other rows stay as they are."""
    monkeypatch.setattr(element_wise, "ROWS_BLOCK", 1 << 10)
    shape = (30, 127)  # several blocks
    rule, first = rule_for(case.spec), random.normal(size=shape).astype(dtype)
    dense, near, far = first.copy(), first.copy(), np.repeat(first, 2, axis=0)
    slots = [rule.slots(value) for value in (dense, near, far)]
    for step in (1, 2, 3):
        gradient = random.normal(size=shape).astype(dtype)
        rule.dense(dense, slots[0], gradient, at(step, case.rate))
        rule.sparse(near, slots[1], rows_of(gradient, np.arange(30), 30), at(step, case.rate))
        rule.sparse(far, slots[2], rows_of(gradient, np.arange(30) * 2, 60), at(step, case.rate))
    untouched = rule.slots(first)
    for name, whole in {"": dense, **slots[0]}.items():
        adjacent, apart = (near, far) if not name else (slots[1][name], slots[2][name])
        check_same(case, adjacent, whole)
        check_same(case, apart[::2], whole)
        assert apart[1::2].tobytes() == (untouched[name] if name else first).tobytes()


@every_rule
@pytest.mark.parametrize(("layout", "dtype"), list(zip(LAYOUTS, FLOATING * 2, strict=False)))
def test_the_gradients_layout_in_memory_does_not_change_a_bit_of_the_result(case, layout, dtype, random):
    shape = (7, BLOCK // 5)  # more than a block, and a row's end is not a block's
    rule, first = rule_for(case.spec), random.normal(size=shape).astype(dtype)
    gradient = LAYOUTS[layout](random.normal(size=shape).astype(dtype))
    gradient.flags.writeable = False
    values = [first.copy(), first.copy()]
    slots = [rule.slots(value) for value in values]
    for step in (1, 2):
        rule.dense(values[0], slots[0], gradient, at(step, case.rate))
        rule.dense(values[1], slots[1], np.array(gradient, order="C"), at(step, case.rate))
    check_same(case, *values)
    for name in slots[0]:
        check_same(case, slots[0][name], slots[1][name])


# --- slots and arguments --------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize(("dtype", "shape"), [("float16", (4, 3)), ("float32", ()), ("float64", (0, 3))], ids=str)
def test_slots_have_their_names_and_first_values_and_the_variables_shape_and_precision_enough(case, dtype, shape):
    value, rule = np.ones(shape, dtype), rule_for(case.spec)
    slots, others = rule.slots(value), rule.slots(value)
    assert tuple(slots) == case.spec.slot_names() == tuple(case.first_slots)
    for name, first in case.first_slots.items():
        slot = slots[name]
        assert (slot.shape, slot.dtype, slot.flags.c_contiguous) == (shape, slot_dtype(dtype), True)
        assert not any(np.shares_memory(slot, other) for other in (value, *others.values()))
        assert slot.ctypes.data % 64 == 0 or not slot.size, "compiled loops are slow where vectors cross cache lines"
        np.testing.assert_allclose(slot, first, rtol=np.finfo(slot.dtype).eps)
    for other in DTYPES.keys() - set(FLOATING):
        with pytest.raises(InvalidMessage, match=f"float16, float32, float64, not of {other}"):
            rule.slots(np.zeros(3, other))


@every_rule
def test_a_gradient_of_another_shape_is_refused_and_a_zero_gradient_leaves_a_new_variable(case):
    rule, value = rule_for(case.spec), np.ones((4, 3), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        rule.dense(value, rule.slots(value), np.ones(3, "float32"), at(1, case.rate))
    np.testing.assert_array_equal(value, 1)
    moves = any(getattr(case.spec, name, 0) > 0 for name in ("weight_decay", "l1", "l2"))
    if isinstance(case.spec, optimizers.OptimizerSpec) and not moves:
        rule.dense(value, rule.slots(value), np.zeros_like(value), at(1, case.rate))
        np.testing.assert_array_equal(value, 1)


@every_rule
def test_an_update_takes_a_few_blocks_of_memory_whatever_the_size_of_the_variable(case, monkeypatch):
    monkeypatch.setattr(element_wise, "ROWS_BLOCK", BLOCK)
    rule, value = rule_for(case.spec), np.ones((1024, 512), "float32")
    slots, gradient = rule.slots(value), np.ones((512, 1024), "float32").T
    rows = rows_of(np.ones((512, 512), "float32"), np.arange(0, 1024, 2), 1024)
    for update, blocks in ((rule.dense, 4), (rule.sparse, 7)):
        tracemalloc.start()
        update(value, slots, gradient if update == rule.dense else rows, at(1, case.rate))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < blocks * BLOCK * value.itemsize < value.nbytes / 4


def test_a_subclass_has_the_rule_of_its_kind_and_an_unknown_kind_is_refused_with_the_known_ones():
    for case in RULES_UNDER_TEST:
        subclass = type("Optimizer", (type(case.spec),), {})
        assert type(rule_for(subclass(**vars(case.spec)))) is type(rule_for(case.spec))
    own = type("Own", (optimizers.OptimizerSpec,), {"kind": "own"})
    with pytest.raises(InvalidMessage, match="'own'; known kinds: adagrad, adagrad_decay, adam, adamw, ftrl, "):
        rule_for(own(0.1))


# --- numbers --------------------------------------------------------------------------------------------------------

EXTREME = [
    *(optimizers.GradientDescent(1e308), optimizers.Momentum(1e308, nesterov=True)),
    *(optimizers.Adagrad(1e308, 1e308, 1e308), optimizers.AdagradDecay(1e308, 1e308, 1, 1e-308)),
    *(optimizers.RMSProp(1e308, 0, epsilon=1e-308), optimizers.RMSProp(1e308, 0.5, 0.9, centered=True)),
    *(optimizers.Adam(1e308, epsilon=1e308), optimizers.Adam(1e308, epsilon=1e-308, amsgrad=True)),
    *(optimizers.AdamW(1e308, weight_decay=1e308), optimizers.Lamb(1e308, weight_decay=1e308)),
    *(optimizers.Ftrl(1e308, 1e308, 1e308, 1, 1e308), optimizers.Ftrl(1e-308, 1e-308, 1e-308, 1, 1e-308)),
]


@pytest.mark.parametrize("spec", [*(case.spec for case in RULES_UNDER_TEST), *EXTREME], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_overflow_is_silent(spec, dtype):
    rule, value, largest = rule_for(spec), np.array([0.0, 1.0, -1.0], dtype), np.finfo(dtype).max
    with np.errstate(all="raise"):
        slots = rule.slots(value)
        for step in (1, 2, 3):
            gradient = np.array([largest, -largest, 0.0], dtype)
            rule.dense(value, slots, gradient, at(step, getattr(spec, "learning_rate", 1.0)))
        value = np.array([-largest, 1.0], dtype)
        rule_for(optimizers.GradientDescent(1.0)).dense(value, {}, np.array([largest, 1.0], dtype), at(1, 1.0))
    np.testing.assert_array_equal(value, [-np.inf, 0.0])


TINY = [
    *(optimizers.Adagrad(0.1, 1e-320), optimizers.AdagradDecay(0.1, 1e-320, 1, 0), optimizers.RMSProp(epsilon=1e-320)),
    *(optimizers.RMSProp(epsilon=1e-320, centered=True, momentum=0.9), optimizers.Adam(epsilon=1e-320)),
    optimizers.AdamW(epsilon=1e-320, weight_decay=0, amsgrad=True),
    optimizers.Lamb(epsilon=1e-320, weight_decay=0),
    *(optimizers.Ftrl(0.1, initial_accumulator=1e-320, learning_rate_power=power) for power in (0.5, 1)),
]


@pytest.mark.parametrize("spec", TINY, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_an_epsilon_too_small_for_the_dtype_makes_no_nan(spec, dtype):
    value = np.ones(2, dtype)
    run(spec, value, [0.0, 0.0], [0.0, 0.0])
    np.testing.assert_array_equal(value, 1)


# --- what their authors promise -------------------------------------------------------------------------------------


def run(spec, value, *gradients, rate=0.1, global_steps=None):
    """Updates `value` by each gradient; returns the slots, as lists, after each."""
    rule, states = rule_for(spec), []
    slots = rule.slots(value)
    for number, gradient in enumerate(gradients, 1):
        global_step = global_steps[number - 1] if global_steps else 3 * number
        rule.dense(value, slots, np.asarray(gradient, value.dtype), Step(number, global_step, rate))
        states.append({name: slot.tolist() for name, slot in slots.items()})
    return states


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        # Keras's documentation: SGD 1 -> 0.9, with momentum -> 0.72; Adam 10 -> 9.9. The others by hand.
        (optimizers.GradientDescent(0.1), [1.0, 0.9, 0.81]),
        (optimizers.Momentum(0.1, 0.9), [1.0, 0.9, 0.72]),
        (optimizers.Momentum(0.1, 0.9, nesterov=True), [1.0, 0.81, 0.5751]),
        (optimizers.Adagrad(1.0, 0.0, epsilon=0.5), [2.0, 1.2, 0.7763281]),
        (optimizers.Adam(0.1), [10.0, 9.9, 9.8000275]),
        (optimizers.AdamW(0.1, weight_decay=0.1), [10.0, 9.8, 9.6020578]),
        (optimizers.RMSProp(0.1, epsilon=1e-30, centered=True), [1.0, 0.6666667, 0.4655677]),
        (optimizers.Ftrl(0.1, l1=5.0), [1.0, 0.4279224]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_steps_down_half_a_square_are_those_published_or_computed_by_hand(spec, values):
    rule, value = rule_for(spec), np.array(values[0])
    slots = rule.slots(value)
    for step, expected in enumerate(values[1:], 1):
        rule.dense(value, slots, value.copy(), at(step, spec.learning_rate))  # the gradient of w^2 / 2
        assert value == pytest.approx(expected, abs=5e-8)


def test_the_first_step_of_adam_is_the_learning_rate_and_of_lamb_the_length_of_the_weights_times_it():
    value = np.zeros(4)
    run(optimizers.Adam(epsilon=1e-12), value, [1e-6, 0.3, -7.0, 1e6])
    np.testing.assert_allclose(value, [-0.1, -0.1, 0.1, -0.1], rtol=1e-5)
    value = np.array([3.0, 4.0])  # |w| is 5 and u is the signs of the gradient
    run(optimizers.Lamb(epsilon=1e-12, weight_decay=0.0), value, [0.2, -7.0])
    np.testing.assert_allclose(value, [3 - 0.5 / math.sqrt(2), 4 + 0.5 / math.sqrt(2)], rtol=1e-9)
    for first in (0.0, 1e30):  # where a norm is zero or overflows
        value = np.full(2, first, "float32")
        run(optimizers.Lamb(weight_decay=0.0), value, [1, 1], rate=0.5)
        np.testing.assert_allclose(value, first - 0.5, rtol=1e-5)


def test_ftrl_without_regularization_is_adagrad_whatever_the_schedule(random):
    """As the paper says of gradient descent with a learning rate for each coordinate."""
    rules, first = [rule_for(optimizers.Ftrl(0.1)), rule_for(optimizers.Adagrad(0.1))], random.normal(size=50)
    values = [first.copy(), first.copy()]
    slots = [rule.slots(first) for rule in rules]
    for number in range(1, 101):
        gradient, step = random.normal(size=50), at(number, random.choice([0.0, 1e-6, 0.1, 2.0]))
        for rule, value, own in zip(rules, values, slots, strict=True):
            rule.dense(value, own, gradient, step)
    np.testing.assert_allclose(*values, rtol=0, atol=1e-13)


def test_an_accumulator_decays_once_a_period_and_not_below_where_it_began():
    spec, periods = optimizers.AdagradDecay(0.1, 1.0, decay_steps=10, decay_rate=0.5), [0, 9, 10, 19, 45, 60]
    states = run(spec, np.zeros(1), [3.0], [0.0], [0.0], [0.0], [0.0], [2.0], global_steps=periods)
    seen = [(*slots["accumulator"], *slots["accumulator_decay_power"]) for slots in states]
    assert seen == [(10, 0), (10, 0), (5, 1), (5, 1), (1, 4), (5, 6)]
    early, late = np.zeros(3), np.zeros(3)  # a variable made late has nothing to catch up with
    for value, global_step in ((early, 0), (late, 10_000_000)):
        run(optimizers.AdagradDecay(0.1, decay_steps=10), value, [1.0, -0.1, 0.0], global_steps=[global_step])
    np.testing.assert_array_equal(early, late)


def test_a_centered_variance_that_rounding_makes_negative_counts_as_zero():
    """Gradients that are all alike have no variance, and d is g over epsilon."""
    gradient, value = np.random.default_rng(5).uniform(1, 2, 1000).astype(np.float32), np.zeros(1000, np.float32)
    rule = rule_for(optimizers.RMSProp(decay=0.5, epsilon=1.0, centered=True))
    slots = rule.slots(value)
    for number in range(1, 41):
        rule.dense(value, slots, gradient, at(number, 0.0))
    below = slots["mean_square"] < slots["mean_gradient"] ** 2
    assert below.any(), "else it shows nothing"
    rule.dense(value, slots, gradient, at(41, 1.0))
    np.testing.assert_allclose(value[below], -gradient[below], rtol=1e-3)
