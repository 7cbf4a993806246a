"""Update rules at work on a few numbers that can be followed by hand, and what their authors promise of them."""

import math

import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import Step, numba_compiler, rule_for
from tests.unit.pswire.optimizers.rules_under_test import at


@pytest.fixture(autouse=True)
def numpy(monkeypatch):
    """Compiled loops have the same bits: `test_numba_compiler.py`."""
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)


def run(spec, value, *gradients, rate=0.1, global_steps=None):
    """Yields the slots after each gradient, which updates `value`."""
    rule = rule_for(spec)
    slots = rule.slots(value)
    for number, gradient in enumerate(gradients, 1):
        global_step = global_steps[number - 1] if global_steps else 3 * number
        rule.dense(value, slots, np.asarray(gradient, value.dtype), Step(number, global_step, rate))
        yield slots


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        # The loss is w^2 / 2, so the gradient is w. Keras's documentation of SGD gives 1 -> 0.9, with momentum -> 0.72.
        (optimizers.GradientDescent(0.1), [1.0, 0.9, 0.81]),
        (optimizers.Momentum(0.1, 0.9), [1.0, 0.9, 0.72]),
        # m = 1, g + 0.9 m = 1.9; then g = 0.81, m = 0.9 + 0.81 = 1.71, g + 0.9 m = 2.349.
        (optimizers.Momentum(0.1, 0.9, nesterov=True), [1.0, 0.81, 0.5751]),
        # a = 0.1 + 0.5^2 = 0.35 and 0.5 / sqrt(0.35) = 0.845154; then g = 0.4154846, a = 0.5226274, step 0.0574724.
        (optimizers.Adagrad(0.1), [0.5, 0.4154846, 0.3580122]),
        # Duchi's delta: a = 4 and 2 / (2 + 0.5) = 0.8; then g = 1.2, a = 5.44, 1.2 / (2.3323808 + 0.5) = 0.4236718.
        (optimizers.Adagrad(1.0, 0.0, epsilon=0.5), [2.0, 1.2, 0.7763281]),
        # The first step is the learning rate times the sign: Keras's documentation of Adam gives 10 -> 9.9.
        # Then m = 0.9 * 1 + 0.1 * 9.9 = 1.89, v = 0.999 * 0.1 + 0.001 * 98.01 = 0.19791; corrected 1.89 / 0.19 =
        # 9.9473684 and 0.19791 / 0.001999 = 99.0045023, so the step is 0.1 * 9.9473684 / 9.9501006 = 0.0999725.
        (optimizers.Adam(0.1), [10.0, 9.9, 9.8000275]),
        # The decay is 0.1 * 0.1 of the weight: 10 - 0.1 - 0.1. Then m = 1.88 over 0.19 = 9.8947368, v = 0.19594 over
        # 0.001999 = 98.0190095, so the step is 0.1 * 9.8947368 / 9.9004550 = 0.0999422, and the decay 0.098.
        (optimizers.AdamW(0.1, weight_decay=0.1), [10.0, 9.8, 9.6020578]),
        # s = 0.1, 0.1 * 1 / 0.3162278; then s = 0.09 + 0.0467544, 0.1 * 0.6837722 / 0.3698032 = 0.1849017.
        (optimizers.RMSProp(0.1, epsilon=1e-30), [1.0, 0.6837722, 0.4988706]),
        # Centered: 0.1 - 0.01 is 0.3^2; then c = 0.09 + 0.0666667 = 0.1566667, s = 0.09 + 0.0444444, less c^2 0.1099,
        # whose root is 0.3315117; 0.1 * 0.6666667 / 0.3315117 = 0.2010990.
        (optimizers.RMSProp(0.1, epsilon=1e-30, centered=True), [1.0, 0.6666667, 0.4655677]),
        # n = 1.1 and its root 1.0488088; z = 0.1 * 1 - 1.0488088 = -0.9488088, of which l1 leaves 0.4488088.
        (optimizers.Ftrl(0.1, l1=5.0), [1.0, 0.4279224]),
        # The step is as long as the weight: 1 - 0.1, and once more.
        (optimizers.Lamb(0.1, weight_decay=0.0), [1.0, 0.9, 0.81]),
        # Global steps 3 and 6, so a = max(0.1, 0.1 * 0.5) + 1 and 0.1 / 1.0488088; then 0.55 + 0.8183983 = 1.3683983.
        (optimizers.AdagradDecay(0.1, 0.1, 3, 0.5), [1.0, 0.9046537, 0.8273187]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_two_steps_are_those_computed_by_hand(spec, values):
    rule, value = rule_for(spec), np.array(values[0])
    slots = rule.slots(value)
    for step, expected in enumerate(values[1:], 1):
        rule.dense(value, slots, value.copy(), at(step, spec.learning_rate))
        assert value == pytest.approx(expected, abs=5e-8)


def test_the_first_step_of_adam_is_the_learning_rate_and_of_lamb_the_length_of_the_weights_times_it():
    for gradient in (1e-6, 0.3, -7.0, 1e6):
        value = np.zeros(1)
        list(run(optimizers.Adam(epsilon=1e-12), value, [gradient], rate=0.001))
        assert value[0] == pytest.approx(-0.001 * math.copysign(1, gradient), rel=1e-5)
    value = np.array([3.0, 4.0])  # |w| is 5 and u is the signs of the gradient
    list(run(optimizers.Lamb(epsilon=1e-12, weight_decay=0.0), value, [0.2, -7.0]))
    np.testing.assert_allclose(value, [3 - 0.5 / math.sqrt(2), 4 + 0.5 / math.sqrt(2)], rtol=1e-9)
    for first in (0.0, 1e30):  # where a norm is zero or overflows
        value = np.full(2, first, "float32")
        list(run(optimizers.Lamb(weight_decay=0.0), value, [1, 1], rate=0.5))
        np.testing.assert_allclose(value, first - 0.5, rtol=1e-5)


def test_ftrl_without_regularization_is_adagrad_whatever_the_schedule():
    """As the paper says of gradient descent with a learning rate for each coordinate; a rate of 0 rests."""
    random = np.random.default_rng(20130616)
    rules = rule_for(optimizers.Ftrl(0.1)), rule_for(optimizers.Adagrad(0.1))
    values = [random.normal(size=50)] * 2
    values = [value.copy() for value in values]
    slots = [rule.slots(value) for rule, value in zip(rules, values, strict=True)]
    for number in range(1, 101):
        gradient, step = random.normal(size=50), at(number, random.choice([0.0, 1e-6, 0.1, 2.0]))
        for rule, value, own in zip(rules, values, slots, strict=True):
            rule.dense(value, own, gradient, step)
    np.testing.assert_allclose(*values, rtol=0, atol=1e-13)


def test_an_accumulator_decays_once_a_period_and_not_below_where_it_began():
    spec, periods = optimizers.AdagradDecay(0.1, 1.0, decay_steps=10, decay_rate=0.5), [0, 9, 10, 19, 45, 60]
    states = run(spec, np.zeros(1), [3.0], [0.0], [0.0], [0.0], [0.0], [2.0], global_steps=periods)
    seen = [(slots["accumulator"][0], slots["accumulator_decay_power"][0]) for slots in states]
    assert seen == [(10, 0), (10, 0), (5, 1), (5, 1), (1, 4), (5, 6)]
    early, late = np.zeros(3), np.zeros(3)  # a variable made late has nothing to catch up with
    for value, global_step in ((early, 0), (late, 10_000_000)):
        list(run(optimizers.AdagradDecay(0.1, decay_steps=10), value, [1.0, -0.1, 0.0], global_steps=[global_step]))
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


def test_adam_on_float16_survives_gradients_whose_square_float16_cannot_hold():
    """Each step of a constant gradient is the learning rate; a float16 second moment would be zero, and w -900."""
    value = np.zeros(1, "float16")
    list(run(optimizers.Adam(), value, *[[1e-3]] * 100, rate=0.001))
    assert value[0] == pytest.approx(-0.1, rel=0.01)
