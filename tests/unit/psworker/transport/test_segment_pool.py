"""A worker's segments: each belongs to one call, and returns to the pool when no value lies in it any more."""

import errno
import os
import re

import pytest

from pswire.errors import Malformed
from pswire.tensors.segments import DATA_OFFSET
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.shared_memory import MAX_SEGMENTS, MIN_SEGMENT_BYTES, AnswerReceiver, SegmentPool
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

SPEC = TensorSpec("w", (1 << 16,))


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
    assert large.number == 0, "it replaces one of another size"
    assert 8 / 9 <= 100 * MIN_SEGMENT_BYTES / large.nbytes < 1, "and is at most an eighth too large"
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
        raise Malformed(os.listdir(folder)[0])

    with pytest.raises(Malformed, match="paramserver-"):
        SegmentPool(broken).take(1000)
    assert os.listdir(folder) == []


def test_a_segment_returns_to_its_pool_with_the_last_of_its_values_and_not_before_the_answer_is_complete(pool):
    segments, free = [pool.take(4 * SPEC.nbytes), pool.take(1)], pool._free
    answer = AnswerReceiver(segments, pool)
    with pytest.raises(Malformed, match="segment 7 does not belong to this call"):
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
