"""Every update rule in numpy: its formula on arrays and on rows, slots, layouts, memory, and numbers at the edges."""

import math
import tracemalloc

import numpy as np
import pytest

from pswire import optimizers
from pswire.errors import InvalidMessage
from pswire.optimizers import element_wise, numba_compiler, rule_for
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
SEED = 20130616

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def numpy_and_small_blocks(monkeypatch):
    """Compiled loops have the same bits: `test_numba_compiler.py`."""
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)


@pytest.fixture(params=[SEED], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def rows_of(gradient, indices, count):
    return IndexedSlices(gradient, np.asarray(indices), (count, *gradient.shape[1:]))


# --- formulas -------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float16", (31, 7)), ("float32", (3, BLOCK // 2 + 1)), ("float32", (9,)), ("float64", ()), ("float16", (0, 3))],
    ids=str,
)
def test_a_rule_follows_its_formula_for_100_steps(case, dtype, shape, random):
    check_against_formula(rule_for(case.spec), case, random, dtype, shape, 100 if math.prod(shape) < BLOCK else 10)


@every_rule
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float16", (40, 5)),
        ("float32", (3, 2 * BLOCK + 1)),
        ("float32", (9,)),
        ("float64", (5, 2, 3)),
        ("float64", (5, 0)),
    ],
    ids=str,
)
def test_rows_follow_the_formula_and_others_stay_as_they_are(case, dtype, shape, random):
    check_against_formula(
        rule_for(case.spec), case, random, dtype, shape, 30 if math.prod(shape) < BLOCK else 3, by_rows=True
    )


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
def test_indices_may_be_of_any_integer_dtype_and_none(case, random):
    rule, value, results = rule_for(case.spec), random.normal(size=(100, 3)).astype("float32"), set()
    for kind in ("int64", "int8", "int32", ">i4", "uint8", "uint64"):
        for indices in (np.array([2, 3, 50, 99], kind), np.array([], kind)):
            own, slots = value.copy(), rule.slots(value)
            rule.sparse(own, slots, rows_of(np.ones((len(indices), 3), "float32"), indices, 100), at(1, case.rate))
            results.add((len(indices), own.tobytes(), *(slot.tobytes() for slot in slots.values())))
    assert len(results) == 2
    assert (0, value.tobytes(), *(slot.tobytes() for slot in rule.slots(value).values())) in results


# --- slots ----------------------------------------------------------------------------------------------------------


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
        assert slot.flags.writeable
        assert slot.ctypes.data % 64 == 0 or not slot.size, "compiled loops are slow where vectors cross cache lines"
        np.testing.assert_allclose(slot, first, rtol=np.finfo(slot.dtype).eps)


@every_rule
def test_a_variable_that_is_not_floating_is_refused_and_its_dtype_named(case):
    for dtype in DTYPES.keys() - set(FLOATING):
        with pytest.raises(InvalidMessage, match=f"float16, float32, float64, not of {dtype}"):
            rule_for(case.spec).slots(np.zeros(3, dtype))


# --- the gradient ---------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize(("dtype", "layouts"), [("float16", [0, 3]), ("float32", [1, 4]), ("float64", [2])], ids=str)
def test_the_gradients_layout_in_memory_does_not_change_a_bit_of_the_result(case, dtype, layouts, random):
    shape = (7, BLOCK // 5)  # more than a block, and a row's end is not a block's
    first, rule = random.normal(size=shape).astype(dtype), rule_for(case.spec)
    for layout in layouts:
        gradient = list(LAYOUTS.values())[layout](random.normal(size=shape).astype(dtype))
        gradient.flags.writeable = False
        results = []
        for borrowed in (gradient, np.array(gradient, order="C")):
            value = first.copy()
            slots = rule.slots(value)
            for step in (1, 2):
                rule.dense(value, slots, borrowed, at(step, case.rate))
            results.append([value, *slots.values()])
        for given, plain in zip(*results, strict=True):
            check_same(case, given, plain)


@every_rule
def test_a_gradient_of_another_shape_is_refused_and_a_zero_gradient_leaves_a_new_variable(case):
    rule, value = rule_for(case.spec), np.ones((4, 3), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        rule.dense(value, rule.slots(value), np.ones(3, "float32"), at(1, case.rate))
    np.testing.assert_array_equal(value, 1)
    if isinstance(case.spec, optimizers.OptimizerSpec) and not case.pulls:
        for dtype in FLOATING:
            value = np.array([1.5, -2.0, 0.0], dtype)
            rule.dense(value, rule.slots(value), np.zeros(3, dtype), at(1, case.rate))
            np.testing.assert_array_equal(value, np.array([1.5, -2.0, 0.0], dtype))


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
def test_what_overflows_is_silent(spec):
    for dtype in FLOATING:
        rule, value = rule_for(spec), np.array([0.0, 1.0, -1.0], dtype)
        largest = np.finfo(dtype).max
        with np.errstate(all="raise"):
            slots = rule.slots(value)
            for step in (1, 2, 3):
                rate = getattr(spec, "learning_rate", 1.0)
                rule.dense(value, slots, np.array([largest, -largest, 0.0], dtype), at(step, rate))
    value = np.array([-3e38, 1.0], "float32")
    rule_for(optimizers.GradientDescent(1.0)).dense(value, {}, np.array([3e38, 1.0], "float32"), at(1, 1.0))
    np.testing.assert_array_equal(value, np.array([-np.inf, 0.0], "float32"))


TINY = [
    *(optimizers.Adagrad(0.1, 1e-320), optimizers.AdagradDecay(0.1, 1e-320, 1, 0), optimizers.RMSProp(epsilon=1e-320)),
    *(optimizers.RMSProp(epsilon=1e-320, centered=True, momentum=0.9), optimizers.Adam(epsilon=1e-320)),
    optimizers.AdamW(epsilon=1e-320, weight_decay=0, amsgrad=True),
    optimizers.Lamb(epsilon=1e-320, weight_decay=0),
    *(optimizers.Ftrl(0.1, initial_accumulator=1e-320, learning_rate_power=power) for power in (0.5, 1)),
]


@pytest.mark.parametrize("spec", TINY, ids=str)
def test_an_epsilon_too_small_for_the_dtype_makes_no_nan(spec):
    for dtype in FLOATING:
        rule, value = rule_for(spec), np.ones(2, dtype)
        slots = rule.slots(value)
        for step in (1, 2):
            rule.dense(value, slots, np.zeros(2, dtype), at(step, 0.1))
        np.testing.assert_array_equal(value, 1)


def test_a_subclass_has_the_rule_of_its_kind_and_an_unknown_kind_is_refused_with_the_known_ones():
    for case in RULES_UNDER_TEST:
        subclass = type("Optimizer", (type(case.spec),), {})
        assert type(rule_for(subclass(**vars(case.spec)))) is type(rule_for(case.spec))
    own = type("Own", (optimizers.OptimizerSpec,), {"kind": "own"})
    with pytest.raises(InvalidMessage, match="'own'; known kinds: adagrad, adagrad_decay, adam, adamw, ftrl, "):
        rule_for(own(0.1))
