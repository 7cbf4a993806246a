"""Ordinary updates, within limits in which no rule overflows, and checked ones, which are checked.

What is checked, and what a refusal says, is in `tests/scenarios/checked*.txt`.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.core.variables import variable as variables
from psserver.core.variables.array_tasks import TasksPending, Update, update_checked
from psserver.core.variables.variable import Variable
from pswire.errors import NotFinite
from pswire.messages import Gradient, Push
from pswire.optimizers import (
    Adagrad,
    AdagradDecay,
    Adam,
    AdamW,
    Ftrl,
    GradientDescent,
    Lamb,
    Momentum,
    MovingAverage,
    RMSProp,
    UpdateSpec,
    numba_compiler,
    ordinary_growth,
    rule_for,
)
from pswire.optimizers.optimizer import LIMITS
from pswire.specs.schedules import largest_rate
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.combinations import combinations, few_fast, together
from tests.support.shards import A, ShardDriver, declared, state_of
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST, at


def settled_slots(rule, value, limits):
    """Slots as large as those of a settled variable may be, or zero, in all combinations with those of the value."""
    slots = rule.slots(value)
    for place, (name, slot) in enumerate(slots.items()):
        if name == "accumulator_decay_power":
            continue
        square = name in ("accumulator", "mean_square", "v", "v_max")
        most = limits.squares if square else limits.state
        kinds = np.arange(value.size) // 3 ** (place + 1) % 3
        slot[...] = np.choose(kinds, [slot, most, 0 if square else -most])
        if name == "accumulator":
            np.maximum(slot, limits.tiny, out=slot)
        if name == "linear":
            slot[...] = -(slots["accumulator"] ** 0.5) * value
    return slots


#: Hyperparameters at which the bound just allows ordinary updates of float32.
WILD = [
    *(GradientDescent(3e9), Momentum(3e9, 0.999999), Momentum(3e9, 0.999999, nesterov=True)),
    *(Adagrad(3e9, 1e-38), Adagrad(400.0, 0.0, 1e-15), AdagradDecay(3e9, 1e-38, 1, 0.1)),
    *(RMSProp(1.0, 0.0), RMSProp(4.0, 0.0, epsilon=1e-17), RMSProp(1e3, 0.99, 0.999, centered=True)),
    *(Adam(1.0, 0.9, 0.0), Adam(1.0, 0.999, 0.0, amsgrad=True), Adam(0.4, 0.0, 0.999999, epsilon=1e-12)),
    *(AdamW(1.0, weight_decay=2.0), Lamb(0.1, weight_decay=10.0), Lamb(1.0, 0.9, 0.0, weight_decay=0.0)),
    *(Ftrl(300.0), Ftrl(300.0, 1e30, 1e-30, 0.5, 1e-38), Ftrl(3e9, 0.0, 0.0, 0.1, 1e-38), MovingAverage(0.0)),
]


def assert_finite_while_ordinary(spec, dtype):
    """No ordinary update of a settled variable overflows until their growths add up."""
    limits, rule, rate = LIMITS[dtype], rule_for(spec), largest_rate(getattr(spec, "learning_rate", 1.0))
    growth = ordinary_growth(spec, limits)
    largest = limits.gradient
    value = np.tile(np.array([limits.state, -limits.state, 0], dtype), 81)
    slots = settled_slots(rule, value, limits)
    random = np.random.default_rng(1)
    choices = np.array([largest, -largest, 0.0, 1.0, math.sqrt(limits.tiny) / 2, limits.tiny], dtype)
    for number in range(1, min(60, int(1 / growth)) + 1):
        gradient = np.full(value.shape, largest, dtype) if number % 3 else random.choice(choices, value.size)
        rule.dense(value, slots, gradient, at(number, rate))
        for array in (value, *slots.values()):
            assert np.isfinite(array).all(), f"update {number}"


@pytest.mark.parametrize(
    ("dtype", "use_numba", "spec"),
    combinations(
        [("float32", True), ("float32", False), ("float64", True)],
        [(spec,) for spec in [*[case.spec for case in RULES_UNDER_TEST], *WILD]],
    ),
    ids=str,
)
def test_ordinary_updates_of_a_settled_variable_are_finite_until_their_growths_add_up(
    spec, dtype, use_numba, monkeypatch
):
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", use_numba)
    assert math.isfinite(ordinary_growth(spec, LIMITS[dtype])), "it would be checked"
    assert_finite_while_ordinary(spec, dtype)


def test_the_rule_of_every_kind_is_tried_at_its_bound():
    assert {spec.kind for spec in WILD} == UpdateSpec.kinds.keys()


@together(
    "spec",
    [
        *(GradientDescent(1e25), Momentum(1e20), Momentum(1.0, 0.9999999999), Adagrad(1e30), Adagrad(0.1, 1e31)),
        *(AdagradDecay(0.1, 1e31), RMSProp(0.1, epsilon=1e-30, momentum=0.9), Adam(0.1, epsilon=1e-30)),
        *(AdamW(0.1, weight_decay=30.0), Lamb(0.1, weight_decay=11.0), Lamb(0.1, weight_decay=0.0, epsilon=1e-30)),
        *(Ftrl(0.1, learning_rate_power=0.6), Ftrl(0.1, initial_accumulator=1e31), Ftrl(1e6)),
        *(AdamW(1.0, weight_decay=3.0), RMSProp(1e3, 0.999, 0.9999, 1e-12, True), Adam(1e-30, epsilon=1e-30)),
    ],
    ids=str,
)
def test_updates_of_a_rule_that_may_overflow_are_checked(spec):
    assert ordinary_growth(spec, LIMITS["float32"]) == math.inf


@together("case", RULES_UNDER_TEST, ids=lambda case: case.name)
@together(("kind", "dtype"), [("dense", "float16"), ("rows", "float32"), ("dense", "float64")])
def test_a_checked_update_has_the_bits_of_an_ordinary_one(case, kind, dtype):
    random = np.random.default_rng(3)
    rule, first = rule_for(case.spec), random.normal(size=(40, 3)).astype(dtype)
    both = [Variable(TensorSpec.of("v", first), first.copy(), slots=rule.slots(first)) for _ in range(2)]
    for number in range(1, 4):
        array = random.normal(size=(40, 3)).astype(dtype)
        if kind == "rows":
            array = IndexedSlices(array[:9], random.integers(0, 40, 9), (40, 3))
        ordinary, checked = (
            Update(one, rule, [(Gradient("v", 0, array), None, 1.0)], 0.0, at(number, case.rate)) for one in both
        )
        ordinary.run()
        copies = checked.candidate()[1]
        assert len(copies) == (40 if kind == "dense" else len(np.unique(array.indices))), "no more"
        update_checked([checked])
        assert state_of(both[0]) == state_of(both[1])


def test_a_variable_is_checked_when_its_growths_add_up_to_half_of_the_limit():
    """With a rate of 2.8e9, an ordinary update may take 0.0009 of what there is."""
    driver, waited = ShardDriver(declared("W", np.ones(3, np.float32), GradientDescent(2.8e9))), []
    for sequence in range(1, 1300):
        message = Push(sender=A, sequence=sequence, gradients=(Gradient("W", 0, np.float32([1e-10, 0, 0])),))
        try:
            driver.shard.step(1, message, 0.0, settled=False)
        except TasksPending:
            waited.append(sequence)
            driver.shard.step(1, message, 0.0)
    assert waited == [566, 1132]


def test_a_table_with_a_large_row_is_checked_until_all_of_it_is_small_again(monkeypatch):
    monkeypatch.setattr(variables, "UPDATES_BETWEEN_FULL_CHECKS", 4)
    driver, checked = ShardDriver(declared("W", np.ones((10, 2), np.float32), GradientDescent(1.0))), []
    for number in range(1, 10):
        row, element = {1: (5, 1e20), 7: (5, -1e20)}.get(number, (6, 1.0))
        driver.push(W=IndexedSlices(np.full((1, 2), element, np.float32), np.array([row]), (10, 2)))
        checked.append(driver.shard._store.is_checked({"W": 1.0}))
    assert checked == [True] * 8 + [False], "the one after the eighth looks at all rows"


# --- whatever is pushed -----------------------------------------------------------------------------------------------

factors = st.sampled_from([0.0, 1e-38, 1e-3, 1.0, 1e3, 1e20, 1e38])
shares = st.sampled_from([0.0, 0.5, 0.9, 0.9999999])
epsilons = st.sampled_from([1e-45, 1e-30, 1e-8, 1.0, 1e30])
flags = st.booleans()
SPECS = st.one_of(
    st.builds(GradientDescent, factors),
    st.builds(Momentum, factors, shares, flags),
    st.builds(Adagrad, factors, factors, epsilons),
    st.builds(AdagradDecay, factors, epsilons, st.just(2), shares),
    st.builds(RMSProp, factors, shares, shares, epsilons, flags),
    st.builds(Adam, factors, shares, shares, epsilons, flags),
    st.builds(AdamW, factors, shares, shares, epsilons, flags, factors),
    st.builds(Lamb, factors, shares, shares, epsilons, factors),
    st.builds(Ftrl, factors, factors, factors, st.sampled_from([0.0, 0.3, 0.5, 1.0]), epsilons),
    st.builds(MovingAverage, shares),
)
elements = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e9, -1e12, 1e19, -1e20, 1e30, -3e38, 3e38])


@pytest.mark.parametrize("examples", few_fast([30, 300, 2000]))
def test_whatever_the_hyperparameters_ordinary_updates_are_finite(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(SPECS, st.sampled_from(sorted(LIMITS)))
    def check(spec, dtype):
        assert_finite_while_ordinary(spec, dtype)

    check()


arrays = st.lists(elements, min_size=4, max_size=4)
pushes = st.lists(st.tuples(arrays, flags), min_size=1, max_size=6)


@pytest.mark.parametrize("examples", few_fast([30, 150]))
def test_after_any_push_all_is_finite_or_it_was_refused_and_nothing_has_changed_with_numba_and_without(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(SPECS, arrays, pushes, st.sampled_from(["float32", "float64", "float16"]))
    def check(spec, start, gradients, dtype):
        ends = []
        for use_numba in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(numba_compiler, "USE_NUMBA", use_numba)
                ends.append(outcomes(spec, start, gradients, dtype))
        assert ends[0] == ends[1]

    check()


def outcomes(spec, start, gradients, dtype):
    """The outcome of each push, and all arrays at the end."""
    most = np.finfo(dtype).max
    given = [start, *(numbers for numbers, _ in gradients)]
    first, *arrays = [np.clip(numbers, -most, most).astype(dtype).reshape(2, 2) for numbers in given]
    shard, answers = ShardDriver(declared("W", first, spec)), []
    variable = shard.shard._store["W"]
    for array, (_, by_rows) in zip(arrays, gradients, strict=True):
        gradient = IndexedSlices(array[:1], np.array([1]), (2, 2)) if by_rows else array
        before, fine = contents(variable), all_finite(variable)
        answers.append(type(shard.push(W=gradient)[0]))
        if answers[-1] is NotFinite:
            assert contents(variable) == before
        else:
            assert all_finite(variable) or (by_rows and not fine)
    return answers, contents(variable)


def contents(variable):
    return state_of([variable.value, variable.slots, variable.version, variable.updates])


def all_finite(variable):
    return all(np.isfinite(array).all() for array in (variable.value, *variable.slots.values()))
