"""The stream of samples: who follows it, where a viewer begins, and who is too far behind."""

import json

import pytest

from psserver.monitor import sample_stream
from psserver.monitor.json_text import encode_in_parts
from psserver.monitor.sample_stream import MAX_BEHIND, MAX_VIEWERS, SampleStream


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(sample_stream, "HEARTBEAT_SECONDS", 0.01)


def published(count):
    samples = SampleStream()
    for number in range(1, count + 1):
        samples.publish({"step": number})
    return samples


def numbers(parts):
    """The numbers of the samples in a part of a stream."""
    lines = parts.decode().splitlines()
    assert [json.loads(line[6:])["step"] for line in lines if line.startswith("data: ")] == [
        int(line[4:]) for line in lines if line.startswith("id: ")
    ]
    return [int(line[4:]) for line in lines if line.startswith("id: ")]


@pytest.mark.parametrize(
    ("last", "first"),
    [
        (None, [40]),
        (38, [39, 40]),
        (40, []),
        (40 - MAX_BEHIND, list(range(41 - MAX_BEHIND, 41))),
        (1, [40]),
        (99, [40]),
    ],
    ids=["new", "connected again", "nothing missed", "just in time", "too late", "of another monitor"],
)
def test_a_viewer_begins_after_the_last_sample_that_it_has_seen_or_with_the_newest(last, first):
    viewer = iter(published(40).follow(last))
    assert next(viewer) == b"retry: 2000\n\n"
    assert numbers(next(viewer)) == first


def test_a_viewer_gets_each_sample_once_and_a_comment_when_there_is_none():
    samples = published(1)
    viewer = iter(samples.follow(None))
    next(viewer)
    assert numbers(next(viewer)) == [1]
    assert next(viewer).startswith(b": ")
    for step in (2, 3):
        samples.publish({"step": step})
    assert numbers(next(viewer)) == [2, 3]


def test_a_viewer_that_is_too_far_behind_is_dropped_and_others_go_on():
    samples = published(1)
    slow, fast = iter(samples.follow(None)), iter(samples.follow(None))
    for viewer in (slow, fast):
        next(viewer)
        next(viewer)
    for step in range(2, MAX_BEHIND + 4):
        samples.publish({"step": step})
        assert numbers(next(fast)) == [step]
    assert next(slow, None) is None
    assert len(samples._samples) == MAX_BEHIND


def test_there_are_so_many_viewers_at_most_and_one_that_leaves_without_having_begun_makes_room():
    samples = published(1)
    viewers = [samples.follow(None) for _ in range(MAX_VIEWERS)]
    assert samples.follow(None) is None
    viewers[0].close()
    viewers[0].close()
    assert samples.follow(None) is not None
    assert samples.follow(None) is None


def test_all_viewers_share_one_encoding(monkeypatch):
    made = []
    monkeypatch.setattr(sample_stream, "encode_in_parts", lambda sample: made.append(sample) or encode_in_parts(sample))
    samples = published(3)
    for viewer in [iter(samples.follow(None)) for _ in range(5)]:
        next(viewer)
        next(viewer)
    assert made == [{"step": 3}]


def test_the_end_of_the_stream_ends_all_viewers():
    samples = published(1)
    viewer = iter(samples.follow(None))
    next(viewer)
    samples.close()
    assert next(viewer, None) is None
