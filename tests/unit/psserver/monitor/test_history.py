"""The history of a job: points that are merged in pairs, and events that are seen once."""

import json

import pytest

from psserver.monitor import history
from psserver.monitor.history import Events, History, merged, point_of
from tests.unit.psserver.monitor.reports import event, report


def sample(step, *, rate=1.0, stalenesses=((0, 1),), workers=None, variables=None):
    rows = workers or {"w0": (step, 0.5, 1.0, rate)}
    return {
        "time": 100.0 + step,
        "step": step,
        "steps_per_second": rate,
        "shards": [{"stalenesses": list(stalenesses)}, {"stalenesses": []}],
        "workers": [
            {
                "name": name,
                "state": "live",
                "steps": row[0],
                "cost": row[1],
                "staleness": row[2],
                "steps_per_second": row[3],
            }
            for name, row in rows.items()
        ],
        "variables": [{"name": name, "staleness": value} for name, value in (variables or {"a": 2.0}).items()],
    }


def points_of(kept):
    return [json.loads(point) for point in kept.points()]


def test_a_long_history_has_a_bounded_number_of_points_that_cover_all_of_the_time_without_gaps():
    kept = History()
    for step in range(1, 5001):
        kept.add(sample(step), 1.0)
        assert len(kept.points()) <= history.MAX_POINTS
    points = points_of(kept)
    assert len(points) >= history.MAX_POINTS // 2
    assert points[-1]["step"] == 5000
    assert sum(point["seconds"] for point in points) == 5000.0
    assert sum(count for point in points for _, count in point["stalenesses"]) == 5000, "no push is lost"
    assert [one["time"] for one in points] == sorted({one["time"] for one in points})
    assert {point["seconds"] for point in points[:-1]} == {8.0}


@pytest.mark.slow
def test_a_history_of_many_workers_and_variables_has_fewer_points():
    kept = History()
    workers = {f"w{number}": (1, 0.5, 1.0, 1.0) for number in range(400)}
    variables = {f"v{number}": 1.0 for number in range(400)}
    for step in range(500):
        kept.add(sample(step, workers=workers, variables=variables), 1.0)
    points = points_of(kept)
    (numbers,) = {4 * len(point["workers"]) + len(point["variables"]) for point in points}
    assert numbers == 4 * history.MAX_WORKERS + history.MAX_VARIABLES
    assert 50 < len(points) <= history.MAX_NUMBERS // numbers


def test_two_points_become_one_with_the_state_at_the_end_and_means_by_time():
    first = point_of(
        sample(10, rate=2.0, stalenesses=[(0, 98), (4, 2)], workers={"w0": (10, 0.9, 1.0, 2.0), "gone": (1, 1, 1, 1)}),
        1.0,
    )
    second = point_of(
        sample(
            40,
            rate=10.0,
            stalenesses=[(4, 50), (8, 50)],
            workers={"w0": (40, None, 3.0, 10.0), "new": (1, 0.1, None, None)},
        ),
        3.0,
    )
    assert (first["p50"], first["p99"]) == (0, 4)
    both = merged(first, second)
    assert (both["time"], both["seconds"], both["step"], both["rate"]) == (140.0, 4.0, 40, 8.0)
    assert (both["stalenesses"], both["p50"], both["p99"]) == ([(0, 98), (4, 52), (8, 50)], 4, 8)
    assert both["workers"] == {"w0": [40, 0.9, 2.5, 8.0], "new": [1, 0.1, None, None]}
    assert both["variables"] == {"a": 2.0}


def test_a_rate_or_mean_that_one_of_two_points_has_is_that_of_both():
    known, unknown = point_of(sample(1, rate=4.0), 1.0), point_of(sample(2, rate=None, variables={"a": None}), 1.0)
    assert merged(known, unknown)["rate"] == merged(unknown, known)["rate"] == 4.0
    assert merged(unknown, known)["variables"] == {"a": 2.0}


def test_each_event_of_a_shard_is_seen_once_and_numbered_in_the_order_of_their_times():
    seen = Events()
    first = seen.add(
        [report(1, events=[event(1, 10.0), event(2, 12.0)]), report(1, shard=1, events=[event(1, 11.0, "other")])]
    )
    assert [(one["number"], one["shard"], one["text"]) for one in first] == [
        (1, 0, "event 1"),
        (2, 1, "other"),
        (3, 0, "event 2"),
    ]
    again = seen.add(
        [
            report(1, events=[event(1, 10.0), event(2, 12.0), event(3, 13.0)]),
            report(1, shard=1, events=[event(1, 11.0, "other")]),
        ]
    )
    assert [(one["number"], one["text"]) for one in again] == [(4, "event 3")]
    assert [one["number"] for one in seen.all()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "restarted",
    [
        [event(1, 90.0, "starts")],
        [event(1, 90.0, "starts"), event(2, 91.0, "joins")],
        [event(number, 90.0, "x") for number in (1, 2, 3)],
    ],
    ids=["fewer events than were seen", "as many", "more"],
)
def test_the_numbers_of_a_shard_that_is_started_again_begin_anew(restarted):
    seen = Events()
    seen.add([report(1, events=[event(1, 10.0), event(2, 12.0)])])
    found = seen.add([report(1, events=restarted)])
    assert [one["text"] for one in found] == [one.text for one in restarted]
    assert seen.add([report(1, events=restarted)]) == []


def test_events_that_were_lost_between_two_reports_do_not_bring_the_others_back():
    seen = Events()
    seen.add([report(1, events=[event(1, 1.0)])])
    found = seen.add([report(1, events=[event(number, float(number)) for number in range(50, 60)])])
    assert len(found) == 10


def test_old_events_are_forgotten():
    seen = Events()
    for start in range(1, history.MAX_EVENTS + 500, 100):
        seen.add([report(1, events=[event(number, float(number)) for number in range(start, start + 100)])])
    assert len(seen.all()) == history.MAX_EVENTS
    assert seen.all()[-1]["text"] == "event 1500"
