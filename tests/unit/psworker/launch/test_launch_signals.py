"""Signals as calls from a thread."""

import os
import queue
import signal
import sys

import pytest

from psworker.launch.signals import signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def test_each_signal_arrives_while_the_main_thread_waits():
    arrived = queue.SimpleQueue()
    with signals([signal.SIGUSR1, signal.SIGTERM], arrived.put):
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            assert arrived.get(timeout=20) == number


def test_other_signals_keep_their_handlers_and_all_are_restored():
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        handler, arrived = signal.getsignal(signal.SIGTERM), queue.SimpleQueue()
        with signals([signal.SIGTERM], arrived.put):
            signal.raise_signal(signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
        assert arrived.empty()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        arrived = queue.SimpleQueue()
        with signals([signal.SIGHUP], arrived.put):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert arrived.empty()
    finally:
        signal.signal(signal.SIGHUP, before)
