"""The segments of one stream: each is one call's at a time, and free again when nobody has a value in it."""

import os
import re

import pytest

from pswire.errors import Malformed
from pswire.tensors.segments import BEGIN
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport.shared_memory import KEPT, MOST, SMALLEST, Lent, Segments
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

SPEC = TensorSpec("w", (KEPT // 4 * 3,))


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


class Offers:
    """A server that takes every segment, or none."""

    def __init__(self, reason=""):
        self.reason, self.seen = reason, []

    def __call__(self, request):
        self.seen.append(request)
        return pb.AttachReply(attached=not self.reason, reason=self.reason)


@pytest.mark.parametrize("nbytes", [0, 1, SMALLEST - BEGIN, SMALLEST, 13_098_536, (1 << 30) - 1])
def test_a_segment_is_at_most_an_eighth_larger_than_what_was_asked_for(nbytes):
    rounded = shared_memory._rounded(nbytes)
    assert max(SMALLEST, nbytes + BEGIN) <= rounded <= max(SMALLEST, (nbytes + BEGIN + 63) * 9 // 8)


def test_what_is_taken_is_nobody_elses_until_it_is_given_back():
    offers = Offers()
    segments = Segments(offers)
    taken = [segments.take(1000) for _ in range(MOST)]
    assert sorted(block.number for block in taken) == [request.segment for request in offers.seen] == [*range(MOST)]
    assert segments.take(1000) is None
    segments.give_back(taken[3])
    assert segments.take(1000) is taken[3]
    assert (segments.count, segments.refused) == (MOST, "")


def test_a_segment_of_another_size_takes_the_place_of_one_that_is_free():
    offers = Offers()
    segments = Segments(offers)
    blocks = [segments.take(1000) for _ in range(MOST)]
    for block in blocks[:2]:
        segments.give_back(block)
    large = segments.take(100 * SMALLEST)
    assert large.segment.nbytes >= 100 * SMALLEST
    assert large.number == offers.seen[-1].segment == 0
    assert segments.take(1000) is blocks[1]
    assert segments.count == MOST


def test_a_small_message_does_not_occupy_a_large_segment():
    segments = Segments(Offers())
    large = segments.take(100 * SMALLEST)
    segments.give_back(large)
    assert segments.take(10 * SMALLEST) is not large
    assert segments.take(50 * SMALLEST) is large


@pytest.mark.parametrize(("reason", "said"), [("another host", "another host"), ("", "the server gives no reason")])
def test_a_server_that_refuses_is_not_asked_again(reason, said):
    def refuse(request):
        asked.append(request)
        return pb.AttachReply(reason=reason)

    asked = []
    segments = Segments(refuse)
    assert [segments.take(1000), segments.take(1000)] == [None, None]
    assert (segments.refused, segments.count, len(asked)) == (said, 0, 1)


def test_a_segment_has_no_name_any_more_when_the_server_has_answered(folder):
    seen = []
    segments = Segments(lambda request: seen.append(os.listdir(folder)) or pb.AttachReply(attached=True))
    block = segments.take(1000)
    assert seen == [[block.segment.name]]
    assert os.listdir(folder) == []


def test_an_offer_that_breaks_leaves_no_name(folder):
    def broken(request):
        raise Malformed("no answer")

    with pytest.raises(Malformed):
        Segments(broken).take(1000)
    assert os.listdir(folder) == []


# --- answers ----------------------------------------------------------------------------------------------------------


def tensor(number, offset):
    return pb.Tensor(shared=pb.Shared(segment=number, offset=offset))


@pytest.mark.parametrize(
    ("number", "offset", "reason"),
    [
        (1, BEGIN, "segment 1, which is not this call's"),
        (-1, BEGIN, "segment -1, which is not this call's"),
        (0, BEGIN + 4, "begin at a multiple of 64, but they begin at 68"),
        (0, -64, "begin at -64"),
        (0, 1 << 40, "must be inside of"),
        (0, 1 << 62, "must be inside of"),
    ],
)
def test_a_value_that_is_said_to_be_elsewhere_is_malformed(number, offset, reason):
    segments = Segments(Offers())
    answer = Lent([segments.take(SPEC.nbytes)], segments.give_back)
    with pytest.raises(Malformed, match=re.escape(reason)):
        answer.get(tensor(number, offset), SPEC)


def test_a_segment_is_free_when_the_last_of_its_values_is_dropped():
    segments = Segments(Offers())
    used, unused, free = segments.take(4 * SPEC.nbytes), segments.take(1), []
    answer = Lent([used, unused], free.append)
    first = answer.get(tensor(0, BEGIN), SPEC)
    second = answer.get(tensor(0, BEGIN + SPEC.nbytes), SPEC)
    answer.close()
    assert free == [unused]
    view = second.reshape(-1, 2)[3:]
    del first, second
    assert free == [unused]
    del view
    assert free == [unused, used]


def test_a_segment_is_not_free_before_all_values_of_its_answer_are_taken():
    """A value may be dropped while those behind it are still read."""
    segments = Segments(Offers())
    block, free = segments.take(2 * SPEC.nbytes), []
    answer = Lent([block], free.append)
    answer.get(tensor(0, BEGIN), SPEC)
    assert free == []
    value = answer.get(tensor(0, BEGIN + SPEC.nbytes), SPEC)
    answer.close()
    assert free == []
    del value
    assert free == [block]
