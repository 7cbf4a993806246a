"""The comparison in `test_rules.py` must fail when given a wrong rule: each mistake here is one that people make."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psserver.core.rules import rule_for

SEED = 20150508
TEST_RULES = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "test_rules.py"))
RULES_UNDER_TEST, check_against_formula = TEST_RULES["RULES_UNDER_TEST"], TEST_RULES["check_against_formula"]

Dense = Callable[[Any, np.ndarray, dict[str, np.ndarray], np.ndarray, int, float], None]
MISTAKES: list[tuple[str, Dense]] = []
KEPT: list[np.ndarray] = []


class Mistaken:
    """The right slots, and a mistake in the update."""

    def __init__(self, spec: Any, dense: Dense) -> None:
        self._spec, self._dense = spec, dense
        self.slots = rule_for(spec).slots

    def dense(self, value, slots, gradient, step, learning_rate):
        self._dense(self._spec, value, slots, gradient, step, learning_rate)


def mistake(kind: str) -> Callable[[Dense], Dense]:
    """Lists a wrong update for the optimizers of this kind; the function's name says what it does."""

    def listed(dense: Dense) -> Dense:
        MISTAKES.append((kind, dense))
        return dense

    return listed


def right(spec, w, slots, g, t, rate):
    rule_for(spec).dense(w, slots, g, t, rate)


# --- gradient descent -----------------------------------------------------------------------------------------------


@mistake("gradient_descent")
def climbs_instead_of_descending(spec, w, slots, g, t, rate):
    w += rate * g


@mistake("gradient_descent")
def has_the_rate_of_its_spec_at_every_step(spec, w, slots, g, t, rate):
    right(spec, w, slots, g, t, spec.learning_rate)


@mistake("gradient_descent")
def averages_over_the_elements(spec, w, slots, g, t, rate):
    w -= rate * g / g.size


@mistake("gradient_descent")
def scales_the_gradient_in_place(spec, w, slots, g, t, rate):
    g *= rate
    w -= g


@mistake("gradient_descent")
def leaves_out_the_last_element(spec, w, slots, g, t, rate):
    last = w.flat[-1]
    right(spec, w, slots, g, t, rate)
    w.flat[-1] = last


@mistake("gradient_descent")
def keeps_gradients_and_applies_them_all_at_the_end(spec, w, slots, g, t, rate):
    KEPT.append(g)
    if t == TEST_RULES["STEPS"]:
        for kept in KEPT:
            right(spec, w, slots, kept, t, rate)


@mistake("gradient_descent")
def computes_in_half_precision(spec, w, slots, g, t, rate):
    w -= (rate * g).astype("float16")


# --- momentum -------------------------------------------------------------------------------------------------------


@mistake("momentum")
def has_plain_and_nesterov_swapped(spec, w, slots, g, t, rate):
    m = slots["momentum"]
    m *= spec.momentum
    m += g
    w -= rate * (m if spec.nesterov else g + spec.momentum * m)


@mistake("momentum")
def looks_ahead_with_the_momentum_before_this_gradient(spec, w, slots, g, t, rate):
    before = slots["momentum"].copy()
    right(spec, w, slots, g, t, rate)
    if spec.nesterov:
        w += rate * spec.momentum * (slots["momentum"] - before)


@mistake("momentum")
def dampens_the_gradient(spec, w, slots, g, t, rate):
    right(spec, w, slots, (1 - spec.momentum) * g, t, rate)


@mistake("momentum")
def has_the_learning_rate_inside_the_momentum(spec, w, slots, g, t, rate):
    m = slots["momentum"]
    m *= spec.momentum
    m += rate * g
    w -= rate * g + spec.momentum * m if spec.nesterov else m


@mistake("momentum")
def forgets_its_slot(spec, w, slots, g, t, rate):
    right(spec, w, {"momentum": slots["momentum"].copy()}, g, t, rate)


# --- adagrad --------------------------------------------------------------------------------------------------------


@mistake("adagrad")
def moves_before_it_accumulates(spec, w, slots, g, t, rate):
    a = slots["accumulator"]
    w -= rate * g / (np.sqrt(a) + spec.epsilon + 1e-7)
    a += g * g


@mistake("adagrad")
def has_epsilon_inside_the_root(spec, w, slots, g, t, rate):
    a = slots["accumulator"]
    a += g * g
    w -= rate * g / np.sqrt(a + spec.epsilon)


@mistake("adagrad")
def takes_no_root(spec, w, slots, g, t, rate):
    a = slots["accumulator"]
    a += g * g
    w -= rate * g / (a + spec.epsilon)


@mistake("adagrad")
def accumulates_a_mean(spec, w, slots, g, t, rate):
    a = slots["accumulator"]
    a += (g * g - a) / t
    w -= rate * g / (np.sqrt(a) + spec.epsilon)


# --- adam -----------------------------------------------------------------------------------------------------------


def adam(spec, w, slots, g, t, rate, *, correct=(True, True), inside=False, hat=False, beta1=None, beta2=None):
    """Adam with room for mistakes; right as it stands."""
    m, v = slots["m"], slots["v"]
    beta1, beta2 = beta1 or spec.beta1, beta2 or spec.beta2
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    m_hat = m / (1 - beta1**t) if correct[0] else m
    v_hat = v / (1 - beta2**t) if correct[1] else v
    epsilon = spec.epsilon / np.sqrt(1 - beta2**t) if hat else spec.epsilon
    w -= rate * m_hat / (np.sqrt(v_hat + epsilon) if inside else np.sqrt(v_hat) + epsilon)


@mistake("adam")
def has_no_bias_correction(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, correct=(False, False))


@mistake("adam")
def corrects_the_first_moment_only(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, correct=(True, False))


@mistake("adam")
def corrects_the_second_moment_only(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, correct=(False, True))


@mistake("adam")
def has_epsilon_inside_the_root_too(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, inside=True)


@mistake("adam")
def does_not_correct_epsilon_with_the_rest(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, hat=True)


@mistake("adam")
def has_its_betas_swapped(spec, w, slots, g, t, rate):
    adam(spec, w, slots, g, t, rate, beta1=spec.beta2, beta2=spec.beta1)


@mistake("adam")
def counts_steps_one_too_far(spec, w, slots, g, t, rate):
    right(spec, w, slots, g, t + 1, rate)


@mistake("adam")
def counts_every_step_as_the_first(spec, w, slots, g, t, rate):
    right(spec, w, slots, g, 1, rate)


# --- moving average -------------------------------------------------------------------------------------------------


@mistake("moving_average")
def has_the_decay_for_what_is_new(spec, w, slots, x, t, rate):
    w += spec.decay * (x - w)


@mistake("moving_average")
def is_the_mean_of_all_that_was_seen(spec, w, slots, x, t, rate):
    w += (x - w) / t


@mistake("moving_average")
def takes_what_was_seen_for_a_gradient(spec, w, slots, x, t, rate):
    w -= (1 - spec.decay) * x


@mistake("moving_average")
def has_a_learning_rate(spec, w, slots, x, t, rate):
    w += rate * (1 - spec.decay) * (x - w)


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
