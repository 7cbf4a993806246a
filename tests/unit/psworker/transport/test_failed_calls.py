"""Failed calls and broken streams: bounded time and memory, no thread left, and no other call that fails."""

import gc
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.transfer_memory import AttachedSegments
from pswire.errors import InvalidMessage, NotFinite, TimedOut, Unavailable, UnknownVariable
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, Synchronous
from pswire.tensors.segments import Segment
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from psworker.transport.grpc_transport import GrpcTransport, TransferCall, TransferStream
from psworker.transport.shared_memory import SegmentPool
from tests.shared_folder import needs_shared_memory

BOUND = 30.0  # seconds that no wait comes near to
SHARED = [pytest.param(True, marks=needs_shared_memory, id="shared memory"), pytest.param(False, id="gRPC")]


@pytest.fixture
def segments(monkeypatch):
    """The segments that live, of all that this process makes."""
    alive, create = weakref.WeakSet(), Segment.create

    def noted(*args):
        alive.add(segment := create(*args))
        return segment

    monkeypatch.setattr(Segment, "create", noted)
    return alive


@pytest.fixture
def transport():
    with ServerThread(ServerConfig(lease=BOUND)) as server, closing(GrpcTransport([server.address])) as transport:
        yield transport


@pytest.fixture
def streams(monkeypatch):
    """All streams that are opened."""
    opened, make = [], TransferStream.__init__

    def noted(self, *args, **options):
        make(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(TransferStream, "__init__", noted)
    return opened


def say(transport, message, timeout=BOUND):
    return transport.call(0, message, timeout).result()


def worker_of(transport, array):
    sender = Sender("w0", say(transport, Join("w0")).incarnation)
    say(transport, Register(sender, (Declaration(TensorSpec.of("W", array), array, GradientDescent(0.1)),)))
    return sender


def test_a_stream_that_ended_while_it_was_idle_fails_no_call(transport, streams):
    pull = Pull(worker_of(transport, np.ones(3, np.float32)), ("W",))
    for call in [transport.call(0, pull, BOUND) for _ in range(3)]:
        call.result()
    assert len(streams) == 3
    for one in streams:
        one.cancel()
    assert say(transport, pull).values[0].array.tolist() == [1, 1, 1]
    assert len(streams) == 4


def test_a_stream_that_is_cancelled_frees_the_thread_that_sends_its_requests():
    """A call whose result nobody asks for ends so, by its deadline alone."""
    senders = []

    def open_stream(requests):
        senders.append(threading.Thread(target=deque, args=(requests, 0), daemon=True))
        senders[0].start()
        return SimpleNamespace(cancel=lambda: None)

    transfer = TransferStream(open_stream, share=False)
    transfer.send(iter((b"",)))
    transfer.cancel()
    senders[0].join(BOUND)
    assert not senders[0].is_alive()


@needs_shared_memory
def test_values_that_find_no_room_in_shared_memory_are_read_while_the_worker_computes(monkeypatch, transport):
    """Or a server would have to wait with a large answer for as long as the worker computes, and give it up."""
    value = np.ones(2 * MAX_INLINE_MESSAGE, np.float32)
    sender = worker_of(transport, value)
    push = Push(sender, 1, (Gradient("W", 0, value),), pull=("W",))
    answers, taken, take, submit = [], [], SegmentPool.take, ThreadPoolExecutor.submit

    def noted(self, job, *args):
        result = submit(self, job, *args)
        if getattr(job, "__func__", None) is TransferCall._receive:
            answers.append(result)
        return result

    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted)
    monkeypatch.setattr(SegmentPool, "take", lambda self, n: None if taken else taken.append(take(self, n)) or taken[0])
    call = transport.call(0, push, BOUND)
    assert taken[0] is not None, "the gradient is in shared memory"
    (answer,) = answers
    assert answer.result(BOUND).values[0].array.size == value.size
    assert call.result() is answer.result()


@pytest.fixture
def freed(monkeypatch):
    """An event: the server has freed all memory of the first stream. The garbage collector is off meanwhile."""
    gone, known, make = threading.Event(), [], AttachedSegments.__init__

    def noted(self, *args):
        make(self, *args)
        if not known:
            known.append(weakref.ref(self, lambda _: gone.set()))

    monkeypatch.setattr(AttachedSegments, "__init__", noted)
    gc.collect()
    gc.disable()
    yield gone
    gc.enable()


VALUE = np.ones(2 * MAX_INLINE_MESSAGE, np.float32)
FAILURES = {
    "refused by its header": (Gradient("V", 0, VALUE), Asynchronous(), BOUND, UnknownVariable),
    "refused by its elements": (Gradient("W", 0, VALUE * np.nan), Asynchronous(), BOUND, NotFinite),
    "refused by the shard": (Gradient("W", 7, VALUE), Asynchronous(), BOUND, InvalidMessage),
    "late": (Gradient("W", 0, VALUE), Asynchronous(), 0.0, TimedOut),
    "held": (Gradient("W", 0, VALUE), Synchronous(2), 0.3, TimedOut),
}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize(("gradient", "consistency", "timeout", "error"), FAILURES.values(), ids=FAILURES)
def test_a_push_that_fails_leaves_no_memory_at_the_server_and_no_segment_at_the_worker(
    freed, segments, shared, gradient, consistency, timeout, error
):
    config = ServerConfig(consistency=consistency, lease=BOUND)
    with ServerThread(config) as server, closing(GrpcTransport([server.address], shared_memory=shared)) as transport:
        sender = worker_of(transport, VALUE)
        for _ in range(3 if timeout != 0.3 else 1):
            with pytest.raises(error):
                say(transport, Push(sender, 1, (gradient,), pull=("W",)), timeout)
        assert freed.wait(BOUND)
        assert not segments or timeout == 0.3


@needs_shared_memory
def test_no_segment_is_left_of_tries_to_reach_a_server_that_is_not_there(freed, segments):
    with closing(GrpcTransport(["127.0.0.1:1"])) as transport:
        for _ in range(3):
            with pytest.raises(Unavailable):
                say(transport, Push(Sender("w0", 1), 1, (Gradient("W", 0, VALUE),)))
            assert transport.tensor_transport(0) == ""
    assert not segments
