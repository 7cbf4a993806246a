"""A worker's end of shared memory: what it was given stays as it is, and memory that nobody has is used again."""

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
from psserver.rpc.shared_memory import Attached
from pswire.errors import TimedOut
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous
from pswire.tensors.segments import BEGIN, Segment
from pswire.tensors.values import TensorSpec
from psworker.transport.grpc_transport import GrpcTransport
from psworker.transport.shared_memory import KEPT, MOST
from tests.shared_folder import in_shared_memory, mapped_segments, needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

BOUND = 30.0  # seconds that no call comes near to
LARGE = KEPT // 4 * 3  # elements of float32: three times what is copied out
SMALL = KEPT // 4 - 1


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def attaches(monkeypatch):
    """The requests to attach that servers have got, in order."""
    seen, attach = [], Attached.attach

    def noted(self, request):
        seen.append(request)
        return attach(self, request)

    monkeypatch.setattr(Attached, "attach", noted)
    return seen


@pytest.fixture
def segments(monkeypatch):
    """The segments that live, of all that this process makes."""
    alive, create = weakref.WeakSet(), Segment.create

    def noted(cls, nbytes):
        segment = create(nbytes)
        alive.add(segment)
        return segment

    monkeypatch.setattr(Segment, "create", classmethod(noted))
    return alive


class Worker:
    """One that has registered variables of zeros, and pushes gradients of -1 by plain gradient descent."""

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


# --- values -----------------------------------------------------------------------------------------------------------


def test_values_stay_as_they_are_for_as_long_as_somebody_holds_them(transport, attaches):
    """When there are no more segments than these, further values come by frames, and are as right."""
    worker = Worker(transport, w=LARGE)
    held = [worker.push()[0] for _ in range(2 * MOST)]
    found = [in_shared_memory(value) for value in held]
    assert found == sorted(found, reverse=True), "first in shared memory, then not any more"
    assert MOST - 2 <= sum(found) <= MOST == len(attaches)
    for step, value in enumerate(held, start=1):
        np.testing.assert_array_equal(value, np.full(LARGE, step, np.float32), strict=True)
    assert not any(value.flags.writeable for value in held)


def test_a_part_of_a_value_keeps_all_of_it(transport):
    worker = Worker(transport, w=LARGE)
    parts = [worker.push()[0][-1:] for _ in range(5)]
    for _ in range(MOST):
        worker.push()
    assert [part.tolist() for part in parts] == [[1], [2], [3], [4], [5]]


def test_values_that_do_not_change_again_keep_no_segments(transport, attaches):
    """More variables than there are segments, trained one after the other: each stays as it is for a long time."""
    names = [f"w{index}" for index in range(2 * MOST)]
    worker = Worker(transport, **dict.fromkeys(names, LARGE))
    known_versions, held = [0] * len(names), []
    for index, name in enumerate(names):
        gradients = (Gradient(name, 0, worker.gradients[name]),)
        push = Push(worker.sender, index + 1, gradients, pull=worker.names, known_versions=tuple(known_versions))
        changed = [value for value in worker.say(push).values if value.array is not None]
        assert [value.name for value in changed] == [name]
        held.append(changed[0].array)
        known_versions[index] = changed[0].version
    assert len(attaches) <= 4
    assert transport.tensor_transport(0) == "shared memory"
    assert [(value.min(), value.max(), value.flags.writeable) for value in held] == [(1, 1, False)] * len(names)


def test_segments_are_used_again_when_their_values_are_dropped(transport, attaches):
    """A program has the weights it works with while the next ones come: two segments take turns."""
    worker = Worker(transport, w=LARGE, v=2 * LARGE)
    first = worker.push()
    for step in range(2, 3 * MOST):
        first = worker.push()
        assert all(in_shared_memory(value) for value in first)
        assert [value.min() for value in first] == [value.max() for value in first] == [step, step]
    assert len(attaches) <= 3


def test_values_that_were_held_for_long_free_their_segments_in_the_end(transport, attaches):
    worker = Worker(transport, w=LARGE)
    held = [worker.push()[0] for _ in range(MOST + 1)]
    assert not in_shared_memory(held[-1])
    held.clear()
    assert in_shared_memory(worker.push()[0])
    assert len(attaches) == MOST


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


def test_a_small_value_is_copied_out_and_keeps_no_segment(transport, attaches):
    worker = Worker(transport, large=LARGE, small=SMALL)
    held = []
    for step in range(1, 2 * MOST):
        large, small = worker.push()
        assert in_shared_memory(large)
        assert not in_shared_memory(small)
        held.append(small)
        assert large[0] == step
    assert [small.tolist() for small in held] == [[step] * SMALL for step in range(1, 2 * MOST)]
    assert len(attaches) <= 3


def test_pulls_of_other_sizes_find_segments_too(transport, attaches):
    worker = Worker(transport, **{f"v{count}": count * LARGE for count in range(1, 9)})
    for name in worker.names * 5:
        (value,) = worker.say(Pull(worker.sender, (name,))).values
        assert in_shared_memory(value.array)
        assert value.array.size == int(name[1:]) * LARGE
    assert len(attaches) <= MOST


def test_a_gradient_that_is_changed_when_its_push_was_answered_changes_nothing(transport, segments):
    worker = Worker(transport, w=LARGE)
    worker.push()
    for segment in segments:
        np.frombuffer(segment.memory, np.uint8)[BEGIN:] = 0xFF
    assert len(segments) > 0
    assert worker.pull()[0].tolist() == [1] * LARGE


def test_a_worker_that_starts_sweeps_what_killed_ones_have_left_and_nothing_of_the_living(folder):
    """Their server may run on for long, so it is not left to its next start."""
    alive = Segment.create(1)
    left = os.path.join(folder, "paramserver-" + 32 * "0")
    open(left, "x").close()
    GrpcTransport(["127.0.0.1:1"], shared_memory=False).close()
    assert os.path.exists(left)
    GrpcTransport(["127.0.0.1:1"]).close()
    assert os.listdir(folder) == [alive.name]
    alive.unlink()


# --- when there is none -----------------------------------------------------------------------------------------------


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_folder_is_said_once_and_everything_goes_by_grpc(monkeypatch, transport, attaches, caplog):
    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.INFO, "psworker"):
        worker = Worker(transport, w=LARGE)
        for step in range(1, 4):
            (value,) = worker.push()
            assert not in_shared_memory(value)
            assert value.tolist() == [step] * LARGE
    reasons = [record.getMessage() for record in caplog.records if "no shared memory" in record.getMessage()]
    assert len(reasons) == 1
    assert re.search(r"tensors go by gRPC: no room in \S+ for [\d,]+ bytes: No space left on device", reasons[0])
    assert transport.tensor_transport(0) == "gRPC"
    assert attaches == []


def test_a_folder_that_becomes_full_leaves_what_there_is_in_use(monkeypatch, transport, attaches, caplog):
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
    assert len([record for record in caplog.records if "No space left on device" in record.getMessage()]) == 1
    held.clear()
    assert in_shared_memory(worker.push()[0])
    assert len(attaches) == known


# --- a call that fails ------------------------------------------------------------------------------------------------


def test_a_call_that_times_out_gives_up_its_memory_into_which_a_late_answer_may_be_written(segments):
    """The first worker's push is held until the second one's has come, and by then it has gone on elsewhere."""
    with (
        ServerThread(ServerConfig(consistency=Synchronous(2))) as server,
        closing(GrpcTransport([server.address])) as transport,
        closing(GrpcTransport([server.address])) as other,
    ):
        worker, second = Worker(transport, w=LARGE), Worker(other, "w1", w=LARGE)
        before = worker.pull()
        earlier = set(map(id, segments))
        with pytest.raises(TimedOut):
            worker.push(timeout=0.3)
        end = time.monotonic() + BOUND
        while set(map(id, segments)) != earlier:  # until gRPC's threads have let go of it too
            assert time.monotonic() < end
            gc.collect()
        after = [worker.pull() for _ in range(3)]
        (fresh,) = second.push()
        assert fresh.tolist() == [1] * LARGE, "the mean of both gradients"
        for (value,) in (before, *after):
            assert in_shared_memory(value)
            assert value.tolist() == [0] * LARGE
