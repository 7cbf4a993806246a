"""The data of the page: what becomes of one status after another, also where shards or the guard fail."""

import json
import queue
from types import SimpleNamespace

import pytest

from psjob.guard import Finding
from psserver.monitor import collector
from psserver.monitor.collector import Collector
from tests.support.commands import BOUND
from tests.unit.psserver.monitor.reports import event, job, report


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(collector, "INTERVAL", 0.0)


def collected(*statuses, guard=None):
    """The samples of these statuses, of which an exception is raised, and the JSON at the end."""
    waiting, end = iter(statuses), queue.Queue()

    def ask(timeout):
        status = next(waiting, None)
        if status is None:
            end.put(json.loads(one.job()))
            return job("the end")
        if isinstance(status, Exception):
            raise status
        return status

    one = Collector(ask, guard=guard)
    samples = []
    one.samples.publish = samples.append
    with one:
        found = end.get(timeout=BOUND)
    return samples[: len([status for status in statuses if not isinstance(status, Exception)])], found


def test_an_event_is_in_one_sample_and_in_all_of_the_job():
    events = [event(1, 1.0), event(2, 2.0)]
    samples, found = collected(
        job(report(1, events=events[:1])), job(report(2, events=events)), job(report(3, events=events))
    )
    assert [[one["text"] for one in sample["events"]] for sample in samples] == [["event 1"], ["event 2"], []]
    assert [one["number"] for one in found["events"]] == [1, 2]


def test_an_error_does_not_end_the_page(caplog):
    samples, found = collected(job(report(1)), RuntimeError("a bad status"), job(report(2)))
    assert [sample["step"] for sample in samples] == [1, 2]
    assert found["latest"]["step"] == 2
    assert "a bad status" in caplog.text


def test_the_history_begins_anew_with_another_job_and_goes_on_when_no_shard_answers():
    _, found = collected(job(report(7)), job("silent"), job(report(9)), job(report(1, job=2)), job(report(2, job=2)))
    assert [point["step"] for point in found["history"]] == [1, 2]
    _, found = collected(job(report(7)), job("silent"), job(report(9)))
    assert [point["step"] for point in found["history"]] == [7, 9]


def test_findings_are_those_of_the_guard_now_with_the_time_since_when_they_are_there():
    class Guard:
        findings = ()

        def observe(self, status, seconds):
            step = status.global_step
            lost, bad = (
                Finding("data", "warning", "w0", f"text {step}", "remedy"),
                Finding("worker", "error", "w1", "bad", "stop"),
            )
            self.findings = {1: [], 2: [lost], 3: [lost, bad], 4: [bad], 5: []}[step]

    samples, found = collected(*[job(report(step)) for step in (1, 2, 3, 4)], guard=Guard())
    second, third, fourth = [sample["findings"] for sample in samples[1:]]
    assert samples[0]["findings"] == []
    assert [one["text"] for one in third] == ["text 3", "bad"]
    assert third[0]["since"] == second[0]["since"]
    assert {name: fourth[0][name] for name in ("kind", "level", "worker", "text", "remedy")} == {
        "kind": "worker",
        "level": "error",
        "worker": "w1",
        "text": "bad",
        "remedy": "stop",
    }
    assert found["findings"] == fourth


def test_a_job_is_ready_when_all_of_its_shards_answer(monkeypatch):
    one = Collector(lambda timeout: None)
    assert one.problem().startswith("no status of the job for ")
    one._latest = {"shards": [{"problem": ""}, {"problem": "host1 is silent"}]}
    assert one.problem() == "host1 is silent"
    one._latest = {"shards": [{"problem": ""}]}
    assert one.problem() == ""
    clock = SimpleNamespace(monotonic=lambda: one._last + collector.READY_SECONDS + 1)
    monkeypatch.setattr(collector, "time", clock)
    assert one.problem() == "no status of the job for 11 s"
