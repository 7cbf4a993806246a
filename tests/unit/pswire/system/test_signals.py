"""Signals in the main thread: raised at once outside of calls to servers, at the end of a call inside; and exits."""

import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from psjob.status.interventions import InterventionCalls
from psjob.status.status_client import StatusClient
from pswire.errors import Unavailable
from pswire.messages import Renew, Renewed, Sender
from pswire.network.channel import check_health
from pswire.system import interrupts
from pswire.system.interrupts import (
    cut_short_by_signals,
    deferred_signals,
    deferred_to_next_block,
    raise_deferred,
    raise_or_defer,
)
from psworker.client.membership import WorkerMembership
from psworker.client.retry import Calls
from psworker.transport import Future
from psworker.transport.deadlines import Deadlines
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND


class Interrupted(BaseException):
    """The exception that SIGUSR1 raises here."""


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    """SIGUSR1 interrupts, and a call that it comes in is cut short at once."""
    monkeypatch.setattr(interrupts, "GRACE", 0.0)
    before = signal.signal(signal.SIGUSR1, lambda *_: raise_or_defer(Interrupted()))
    yield
    signal.signal(signal.SIGUSR1, before)
    raise_deferred()  # nothing is left


def interrupt():
    signal.raise_signal(signal.SIGUSR1)


def test_within_a_block_it_is_raised_once_at_the_end_of_the_outermost():
    steps = []

    def call():
        with deferred_signals:
            with deferred_signals:
                interrupt()
                interrupt()
            steps.append("between")
            thread = threading.Thread(target=raise_deferred)  # has no effect in another thread
            thread.start()
            thread.join(BOUND)
            raise Unavailable("replaced by the signal's exception")

    with pytest.raises(Interrupted):
        call()
    assert steps == ["between"]


@pytest.fixture
def handler():
    """Sets the handler of SIGINT of a program, and afterwards the one that was there."""
    before = signal.getsignal(signal.SIGINT)
    yield partial(signal.signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_deferred_in_a_program_that_sets_no_handler_and_raised_at_once_outside_of_blocks(handler):
    steps = []

    def call():
        with deferred_signals:
            signal.raise_signal(signal.SIGINT)
            steps.append("done")

    for calls in (1, 2):
        handler(signal.default_int_handler)  # as a notebook's kernel does before each cell
        with pytest.raises(KeyboardInterrupt):
            call()
        assert steps == ["done"] * calls
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_program_stays_and_other_threads_set_none(handler):
    handled = []
    own = lambda *_: handled.append("own")
    handler(own)
    with deferred_signals:
        signal.raise_signal(signal.SIGINT)
    assert (handled, signal.getsignal(signal.SIGINT)) == (["own"], own)
    handler(signal.default_int_handler)
    with ThreadPoolExecutor() as pool:
        pool.submit(deferred_signals.__enter__).result(BOUND)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_sends_leaves_it_to_the_block_that_reads_the_answers():
    with deferred_to_next_block:
        interrupt()
    with pytest.raises(Interrupted), deferred_signals:
        pass  # raised at its end


def test_outside_of_a_block_of_its_own_thread_it_is_raised_at_once():
    entered, done = threading.Event(), threading.Event()

    def other():
        with deferred_signals:
            entered.set()
            done.wait(BOUND)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(BOUND)
    with pytest.raises(Interrupted):
        interrupt()
    done.set()
    thread.join(BOUND)
    with deferred_signals:
        pass  # nothing is left


def test_a_call_that_waits_is_cut_short():
    deadlines, cut = Deadlines(), threading.Event()
    interrupts.add_cancel(deadlines.pass_all)
    deadline = deadlines.set(1000.0, cut.set)
    with deferred_to_next_block:
        interrupt()
        assert cut.wait(BOUND)
    assert deadline.passed
    with pytest.raises(Interrupted):
        raise_deferred()
    interrupts.remove_cancel(deadlines.pass_all)
    deadlines.close()


def test_calls_are_cut_short_also_if_the_signal_came_before_they_were_sent(monkeypatch):
    monkeypatch.setattr(interrupts, "_alarm", None)  # as before the first call of a process
    cut = threading.Event()

    def call():
        with deferred_signals:
            interrupt()
            with cut_short_by_signals(SimpleNamespace(cancel=cut.set)):
                assert cut.wait(BOUND)

    with pytest.raises(Interrupted):
        call()


@pytest.fixture
def silent_server():
    """The address of a server that answers nothing; a connection to it, within a call, interrupts the main thread."""
    accepted = []

    def accept():
        accepted.append(listening.accept()[0])
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(BOUND)
    for connection in accepted:
        connection.close()


def ask(address):
    with StatusClient([address]) as servers:
        servers.ask(BOUND)


def stop(address):
    with InterventionCalls([address], "operator") as servers:
        servers.stop("it diverged")


@pytest.mark.parametrize("call", [ask, stop, partial(check_health, timeout=BOUND)], ids=["status", "stop", "health"])
def test_a_call_of_a_command_is_cut_short_and_it_is_raised_outside_of_grpc(call, silent_server):
    with pytest.raises(Interrupted) as raised:
        call(silent_server)
    assert not [entry for entry in raised.traceback if "grpc" in Path(str(entry.path)).parts]


def test_all_connections_of_a_command_are_closed_before_it_is_raised():
    steps = []
    servers = StatusClient(["127.0.0.1:1"])
    servers.callback(lambda: (interrupt(), steps.append("closed")))
    with pytest.raises(Interrupted):
        servers.close()
    assert steps == ["closed"]


class InterruptedTransport:
    """Two shards; each call is interrupted when it is sent and when its answer is read."""

    shards = 2

    def __init__(self):
        self.answered = []

    def call(self, shard, message, timeout):
        interrupt()
        return Future(lambda: self._answer(shard))

    def _answer(self, shard):
        interrupt()
        self.answered.append(shard)
        return Renewed()

    def tensor_transport(self, shard):
        return ""


@pytest.mark.parametrize(
    ("use", "answered"),
    [
        pytest.param(lambda calls, renew: calls.call(0, renew, Renewed), [0], id="one call"),
        pytest.param(lambda calls, renew: calls.results(calls.send({0: renew, 1: renew}), Renewed), [0, 1], id="both"),
        pytest.param(lambda calls, renew: (calls.abandon([0, 1], 1), raise_deferred()), [0, 1], id="messages"),
    ],
)
def test_a_client_gets_all_answers_before_it_is_raised(use, answered):
    transport = InterruptedTransport()
    calls = Calls(transport, WorkerMembership(transport, "w"), 1.0, threading.Event())
    with pytest.raises(Interrupted):
        use(calls, Renew(sender=Sender("w", 1)))
    assert transport.answered == answered


def test_a_transport_over_grpc_raises_it_when_it_is_closed(monkeypatch):
    transport = NetworkTransport(["127.0.0.1:1"])
    (connection,) = transport._connections
    for name in ("tensor_transport", "close"):
        method = getattr(connection, name)
        monkeypatch.setattr(connection, name, lambda method=method: (interrupt(), method()))
    transport.tensor_transport(0)
    with pytest.raises(Interrupted):
        transport.close()
    assert connection._closed


PROGRAM = """
import os, signal, sys
os.getpid = lambda number=int(sys.argv[1]): number
from pswire.system.signals import end_at_next

end_at_next(signal.SIGTERM)
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    print("cleaned up", end="")
"""


@pytest.mark.parametrize(("number", "code"), [(1, 128 + signal.SIGTERM), (2, -signal.SIGTERM)])
def test_the_next_signal_ends_a_process_at_once_also_process_1_that_must_do_it_itself(number, code):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(number)], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
