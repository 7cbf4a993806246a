"""Every update rule in numpy and compiled: formula, rows, slots, layouts, memory, extreme numbers, and promises."""

import dataclasses
import math
import sys
import tracemalloc

import numba
import numpy as np
import pytest

from pswire import optimizers
from pswire.errors import InvalidMessage
from pswire.optimizers import Step, adam, element_wise, numba_compiler, rule_for
from pswire.tensors.values import DTYPES, IndexedSlices
from tests.support.combinations import combinations, few_fast, together
from tests.unit.pswire.optimizers.rules_under_test import LAYOUTS, RULES_UNDER_TEST, at

BLOCK, STEPS = 1 << 14, 100
FLOATING = "float16", "float32", "float64"

every_rule = together("case", RULES_UNDER_TEST, lambda case: case.name)


@pytest.fixture(autouse=True)
def numpy_and_small_blocks(monkeypatch):
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)
    monkeypatch.setattr(element_wise, "ROWS_BLOCK", BLOCK)


def compiled(spec):
    """The rule with its compiled loop, if it has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_compiler, "USE_NUMBA", True)
        return rule_for(spec)


@pytest.fixture(params=[20130616], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def rows_of(gradient, indices, count):
    return IndexedSlices(gradient, np.asarray(indices), (count, *gradient.shape[1:]))


# --- formulas -------------------------------------------------------------------------------------------------------


def tolerance(dtype):
    """Relative to the largest magnitude in play.

    float32 and float64: a rule rounds at most four times a step on the way to any one array, half an epsilon each;
    in the worst case all roundings of all steps add up. A float16 value is stored by the reference too and computed
    with 13 bits to spare, so the two differ only where that last rounding is nearly a tie: a unit or two now and then.
    """
    return float(np.finfo(dtype).eps) * (2 if dtype == "float16" else STEPS * 4 / 2)


def slot_dtype(dtype):
    """A float16 slot would lose the squares of small gradients."""
    return np.dtype("float32" if dtype == "float16" else dtype)


def check_against_formula(rule, case, random, dtype="float32", shape=(31, 7), steps=STEPS, by_rows=False, twin=None):
    """Fails unless `rule` follows the case's formula for random gradients, or random rows of them, and borrows these.

    Each update has a learning rate of its own, around that of the spec; indices are of any integer dtype, and may be
    none. After each, the same updates by `twin`, and by all rows of a dense gradient, must have the same bits.
    """
    stored = "float16" if dtype == "float16" else "float64"
    value = np.array(random.normal(size=shape), dtype)
    slots = rule.slots(value)
    twins = [(twin or rule, value.copy(), rule.slots(value), False)]
    if shape and not by_rows:
        twins.append((twin or rule, value.copy(), rule.slots(value), True))
    expected, expected_slots = value.astype("float64"), {name: slot.astype("float64") for name, slot in slots.items()}
    for t in range(1, steps + 1):
        rows = np.flatnonzero(random.random(shape[0]) < random.choice([0, 0.1, 0.5, 1.0])) if by_rows else ...
        gradient = np.array(random.normal(size=expected[rows].shape), dtype)
        borrowed = gradient.copy()
        step = at(t, case.rate * random.uniform(0.5, 1.5))
        if by_rows:
            indices = rows.astype(random.choice(["int64", "int8", "int32", ">i4", "uint8", "uint64"]))
        pushed = IndexedSlices(borrowed, indices, shape) if by_rows else borrowed
        update(rule, value, slots, pushed, step)
        for other, other_value, other_slots, all_rows in twins:
            same = IndexedSlices(borrowed, np.arange(shape[0]), shape) if all_rows else pushed
            update(other, other_value, other_slots, same, step)
            for one, another in zip((value, *slots.values()), (other_value, *other_slots.values()), strict=True):
                check_same(case, another, one)
        np.testing.assert_array_equal(borrowed, gradient, err_msg=f"the gradient was changed in step {t}")
        borrowed[...] = np.nan  # for a rule that kept it
        named = {name: slot[rows] for name, slot in expected_slots.items()}
        new, new_slots = case.formula(case.spec, expected[rows], named, gradient.astype("float64"), step)
        expected[rows] = new.astype(stored)
        for name, slot in new_slots.items():
            expected_slots[name][rows] = slot
    for name, actual in {"value": value, **slots}.items():
        wanted, kind = (expected, np.dtype(dtype)) if name == "value" else (expected_slots[name], slot_dtype(dtype))
        assert (actual.dtype, actual.shape) == (kind, shape), f"{name} is another kind of array now"
        atol = tolerance(kind.name) * max(1.0, float(np.abs(wanted).max(initial=0.0)))
        np.testing.assert_allclose(actual.astype("float64"), wanted, rtol=0, atol=atol, err_msg=name)


def update(rule, value, slots, gradient, step):
    (rule.sparse if isinstance(gradient, IndexedSlices) else rule.dense)(value, slots, gradient, step)


def check_same(case, one, other):
    """Fails unless two arrays are equal bit by bit; a norm may be summed in another order, and differ in the last."""
    if case.whole:
        np.testing.assert_allclose(one, other, rtol=0, atol=4 * np.finfo(one.dtype).eps * np.abs(other).max(initial=1))
    else:
        assert one.tobytes() == other.tobytes()


@every_rule
@pytest.mark.parametrize(
    ("dtype", "shape", "by_rows"),
    few_fast(
        [
            ("float16", (31, 7), False),
            ("float32", (9,), True),
            ("float32", (3, BLOCK // 2 + 1), False),
            ("float64", (), False),
            ("float16", (0, 3), False),
            ("float16", (40, 5), True),
            ("float32", (3, 2 * BLOCK + 1), True),
            ("float64", (5, 2, 3), True),
            ("float64", (5, 0), True),
        ],
        2,
    ),
    ids=str,
)
def test_a_rule_follows_its_formula_and_numpy_compiled_and_all_rows_have_the_same_bits(
    case, dtype, shape, by_rows, random
):
    steps = STEPS if math.prod(shape) < BLOCK else 5
    check_against_formula(rule_for(case.spec), case, random, dtype, shape, steps, by_rows, twin=compiled(case.spec))


@pytest.mark.parametrize(
    ("case", "layout", "dtype"),
    combinations([(case,) for case in RULES_UNDER_TEST], list(zip(LAYOUTS, FLOATING * 2, strict=False))),
    ids=lambda value: getattr(value, "name", None),
)
def test_the_gradients_layout_in_memory_does_not_change_a_bit_of_the_result(case, layout, dtype, random):
    shape = (7, BLOCK // 5)  # more than a block, and a row's end is not a block's
    first, results = random.normal(size=shape).astype(dtype), []
    given = LAYOUTS[layout](random.normal(size=shape).astype(dtype))
    for gradient in (given, given.astype(given.dtype.newbyteorder(">")), np.array(given, order="C")):
        gradient.flags.writeable = False
        rows = rows_of(gradient[:3], [0, 2, 5], 7)
        for rule in (rule_for(case.spec), compiled(case.spec)):
            value = first.copy()
            slots = rule.slots(value)
            rule.dense(value, slots, gradient, at(1, case.rate))
            rule.sparse(value, slots, rows, at(2, case.rate))
            results.append([value, *slots.values()])
    for arrays in zip(*results, strict=True):
        for array in arrays[1:]:
            check_same(case, array, arrays[0])


@pytest.mark.parametrize("kind", few_fast(optimizers.UpdateSpec.kinds, 3))
def test_a_rule_with_another_hyperparameter_does_not_follow_the_formula(kind):
    cases = [case for case in RULES_UNDER_TEST if case.spec.kind == kind]
    names = {field.name for field in dataclasses.fields(cases[0].spec)}
    for name in names - {"learning_rate"}:  # each step has its own
        wrong = [dataclasses.replace(case.spec, **{name: altered(getattr(case.spec, name))}) for case in cases]
        assert any(differs(case, rule_for(spec)) for case, spec in zip(cases, wrong, strict=True)), name


def altered(value):
    """Another value of the same field."""
    return not value if isinstance(value, bool) else 2 * value if isinstance(value, int) and value else value / 2 or 0.5


def differs(case, rule):
    """Whether the rule has other first slots, or does not follow the case's formula."""
    try:
        check_against_formula(rule, case, np.random.default_rng(20150508))
    except AssertionError:
        return True
    return {name: pytest.approx(slot[0]) for name, slot in rule.slots(np.ones(1)).items()} != case.first_slots


# --- slots and arguments --------------------------------------------------------------------------------------------


@every_rule
@together(("dtype", "shape"), [("float16", (4, 3)), ("float32", ()), ("float64", (0, 3))], ids=str)
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
def test_a_gradient_of_another_shape_is_refused(case):
    rule, value = rule_for(case.spec), np.ones((4, 3), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        rule.dense(value, rule.slots(value), np.ones(3, "float32"), at(1, case.rate))
    np.testing.assert_array_equal(value, 1)


@every_rule
def test_an_update_takes_a_few_blocks_of_memory_whatever_the_size_of_the_variable(case):
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
    *(optimizers.Adam(0.1, 0.0, 0.0), optimizers.AdamW(0.1, 0.9, 0.0, amsgrad=True), optimizers.RMSProp(0.1, 0.0)),
    *(optimizers.Adagrad(1e308, 1e308, 1e308), optimizers.AdagradDecay(1e308, 1e308, 1, 1e-308)),
    *(optimizers.RMSProp(1e308, 0, epsilon=1e-308), optimizers.RMSProp(1e308, 0.5, 0.9, centered=True)),
    *(optimizers.Adam(1e308, epsilon=1e308), optimizers.Adam(1e308, epsilon=1e-308, amsgrad=True)),
    *(optimizers.AdamW(1e308, weight_decay=1e308), optimizers.Lamb(1e308, weight_decay=1e308)),
    *(optimizers.Ftrl(1e308, 1e308, 1e308, 1, 1e308), optimizers.Ftrl(1e-308, 1e-308, 1e-308, 1, 1e-308)),
]


@pytest.mark.parametrize(
    ("dtype", "spec"),
    combinations(
        [(dtype,) for dtype in FLOATING], [(spec,) for spec in [*(case.spec for case in RULES_UNDER_TEST), *EXTREME]]
    ),
    ids=str,
)
def test_overflow_is_silent_and_the_same_compiled(spec, dtype, random):
    """Infinity times zero is NaN, and no comparison holds with one."""
    largest = np.finfo(dtype).max
    gradients = random.choice(np.array([0, 1, -1, largest**-0.5, largest**0.5, -largest, largest], dtype), (12, 200))
    states = []
    for rule in (rule_for(spec), compiled(spec)):
        with np.errstate(all="raise"):
            value = np.linspace(-3, 3, 200, dtype=dtype)
            slots = rule.slots(value)
            for number, gradient in enumerate(gradients, 1):
                rate = 1e30 if number == 12 else getattr(spec, "learning_rate", 1.0)
                rule.dense(value, slots, gradient, at(number, rate))
            states.append([value, *slots.values()])
    for plain, same in zip(*states, strict=True):
        np.testing.assert_array_equal(plain, same)  # a NaN has many bit patterns
    if isinstance(spec, optimizers.GradientDescent):
        assert not np.isfinite(value).all()


TINY = [
    *(optimizers.Adagrad(0.1, 1e-320), optimizers.AdagradDecay(0.1, 1e-320, 1, 0), optimizers.RMSProp(epsilon=1e-320)),
    *(optimizers.RMSProp(epsilon=1e-320, centered=True, momentum=0.9), optimizers.Adam(epsilon=1e-320)),
    optimizers.AdamW(epsilon=1e-320, weight_decay=0, amsgrad=True),
    optimizers.Lamb(epsilon=1e-320, weight_decay=0),
    *(optimizers.Ftrl(0.1, initial_accumulator=1e-320, learning_rate_power=power) for power in (0.5, 1)),
]


def moves_alone(spec):
    """Whether weights change without a gradient."""
    decays = any(getattr(spec, name, 0) > 0 for name in ("weight_decay", "l1", "l2"))
    return decays or isinstance(spec, optimizers.MovingAverage)


STILL = [case.spec for case in RULES_UNDER_TEST if not moves_alone(case.spec)]


@together("spec", [*STILL, *TINY], ids=str)
@together("dtype", FLOATING)
def test_a_zero_gradient_leaves_a_new_variable_and_an_epsilon_too_small_for_the_dtype_makes_no_nan(spec, dtype):
    value = np.ones(2, dtype)
    run(spec, value, [0.0, 0.0], [0.0, 0.0])
    np.testing.assert_array_equal(value, 1)


# --- compiled loops -------------------------------------------------------------------------------------------------


def test_the_hot_rules_have_loops_that_release_the_interpreters_lock_and_round_as_numpy_does():
    loops = {case.spec.kind: loop for case in RULES_UNDER_TEST if (loop := compiled(case.spec).loop) is not None}
    assert loops.keys() >= {"gradient_descent", "momentum", "adagrad", "rmsprop", "adam", "adamw", "ftrl"}
    for loop in loops.values():
        code = numba_compiler.machine_code(loop)
        assert code.targetoptions["nogil"] is True
        assert not code.targetoptions.get("fastmath")
        assert len(code.signatures) == 2, "no push may wait for another one"


@pytest.mark.parametrize("make", [rule_for, compiled])
@pytest.mark.parametrize("indices", [[-1, 2], [2, 4]])
def test_a_row_outside_of_the_variable_is_never_written(indices, make):
    """Machine code does not look at indices: what a caller has not checked must not become a write anywhere."""
    rule, value = make(optimizers.GradientDescent(0.1)), np.zeros((4, 3), "float32")
    rows = IndexedSlices(np.ones((2, 3), "float32"), np.array(indices), (4, 3), check_range=False)
    with pytest.raises(IndexError, match=r"rows -?[0-9]+ to [0-9]+ of 4"):
        rule.sparse(value, {}, rows, at(1, 0.1))
    np.testing.assert_array_equal(value, 0)
    with pytest.raises(ValueError, match=r"of shape \(6, 2\) cannot update one of \(4, 3\)"):
        rule.sparse(value, {}, IndexedSlices(np.ones((1, 2), "float32"), np.array([0]), (6, 2)), at(1, 0.1))


def test_without_numba_there_is_no_loop_and_where_nothing_can_be_kept_it_is_compiled_for_this_process(monkeypatch):
    compile_loop, kept = numba_compiler.machine_code.__wrapped__, []

    def njit(signatures, *, cache, **options):
        kept.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compile_loop(adam._adam) is adam._adam.function
    assert kept == [True, False]
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compile_loop(adam._adam) is None
    monkeypatch.setattr(numba_compiler, "machine_code", compile_loop)
    rule, value = compiled(optimizers.Adam(0.1)), np.full(3, 10.0, "float32")
    rule.dense(value, rule.slots(value), value.copy(), at(1, 0.1))
    np.testing.assert_allclose(value, 9.9, rtol=1e-6)


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
        # Keras's documentation: SGD 1 -> 0.9, with momentum -> 0.72; Adam 10 -> 9.9. Duchi's delta and l1 by hand.
        (optimizers.GradientDescent(0.1), [1.0, 0.9, 0.81]),
        (optimizers.Momentum(0.1, 0.9), [1.0, 0.9, 0.72]),
        (optimizers.Adagrad(1.0, 0.0, epsilon=0.5), [2.0, 1.2, 0.7763281]),
        (optimizers.Adam(0.1), [10.0, 9.9, 9.8000275]),
        (optimizers.Ftrl(0.1, l1=5.0), [1.0, 0.4279224]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_steps_down_half_a_square_are_those_published_or_computed_by_hand(spec, values):
    value = np.array(values[0])
    run(spec, value, *values[:-1], rate=spec.learning_rate)  # the gradient of w^2 / 2 is w
    assert value == pytest.approx(values[-1], abs=2e-7)


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


def test_an_accumulator_does_not_grow_when_its_periods_become_longer():
    often, seldom = (rule_for(optimizers.AdagradDecay(0.1, 1.0, steps, 0.5)) for steps in (1, 100))
    value, none = np.zeros(1, np.float32), np.zeros(1, np.float32)
    slots = often.slots(value)
    often.dense(value, slots, np.float32([3.0]), optimizers.Step(1, 1000, 0.1))
    for global_step, expected in ((1001, (10, 10)), (1100, (5, 11))):
        seldom.dense(value, slots, none, optimizers.Step(2, global_step, 0.1))
        assert (*slots["accumulator"], *slots["accumulator_decay_power"]) == expected


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
