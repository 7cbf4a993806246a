"""Every schedule against numbers that others have published, and its formula computed in another way."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from pswire import optimizers
from pswire.specs.schedules import (
    CosineDecay,
    ExponentialDecay,
    PiecewiseConstant,
    PolynomialDecay,
    Schedule,
    WarmUp,
    largest_rate,
    rate,
)

EXAMPLES = [
    ExponentialDecay(0.1, 100, 0.96),
    ExponentialDecay(0.1, 100, 0.96, staircase=True),
    PolynomialDecay(0.1, 100),
    PolynomialDecay(0.01, 100, end=0.1, power=0.5),
    CosineDecay(0.1, 100),
    CosineDecay(0.1, 100, alpha=0.01),
    PiecewiseConstant([50, 100], [0.1, 0.01, 0.001]),
    WarmUp(20, 0.1),
    WarmUp(20, CosineDecay(0.1, 100)),
]


def test_every_schedule_has_an_example_and_says_its_source():
    assert {type(example) for example in EXAMPLES} == set(Schedule.kinds.values())
    assert all("Source: " in schedule.__doc__ for schedule in Schedule.kinds.values())


# --- numbers that others have published -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # The documentation of torch.optim.lr_scheduler: StepLR(step_size=30, gamma=0.1), MultiStepLR(milestones=
        # [30, 80], gamma=0.1) and PolynomialLR(total_iters=4, power=1.0), each with its own initial rate.
        (ExponentialDecay(0.05, 30, 0.1, staircase=True), {0: 0.05, 29: 0.05, 30: 0.005, 59: 0.005, 60: 0.0005}),
        (PiecewiseConstant([29, 79], [0.05, 0.005, 0.0005]), {0: 0.05, 29: 0.05, 30: 0.005, 79: 0.005, 80: 0.0005}),
        (PolynomialDecay(0.001, 4, end=0), {0: 0.001, 1: 0.00075, 2: 0.0005, 3: 0.00025, 4: 0.0, 100: 0.0}),
        # The documentation of tf.train.piecewise_constant: 1.0 for the first 100,001 steps, 0.5 for the next 10,000.
        (PiecewiseConstant([100_000, 110_000], [1, 0.5, 0.1]), {0: 1, 100_000: 1, 100_001: 0.5, 110_001: 0.1}),
        # Goyal et al.: 0.1 * 8192 / 256 = 3.2 after five epochs of 1,281,167 images in batches of 8,192.
        (WarmUp(5 * 156, 3.2), {0: 0, 156: 0.64, 780: 3.2, 14_000: 3.2}),
    ],
    ids=str,
)
def test_a_schedule_has_the_rates_that_are_published(schedule, rates):
    for step, expected in rates.items():
        assert schedule.at(step) == pytest.approx(expected, rel=1e-12, abs=0)


# --- the formulas in another way ------------------------------------------------------------------------------------


def test_decays_follow_their_formulas_computed_in_another_way():
    for step in range(40):
        assert ExponentialDecay(0.1, 4, 0.81).at(step) == pytest.approx(0.1 * math.sqrt(0.9) ** step, rel=1e-13)
        staircase = ExponentialDecay(0.1, 4, 0.81, staircase=True)
        assert staircase.at(step) == pytest.approx(0.1 * 0.81 ** (step // 4), rel=1e-13)
        for initial, end, power in ((0.5, 0.125, 1), (0.125, 0.5, 2), (1.0, 0.0, 3)):
            left = Fraction(max(7 - step, 0), 7)
            exact = (Fraction(initial) - Fraction(end)) * left**power + Fraction(end)
            assert PolynomialDecay(initial, 7, end, power).at(step) == pytest.approx(float(exact), rel=1e-14, abs=1e-16)
        for alpha in (0.0, 0.25, 1.0):
            square = math.cos(min(step, 20) * math.pi / 40) ** 2
            cosine = CosineDecay(0.3, 20, alpha).at(step)
            assert cosine == pytest.approx(0.3 * (alpha + (1 - alpha) * square), rel=0, abs=1e-16)


def test_a_warm_up_rises_evenly_and_its_schedule_begins_where_it_ends():
    cosine = CosineDecay(0.5, 100)
    schedule = WarmUp(8, cosine)
    assert [schedule.at(step) for step in range(9)] == [step / 16 for step in range(9)]
    assert [schedule.at(8 + step) for step in range(120)] == [cosine.at(step) for step in range(120)]
    assert [WarmUp(2, WarmUp(4, 1.0)).at(step) for step in range(8)] == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1]


LARGEST = [
    ExponentialDecay(1.7e308, 1, 1.0),
    ExponentialDecay(1.7e308, 1, 5e-324),
    PolynomialDecay(1.7e308, 1, 1.7e308, 1e308),
    PolynomialDecay(0, 2**53 - 1, 1.7e308, 5e-324),
    CosineDecay(1.7e308, 1, 1.0),
    WarmUp(2**53 - 1, 1.7e308),
    PiecewiseConstant([], [1.7e308]),
]


@pytest.mark.parametrize("schedule", [*EXAMPLES, *LARGEST, 0.5, 1], ids=str)
def test_a_rate_is_a_finite_float_from_zero_up_at_every_step_and_the_largest_that_of_some(schedule):
    rates = [rate(schedule, step) for step in [*range(300), 10**6, 2**53, 2**63, 10**30]]
    assert {type(one) for one in rates} == {float}
    assert min(rates) >= 0
    assert max(rates) <= largest_rate(schedule) * (1 + 1e-15) < math.inf
    if schedule not in LARGEST:
        assert max(rates) == pytest.approx(largest_rate(schedule), rel=1e-12)


# --- what a field may be --------------------------------------------------------------------------------------------

COUNT = "at least 1 and below 9.0072e"
#: A schedule, a field, what its message says, and the ends of its range that belong to it.
FIELDS = [
    (ExponentialDecay(0.1, 10, 0.5), "initial", "at least 0 and finite", [0]),
    (ExponentialDecay(0.1, 10, 0.5), "decay_rate", "more than 0 and at most 1", [5e-324, 1]),
    (PolynomialDecay(0.1, 10), "end", "at least 0 and finite", [0]),
    (PolynomialDecay(0.1, 10), "power", "more than 0 and finite", [5e-324]),
    (CosineDecay(0.1, 10), "alpha", "at least 0 and at most 1", [0, 1]),
    (WarmUp(10, 0.1), "then", "at least 0 and finite", [0]),
]


@pytest.mark.parametrize(("schedule", "name", "bounds", "ends"), FIELDS, ids=lambda part: str(part)[:20])
def test_a_number_outside_of_its_range_is_refused_by_schedule_and_field(schedule, name, bounds, ends):
    for end in ends:
        dataclasses.replace(schedule, **{name: end})
    for bad in (math.nan, math.inf, -math.inf, -1e-300, *([math.nextafter(1, 2)] if 1 in ends else [])):
        with pytest.raises(ValueError, match=rf"^{type(schedule).__name__}: {name} must be {bounds}"):
            dataclasses.replace(schedule, **{name: bad})
    for bad in ("1", None, True, [1], 1j):
        with pytest.raises(TypeError, match=rf"^{type(schedule).__name__}: {name} must be an int"):
            dataclasses.replace(schedule, **{name: bad})


@pytest.mark.parametrize(
    ("schedule", "name"),
    [(ExponentialDecay(0.1, 10, 0.5), "decay_steps"), (WarmUp(10, 0.1), "steps")],
    ids=["decay_steps", "steps"],
)
def test_a_count_is_a_whole_number_from_1_up_and_a_flag_is_a_flag(schedule, name):
    for bad in (0, -1, 2**53, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"^{type(schedule).__name__}: {name} must be {COUNT}"):
            dataclasses.replace(schedule, **{name: bad})
    with pytest.raises(ValueError, match=rf"{name} must be a whole number, got 1.5"):
        dataclasses.replace(schedule, **{name: 1.5})
    with pytest.raises(TypeError, match=rf"{name} must be an int or a float, got '3'"):
        dataclasses.replace(schedule, **{name: "3"})
    for count in (7, 7.0, np.int64(7), np.float32(7)):
        assert repr(getattr(dataclasses.replace(schedule, **{name: count}), name)) == "7"
    with pytest.raises(TypeError, match="ExponentialDecay: staircase must be True or False, got 1"):
        ExponentialDecay(0.1, 10, 0.5, staircase=1)


@pytest.mark.parametrize(
    ("boundaries", "values", "error", "message"),
    [
        ([2, 1], [1, 2, 3], ValueError, "boundaries must increase, but 1.0 follows 2.0"),
        ([1, 1], [1, 2, 3], ValueError, "boundaries must increase, but 1.0 follows 1.0"),
        (range(101), range(102), ValueError, "boundaries must be 100 at most, got 101"),
        ([1], [1], ValueError, "there must be one more value than boundaries, got 1 values for 1 boundaries"),
        ([], [], ValueError, "there must be one more value than boundaries, got 0 values for 0 boundaries"),
        ([1], [1, -1], ValueError, "values must be at least 0 and finite, got -1"),
        ([math.inf], [1, 2], ValueError, "boundaries must be at least 0 and finite, got inf"),
        ([1], [1, None], TypeError, "values must be an int or a float, got"),
        (1, [1, 2], TypeError, "boundaries must be a list or a tuple, got 1"),
        ([1], "12", TypeError, "values must be a list or a tuple, got '12'"),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(boundaries, values, error, message):
    with pytest.raises(error, match=f"^PiecewiseConstant: {message}"):
        PiecewiseConstant(boundaries, values)
    schedule = PiecewiseConstant(range(1, 101), range(101))  # a hundred are not too many
    assert [schedule.at(step) for step in (1, 2, 100, 101)] == [0, 1, 99, 100]


@pytest.mark.parametrize("schedule", EXAMPLES, ids=str)
def test_a_schedule_is_frozen_and_comes_back_from_plain_data_as_it_was(schedule):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, dataclasses.fields(schedule)[0].name, 0.5)
    plain = optimizers.to_plain(optimizers.GradientDescent(schedule))
    again = optimizers.from_plain(plain).learning_rate
    assert (again, hash(again), repr(again), type(again)) == (schedule, hash(schedule), repr(schedule), type(schedule))
    assert len({*EXAMPLES, again}) == len(EXAMPLES)
    for name in plain["learning_rate"].keys() - {"kind"}:
        fewer = {key: value for key, value in plain["learning_rate"].items() if key != name}
        with pytest.raises(ValueError, match=rf"^schedule {schedule.kind}: missing \['{name}'\], unknown \[\]"):
            optimizers.from_plain(plain | {"learning_rate": fewer})


@pytest.mark.parametrize("kind", ["cosine", "adam", None, ["cosine_decay"]], ids=repr)
def test_an_unknown_schedule_is_refused_and_the_known_ones_are_named(kind):
    with pytest.raises(
        ValueError, match=r"^unknown schedule .*; known kinds: cosine_decay, exponential_decay, piecewise"
    ):
        optimizers.from_plain({"kind": "gradient_descent", "learning_rate": {"kind": kind}})
