"""A worker's shared memory: values stay while they are used; what is unused is reused; failed calls free it."""

import errno
import gc
import itertools
import os
import re
import threading
import time
import weakref
from contextlib import closing

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.transfer_memory import AttachedSegments
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, Synchronous
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport.grpc_transport import GrpcTransport, TransferCall
from psworker.transport.shared_memory import (
    MAX_SEGMENTS,
    MIN_BORROWED_BYTES,
    MIN_SEGMENT_BYTES,
    AnswerReceiver,
    SegmentPool,
)
from tests.shared_folder import in_shared_memory, mapped_segments, needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

BOUND = 30.0  # seconds that no call comes near to
LARGE = MIN_BORROWED_BYTES // 4 * 3  # elements of float32: three times what is copied
SMALL = MIN_BORROWED_BYTES // 4 - 1
HUGE = 2 * MAX_INLINE_MESSAGE
SPEC = TensorSpec("w", (LARGE,))


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


# --- the pool ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def offers():
    """The requests to attach that servers have got, in order."""
    return []


@pytest.fixture
def pool(offers):
    """A pool whose server accepts every segment."""
    return SegmentPool(lambda request: offers.append(request) or pb.AttachReply(attached=True))


def test_a_segment_is_at_most_an_eighth_larger_than_what_was_asked_for():
    for nbytes in (0, 1, MIN_SEGMENT_BYTES - DATA_OFFSET, MIN_SEGMENT_BYTES, 13_098_536, (1 << 30) - 1):
        least, most = nbytes + DATA_OFFSET, (nbytes + DATA_OFFSET + 63) * 9 // 8
        assert max(MIN_SEGMENT_BYTES, least) <= shared_memory._rounded(nbytes) <= max(MIN_SEGMENT_BYTES, most)


def test_a_segment_belongs_to_one_call_until_it_is_given_back_and_a_small_message_occupies_no_large_one(pool, offers):
    taken = [pool.take(1000) for _ in range(MAX_SEGMENTS)]
    assert [segment.number for segment in taken] == [request.segment for request in offers] == [*range(MAX_SEGMENTS)]
    assert pool.take(1000) is None
    pool.give_back(taken[3])
    assert pool.take(1000) is taken[3]
    assert (pool.count, pool.refused) == (MAX_SEGMENTS, "")
    for segment in taken[:2]:
        pool.give_back(segment)
    large = pool.take(100 * MIN_SEGMENT_BYTES)
    assert (large.number, large.nbytes >= 100 * MIN_SEGMENT_BYTES) == (0, True), "it replaces one of another size"
    assert pool.take(1000) is taken[1]
    pool.give_back(large)
    assert pool.take(50 * MIN_SEGMENT_BYTES) is large
    pool.give_back(large)
    assert pool.take(10 * MIN_SEGMENT_BYTES) is not large


@pytest.mark.parametrize(("reason", "refused"), [("another host", "another host"), ("", "the server gives no reason")])
def test_a_server_that_refuses_is_not_asked_again(reason, refused):
    asked = []
    pool = SegmentPool(lambda request: asked.append(request) or pb.AttachReply(reason=reason))
    assert [pool.take(1000), pool.take(1000)] == [None, None]
    assert (pool.refused, pool.count, len(asked)) == (refused, 0, 1)


def test_when_there_is_no_room_for_more_segments_those_there_are_stay_in_use(monkeypatch, pool):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segment = pool.take(1000)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert pool.take(1000) is None
    assert re.fullmatch(r"no room in \S+ for [\d,]+ bytes: No space left on device", pool.refused)
    pool.give_back(segment)
    assert pool.take(1000) is segment


def test_a_segment_has_no_name_any_more_when_the_server_has_answered_or_failed(folder):
    def broken(request):
        raise errors.Malformed(os.listdir(folder)[0])

    with pytest.raises(errors.Malformed, match="paramserver-"):
        SegmentPool(broken).take(1000)
    assert os.listdir(folder) == []


def test_a_segment_returns_to_its_pool_with_the_last_of_its_values_and_not_before_the_answer_is_complete(pool):
    segments, free = [pool.take(4 * SPEC.nbytes), pool.take(1)], pool._free
    answer = AnswerReceiver(segments, pool)
    with pytest.raises(errors.Malformed, match="segment 7 does not belong to this call"):
        answer.get(pb.Tensor(shared=pb.Shared(segment=7, offset=DATA_OFFSET)), SPEC)
    answer.get(pb.Tensor(shared=pb.Shared(offset=DATA_OFFSET)), SPEC)
    assert not free, "a value may be dropped while those behind it are still read"
    value = answer.get(pb.Tensor(shared=pb.Shared(offset=DATA_OFFSET + SPEC.nbytes)), SPEC)
    answer.close()
    assert free == segments[1:]
    view = value.reshape(-1, 2)[3:]
    del value
    assert free == segments[1:]
    del view
    assert free == segments[::-1]


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def attaches(monkeypatch, offers):
    attach = AttachedSegments.attach
    monkeypatch.setattr(AttachedSegments, "attach", lambda self, one: offers.append(one) or attach(self, one))
    return offers


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


class Worker:
    """A worker that has registered variables of zeros, and pushes gradients of -1 by plain gradient descent."""

    def __init__(self, transport, name="w0", **elements):
        self.transport, self.names, self.sequence = transport, tuple(elements), itertools.count(1)
        self.sender = ms.Sender(name, self.ask(ms.Join(name)).incarnation)
        zeros, sgd = [np.zeros(count, np.float32) for count in elements.values()], GradientDescent(1.0)
        specs = [TensorSpec.of(name, zero) for name, zero in zip(elements, zeros, strict=True)]
        declared = [ms.Declaration(spec, zero, sgd) for spec, zero in zip(specs, zeros, strict=True)]
        self.ask(ms.Register(self.sender, tuple(declared)))
        self.gradients = [ms.Gradient(spec.name, 0, zero - 1) for spec, zero in zip(specs, zeros, strict=True)]

    def ask(self, message, timeout=BOUND):
        return self.transport.call(0, message, timeout).result()

    def message(self, *gradients, **fields):
        """A push of these gradients, and fresh values of all variables."""
        return ms.Push(self.sender, next(self.sequence), gradients, pull=self.names, **fields)

    def push(self, timeout=BOUND):
        return [value.array for value in self.ask(self.message(*self.gradients), timeout).values]

    def pull(self):
        return [value.array for value in self.ask(ms.Pull(self.sender, self.names)).values]


def test_values_stay_as_they_are_for_as_long_as_they_are_used(transport, attaches):
    """When there are no more segments than these, further values come by frames, and are as right.

    A program has its present weights while the next ones come. A small value is copied and keeps no segment.
    """
    worker = Worker(transport, w=LARGE, v=2 * LARGE, small=SMALL)
    for step in range(1, 2 * MAX_SEGMENTS):
        values = worker.push()
        assert [in_shared_memory(value) for value in values] == [True, True, False]
        assert [(value.min(), value.max()) for value in values] == [(step, step)] * 3
    assert len(attaches) <= 4
    worker = Worker(transport, "w1", x=LARGE)
    held = [worker.push()[0] if step % 2 else worker.push()[0][-9:] for step in range(1, 2 * MAX_SEGMENTS + 1)]
    found = [in_shared_memory(value) for value in held]
    assert found == sorted(found, reverse=True), "first in shared memory, then not any more"
    assert MAX_SEGMENTS - 4 <= sum(found) <= MAX_SEGMENTS
    assert all((value == step).all() for step, value in enumerate(held, start=1))
    assert not any(value.flags.writeable for value in held)


def test_more_values_than_segments_that_are_trained_one_after_the_other_keep_no_segments(transport, attaches):
    names = [f"w{index}" for index in range(2 * MAX_SEGMENTS)]
    worker = Worker(transport, **dict.fromkeys(names, LARGE))
    known_versions, held = [0] * len(names), []
    for index, gradient in enumerate(worker.gradients):
        answer = worker.ask(worker.message(gradient, known_versions=tuple(known_versions)))
        (changed,) = [value for value in answer.values if value.array is not None]
        held.append(changed.array)
        known_versions[index] = changed.version
    assert len(attaches) <= 4
    assert transport.tensor_transport(0) == "shared memory"
    assert [(value.min(), value.max(), value.flags.writeable) for value in held] == [(1, 1, False)] * len(names)


def test_values_that_find_no_room_in_shared_memory_are_read_while_the_worker_computes(monkeypatch, transport):
    """Or a server would have to wait with a large answer for as long as the worker computes, and give it up."""
    worker, read = Worker(transport, w=HUGE), threading.Event()
    taken, take, receive = [], SegmentPool.take, TransferCall._receive
    monkeypatch.setattr(SegmentPool, "take", lambda self, n: None if taken else taken.append(take(self, n)) or taken[0])
    monkeypatch.setattr(TransferCall, "_receive", lambda self: (receive(self), read.set())[0])
    call = transport.call(0, worker.message(*worker.gradients), BOUND)
    assert taken[0] is not None, "the gradient is in shared memory"
    assert read.wait(BOUND)
    assert call.result().values[0].array.size == HUGE


# --- the end of calls -------------------------------------------------------------------------------------------------


def test_a_transport_that_is_closed_frees_all_memory_but_that_of_values_at_once(folder):
    gc.disable()  # it need not come to help
    try:
        with ServerThread(ServerConfig()) as server, closing(GrpcTransport([server.address])) as transport:
            worker = Worker(transport, w=LARGE)
            (held,) = worker.push()
            worker.push()
            mapped = len(mapped_segments(folder))
        assert len(mapped_segments(folder)) == 1 < mapped
        assert held.tolist() == [1] * LARGE
        del held
        assert mapped_segments(folder) == []
    finally:
        gc.enable()


def test_a_call_that_times_out_abandons_its_segments_into_which_a_late_answer_may_be_written(segments):
    """The first worker's push is held until the second one's has come, and by then it has gone on elsewhere."""
    with (
        ServerThread(ServerConfig(consistency=Synchronous(2))) as server,
        closing(GrpcTransport([server.address])) as transport,
        closing(GrpcTransport([server.address])) as other,
    ):
        second = Worker(other, "w1", w=LARGE)
        others = len(segments)
        worker = Worker(transport, w=LARGE)
        (before,) = worker.pull()
        with pytest.raises(errors.TimedOut):
            worker.push(timeout=0.3)
        end = time.monotonic() + BOUND
        while len(segments) > others + 1:  # that of `before`; until gRPC's threads have let go of the others too
            assert time.monotonic() < end
            gc.collect()
        after = [worker.pull()[0] for _ in range(3)]
        (fresh,) = second.push()
        assert fresh.tolist() == [1] * LARGE, "the mean of both gradients"
        for value in (before, *after):
            assert in_shared_memory(value)
            assert value.tolist() == [0] * LARGE


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


ONES = np.ones(HUGE, np.float32)
FAILURES = {
    "refused by its header": (ms.Gradient("v", 0, ONES), Asynchronous(), BOUND, errors.UnknownVariable),
    "refused by its elements": (ms.Gradient("w", 0, ONES * np.nan), Asynchronous(), BOUND, errors.NotFinite),
    "refused by the shard": (ms.Gradient("w", 7, ONES), Asynchronous(), BOUND, errors.InvalidMessage),
    "late": (ms.Gradient("w", 0, ONES), Asynchronous(), 0.0, errors.TimedOut),
    "held, late": (ms.Gradient("w", 0, ONES), Synchronous(2), 0.3, errors.TimedOut),
    "held, its worker leaves": (ms.Gradient("w", 0, ONES), Synchronous(2), BOUND, errors.NotJoined),
}


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "gRPC"])
@pytest.mark.parametrize(("gradient", "consistency", "timeout", "error"), FAILURES.values(), ids=FAILURES)
def test_a_push_that_fails_leaves_no_memory_at_the_server_and_no_segment_at_the_worker(
    freed, segments, shared, gradient, consistency, timeout, error
):
    config = ServerConfig(consistency=consistency, lease=BOUND)
    with ServerThread(config) as server, closing(GrpcTransport([server.address], shared_memory=shared)) as transport:
        worker = Worker(transport, w=HUGE)
        call = transport.call(0, worker.message(gradient), timeout)
        if error is errors.NotJoined:
            while not worker.ask(ms.Status()).workers[0].waiting_for:
                pass
            worker.ask(ms.Leave(worker.sender))
        with pytest.raises(error):
            call.result()
        del call  # it has its segments
        assert freed.wait(BOUND)
        assert not segments or timeout == 0.3


@pytest.mark.usefixtures("freed")
def test_no_segment_is_left_of_tries_to_reach_a_server_that_is_not_there(segments):
    with closing(GrpcTransport(["127.0.0.1:1"])) as transport:
        for _ in range(3):
            with pytest.raises(errors.Unavailable):
                transport.call(0, ms.Push(ms.Sender("w0", 1), 1, (ms.Gradient("w", 0, ONES),)), BOUND).result()
            assert transport.tensor_transport(0) == ""
    assert not segments


def test_a_worker_that_starts_sweeps_segments_of_killed_processes_only_where_it_uses_shared_memory(folder):
    left = os.path.join(folder, "paramserver-" + 32 * "0")
    open(left, "x").close()
    for used in (False, True):
        assert os.path.exists(left)
        GrpcTransport(["127.0.0.1:1"], shared_memory=used).close()
    assert os.listdir(folder) == []
