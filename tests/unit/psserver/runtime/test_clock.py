"""The server's clock, and when a server of one job ends by itself. Nothing here waits: the time is a test's."""

import itertools
import logging

import pytest

from psserver.core.members.membership import JobEnd, Membership
from psserver.runtime.clock import TICKS_PER_LEASE, Clock, Linger
from pswire.messages import Join

TICK = 0.25


def clock_with(now, tick=TICK):
    """A clock, and a function that lets time pass for it and reads it."""
    time = [now]
    clock = Clock(lambda: time[0], tick)

    def after(seconds):
        time[0] += seconds
        return clock()

    return after


def test_read_at_each_tick_it_is_the_time():
    after, steps = clock_with(100.0), (0.0, TICK, 0.25 * TICK, 2 * TICK, TICK)
    assert [after(step) for step in steps] == list(itertools.accumulate(steps, initial=100.0))[1:]


def test_a_longer_gap_counts_as_two_ticks_however_often_it_comes():
    after = clock_with(100.0)
    assert [after(gap) for gap in (300.0, TICK, 7200.0, 0.0, 1e6)] == [100.5, 100.75, 101.25, 101.25, 101.75]


@pytest.mark.parametrize(("lease", "stop"), [(0.3, 5.0), (3.0, 0.9), (15.0, 1.14)])
def test_no_lease_ends_by_a_stop_of_the_server_before_the_next_heartbeat_is_due(lease, stop):
    """Heartbeats come each third of a lease, and a third later again if a stopped server did not answer."""
    members, tick = Membership(lease), lease / TICKS_PER_LEASE
    after = clock_with(0.0, tick)
    (member, _) = members.join(Join("w0"), after(0.0))
    third = [tick] * (TICKS_PER_LEASE // 3)
    for seconds in (*third, stop * lease, *third):  # the server stops right before the next heartbeat
        assert not members.expire(after(seconds))
    members.renew(member, after(0.0))


@pytest.fixture
def logged(caplog):
    """The records of a server since the last call."""
    caplog.set_level(logging.INFO, "psserver")

    def records():
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    return records


def test_a_server_whose_job_is_done_ends_when_no_worker_has_joined_for_its_linger(logged):
    linger, over = Linger(10.0, lease=15.0), JobEnd(100.0, 3, done=True)
    assert [linger.ends(None, now) for now in (0.0, 1e6)] == [False, False], "a worker is live, or none has joined yet"
    assert [linger.ends(over, now) for now in (100.0, 109.0, 110.0)] == [False, False, True]
    assert logged() == [("INFO", "the job is done, and no worker has joined for 10 s")]


@pytest.mark.parametrize(("seconds", "bound"), [(0.0, 60.0), (10.0, 60.0), (90.0, 90.0)])
def test_a_server_whose_workers_have_all_failed_warns_soon_and_waits_four_leases_at_least(seconds, bound, logged):
    linger = Linger(seconds, lease=15.0)
    warning = f"none has finished the job: the server ends in {bound:g} s unless one joins"
    failed, again = JobEnd(100.0, 1, done=False), JobEnd(200.0, 3, done=False)
    assert not linger.ends(failed, 101.9)
    assert logged() == []
    assert [linger.ends(failed, now) for now in (102.0, 103.0, 99.0 + bound)] == [False, False, False]
    assert logged() == [("WARNING", f"no worker is left of 1 worker, and {warning}")]
    assert not linger.ends(None, 100.0 + bound)
    assert [linger.ends(again, now) for now in (202.5, 199.5 + bound, 200.0 + bound)] == [False, False, True]
    assert logged() == [
        ("WARNING", f"no worker is left of 3 workers, and {warning}"),
        ("WARNING", f"no worker has finished the job, and none has joined for {bound:g} s"),
    ]
