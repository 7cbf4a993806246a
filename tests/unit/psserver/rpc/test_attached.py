"""The server's end of shared memory: what a worker offers is mapped or refused with a reason, and answers go there."""

from mmap import PAGESIZE

import numpy as np
import pytest

from psserver.rpc.shared_memory import Attached
from pswire.errors import Malformed
from pswire.messages import Gradient, Pull, Push, Sender
from pswire.tensors.segments import BEGIN, Segment
from pswire.tensors.shared_memory import SharedSender, array_at
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

W0 = Sender("w0", 1)
SPEC = TensorSpec("W", (3,))


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def segment():
    made = Segment.create(PAGESIZE)
    yield made
    made.unlink()


def offer(segment, number=0, **other):
    known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
    return pb.AttachRequest(segment=number, **known | other)


def attached_with(*segments):
    attached = Attached()
    for number, segment in enumerate(segments):
        assert attached.attach(offer(segment, number)) == pb.AttachReply(attached=True)
    return attached


def written(segment, array):
    """A tensor that the worker has put into its segment 0."""
    tensor = pb.Tensor(name="W", dtype=array.dtype.name, shape=array.shape)
    SharedSender(segment.memory, 0).put(array, tensor)
    return tensor


def header(segment=0, offset=BEGIN, nbytes=1024):
    return pb.Frame(room=pb.Room(segment=segment, offset=offset, nbytes=nbytes))


def test_what_the_worker_writes_the_server_reads_also_when_the_name_is_gone(segment):
    attached = attached_with(segment)
    segment.unlink()
    tensor = written(segment, np.float32([1, 2, 3]))
    assert attached.receiver().get(tensor, SPEC).tolist() == [1, 2, 3]


def test_a_later_segment_of_the_same_number_takes_the_place_of_the_earlier(segment):
    attached, second = attached_with(segment), Segment.create(1 << 20)
    before = attached.receiver().get(written(segment, np.float32([1, 2, 3])), SPEC)
    assert attached.attach(offer(second)).attached
    now = attached.receiver().get(written(second, np.float32([4, 5, 6])), SPEC)
    assert (before.tolist(), now.tolist()) == ([1, 2, 3], [4, 5, 6])
    assert list(attached.memories) == [0]
    second.unlink()


@pytest.mark.parametrize(
    ("number", "other", "reason"),
    [
        (0, {"token": bytes(16)}, "the file does not begin with the token: it is another one"),
        (0, {"nbytes": 1}, f"the file has {2 * PAGESIZE:,} bytes, and 1 were announced"),
        (0, {"name": "../shadow"}, "'../shadow' is no name of a segment"),
        (
            0,
            {"name": "paramserver-" + 32 * "0"},
            "this process cannot see the file: it is of another host or container",
        ),
        (64, {}, "segments are numbered from 0 to 63, not 64"),
        (-1, {}, "segments are numbered from 0 to 63, not -1"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_reason_and_changes_nothing(segment, number, other, reason):
    attached = attached_with(segment)
    before = dict(attached.memories)
    assert attached.attach(offer(segment, number, **other)) == pb.AttachReply(attached=False, reason=reason)
    assert attached.memories == before


def test_sixty_four_segments_are_the_most(segment):
    attached = Attached()
    assert [number for number in range(70) if attached.attach(offer(segment, number)).attached] == list(range(64))


def test_a_server_that_shares_no_memory_says_so_and_maps_nothing(segment):
    attached = Attached(allowed=False)
    reply = attached.attach(offer(segment))
    assert reply == pb.AttachReply(reason="the server was started with --no-shared-memory")
    assert attached.memories == {}


def test_values_are_put_where_the_call_gives_room_and_the_rest_is_streamed(segment):
    attached = attached_with(segment)
    allocator = attached.allocator(header(nbytes=80), Pull(W0, ("W", "b")))
    W, b = allocator.take(SPEC), allocator.take(TensorSpec("b", (500,)))
    assert b is None
    W[:] = [1, 2, 3]
    sender, tensors = attached.sender(), (pb.Tensor(dtype="float32"), pb.Tensor(dtype="float32"))
    for array, tensor in zip((W, np.ones(500, np.float32)), tensors, strict=True):
        sender.put(array, tensor)
    assert tensors[0].shared == pb.Shared(segment=0, offset=BEGIN)
    assert tensors[1].streamed
    assert sender.nbytes == 2000
    assert array_at(segment.memory, BEGIN, SPEC).tolist() == [1, 2, 3]


def test_the_value_of_a_pushed_variable_takes_the_place_of_its_gradient(segment):
    other = Segment.create(PAGESIZE)
    attached = attached_with(segment, other)
    gradient = attached.receiver().get(written(segment, np.float32([1, 2, 3])), SPEC)
    push = Push(W0, 1, (Gradient("W", 0, gradient),), None, ("W", "b"))
    allocator = attached.allocator(header(segment=1), push)
    W, b = allocator.take(SPEC), allocator.take(TensorSpec("b", (3,)))
    tensors = pb.Tensor(dtype="float32"), pb.Tensor(dtype="float32")
    for array, tensor in zip((W, b), tensors, strict=True):
        attached.sender().put(array, tensor)
    assert [tensor.shared for tensor in tensors] == [pb.Shared(offset=BEGIN), pb.Shared(segment=1, offset=BEGIN)]
    other.unlink()


def test_without_room_there_is_none(segment):
    assert attached_with(segment).allocator(pb.Frame(), Pull(W0, ("W",))).take(SPEC) is None


@pytest.mark.parametrize(
    ("room", "complaint"),
    [
        ({"segment": 1}, "room in segment 1, which was not attached on this stream"),
        ({"segment": -1}, "which was not attached"),
        ({"offset": 1}, "multiple of 64"),
        ({"nbytes": 2 * PAGESIZE}, f"must be inside of the {2 * PAGESIZE:,} bytes"),
        ({"nbytes": -1}, "must be inside"),
    ],
)
def test_room_that_is_not_there_is_malformed(segment, room, complaint):
    with pytest.raises(Malformed, match=complaint):
        attached_with(segment).allocator(header(**room), Pull(W0, ("W",)))
