"""Every update rule against its published formula, written here once more: whole arrays of float64, no shortcuts."""

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from psserver.core.rules import Rule, kernels, rule_for
from pswire import specs
from pswire.errors import InvalidMessage
from pswire.values import DTYPES, Array

STEPS = 100
FLOATING = ("float16", "float32", "float64")
State = dict[str, Array]


# --- the formulas: (spec, w, slots, g, t, rate) -> (w, slots), nothing in place -------------------------------------


def gradient_descent(
    spec: specs.GradientDescent, w: Array, slots: State, g: Array, t: int, rate: float
) -> tuple[Array, State]:
    return w - rate * g, {}


def momentum(spec: specs.Momentum, w: Array, slots: State, g: Array, t: int, rate: float) -> tuple[Array, State]:
    m = spec.momentum * slots["momentum"] + g
    direction = g + spec.momentum * m if spec.nesterov else m
    return w - rate * direction, {"momentum": m}


def adagrad(spec: specs.Adagrad, w: Array, slots: State, g: Array, t: int, rate: float) -> tuple[Array, State]:
    a = slots["accumulator"] + g**2
    return w - rate * g / (np.sqrt(a) + spec.epsilon), {"accumulator": a}


def adam(spec: specs.Adam, w: Array, slots: State, g: Array, t: int, rate: float) -> tuple[Array, State]:
    m = spec.beta1 * slots["m"] + (1 - spec.beta1) * g
    v = spec.beta2 * slots["v"] + (1 - spec.beta2) * g**2
    m_hat = m / (1 - spec.beta1**t)
    v_hat = v / (1 - spec.beta2**t)
    return w - rate * m_hat / (np.sqrt(v_hat) + spec.epsilon), {"m": m, "v": v}


def moving_average(
    spec: specs.MovingAverage, w: Array, slots: State, x: Array, t: int, rate: float
) -> tuple[Array, State]:
    return w + (1 - spec.decay) * (x - w), {}


@dataclass(frozen=True)
class UnderTest:
    name: str
    spec: specs.UpdateSpec
    formula: Callable[[Any, Array, State, Array, int, float], tuple[Array, State]]
    first_slots: dict[str, float]

    @property
    def rate(self) -> float:
        """The learning rate of its spec, if it has one."""
        return getattr(self.spec, "learning_rate", 1.0)


#: An epsilon as large as 0.1 shows where it stands in the formula.
RULES_UNDER_TEST = [
    UnderTest("gradient_descent", specs.GradientDescent(0.1), gradient_descent, {}),
    UnderTest("momentum", specs.Momentum(0.01), momentum, {"momentum": 0.0}),
    UnderTest("nesterov", specs.Momentum(0.01, momentum=0.8, nesterov=True), momentum, {"momentum": 0.0}),
    UnderTest("adagrad", specs.Adagrad(0.1), adagrad, {"accumulator": 0.1}),
    UnderTest("adagrad_epsilon", specs.Adagrad(0.1, 0.0, epsilon=0.1), adagrad, {"accumulator": 0.0}),
    UnderTest("adam", specs.Adam(), adam, {"m": 0.0, "v": 0.0}),
    UnderTest("adam_epsilon", specs.Adam(0.01, 0.8, 0.95, epsilon=0.1), adam, {"m": 0.0, "v": 0.0}),
    UnderTest("moving_average", specs.MovingAverage(0.9), moving_average, {}),
    UnderTest("moving_average_without_memory", specs.MovingAverage(0), moving_average, {}),
]

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)
every_optimizer = pytest.mark.parametrize(
    "case",
    [case for case in RULES_UNDER_TEST if isinstance(case.spec, specs.OptimizerSpec)],
    ids=lambda case: case.name,
)


@pytest.fixture(params=[20130616], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def tolerance(dtype: str) -> float:
    """Relative to the largest magnitude in play.

    float32 and float64: a rule rounds at most four times a step on the way to any one array, half an epsilon each;
    in the worst case all roundings of all steps add up. A float16 value is stored by the reference too and computed
    with 13 bits to spare, so the two differ only where that last rounding is nearly a tie: a unit or two now and then.
    """
    eps = float(np.finfo(dtype).eps)
    return 2 * eps if dtype == "float16" else STEPS * 4 * eps / 2


def slot_dtype(dtype: str) -> np.dtype:
    """A float16 slot would lose the squares of small gradients."""
    return np.dtype("float32" if dtype == "float16" else dtype)


def check_against_formula(
    rule: Rule, case: UnderTest, random: np.random.Generator, dtype: str = "float32", shape: tuple[int, ...] = (31, 7)
) -> None:
    """Fails unless `rule` follows the case's formula for `STEPS` random gradients, and only borrows these.

    Each update has a learning rate of its own, around that of the spec.
    """
    stored = "float16" if dtype == "float16" else "float64"
    value = np.array(random.normal(size=shape), dtype)
    slots = rule.slots(value)
    expected, expected_slots = value.astype("float64"), {name: slot.astype("float64") for name, slot in slots.items()}
    for t in range(1, STEPS + 1):
        gradient = np.array(random.normal(size=shape), dtype)
        lent = gradient.copy()
        rate = case.rate * random.uniform(0.5, 1.5)
        rule.dense(value, slots, lent, t, rate)
        np.testing.assert_array_equal(lent, gradient, err_msg=f"the gradient was changed in step {t}")
        lent[...] = np.nan  # for a rule that kept it
        expected, expected_slots = case.formula(
            case.spec, expected, expected_slots, gradient.astype("float64"), t, rate
        )
        expected = expected.astype(stored).astype("float64")
    check_close("value", value, expected, dtype, shape)
    for name, slot in slots.items():
        check_close(name, slot, expected_slots[name], slot_dtype(dtype).name, shape)


def check_close(name: str, actual: Array, wanted: Array, dtype: str, shape: tuple[int, ...]) -> None:
    """Fails unless an array is still of its kind, and where the float64 reference is after `STEPS` updates."""
    assert (actual.dtype, actual.shape) == (np.dtype(dtype), shape), f"{name} is another kind of array now"
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(actual.astype("float64"), wanted, rtol=0, atol=tolerance(dtype) * scale, err_msg=name)


# --- against the formulas -------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_rule_follows_its_formula_for_100_steps_in_every_dtype(case, dtype, random):
    check_against_formula(rule_for(case.spec), case, random, dtype=dtype)


@every_rule
@pytest.mark.parametrize("shape", [(), (1,), (9,), (0,), (0, 3), (2, 3, 4), (3, kernels.BLOCK // 2 + 1)], ids=str)
def test_a_rule_follows_its_formula_for_100_steps_in_every_shape(case, shape, random):
    check_against_formula(rule_for(case.spec), case, random, shape=shape)


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        # The loss is w^2 / 2, so the gradient is w. Keras's documentation of SGD gives 1 -> 0.9, with momentum -> 0.72.
        (specs.GradientDescent(0.1), [1.0, 0.9, 0.81]),
        (specs.Momentum(0.1, 0.9), [1.0, 0.9, 0.72]),
        # m = 1, g + 0.9 m = 1.9; then g = 0.81, m = 0.9 + 0.81 = 1.71, g + 0.9 m = 2.349.
        (specs.Momentum(0.1, 0.9, nesterov=True), [1.0, 0.81, 0.5751]),
        # a = 0.1 + 0.5^2 = 0.35 and 0.5 / sqrt(0.35) = 0.845154; then g = 0.4154846, a = 0.5226274, step 0.0574724.
        (specs.Adagrad(0.1), [0.5, 0.4154846, 0.3580122]),
        # Duchi's delta: a = 4 and 2 / (2 + 0.5) = 0.8; then g = 1.2, a = 5.44, 1.2 / (2.3323808 + 0.5) = 0.4236718.
        (specs.Adagrad(1.0, 0.0, epsilon=0.5), [2.0, 1.2, 0.7763281]),
        # The first step is the learning rate times the sign: Keras's documentation of Adam gives 10 -> 9.9.
        # Then m = 0.9 * 1 + 0.1 * 9.9 = 1.89, v = 0.999 * 0.1 + 0.001 * 98.01 = 0.19791; corrected 1.89 / 0.19 =
        # 9.9473684 and 0.19791 / 0.001999 = 99.0045023, so the step is 0.1 * 9.9473684 / 9.9501006 = 0.0999725.
        (specs.Adam(0.1), [10.0, 9.9, 9.8000275]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_two_steps_are_those_computed_by_hand(spec, values):
    rule, value = rule_for(spec), np.array(values[0])
    slots = rule.slots(value)
    for step, expected in enumerate(values[1:], 1):
        rule.dense(value, slots, value.copy(), step, spec.learning_rate)
        assert value == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize("gradient", [1e-6, 0.3, -7.0, 1e6])
def test_adams_first_step_is_the_learning_rate_whatever_the_size_of_the_gradient(gradient):
    rule, value = rule_for(specs.Adam(epsilon=1e-12)), np.zeros(1)
    rule.dense(value, rule.slots(value), np.array([gradient]), 1, 0.001)
    assert value[0] == pytest.approx(-0.001 * math.copysign(1, gradient), rel=1e-5)


def test_a_moving_average_of_one_number_comes_nearer_to_it_by_the_same_share_each_time():
    """0, then 0.1, 0.19, 0.271, ...: 1 - 0.9^t, whatever the learning rate."""
    rule, value = rule_for(specs.MovingAverage(0.9)), np.zeros(1)
    for step in range(1, 101):
        rule.dense(value, {}, np.ones(1), step, 1e9)
        assert value[0] == pytest.approx(1 - 0.9**step, rel=1e-13)


def test_adam_on_float16_survives_gradients_whose_square_float16_cannot_hold():
    """Each step of a constant gradient is the learning rate; a float16 second moment would be zero, and w -900."""
    rule, value = rule_for(specs.Adam()), np.zeros(1, "float16")
    slots = rule.slots(value)
    for step in range(1, 101):
        rule.dense(value, slots, np.array([1e-3], "float16"), step, 0.001)
    assert value[0] == pytest.approx(-0.1, rel=0.01)


# --- slots ----------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("shape", [(), (4, 3), (0, 3)], ids=str)
def test_slots_have_their_names_and_first_values_and_the_variables_shape_and_precision_enough(case, dtype, shape):
    value = np.ones(shape, dtype)
    slots = rule_for(case.spec).slots(value)
    assert slots.keys() == case.first_slots.keys()
    for name, first in case.first_slots.items():
        slot = slots[name]
        assert (slot.shape, slot.dtype, slot.flags.c_contiguous) == (shape, slot_dtype(dtype), True)
        assert not np.shares_memory(slot, value)
        np.testing.assert_array_equal(slot, np.full(shape, first, slot_dtype(dtype)))
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

LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "column by column": np.asfortranarray,
    "backwards": lambda g: np.ascontiguousarray(g[::-1, ::-1])[::-1, ::-1],
    "every other column": lambda g: np.repeat(g, 2, axis=1)[:, ::2],
    "one row again and again": lambda g: np.broadcast_to(g[0], g.shape),
    "at an odd address": lambda g: np.frombuffer(b"\0" + g.tobytes(), g.dtype, offset=1).reshape(g.shape),
}


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradients_layout_in_memory_does_not_change_a_bit_of_the_result(case, dtype, layout, random):
    shape = (7, kernels.BLOCK // 5)  # more than a block, and a row's end is not a block's
    first, rule = random.normal(size=shape).astype(dtype), rule_for(case.spec)
    gradient = LAYOUTS[layout](random.normal(size=shape).astype(dtype))
    gradient.flags.writeable = False
    results = []
    for lent in (gradient, np.array(gradient, order="C")):
        value = first.copy()
        slots = rule.slots(value)
        for step in (1, 2):
            rule.dense(value, slots, lent, step, case.rate)
        results.append([value, *slots.values()])
    for given, plain in zip(*results, strict=True):
        assert given.tobytes() == plain.tobytes()


@every_rule
def test_a_gradient_of_another_shape_is_never_stretched_to_fit(case):
    rule, value = rule_for(case.spec), np.ones((4, 3), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        rule.dense(value, rule.slots(value), np.ones(3, "float32"), 1, case.rate)
    np.testing.assert_array_equal(value, 1)


@every_optimizer
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_zero_gradient_leaves_a_new_variable_as_it_is(case, dtype):
    rule, value = rule_for(case.spec), np.array([1.5, -2.0, 0.0], dtype)
    rule.dense(value, rule.slots(value), np.zeros(3, dtype), 1, case.rate)
    np.testing.assert_array_equal(value, np.array([1.5, -2.0, 0.0], dtype))


@every_rule
def test_an_update_takes_a_few_blocks_of_memory_whatever_the_size_of_the_variable(case):
    rule, value = rule_for(case.spec), np.ones((1024, 4096), "float32")
    slots, gradient = rule.slots(value), np.ones((4096, 1024), "float32").T
    tracemalloc.start()
    try:
        rule.dense(value, slots, gradient, 1, case.rate)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * kernels.BLOCK * value.itemsize < value.nbytes / 8


# --- numbers --------------------------------------------------------------------------------------------------------


@every_rule
def test_equal_updates_give_equal_bits_also_when_one_rule_serves_two_variables(case, random):
    first = random.normal(size=(5, 999)).astype("float32")
    gradients = random.normal(size=(10, 5, 999)).astype("float32")
    rule, values = rule_for(case.spec), [first.copy(), first.copy()]
    slots = [rule.slots(value) for value in values]
    for step, gradient in enumerate(gradients, 1):
        for value, own in zip(values, slots, strict=True):
            rule.dense(value, own, gradient, step, case.rate)
    alone, own = first.copy(), rule_for(case.spec).slots(first)
    for step, gradient in enumerate(gradients, 1):
        rule_for(case.spec).dense(alone, own, gradient, step, case.rate)
    for value, others in zip(values, slots, strict=True):
        assert value.tobytes() == alone.tobytes()
        assert all(others[name].tobytes() == own[name].tobytes() for name in own)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(
    "spec",
    [
        *(case.spec for case in RULES_UNDER_TEST),
        specs.GradientDescent(1e308),
        specs.Momentum(1e308, nesterov=True),
        specs.Adagrad(1e308, 1e308, 1e308),
        specs.Adam(1e308, epsilon=1e308),
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
            rule.dense(value, slots, np.array([largest, -largest, 0.0], dtype), step, rate)


def test_a_value_that_overflows_becomes_infinite():
    value = np.array([-3e38, 1.0], "float32")
    rule_for(specs.GradientDescent(1.0)).dense(value, {}, np.array([3e38, 1.0], "float32"), 1, 1.0)
    np.testing.assert_array_equal(value, np.array([-np.inf, 0.0], "float32"))


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("spec", [specs.Adagrad(0.1, 1e-320), specs.Adam(epsilon=1e-320)], ids=lambda spec: spec.kind)
def test_an_epsilon_too_small_for_the_dtype_makes_no_nan(spec, dtype):
    rule, value = rule_for(spec), np.ones(2, dtype)
    slots = rule.slots(value)
    for step in (1, 2):
        rule.dense(value, slots, np.zeros(2, dtype), step, 0.1)
    np.testing.assert_array_equal(value, 1)


@every_rule
def test_a_subclass_of_a_spec_has_the_rule_of_its_spec(case):
    subclass = type("Optimizer", (type(case.spec),), {})
    assert type(rule_for(subclass(**vars(case.spec)))) is type(rule_for(case.spec))


def test_a_spec_of_an_unknown_kind_is_refused_and_the_known_ones_are_named():
    class Own(specs.OptimizerSpec):
        kind = "own"

    with pytest.raises(
        InvalidMessage, match="'own'; there are adagrad, adam, gradient_descent, momentum, moving_average"
    ):
        rule_for(Own(0.1))


# --- the loop they share --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (kernels.BLOCK,), (3, kernels.BLOCK - 1), (301, 701)], ids=str)
def test_the_blocks_pass_every_element_once_in_order_and_bring_back_what_is_written(shape, dtype, transposed):
    count = math.prod(shape)
    value, slot = np.zeros(shape, dtype), np.zeros(shape, dtype)
    gradient = (np.arange(count) % 2048).astype(dtype).reshape(shape)
    gradient = np.array(gradient, order="F" if transposed else "C")
    seen = 0
    for w, g, scratch, (s,) in kernels.blocks(value, gradient, slot):
        assert {block.shape for block in (w, g, scratch, s)} == {(g.size,)}
        assert 0 < g.size <= kernels.BLOCK
        assert {block.dtype for block in (w, g, scratch, s)} == {kernels.COMPUTE_DTYPES[value.dtype]}
        np.copyto(scratch, g)
        w += scratch
        s -= scratch
        seen += g.size
    assert seen == count
    np.testing.assert_array_equal(value, gradient)
    np.testing.assert_array_equal(slot, -gradient)
