"""Metrics: rates over the last seconds against sums by hand, percentiles against numpy."""

from collections import Counter

import numpy as np
import pytest

from psserver.core.metrics import EXACT, INTERVAL, SHORTEST, WINDOW, TrafficMeter, percentile, rounded


def run(meter, begin, seconds, pushes):
    """Ticks at `begin` and each second from then on, and `pushes` between the ticks; returns the end."""
    for second in range(seconds):
        meter.tick(begin + second)
        meter.pushes += pushes
    return begin + seconds


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_rate_right_after_the_start_is_over_the_seconds_since():
    meter = TrafficMeter()
    meter.tick(7.0)
    meter.pushes += 6
    assert meter.traffic(10.0).pushes == 2.0
    assert meter.traffic(7.0 + SHORTEST / 1000).pushes == 6.0 / SHORTEST
    assert meter.traffic(7.0).pushes == 6.0 / SHORTEST


def test_a_rate_stays_right_when_ticks_stop():
    meter = TrafficMeter()
    run(meter, 0.0, 5, 10)
    meter.pushes += 90
    assert meter.traffic(4.0 + 50.0).pushes == (10 + 90) / 50, "since the last tick, at 4 s"


@pytest.mark.parametrize("step", [1e-4, INTERVAL * 0.9, INTERVAL, 1.0, 3.0])
def test_however_often_it_ticks_a_rate_is_right_and_memory_bounded(step):
    meter = TrafficMeter()
    ticks = round(3 * WINDOW / step)
    for number in range(ticks):
        meter.tick(number * step)
        meter.pushes += 2
    assert meter.traffic(ticks * step).pushes == pytest.approx(2 / step, rel=2 * step / WINDOW)
    assert len(meter._snapshots) <= WINDOW / INTERVAL + 1


# --- percentiles ------------------------------------------------------------------------------------------------------


def counts_of(staleness):
    return Counter(one if one < EXACT else rounded(one) for one in map(int, staleness))


@pytest.mark.parametrize("pushes", [1, 2, 3, 7, 99, 100, 101, 1000, 4321])
@pytest.mark.parametrize("percent", [0, 1, 25, 50, 90, 99, 100])
def test_a_percentile_is_numpys_by_nearest_rank(pushes, percent):
    staleness = np.random.default_rng(pushes).geometric(0.05, size=pushes) - 1
    assert percentile(counts_of(staleness), percent) == np.percentile(staleness, percent, method="inverted_cdf")


def test_a_percentile_is_exact_below_1024_and_at_most_one_part_in_512_too_low_above():
    rng = np.random.default_rng(4)
    staleness = np.exp(rng.uniform(0, np.log(2.0**40), size=3000)).astype(np.int64)
    counts = counts_of(staleness)
    for percent in (3, 10, 20, 50, 77, 99, 100):
        exact = int(np.percentile(staleness, percent, method="inverted_cdf"))
        found = percentile(counts, percent)
        assert found == exact if exact < 1024 else exact * 511 / 512 < found <= exact


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan")])
def test_a_percentile_is_from_0_to_100(percent):
    with pytest.raises(ValueError, match="from 0 to 100"):
        percentile({}, percent)
