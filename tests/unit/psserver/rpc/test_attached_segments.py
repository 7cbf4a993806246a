"""Segments that a worker has attached: mapped, or refused with a reason; answers are written into the call's region."""

from mmap import PAGESIZE

import numpy as np
import pytest

from psserver.rpc.transfer_memory import AttachedSegments
from pswire.errors import Malformed
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.shared_memory import Region
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

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


@pytest.fixture
def attached(segment):
    attached = AttachedSegments()
    assert attached.attach(offer(segment)) == pb.AttachReply(attached=True)
    return attached


def read(attached, segment, *elements):
    """What the server reads of elements that the worker has written into segment 0."""
    tensor = pb.Tensor(name="W", dtype="float32", shape=(len(elements),))
    Region(0, segment.memory).put(np.float32(elements), tensor)
    return attached.receiver().get(tensor, SPEC)


def test_a_later_segment_of_the_same_number_replaces_the_earlier_whose_arrays_stay(attached, segment):
    segment.unlink()
    before, second = read(attached, segment, 1, 2, 3), Segment.create(1 << 20)
    assert attached.attach(offer(second)).attached
    assert (before.tolist(), read(attached, second, 4, 5, 6).tolist()) == ([1, 2, 3], [4, 5, 6])
    assert list(attached.memories) == [0]
    second.unlink()


@pytest.mark.parametrize(
    ("number", "other", "reason"),
    [
        (0, {"token": bytes(16)}, "the file does not begin with the token: it is a different file"),
        (0, {"nbytes": 1}, f"the file has {2 * PAGESIZE:,} bytes, and 1 were announced"),
        (64, {}, "segments are numbered from 0 to 63, not 64"),
        (-1, {}, "segments are numbered from 0 to 63, not -1"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_reason_and_changes_nothing(attached, segment, number, other, reason):
    before = dict(attached.memories)
    assert attached.attach(offer(segment, number, **other)) == pb.AttachReply(reason=reason)
    assert attached.memories == before
    assert attached.attach(offer(segment, 63)).attached


def test_a_server_that_shares_no_memory_says_so_and_maps_nothing(segment):
    attached = AttachedSegments(allowed=False)
    assert attached.attach(offer(segment)) == pb.AttachReply(reason="the server was started with --no-shared-memory")
    assert attached.memories == {}


@pytest.mark.parametrize(
    ("region", "complaint"),
    [
        ({"segment": 1}, "answer region in segment 1, which was not attached on this stream"),
        ({"segment": -1}, "which was not attached"),
        ({"offset": 1}, "multiple of 64"),
        ({"nbytes": 2 * PAGESIZE}, f"must be inside the {2 * PAGESIZE:,} bytes"),
        ({"nbytes": -1}, "must be inside"),
    ],
)
def test_a_region_that_is_not_there_is_malformed(attached, region, complaint):
    known = {"segment": 0, "offset": DATA_OFFSET, "nbytes": 1024}
    assert attached.region(pb.Frame(answer_region=pb.Region(**known))).take(SPEC) is not None
    assert attached.region(pb.Frame()) is None
    with pytest.raises(Malformed, match=complaint):
        attached.region(pb.Frame(answer_region=pb.Region(**known | region)))
