"""Signals as calls in a thread."""

import os
import queue
import signal

from psworker.launch.processes import signals_in_thread


def test_each_signal_arrives_while_the_main_thread_waits():
    arrived = queue.SimpleQueue()
    with signals_in_thread([signal.SIGUSR1, signal.SIGTERM], arrived.put):
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            assert arrived.get(timeout=20) == number


def test_other_signals_and_an_ignored_sighup_keep_their_handlers_and_all_are_restored():
    seen, arrived = [], queue.SimpleQueue()
    of_the_test = {signal.SIGUSR2: lambda number, frame: seen.append(number), signal.SIGHUP: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in of_the_test.items()}
    try:
        handler = signal.getsignal(signal.SIGTERM)
        with signals_in_thread([signal.SIGTERM, signal.SIGHUP], arrived.put):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            signal.raise_signal(signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
        assert arrived.empty()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
