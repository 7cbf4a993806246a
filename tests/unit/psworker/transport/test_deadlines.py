"""Waits that have no deadline of their own end in time, and only those that are late."""

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


def test_a_wait_that_is_too_long_is_cancelled_and_says_so(deadlines):
    cancelled = threading.Event()
    with waiting(deadlines, 0.01, cancelled.set) as deadline:
        assert cancelled.wait(BOUND)
    assert deadline.passed


def test_a_wait_that_ends_in_time_is_not_cancelled(deadlines):
    late = threading.Event()
    with waiting(deadlines, BOUND, lambda: pytest.fail("cancelled")) as deadline:
        pass
    with waiting(deadlines, 0.0, late.set):
        assert late.wait(BOUND)
    assert not deadline.passed


def test_a_short_deadline_does_not_wait_for_a_longer_one_that_came_first(deadlines):
    cancelled = threading.Event()
    with waiting(deadlines, BOUND * 100, lambda: pytest.fail("cancelled")), waiting(deadlines, 0.01, cancelled.set):
        assert cancelled.wait(BOUND)


def test_a_short_deadline_wakes_who_sleeps_for_a_longer_one(monkeypatch):
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


def test_a_wait_that_is_over_is_cancelled_neither_when_it_would_be_late_nor_when_all_are(deadlines):
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


def test_many_waits_at_a_time_each_have_their_own_deadline(deadlines):
    cancelled = [threading.Event() for _ in range(20)]

    def wait(number):
        with waiting(deadlines, 0.001 * number, cancelled[number].set) as deadline:
            assert cancelled[number].wait(BOUND)
            passed.append(deadline.passed)

    passed = []
    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == [True] * 20


def test_closing_ends_the_thread():
    deadlines = Deadlines()
    with waiting(deadlines, BOUND, lambda: None):
        pass
    deadlines.close()
    assert "psworker-deadlines" not in {thread.name for thread in threading.enumerate()}
    Deadlines().close()


def test_what_was_cancelled_is_not_kept(deadlines):
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
