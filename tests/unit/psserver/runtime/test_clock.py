"""The server's clock, and when a server of one job ends by itself. Nothing here waits: the time is a test's."""

import logging

import pytest

from psserver.core.members.membership import JobEnd, Membership
from psserver.runtime.clock import TICKS_PER_LEASE, Clock, Linger
from pswire.messages import Join


def clock_with(now, tick):
    """A function that lets time pass for a clock and reads it."""
    time = [now]
    clock = Clock(lambda: time[0], tick)

    def after(seconds):
        time[0] += seconds
        return clock()

    return after


def test_the_clock_is_the_time_and_a_gap_of_more_than_two_ticks_counts_as_two_however_often_it_comes():
    after = clock_with(100.0, tick=0.25)
    assert [after(gap) for gap in (0.0, 0.25, 0.0625, 0.5)] == [100.0, 100.25, 100.3125, 100.8125]
    assert [after(gap) for gap in (300.0, 0.25, 7200.0, 1e6)] == [101.3125, 101.5625, 102.0625, 102.5625]


@pytest.mark.parametrize(("lease", "stop"), [(0.3, 5.0), (3.0, 0.9), (15.0, 1.14)])
def test_no_lease_ends_by_a_stop_of_the_server_before_the_next_heartbeat_is_due(lease, stop):
    """Heartbeats come each third of a lease, and a third later again if a stopped server did not answer."""
    members, tick = Membership(lease), lease / TICKS_PER_LEASE
    after = clock_with(0.0, tick)
    (member, _) = members.join(Join(worker="w0"), after(0.0))
    third = [tick] * (TICKS_PER_LEASE // 3)
    for seconds in (*third, stop * lease, *third):  # the server stops right before the next heartbeat
        assert not members.expired(after(seconds))
    members.renew(member, after(0.0))


def lines(caplog):
    """The log since the last call."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_a_server_whose_job_is_done_ends_when_no_worker_has_joined_for_its_linger(caplog):
    caplog.set_level(logging.INFO, "psserver")
    linger, over = Linger(10.0, lease=15.0), JobEnd(100.0, 3, done=True)
    assert [linger.ends(None, now) for now in (0.0, 1e6)] == [False, False], "a worker is live, or none has joined yet"
    assert [linger.ends(over, now) for now in (100.0, 109.0, 110.0)] == [False, False, True]
    assert lines(caplog) == [("INFO", "the job is done, and no worker has joined for 10 s")]


@pytest.mark.parametrize(("seconds", "bound"), [(0.0, 60.0), (90.0, 90.0)])
def test_a_server_whose_workers_have_all_failed_warns_soon_and_waits_four_leases_at_least(seconds, bound, caplog):
    caplog.set_level(logging.INFO, "psserver")
    linger = Linger(seconds, lease=15.0)
    warning = f"none has finished the job: the server ends in {bound:g} s unless one joins"
    failed, again = JobEnd(100.0, 1, done=False), JobEnd(200.0, 3, done=False)
    assert not linger.ends(failed, 101.9)
    assert lines(caplog) == []
    assert [linger.ends(failed, now) for now in (102.0, 103.0, 99.0 + bound)] == [False, False, False]
    assert lines(caplog) == [("WARNING", f"no worker is left of 1 worker, and {warning}")]
    assert not linger.ends(None, 100.0 + bound)
    assert [linger.ends(again, now) for now in (202.5, 199.5 + bound, 200.0 + bound)] == [False, False, True]
    assert lines(caplog) == [
        ("WARNING", f"no worker is left of 3 workers, and {warning}"),
        ("WARNING", f"no worker has finished the job, and none has joined for {bound:g} s"),
    ]
