"""Queues: order, concurrency, bounds, errors, waiting and the end of their threads."""

import gc
import itertools
import logging
import queue
import re
import subprocess
import sys
import threading
import traceback

import pytest

from pswire.errors import ConfigurationError, DatasetError, TimedOut
from psworker.data import queue as module
from psworker.data.queue import Queue

WAIT = 20  # seconds; of what comes at once


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("psworker-queue-")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for thread in threads():  # of queues that are not closed, but collected
        gc.collect()
        thread.join(WAIT)
    assert threads() == []


def wait_until(queue, state):
    """Until `repr` shows this state."""
    changed = queue._prefetching.changed
    with changed:
        assert changed.wait_for(lambda: state in repr(queue), WAIT), repr(queue)


def work():
    """What lets other threads run, if anything does."""
    threading.Event().wait(0.0005)


def counted(count):
    """A function that returns 0, 1, ... count - 1, and then raises StopIteration."""
    return iter(range(count)).__next__


def fails_after(items):
    yield from items
    raise ValueError("line 4 is damaged")


# --- items ------------------------------------------------------------------------------------------------------------


def test_size_is_the_number_of_ready_items_and_items_of_other_threads_come_by_way_of_their_queue():
    given = queue.SimpleQueue()
    with Queue(iter(given.get, None), capacity=3) as made:
        assert made.size() == 0
        with pytest.raises(TypeError, match=r"give iter\(that_queue.get, None\)"):
            made.put(1)
        for item in (1, 2, 3, 4, None):
            given.put(item)
        wait_until(made, "3 ready")
        assert made.size() == 3
        assert list(made) == [1, 2, 3, 4]


@pytest.mark.parametrize("capacity", [1, 2, 50])
@pytest.mark.parametrize("make", [range, iter, counted], ids=["iterable", "iterator", "function"])
def test_one_worker_keeps_the_order_and_the_end_is_stop_iteration_again_and_again(make, capacity):
    with Queue(make(range(30)) if make is iter else make(30), capacity=capacity) as queue:
        assert list(queue) == list(range(30))
        for _ in range(2):
            with pytest.raises(StopIteration):
                queue.get()


def test_a_queue_of_no_items_ends_at_once():
    assert list(Queue([])) == []


def test_several_workers_call_a_function_at_the_same_time():
    together = threading.Barrier(3)
    numbers = itertools.count()

    def make():
        together.wait(WAIT)  # no call returns before three are under way
        number = next(numbers)
        if number >= 9:
            raise StopIteration
        return number

    with Queue(make, workers=3) as queue:
        assert sorted(queue) == list(range(9))


def test_workers_that_share_an_iterable_read_it_one_at_a_time_and_each_item_once():
    reading = threading.Lock()

    class Numbers:
        """0 to 99, and then the end, once: reading a socket again might wait for ever."""

        def __init__(self):
            self.left = list(range(100, -1, -1))

        def __iter__(self):
            return self

        def __next__(self):
            assert reading.acquire(blocking=False), "two threads read at the same time"
            try:
                assert self.left, "read beyond the end"
                number = self.left.pop()
                work()
                if number == 100:
                    raise StopIteration
                return number
            finally:
                reading.release()

    with Queue(Numbers(), workers=4) as queue:
        assert sorted(queue) == list(range(100))


def test_each_item_goes_to_one_of_several_consumers():
    found = [[] for _ in range(3)]
    with Queue(range(300), capacity=5) as queue:
        consumers = [threading.Thread(target=one.extend, args=(queue,)) for one in found]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join(WAIT)
    assert sorted(itertools.chain(*found)) == list(range(300))


@pytest.mark.parametrize(("workers", "capacity"), [(1, 1), (1, 3), (3, 3), (2, 5), (2, None)])
def test_no_more_items_are_made_ahead_than_the_capacity(workers, capacity):
    asked, begun, most, lock = 0, 0, 0, threading.Lock()

    def make():
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - asked)
        work()
        return begun

    capacity_now = capacity or workers + 1
    with Queue(make, workers=workers, capacity=capacity) as queue:
        for _ in range(20):
            wait_until(queue, f"{capacity_now} ready, 0 in the making")
            with lock:
                asked += 1
            queue.get()
    assert most == capacity_now


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_of_the_source_comes_after_its_items_with_the_traceback_of_the_source_each_time(workers):
    with Queue(fails_after("abc"), workers=workers, capacity=10) as queue:
        assert sorted(queue.get() for _ in range(3)) == ["a", "b", "c"]
        places = []
        for _ in range(2):
            with pytest.raises(ValueError, match="line 4 is damaged") as raised:
                queue.get()
            places.append([at.name for at in traceback.extract_tb(raised.value.__traceback__)])
        assert places[0][-1] == "fails_after"
        assert places[0] == places[1], "a traceback that does not grow"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ZeroDivisionError()], ids=repr)
def test_the_consumer_gets_the_very_exception_of_a_function(error):
    def make():
        raise error

    with Queue(make) as queue, pytest.raises(type(error)) as raised:
        queue.get()
    assert raised.value is error


def test_after_an_error_no_item_is_begun_and_those_in_the_making_are_delivered_before_it():
    both, failed, calls = threading.Barrier(2), threading.Event(), []

    def make():
        calls.append(threading.current_thread())
        if both.wait(WAIT) == 0:
            raise OSError("the disk is gone")
        assert failed.wait(WAIT)
        return "made beside it"

    with Queue(make, workers=2, capacity=10) as queue:
        changed = queue._prefetching.changed
        with changed:
            assert changed.wait_for(lambda: queue._prefetching._failure, WAIT)
        failed.set()
        assert queue.get() == "made beside it"
        with pytest.raises(OSError, match="the disk is gone"):
            queue.get()
    assert len(calls) == 2


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_get_gives_up_after_the_timeout_and_says_where_the_source_is():
    go_on = threading.Event()

    def slow_disk():
        assert go_on.wait(WAIT)
        return 1

    with Queue(slow_disk, timeout=0.05) as queue:
        with pytest.raises(TimedOut) as raised:
            queue.get()
        line = slow_disk.__code__.co_firstlineno + 1
        for pattern in (
            r"gave up after \d+\.\d s: get waits for an item of ",
            rf"slow_disk-0 has been in slow_disk \(test_queue\.py:{line}\) for \d+ s",
            "give the queue a larger timeout",
        ):
            assert re.search(pattern, str(raised.value))
        go_on.set()
        assert queue.get() == 1, "the item is not lost"


def test_a_wait_is_logged_with_whom_it_waits_for(monkeypatch, caplog):
    go_on, records = threading.Event(), []
    monkeypatch.setattr(module, "LOG_EVERY", 0.01)

    def read_tape():
        assert go_on.wait(WAIT)
        return 1

    def seen(record):
        records.append(record.getMessage())
        go_on.set()
        return True

    module.logger.addFilter(seen)
    try:
        with caplog.at_level(logging.WARNING), Queue(read_tape) as queue:
            assert queue.get() == 1
    finally:
        module.logger.removeFilter(seen)
    assert "read_tape-0 has been in read_tape (test_queue.py:" in records[0]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_queue_that_is_closed_early_leaves_no_thread_and_gives_no_item(taken, workers):
    """Its workers wait for room, forever if nobody tells them."""
    with Queue(itertools.count(), workers=workers, capacity=workers) as queue:
        assert sorted(itertools.islice(queue, taken)) == list(range(taken))
        wait_until(queue, f"{workers} ready")
        queue.close()
        assert threads() == []
        assert "closed" in repr(queue)
        with pytest.raises(ConfigurationError, match=r"the queue of count is closed"):
            queue.get()
    queue.close()  # again: nothing happens


def test_an_error_of_the_consumer_closes_the_queue_and_stays_the_error():
    with pytest.raises(ZeroDivisionError), Queue(itertools.count()) as queue:
        1 / queue.get()
    assert threads() == []


def test_a_generator_is_closed_with_its_queue():
    ended = []

    def lines():
        try:
            yield from itertools.count()
        finally:
            ended.append("file closed")

    with Queue(lines()) as queue:
        queue.get()
        assert ended == []
    assert ended == ["file closed"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_threads_of_a_queue_that_nothing_refers_to_end(workers):
    for item in Queue(itertools.count(), workers=workers):
        if item >= 3:
            break
    running = threads()
    gc.collect()
    for thread in running:
        thread.join(WAIT)
        assert not thread.is_alive()


def test_close_says_whom_it_waits_for_when_the_source_does_not_return():
    go_on = threading.Event()

    def frozen():
        yield 1
        assert go_on.wait(WAIT)

    queue = Queue(frozen(), timeout=0.05)
    assert queue.get() == 1
    with pytest.raises(TimedOut, match=r"close waits for a thread of .*frozen, .* has been in frozen \(test_queue.py:"):
        queue.close()
    go_on.set()


def test_a_consumer_that_waits_in_another_thread_is_told_when_the_queue_is_closed():
    go_on, raised, told = threading.Event(), [], []

    def make():
        told.append(go_on.wait(WAIT))
        return 1

    def consume():
        try:
            queue.get()
        except ConfigurationError as error:
            raised.append(str(error))
        go_on.set()

    queue = Queue(make)
    wait_until(queue, "1 in the making")
    consumer = threading.Thread(target=consume)
    consumer.start()
    queue.close()
    consumer.join(WAIT)
    assert "is closed" in raised[0]
    assert told == [True], "before the source has returned"


def test_a_source_may_close_its_own_queue():
    def make():
        queue.close()
        return 1

    begun = threading.Event()
    queue = Queue(lambda: begun.wait(WAIT) and make())
    begun.set()
    for thread in threads():
        thread.join(WAIT)
    with pytest.raises(ConfigurationError, match="is closed"):
        queue.get()


def test_a_process_ends_although_a_queue_is_full_and_another_source_never_returns():
    program = """
import itertools, threading, psworker as ps
full = ps.data.Queue(itertools.count())
stuck = ps.data.Queue(threading.Event().wait)
print(full.get())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "arguments", "error", "pattern"),
    [
        ([], {"workers": 0}, ConfigurationError, "1 worker or more, and capacity for each: got 0 and 1"),
        ([], {"workers": 3, "capacity": 2}, ConfigurationError, "capacity for each: got 3 and 2"),
        ([], {"timeout": 0}, ConfigurationError, "the timeout must be a positive number of seconds, got 0"),
        ([], {"timeout": float("nan")}, ConfigurationError, "got nan"),
        (5, {}, DatasetError, "an iterable of items or a function that makes one a call, not int"),
        ({"x": [1, 2]}, {}, DatasetError, "not dict"),
    ],
)
def test_what_cannot_be_a_queue_is_refused_at_once(source, arguments, error, pattern):
    with pytest.raises(error, match=pattern):
        Queue(source, **arguments)


def test_a_generator_function_is_refused_with_what_to_give():
    def batches():
        yield 1

    with Queue(batches) as queue, pytest.raises(DatasetError, match=r"give the generator, .*batches\(\)"):
        queue.get()
