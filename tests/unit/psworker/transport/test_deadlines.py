"""Deadlines: late waits are cancelled, others are not."""

import threading
import time
import weakref
from contextlib import contextmanager

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
    deadlines = Deadlines()
    yield deadlines
    deadlines.close()


def test_late_waits_are_cancelled_each_at_its_own_deadline_and_others_are_not(deadlines):
    late = [threading.Event() for _ in range(5)]
    with waiting(deadlines, BOUND * 100, lambda: pytest.fail("cancelled")) as early:
        for number, event in enumerate(late):
            with waiting(deadlines, 0.005 * number, event.set) as deadline:
                assert event.wait(BOUND)
            assert deadline.passed
    assert not early.passed


def test_a_short_deadline_wakes_the_thread_that_sleeps_for_a_longer_one(monkeypatch):
    asleep, cancelled = threading.Event(), threading.Event()

    class Watched(threading.Condition):
        def wait(self, timeout=None):
            asleep.set()  # the lock is held until it sleeps
            return super().wait(timeout)

    monkeypatch.setattr(threading, "Condition", Watched)
    deadlines = Deadlines()
    monkeypatch.undo()
    with waiting(deadlines, BOUND * 100, lambda: pytest.fail("cancelled")):
        assert asleep.wait(BOUND)
        with waiting(deadlines, 0.0, cancelled.set):
            assert cancelled.wait(BOUND)
    deadlines.close()


def test_a_dropped_deadline_is_cancelled_neither_when_it_is_late_nor_when_all_are(deadlines):
    over, cancelled = [], [threading.Event() for _ in range(3)]
    with waiting(deadlines, BOUND, lambda: over.append("cancelled")) as deadline:
        pass
    with waiting(deadlines, BOUND, cancelled[0].set), waiting(deadlines, BOUND, cancelled[1].set):
        deadlines.pass_all()
        assert cancelled[0].wait(BOUND)
        assert cancelled[1].wait(BOUND)
    with waiting(deadlines, 0.0, cancelled[2].set):
        assert cancelled[2].wait(BOUND)  # and by then all that were late before have been cancelled
    assert (over, deadline.passed) == ([], False)


def test_closing_ends_the_thread():
    deadlines = Deadlines()
    with waiting(deadlines, BOUND, lambda: None):
        pass
    deadlines.close()
    assert "psworker-deadlines" not in {thread.name for thread in threading.enumerate()}
    Deadlines().close()


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
