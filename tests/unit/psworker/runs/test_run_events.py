"""`events.jsonl`: each event of a shard once, also of one that was started again; bounded, and readable when cut."""

import json
import threading

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from pswire.messages import EventReport, StatusDetail, StatusReport
from psworker.runs import run_events
from psworker.runs.run_events import RunEvents, read_events


def report(shard, *events, step=0):
    """The report of a shard with events (number, time)."""
    listed = tuple(
        EventReport(number=number, time=time, kind="joined", text=f"{shard}:{number}@{time}", worker="w", global_step=7)
        for number, time in events
    )
    return StatusReport(shard=shard, shards=2, global_step=step, detail=StatusDetail(events=listed))


def status(*reports):
    return merge_reports([ShardAnswer("host:1", report) for report in reports])


def texts(folder):
    events, problem = read_events(folder)
    assert problem == ""
    return [event.text for event in events]


def test_each_event_of_a_shard_is_written_once_although_reports_repeat_it(tmp_path):
    events = RunEvents(tmp_path)
    events.follow(status(report(0, (1, 10.0)), report(1, (1, 10.5))))
    events.follow(status(report(0, (1, 10.0), (2, 11.0)), report(1, (1, 10.5))))
    events.follow(status(report(0, (2, 11.0), (3, 12.0)), StatusReport(shard=1, shards=2)))
    assert texts(tmp_path) == ["0:1@10.0", "1:1@10.5", "0:2@11.0", "0:3@12.0"]
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    expected = {"time": 10.0, "step": 7, "source": "shard 0", "kind": "joined", "level": "info"}
    assert first == expected | {"text": "0:1@10.0", "worker": "w"}


@pytest.mark.parametrize("again", [((1, 20.0),), ((1, 20.0), (2, 21.0)), ((1, 20.0), (2, 21.0), (3, 22.0))])
def test_the_events_of_a_server_that_was_started_again_are_new_ones_whatever_their_numbers(tmp_path, again):
    events = RunEvents(tmp_path)
    events.follow(status(report(0, (1, 10.0), (2, 11.0))))
    events.follow(status(report(0, *again)))
    assert texts(tmp_path) == ["0:1@10.0", "0:2@11.0", *(f"0:{number}@{time}" for number, time in again)]


def test_an_event_of_the_launcher_has_the_step_that_the_shards_reported_last(tmp_path):
    events = RunEvents(tmp_path)
    events.add("started", "first", time=1.0)
    events.follow(status(report(0, step=40), report(1, step=39)))
    events.add("ended", "second", worker="worker-0", level="warning", time=2.0)
    events.follow(status(report(0, step=30)))  # it has gone back to a checkpoint
    events.add("guard", "third", source="guard", time=3.0)
    found, _ = read_events(tmp_path)
    expected = [("launcher", None, "info"), ("launcher", 40, "warning"), ("guard", 30, "info")]
    assert [(one.source, one.step, one.level) for one in found] == expected


def test_a_file_that_grows_beyond_its_limit_loses_its_older_half_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(run_events, "MAX_BYTES", 20_000)
    events = RunEvents(tmp_path)
    largest = 0
    for number in range(500):
        events.add("note", f"{number:04}" * 10, time=float(number))
        largest = max(largest, (tmp_path / "events.jsonl").stat().st_size)
    assert largest < 20_500
    found = texts(tmp_path)
    assert found[-1].endswith("earlier lines were left out: the file has 0 MiB at most")  # of now, the others of 1970
    kept = [text for text in found if "left out" not in text]
    assert kept == [f"{number:04}" * 10 for number in range(500 - len(kept), 500)], "the newest ones, without a gap"


def test_a_long_text_is_cut_and_a_line_stays_a_line(tmp_path):
    RunEvents(tmp_path).add("note", "é\n" * 5000)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == "é\n" * 500 + "…"


def test_after_a_line_that_was_cut_the_next_life_begins_a_new_one_and_the_reader_names_the_cut_one(tmp_path):
    RunEvents(tmp_path).add("note", "whole", time=1.0)
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 2.0, "te')
    RunEvents(tmp_path).add("note", "after", time=3.0)
    found, problem = read_events(tmp_path)
    assert [event.text for event in found] == ["whole", "after"]
    assert problem == f"{path}: line 2 skipped: cut, or of another kind"


def test_lines_of_another_program_are_counted_and_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    RunEvents(tmp_path).add("note", "ours")
    path.write_text('{"time": "now", "step": 1}\n[]\nx\n\n' + path.read_text() + '{"a": 1}\n')
    found, problem = read_events(tmp_path)
    assert [event.text for event in found] == ["ours"]
    assert problem == f"{path}: line 1 and 3 others skipped: cut, or of another kind"


def test_a_file_that_cannot_be_written_ends_there_and_its_problem_names_it(tmp_path):
    events = RunEvents(tmp_path)
    (tmp_path / "events.jsonl").mkdir()
    events.add("note", "lost")
    events.add("note", "lost")
    assert events.problem == f"{tmp_path}/events.jsonl ends here: Is a directory"


def test_threads_that_add_at_once_write_whole_lines(tmp_path):
    events = RunEvents(tmp_path)
    threads = [
        threading.Thread(target=lambda name: [events.add("note", name * 50) for _ in range(50)], args=(name,))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts(tmp_path)) == sorted(name * 50 for name in "abcd" for _ in range(50))
