"""Signals in the main thread: what they raise comes at once, or when the call to a server is over that they came in."""

import signal
import threading

import pytest

from pswire.system import deferred_signals
from psworker.transport.deadlines import Deadlines

BOUND = 30.0  # seconds: far above what anything takes


class Told(BaseException):
    """What a signal raises here."""


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    """SIGUSR1 interrupts, and a call that it comes in is cut short at once."""
    monkeypatch.setattr(deferred_signals, "GRACE", 0.0)
    before = signal.signal(signal.SIGUSR1, lambda _, frame: deferred_signals.interrupt(Told(), frame))
    yield
    signal.signal(signal.SIGUSR1, before)


def run_in(module, statements, **names):
    """Runs them as if they stood in a module of this name."""
    exec(compile(statements, module, "exec"), {"__name__": module, "signal": signal, **names})


def test_outside_of_a_call_it_is_raised_at_once():
    with pytest.raises(Told):
        run_in("train", "signal.raise_signal(signal.SIGUSR1)\nassert False, 'it went on'")
    deferred_signals.check()


@pytest.mark.parametrize("module", ["psworker.client.retrying_calls", "psworker.transport.grpc_transport"])
def test_within_a_call_it_is_kept_and_raised_once_when_that_is_over(module):
    went_on = []
    run_in(module, "signal.raise_signal(signal.SIGUSR1)\nwent_on.append(1)", went_on=went_on)
    assert went_on == [1]
    thread = threading.Thread(target=deferred_signals.check)
    thread.start()
    thread.join(BOUND)
    with pytest.raises(Told):
        deferred_signals.check()  # in the other thread it was none of its business
    deferred_signals.check()


def test_a_call_that_waits_is_cut_short():
    deadlines, cut = Deadlines(), threading.Event()
    deferred_signals.cut_short_by(deadlines.pass_all)
    deadline = deadlines.set(1000.0, cut.set)
    run_in("psworker.transport", "signal.raise_signal(signal.SIGUSR1)\nassert cut.wait(bound)", cut=cut, bound=BOUND)
    assert deadline.passed
    with pytest.raises(Told):
        deferred_signals.check()
    deferred_signals.forget(deadlines.pass_all)
    deadlines.close()
