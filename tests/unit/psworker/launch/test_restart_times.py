"""Which processes are started again, how often, and after which pause."""

import math

import pytest

from psworker.launch.restart_times import FIRST_PAUSE, LONGEST_PAUSE, STABLE, Restarts


def fail(restarts, times, lived=1.0):
    """Lets w0 fail so often, each time after it has run for `lived` seconds; the pauses."""
    now, pauses = 0.0, []
    for _ in range(times):
        restarts.started("w0", now)
        now += lived
        pauses.append(restarts.schedule("w0", now))
        now += pauses[-1] or 0
        assert restarts.take_due(now) == ["w0"] * (pauses[-1] is not None)
    return pauses


def test_the_pauses_double_up_to_the_longest():
    assert fail(Restarts(9), 7) == [0.5, 1, 2, 4, 8, 10, 10]
    assert (FIRST_PAUSE, LONGEST_PAUSE) == (0.5, 10)


def test_a_process_that_ran_for_long_has_the_first_pause_again():
    restarts = Restarts(99)
    assert fail(restarts, 3) == [0.5, 1, 2]
    assert fail(restarts, 2, lived=STABLE) == [0.5, 0.5]
    assert fail(restarts, 2, lived=STABLE - 1) == [1, 2]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_each_process_is_started_again_up_to_the_limit(limit):
    restarts = Restarts(limit)
    assert [pause is None for pause in fail(restarts, limit + 2, lived=STABLE)] == [False] * limit + [True] * 2
    restarts.started("w1", 0)
    assert (restarts.count("w0"), restarts.count("w1")) == (limit, 0)
    assert (restarts.schedule("w1", 1.0) is None) == (limit == 0)


def test_processes_are_due_after_their_pauses_in_this_order_and_not_when_they_are_cancelled():
    restarts = Restarts(9)
    for name in ("w0", "w1", "w2"):
        restarts.started(name, 0.0)
    assert [restarts.schedule(name, now) for name, now in (("w1", 10.0), ("w0", 10.2))] == [0.5, 0.5]
    assert [restarts.waiting(name) for name in ("w0", "w1", "w2")] == [True, True, False]
    assert (restarts.next_due, restarts.take_due(10.4), restarts.take_due(10.5)) == (10.5, [], ["w1"])
    assert [restarts.waiting(name) for name in ("w0", "w1", "w2")] == [True, False, False]
    restarts.started("w1", 10.5)
    restarts.schedule("w1", 10.5)
    assert restarts.take_due(12.0) == ["w0", "w1"]
    assert restarts.next_due == math.inf
    restarts.schedule("w2", 12.0)
    restarts.cancel()
    assert (restarts.take_due(99.0), restarts.next_due, restarts.waiting("w2")) == ([], math.inf, False)
