"""Deadlines: late waits are cancelled, others are not."""

import threading
import time
import weakref
from contextlib import closing

import pytest

from psworker.transport.deadlines import Deadlines

BOUND = 30.0  # seconds that no wait comes near to


@pytest.fixture
def deadlines():
    with closing(Deadlines()) as deadlines:
        yield deadlines
    assert "psworker-deadlines" not in {thread.name for thread in threading.enumerate()}


def never():
    pytest.fail("cancelled")


def test_late_waits_are_cancelled_each_at_its_own_deadline_and_others_are_not(deadlines):
    """Also when the thread sleeps for a longer one."""
    early = deadlines.set(BOUND * 100, never)
    while deadlines._wakes != early.at:
        pass
    for number in range(5):
        cancelled = threading.Event()
        late = deadlines.set(0.005 * number, cancelled.set)
        assert cancelled.wait(BOUND)
        assert late.passed
    assert not early.passed


def test_a_dropped_deadline_is_cancelled_neither_when_it_is_late_nor_when_all_are(deadlines):
    deadlines.drop(dropped := deadlines.set(BOUND, never))
    cancelled = [threading.Event() for _ in range(3)]
    for event in cancelled[:2]:
        deadlines.set(BOUND, event.set)
    deadlines.pass_all()
    deadlines.set(0.0, cancelled[2].set)
    assert all(event.wait(BOUND) for event in cancelled)
    assert not dropped.passed


def test_cancelled_calls_are_not_kept(deadlines):
    class Call:
        cancelled = threading.Event()

        def cancel(self):
            self.cancelled.set()

    call = Call()
    known = weakref.ref(call)
    deadlines.set(0.0, call.cancel)
    assert Call.cancelled.wait(BOUND)
    del call
    end = time.monotonic() + BOUND
    while known() is not None:  # until the thread has come back from it
        assert time.monotonic() < end
