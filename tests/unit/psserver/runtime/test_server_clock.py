"""The server's clock: seconds in which the process was awake. Nothing here waits: the time is told to it."""

import pytest

from psserver.core.members.membership import Membership
from psserver.rpc.server import TICKS_A_LEASE, Clock
from pswire.messages import Join

TICK = 0.25


class Told:
    """A clock that stands where a test puts it."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def test_while_it_is_asked_at_each_tick_it_tells_the_time_as_it_is():
    told = Told(100.0)
    clock = Clock(told, TICK)
    for step in (0.0, TICK, 0.25 * TICK, 2 * TICK, TICK):
        told.now += step
        assert clock() == told.now


def test_a_gap_of_minutes_counts_as_two_ticks_however_often_it_comes():
    told = Told(100.0)
    clock = Clock(told, TICK)
    before = clock()
    for gap in (300.0, 7200.0):
        told.now += gap
        assert clock() == before + 2 * TICK
        told.now += TICK
        before = clock()
        assert before == clock()
    assert before == 100.0 + 6 * TICK


def test_it_never_goes_back():
    told = Told(5.0)
    clock = Clock(told, TICK)
    seen = [clock()]
    for gap in (0.0, 1.9 * TICK, 2.1 * TICK, 0.0, 1000.0, 1e-3, 4 * TICK, 1e6):
        told.now += gap
        seen.append(clock())
    assert seen == sorted(seen)


@pytest.mark.parametrize("lease", [0.3, 3.0, 15.0])
@pytest.mark.parametrize("stop", [0.9, 1.14, 5.0])
def test_no_lease_ends_by_a_stop_of_the_server_before_the_next_heartbeat_is_due(lease, stop):
    """A worker beats each third of a lease, and after one that a stopped server did not answer a third later again."""
    told, members = Told(0.0), Membership(lease)
    clock = Clock(told, lease / TICKS_A_LEASE)
    (member, _) = members.join(Join("w0"), clock())
    ticks = TICKS_A_LEASE // 3
    for _ in range(ticks):  # the server stops right before the next heartbeat
        told.now += lease / TICKS_A_LEASE
        assert not members.expire(clock())
    told.now += stop * lease
    assert not members.expire(clock())
    for _ in range(ticks):
        told.now += lease / TICKS_A_LEASE
        assert not members.expire(clock())
    members.renew(member, clock())
