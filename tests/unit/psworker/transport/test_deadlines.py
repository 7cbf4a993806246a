"""Deadlines: late waits are cancelled, others are not."""

import threading
import time
import weakref
from contextlib import closing, contextmanager

import pytest

from psworker.transport.deadlines import Deadlines

BOUND = 30.0  # seconds that no wait comes near to


@contextmanager
def waiting(deadlines, seconds, cancel):
    deadline = deadlines.set(seconds, cancel)
    try:
        yield deadline
    finally:
        deadlines.drop(deadline)


@pytest.fixture
def deadlines():
    with closing(Deadlines()) as deadlines:
        yield deadlines
    assert "psworker-deadlines" not in {thread.name for thread in threading.enumerate()}


def never():
    pytest.fail("cancelled")


def test_late_waits_are_cancelled_each_at_its_own_deadline_and_others_are_not(deadlines):
    """Also when the thread sleeps for a longer one."""
    with waiting(deadlines, BOUND * 100, never) as early:
        while deadlines._wakes != early.at:
            pass
        for number in range(5):
            late = threading.Event()
            with waiting(deadlines, 0.005 * number, late.set) as deadline:
                assert late.wait(BOUND)
            assert deadline.passed
    assert not early.passed


def test_a_dropped_deadline_is_cancelled_neither_when_it_is_late_nor_when_all_are(deadlines):
    first, second, last = (threading.Event() for _ in range(3))
    with waiting(deadlines, BOUND, never) as dropped:
        pass
    with waiting(deadlines, BOUND, first.set), waiting(deadlines, BOUND, second.set):
        deadlines.pass_all()
        assert first.wait(BOUND)
        assert second.wait(BOUND)
    with waiting(deadlines, 0.0, last.set):
        assert last.wait(BOUND)  # and by then all that were late before have been cancelled
    assert not dropped.passed


def test_cancelled_calls_are_not_kept(deadlines):
    class Call:
        cancelled = threading.Event()

        def cancel(self):
            self.cancelled.set()

    call = Call()
    known = weakref.ref(call)
    with waiting(deadlines, 0.0, call.cancel):
        assert Call.cancelled.wait(BOUND)
    del call
    end = time.monotonic() + BOUND
    while known() is not None:  # until the thread has come back from it
        assert time.monotonic() < end
