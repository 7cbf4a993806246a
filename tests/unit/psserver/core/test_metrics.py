"""Metrics: rates over the last seconds against sums by hand, percentiles against numpy."""

from collections import Counter

import numpy as np
import pytest

from psserver.core.metrics import EXACT, INTERVAL, MIN_PERIOD, WINDOW, TrafficMeter, percentile, rounded


@pytest.mark.parametrize("step", [1e-4, INTERVAL * 0.9, INTERVAL, 1.0, 3.0])
def test_however_often_it_ticks_a_rate_is_right_and_memory_bounded(step):
    meter, ticks = TrafficMeter(), round(3 * WINDOW / step)
    for number in range(ticks):
        if number * step >= meter.next_snapshot:
            meter.tick(number * step)
        meter.pushes += 2
    assert meter.traffic(ticks * step).pushes == pytest.approx(2 / step, rel=2 * step / WINDOW)
    assert len(meter._snapshots) <= WINDOW / INTERVAL + 1


def test_a_rate_is_right_at_the_start_and_when_ticks_stop():
    meter = TrafficMeter()
    meter.tick(7.0)
    meter.pushes += 6
    assert meter.traffic(10.0).pushes == 2.0
    assert meter.traffic(7.0 + MIN_PERIOD / 1000).pushes == meter.traffic(7.0).pushes == 6.0 / MIN_PERIOD
    meter.tick(8.0)
    meter.pushes += 94
    assert meter.traffic(7.0 + 50.0).pushes == 94 / 49, "since the last tick, at 8 s"


def test_a_percentile_is_numpys_by_nearest_rank_below_1024_and_at_most_one_part_in_512_too_low_above():
    for pushes in (1, 2, 3, 7, 99, 100, 101, 1000, 4321):
        random = np.random.default_rng(pushes)
        for staleness in (random.geometric(0.05, pushes) - 1, np.exp(random.uniform(0, 27.0, pushes)).astype(int)):
            counts = Counter(one if one < EXACT else rounded(one) for one in map(int, staleness))
            for percent in (0, 1, 3, 20, 25, 50, 77, 90, 99, 100):
                exact = int(np.percentile(staleness, percent, method="inverted_cdf"))
                found = percentile(counts, percent)
                assert found == exact if exact < 1024 else exact * 511 / 512 < found <= exact
