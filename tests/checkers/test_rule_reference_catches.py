"""The comparison of rule and formula must fail when given a wrong rule: each mistake here is one that people make."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import Step, rule_for
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST, STEPS, check_against_formula

SEED = 20150508

Dense = Callable[[Any, np.ndarray, dict[str, np.ndarray], np.ndarray, Step], None]
MISTAKES: list[tuple[str, Dense]] = []
KEPT: list[np.ndarray] = []


class Mistaken:
    """The right slots, and a mistake in the update."""

    def __init__(self, spec: Any, dense: Dense) -> None:
        self._spec, self._dense = spec, dense
        self.slots = rule_for(spec).slots

    def dense(self, value, slots, gradient, step):
        self._dense(self._spec, value, slots, gradient, step)


def mistake(kind: str) -> Callable[[Dense], Dense]:
    """Lists a wrong update for the optimizers of this kind; the function's name says what it does."""

    def listed(dense: Dense) -> Dense:
        MISTAKES.append((kind, dense))
        return dense

    return listed


def right(spec, w, slots, g, step):
    rule_for(spec).dense(w, slots, g, step)


# --- gradient descent -----------------------------------------------------------------------------------------------


@mistake("gradient_descent")
def climbs_instead_of_descending(spec, w, slots, g, step):
    w += step.learning_rate * g


@mistake("gradient_descent")
def has_the_rate_of_its_spec_at_every_step(spec, w, slots, g, step):
    right(spec, w, slots, g, replace(step, learning_rate=spec.learning_rate))


@mistake("gradient_descent")
def averages_over_the_elements(spec, w, slots, g, step):
    w -= step.learning_rate * g / g.size


@mistake("gradient_descent")
def scales_the_gradient_in_place(spec, w, slots, g, step):
    g *= step.learning_rate
    w -= g


@mistake("gradient_descent")
def leaves_out_the_last_element(spec, w, slots, g, step):
    last = w.flat[-1]
    right(spec, w, slots, g, step)
    w.flat[-1] = last


@mistake("gradient_descent")
def keeps_gradients_and_applies_them_all_at_the_end(spec, w, slots, g, step):
    KEPT.append(g)
    if step.number == STEPS:
        for kept in KEPT:
            right(spec, w, slots, kept, step)


@mistake("gradient_descent")
def computes_in_half_precision(spec, w, slots, g, step):
    w -= (step.learning_rate * g).astype("float16")


# --- momentum -------------------------------------------------------------------------------------------------------


@mistake("momentum")
def has_plain_and_nesterov_swapped(spec, w, slots, g, step):
    m = slots["momentum"]
    m *= spec.momentum
    m += g
    w -= step.learning_rate * (m if spec.nesterov else g + spec.momentum * m)


@mistake("momentum")
def looks_ahead_with_the_momentum_before_this_gradient(spec, w, slots, g, step):
    before = slots["momentum"].copy()
    right(spec, w, slots, g, step)
    if spec.nesterov:
        w += step.learning_rate * spec.momentum * (slots["momentum"] - before)


@mistake("momentum")
def dampens_the_gradient(spec, w, slots, g, step):
    right(spec, w, slots, (1 - spec.momentum) * g, step)


@mistake("momentum")
def has_the_learning_rate_inside_the_momentum(spec, w, slots, g, step):
    m = slots["momentum"]
    m *= spec.momentum
    m += step.learning_rate * g
    w -= step.learning_rate * g + spec.momentum * m if spec.nesterov else m


@mistake("momentum")
def forgets_its_slot(spec, w, slots, g, step):
    right(spec, w, {"momentum": slots["momentum"].copy()}, g, step)


# --- adagrad --------------------------------------------------------------------------------------------------------


@mistake("adagrad")
def moves_before_it_accumulates(spec, w, slots, g, step):
    a = slots["accumulator"]
    w -= step.learning_rate * g / (np.sqrt(a) + spec.epsilon + 1e-7)
    a += g * g


@mistake("adagrad")
def has_epsilon_inside_the_root(spec, w, slots, g, step):
    a = slots["accumulator"]
    a += g * g
    w -= step.learning_rate * g / np.sqrt(a + spec.epsilon)


@mistake("adagrad")
def takes_no_root(spec, w, slots, g, step):
    a = slots["accumulator"]
    a += g * g
    w -= step.learning_rate * g / (a + spec.epsilon)


@mistake("adagrad")
def accumulates_a_mean(spec, w, slots, g, step):
    a = slots["accumulator"]
    a += (g * g - a) / step.number
    w -= step.learning_rate * g / (np.sqrt(a) + spec.epsilon)


# --- adam -----------------------------------------------------------------------------------------------------------


def adam(spec, w, slots, g, step, *, correct=(True, True), inside=False, hat=False, beta1=None, beta2=None):
    """Adam with room for mistakes; right as it stands."""
    m, v = slots["m"], slots["v"]
    beta1, beta2 = beta1 or spec.beta1, beta2 or spec.beta2
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    if spec.amsgrad:
        v = np.maximum(slots["v_max"], v, out=slots["v_max"])
    m_hat = m / (1 - beta1**step.number) if correct[0] else m
    v_hat = v / (1 - beta2**step.number) if correct[1] else v
    epsilon = spec.epsilon / np.sqrt(1 - beta2**step.number) if hat else spec.epsilon
    w -= step.learning_rate * m_hat / (np.sqrt(v_hat + epsilon) if inside else np.sqrt(v_hat) + epsilon)


@mistake("adam")
def has_no_bias_correction(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, correct=(False, False))


@mistake("adam")
def corrects_the_first_moment_only(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, correct=(True, False))


@mistake("adam")
def corrects_the_second_moment_only(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, correct=(False, True))


@mistake("adam")
def has_epsilon_inside_the_root_too(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, inside=True)


@mistake("adam")
def does_not_correct_epsilon_with_the_rest(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, hat=True)


@mistake("adam")
def has_its_betas_swapped(spec, w, slots, g, step):
    adam(spec, w, slots, g, step, beta1=spec.beta2, beta2=spec.beta1)


@mistake("adam")
def counts_steps_one_too_far(spec, w, slots, g, step):
    right(spec, w, slots, g, replace(step, number=step.number + 1))


@mistake("adam")
def counts_every_step_as_the_first(spec, w, slots, g, step):
    right(spec, w, slots, g, replace(step, number=1))


@mistake("adam")
def takes_the_largest_of_the_corrected_moments(spec, w, slots, g, step):
    if not spec.amsgrad:
        return right(spec, w, slots, g, step)
    correction = 1 - spec.beta2**step.number
    slots["v_max"] *= correction
    right(spec, w, slots, g, step)
    slots["v_max"] /= correction
    return None


@mistake("adam")
def has_no_memory_of_the_largest_moment(spec, w, slots, g, step):
    right(spec, w, {"m": slots["m"], "v": slots["v"], "v_max": np.zeros_like(w)}, g, step)


# --- adamw, lamb ----------------------------------------------------------------------------------------------------


@mistake("adamw")
def decays_through_the_gradient(spec, w, slots, g, step):
    right(replace(spec, weight_decay=0), w, slots, g + spec.weight_decay * w, step)


@mistake("adamw")
def decays_without_the_learning_rate(spec, w, slots, g, step):
    w *= 1 - spec.weight_decay
    right(replace(spec, weight_decay=0), w, slots, g, step)


@mistake("adamw")
def decays_after_the_step(spec, w, slots, g, step):
    right(replace(spec, weight_decay=0), w, slots, g, step)
    w *= 1 - step.learning_rate * spec.weight_decay


@mistake("lamb")
def steps_as_adamw(spec, w, slots, g, step):
    right(
        optimizers.AdamW(spec.learning_rate, spec.beta1, spec.beta2, spec.epsilon, False, spec.weight_decay),
        w,
        slots,
        g,
        step,
    )


@mistake("lamb")
def has_a_norm_for_each_row(spec, w, slots, g, step):
    for row in range(len(w)):
        right(spec, w[row], {name: slot[row] for name, slot in slots.items()}, g[row], step)


@mistake("lamb")
def leaves_the_decay_out_of_the_norm(spec, w, slots, g, step):
    before = w.copy()
    right(replace(spec, weight_decay=0), w, slots, g, step)
    w -= step.learning_rate * spec.weight_decay * before


# --- adagrad_decay, rmsprop, ftrl -----------------------------------------------------------------------------------


@mistake("adagrad_decay")
def never_decays(spec, w, slots, g, step):
    right(spec, w, slots, g, replace(step, global_step=0))


@mistake("adagrad_decay")
def counts_its_own_updates(spec, w, slots, g, step):
    right(spec, w, slots, g, replace(step, global_step=step.number))


@mistake("adagrad_decay")
def decays_one_period_however_many_it_missed(spec, w, slots, g, step):
    period = step.global_step // spec.decay_steps
    slots["accumulator_decay_power"][...] = np.maximum(slots["accumulator_decay_power"], period - 1)
    right(spec, w, slots, g, step)


@mistake("adagrad_decay")
def has_no_floor(spec, w, slots, g, step):
    right(replace(spec, initial_accumulator=1e-30), w, slots, g, step)


@mistake("rmsprop")
def has_epsilon_in_the_root_as_tensorflow(spec, w, slots, g, step):
    s = slots["mean_square"]
    s += (1 - spec.decay) * (g * g - s)
    w -= step.learning_rate * g / np.sqrt(s + spec.epsilon)


@mistake("rmsprop")
def is_never_centered(spec, w, slots, g, step):
    right(replace(spec, centered=False), w, {name: slots[name] for name in slots if name != "mean_gradient"}, g, step)


@mistake("rmsprop")
def has_the_learning_rate_inside_the_momentum_as_tensorflow(spec, w, slots, g, step):
    if not spec.momentum:
        return right(spec, w, slots, g, step)
    before = slots["momentum"].copy()
    right(spec, w, slots, g, replace(step, learning_rate=0.0))
    slots["momentum"] += (step.learning_rate - 1) * (slots["momentum"] - spec.momentum * before)
    w -= slots["momentum"]
    return None


@mistake("ftrl")
def forgets_l1(spec, w, slots, g, step):
    right(replace(spec, l1=0), w, slots, g, step)


@mistake("ftrl")
def has_twice_l2_as_tensorflow(spec, w, slots, g, step):
    right(replace(spec, l2=2 * spec.l2), w, slots, g, step)


@mistake("ftrl")
def is_never_quite_zero(spec, w, slots, g, step):
    right(spec, w, slots, g, step)
    w[w == 0] = 1e-3


@mistake("ftrl")
def has_the_usual_power(spec, w, slots, g, step):
    right(replace(spec, learning_rate_power=0.5), w, slots, g, step)


# --- moving average -------------------------------------------------------------------------------------------------


@mistake("moving_average")
def has_the_decay_for_what_is_new(spec, w, slots, x, step):
    w += spec.decay * (x - w)


@mistake("moving_average")
def is_the_mean_of_all_that_was_seen(spec, w, slots, x, step):
    w += (x - w) / step.number


@mistake("moving_average")
def takes_what_was_seen_for_a_gradient(spec, w, slots, x, step):
    w -= (1 - spec.decay) * x


@mistake("moving_average")
def has_a_learning_rate(spec, w, slots, x, step):
    w += step.learning_rate * (1 - spec.decay) * (x - w)


# --------------------------------------------------------------------------------------------------------------------


def check(kind: str, dense: Dense) -> None:
    for case in RULES_UNDER_TEST:
        if case.spec.kind == kind:
            check_against_formula(Mistaken(case.spec, dense), case, np.random.default_rng(SEED))


@pytest.mark.parametrize(("kind", "dense"), MISTAKES, ids=lambda part: getattr(part, "__name__", part))
def test_a_rule_with_this_mistake_does_not_pass(kind, dense):
    with pytest.raises(AssertionError):
        check(kind, dense)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in MISTAKES}))
def test_a_rule_without_a_mistake_passes(kind):
    check(kind, right)


def test_the_adam_that_mistakes_are_made_in_passes_without_them():
    check("adam", adam)


def test_a_mistake_is_listed_for_every_rule():
    assert {kind for kind, _ in MISTAKES} == {case.spec.kind for case in RULES_UNDER_TEST}
