"""Every schedule against numbers that others have published, and its formula computed in another way."""

import math
from fractions import Fraction

import pytest

from pswire.specs import schedules
from pswire.specs.schedules import CosineDecay, ExponentialDecay, PiecewiseConstant, PolynomialDecay, WarmUp


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


#: Schedules whose largest rate is reached within 300 steps, and others at the ends of their ranges.
REACHED = [
    *(ExponentialDecay(0.1, 100, 0.96), PolynomialDecay(0.1, 100), PolynomialDecay(0.01, 100, end=0.1, power=0.5)),
    *(CosineDecay(0.1, 100, alpha=0.01), WarmUp(20, CosineDecay(0.1, 100)), PiecewiseConstant([5, 9], [0.1, 1, 0.2])),
    *(0.5, 1),
]
EXTREME = [
    *(ExponentialDecay(1.7e308, 1, 1.0), ExponentialDecay(1.7e308, 1, 5e-324), CosineDecay(1.7e308, 1, 1.0)),
    *(PolynomialDecay(1.7e308, 1, 1.7e308, 1e308), PolynomialDecay(0, 2**53 - 1, 1.7e308, 5e-324)),
    *(WarmUp(2**53 - 1, 1.7e308), PiecewiseConstant([], [1.7e308])),
]


@pytest.mark.parametrize("schedule", [*REACHED, *EXTREME], ids=str)
def test_a_rate_is_a_finite_float_from_zero_up_at_every_step_and_the_largest_that_of_some(schedule):
    largest = schedules.largest_rate(schedule)
    rates = [schedules.rate(schedule, step) for step in [*range(300), 10**6, 2**53, 2**63, 10**30]]
    assert {type(one) for one in rates} == {float}
    assert min(rates) >= 0
    assert max(rates) <= largest * (1 + 1e-15) < math.inf
    if schedule in REACHED:
        assert max(rates) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize(
    ("boundaries", "values", "error", "message"),
    [
        ([1, 1], [1, 2, 3], ValueError, "boundaries must increase, but 1.0 follows 1.0"),
        (range(101), range(102), ValueError, "boundaries must be 100 at most, got 101"),
        ([1], [1], ValueError, "there must be one more value than boundaries, got 1 values for 1 boundaries"),
        ([1], [1, -1], ValueError, "values must be at least 0 and finite, got -1"),
        ([math.inf], [1, 2], ValueError, "boundaries must be at least 0 and finite, got inf"),
        (1, [1, 2], TypeError, "boundaries must be a list or a tuple, got 1"),
        ([1], "12", TypeError, "values must be a list or a tuple, got '12'"),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(boundaries, values, error, message):
    with pytest.raises(error, match=f"^PiecewiseConstant: {message}"):
        PiecewiseConstant(boundaries, values)
    schedule = PiecewiseConstant(range(1, 101), range(101))  # a hundred are not too many
    assert [schedule.at(step) for step in (1, 2, 100, 101)] == [0, 1, 99, 100]


@pytest.mark.parametrize("kind", sorted(schedules.Schedule.kinds))
def test_a_scaled_schedule_has_the_rates_of_the_first_one_times_the_factor_at_every_step(kind):
    schedule = {
        "cosine_decay": CosineDecay(0.3, 20, 0.25),
        "exponential_decay": ExponentialDecay(0.1, 4, 0.81),
        "piecewise_constant": PiecewiseConstant([5, 9], [1.0, 0.5, 0.1]),
        "polynomial_decay": PolynomialDecay(0.5, 7, 0.125, 2),
        "warm_up": WarmUp(3, WarmUp(4, 0.5)),
    }[kind]
    for step in range(25):
        assert schedule.scaled(0.3).at(step) == pytest.approx(0.3 * schedule.at(step), rel=1e-14)
