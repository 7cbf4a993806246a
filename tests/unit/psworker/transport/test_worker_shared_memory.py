"""A worker's shared memory: values stay as they are while they are used, and unused memory is reused."""

import errno
import gc
import itertools
import logging
import os
import re
import time
import weakref
from contextlib import closing

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.transfer_memory import AttachedSegments
from pswire.errors import Malformed, TimedOut
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport.grpc_transport import GrpcTransport
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
SPEC = TensorSpec("w", (LARGE,))


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def offers():
    """The requests to attach that servers have got, in order."""
    return []


@pytest.fixture
def pool(offers):
    """A pool whose server accepts every segment."""
    return SegmentPool(lambda request: offers.append(request) or pb.AttachReply(attached=True))


@pytest.mark.parametrize(
    "nbytes", [0, 1, MIN_SEGMENT_BYTES - DATA_OFFSET, MIN_SEGMENT_BYTES, 13_098_536, (1 << 30) - 1]
)
def test_a_segment_is_at_most_an_eighth_larger_than_what_was_asked_for(nbytes):
    rounded = shared_memory._rounded(nbytes)
    assert (
        max(MIN_SEGMENT_BYTES, nbytes + DATA_OFFSET)
        <= rounded
        <= max(MIN_SEGMENT_BYTES, (nbytes + DATA_OFFSET + 63) * 9 // 8)
    )


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
    assert (large.number, large.nbytes >= 100 * MIN_SEGMENT_BYTES) == (0, True), (
        "it replaces a free one of another size"
    )
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


def test_a_segment_has_no_name_any_more_when_the_server_has_answered_or_failed(folder):
    def broken(request):
        raise Malformed(os.listdir(folder)[0])

    with pytest.raises(Malformed, match="paramserver-"):
        SegmentPool(broken).take(1000)
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("number", "offset", "reason"),
    [
        (1, DATA_OFFSET, "segment 1 does not belong to this call"),
        (-1, DATA_OFFSET, "segment -1 does not belong to this call"),
        (0, DATA_OFFSET + 4, "begin at a multiple of 64, but they begin at 68"),
        (0, -64, "begin at -64"),
        (0, 1 << 40, "must be inside"),
        (0, 1 << 62, "must be inside"),
    ],
)
def test_a_value_that_is_not_where_the_answer_has_it_is_malformed(pool, number, offset, reason):
    with pytest.raises(Malformed, match=re.escape(reason)):
        AnswerReceiver([pool.take(SPEC.nbytes)], pool).get(tensor(number, offset), SPEC)


def tensor(number, offset):
    return pb.Tensor(shared=pb.Shared(segment=number, offset=offset))


def test_a_segment_returns_to_its_pool_with_the_last_of_its_values_and_not_before_the_answer_is_complete(pool):
    segments, returned = [pool.take(4 * SPEC.nbytes), pool.take(1)], pool._free
    answer = AnswerReceiver(segments, pool)
    answer.get(tensor(0, DATA_OFFSET), SPEC)
    assert not returned, "a value may be dropped while those behind it are still read"
    value = answer.get(tensor(0, DATA_OFFSET + SPEC.nbytes), SPEC)
    answer.close()
    assert list(returned) == segments[1:]
    view = value.reshape(-1, 2)[3:]
    del value
    assert list(returned) == segments[1:]
    del view
    assert list(returned) == segments[::-1]


@pytest.fixture
def attaches(monkeypatch, offers):
    attach = AttachedSegments.attach
    monkeypatch.setattr(AttachedSegments, "attach", lambda self, one: offers.append(one) or attach(self, one))
    return offers


@pytest.fixture
def segments(monkeypatch):
    """The segments that live, of all that this process makes."""
    alive, create = weakref.WeakSet(), Segment.create

    def noted(cls, *args):
        segment = create(*args)
        alive.add(segment)
        return segment

    monkeypatch.setattr(Segment, "create", classmethod(noted))
    return alive


class Worker:
    """A worker that has registered variables of zeros, and pushes gradients of -1 by plain gradient descent."""

    def __init__(self, transport, name="w0", **elements):
        self.transport, self.names, self.sequence = transport, tuple(elements), itertools.count(1)
        self.sender = Sender(name, self.say(Join(name)).incarnation)
        zeros = {name: np.zeros(count, np.float32) for name, count in elements.items()}
        declared = [
            Declaration(TensorSpec.of(name, array), array, GradientDescent(1.0)) for name, array in zeros.items()
        ]
        self.say(Register(self.sender, tuple(declared)))
        self.gradients = {name: array - 1 for name, array in zeros.items()}

    def say(self, message, timeout=BOUND):
        return self.transport.call(0, message, timeout).result()

    def push(self, timeout=BOUND, version=0):
        """Fresh values of all variables."""
        gradients = tuple(Gradient(name, version, array) for name, array in self.gradients.items())
        pushed = self.say(Push(self.sender, next(self.sequence), gradients, pull=self.names), timeout)
        return [value.array for value in pushed.values]

    def pull(self):
        return [value.array for value in self.say(Pull(self.sender, self.names)).values]


@pytest.fixture
def transport():
    with ServerThread(ServerConfig()) as server, closing(GrpcTransport([server.address])) as transport:
        yield transport


def test_values_stay_as_they_are_for_as_long_as_they_are_used(transport, attaches):
    """When there are no more segments than these, further values come by frames, and are as right."""
    worker = Worker(transport, w=LARGE)
    held = [worker.push()[0] if step % 2 else worker.push()[0][-9:] for step in range(1, 2 * MAX_SEGMENTS + 1)]
    found = [in_shared_memory(value) for value in held]
    assert found == sorted(found, reverse=True), "first in shared memory, then not any more"
    assert MAX_SEGMENTS - 2 <= sum(found) <= MAX_SEGMENTS == len(attaches)
    assert all((value == step).all() for step, value in enumerate(held, start=1))
    assert not any(value.flags.writeable for value in held)


def test_segments_are_reused_when_their_values_are_dropped_or_do_not_change_again(transport, attaches):
    """A program has its present weights while the next ones come. A small value is copied and keeps no segment."""
    worker, held = Worker(transport, w=LARGE, v=2 * LARGE, small=SMALL), []
    for step in range(1, 2 * MAX_SEGMENTS):
        *large, small = worker.push()
        held.append(small)
        assert [in_shared_memory(value) for value in (*large, small)] == [True, True, False]
        assert [(value.min(), value.max()) for value in large] == [(step, step)] * 2
    assert [small.tolist() for small in held] == [[step] * SMALL for step in range(1, 2 * MAX_SEGMENTS)]
    assert len(attaches) <= 4


def test_more_values_than_segments_that_are_trained_one_after_the_other_keep_no_segments(transport, attaches):
    names = [f"w{index}" for index in range(2 * MAX_SEGMENTS)]
    worker = Worker(transport, **dict.fromkeys(names, LARGE))
    known_versions, held = [0] * len(names), []
    for index, name in enumerate(names):
        gradients = (Gradient(name, 0, worker.gradients[name]),)
        push = Push(worker.sender, index + 1, gradients, pull=worker.names, known_versions=tuple(known_versions))
        (changed,) = [value for value in worker.say(push).values if value.array is not None]
        held.append(changed.array)
        known_versions[index] = changed.version
    assert len(attaches) <= 4
    assert transport.tensor_transport(0) == "shared memory"
    assert [(value.min(), value.max(), value.flags.writeable) for value in held] == [(1, 1, False)] * len(names)


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


def test_a_full_folder_is_logged_once_and_segments_there_are_stay_in_use(monkeypatch, transport, attaches, caplog):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    worker = Worker(transport, w=LARGE)
    held = [worker.push()[0]]
    assert transport.tensor_transport(0) == "shared memory"
    monkeypatch.setattr(os, "posix_fallocate", full)
    known = len(attaches)
    with caplog.at_level(logging.INFO, "psworker"):
        held += [worker.push()[0] for _ in range(5)]
    assert not in_shared_memory(held[-1])
    assert [value[0] for value in held] == [1, 2, 3, 4, 5, 6]
    assert transport.tensor_transport(0) == "gRPC"
    (reason,) = [text for text in caplog.messages if "no shared memory" in text]
    assert re.search(r"tensors go by gRPC: no room in \S+ for [\d,]+ bytes: No space left on device", reason)
    held.clear()
    assert in_shared_memory(worker.push()[0])
    assert len(attaches) == known


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
        with pytest.raises(TimedOut):
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


def test_a_worker_that_starts_sweeps_segments_of_killed_processes_only_where_it_uses_shared_memory(folder):
    left = os.path.join(folder, "paramserver-" + 32 * "0")
    open(left, "x").close()
    for used in (False, True):
        assert os.path.exists(left)
        GrpcTransport(["127.0.0.1:1"], shared_memory=used).close()
    assert os.listdir(folder) == []
