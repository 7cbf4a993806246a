"""The text of `/metrics`: values of reports, the bound of labels, formats, and a missing package."""

import sys
from dataclasses import replace

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.measurements import Measurements
from psserver.monitor.metrics import FORMATS, FreshMetrics, job_metrics, shard_metrics
from psserver.monitor.prometheus import MAX_LABELLED, MAX_QUEUES
from pswire import messages as ms
from pswire.errors import ConfigurationError, Unavailable
from pswire.tensors.values import TensorSpec
from tests.unit.psserver.monitor.full_report import QUEUE, REPORT, VARIABLE, WORKER, samples


def shard(report=REPORT, measured=None, **options):
    return shard_metrics(report, measured or Measurements(), **{"events": {}, "memory_limit": 100} | options)


def test_the_metrics_of_a_shard_have_the_numbers_of_its_report():
    found = samples(shard(events={"joined": 3, "epoch": 1}))
    expected = {
        ("global_step",): 8,
        ("workers", "live"): 1,
        ("workers", "left"): 1,
        ("workers", "lost"): 1,
        ("events_total", "joined"): 3,
        ("events_total", "epoch"): 1,
        ("events_total", "lost"): 0,
        ("stored_bytes",): 48,
        ("stored_limit_bytes",): 100,
        ("half_pushes",): 1,
        ("lost_pushes",): 4,
        ("epoch", "train"): 2,
        ("variables",): 1,
        ("variable_bytes", "W"): 48,
        ("variable_updates_total", "W"): 8,
        ("variable_transfer_bytes_total", "in", "W"): 96,
        ("variable_transfer_bytes_total", "out", "W"): 120,
        ("worker_steps_total", "w0"): 8,
        ("worker_dropped_total", "w0"): 3,
        ("worker_cost", "w0"): 0.75,
        ("worker_staleness_updates_count", "w0"): 8,
        ("worker_staleness_updates_sum", "w0"): 12,
        ("worker_held_seconds_total", "w0"): 1.5,
        ("checkpoint_number",): 7,
        ("storage_problem",): 1,
        ("journal_size_bytes",): 99,
        ("shard_info", "sync:2", "1", "2", "none"): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "w1" in name or "w2" in name], "series of workers that are gone end"
    assert found["process_resident_memory_bytes",] > 1e6


def test_what_was_measured_is_in_cumulative_buckets_by_the_labels_of_the_conventions():
    measured = Measurements()
    for seconds, staleness in ((0.0004, 0), (0.002, 2), (20.0, 40)):
        measured.answered(ms.Pushed(outcome=ms.Outcome.APPLIED, staleness=staleness, global_step=1), seconds)
    measured.received.add(1, 2, 3)
    measured.sent.stream = 4
    measured.waits["policy"].begin()
    measured.waits["policy"].end(0.5)
    measured.waits["journal"].begin()
    found = samples(shard(measured=measured))
    buckets = {bound: found["push_duration_seconds_bucket", bound] for bound in ("0.00025", "0.0005", "10.0", "+Inf")}
    assert buckets == {"0.00025": 0, "0.0005": 1, "10.0": 2, "+Inf": 3}
    assert found["push_duration_seconds_sum",] == pytest.approx(20.0024)
    stalenesses = {bound: found["staleness_updates_bucket", bound] for bound in ("0.0", "1.0", "2.0", "32.0", "+Inf")}
    assert stalenesses == {"0.0": 1, "1.0": 1, "2.0": 2, "32.0": 2, "+Inf": 3}
    assert found["pushes_total", "applied"] == found["staleness_updates_count",] == 3
    moved = {name[1:]: value for name, value in found.items() if name[0] == "transfer_bytes_total" and value}
    assert moved == {("in", "inline"): 1, ("in", "stream"): 2, ("in", "shared_memory"): 3, ("out", "stream"): 4}
    assert (found["wait_seconds_count", "policy"], found["wait_seconds_sum", "policy"]) == (1, 0.5)
    assert (found["waiting_calls", "policy"], found["waiting_calls", "journal"]) == (0, 1)


def test_a_shard_without_a_folder_has_no_metrics_of_checkpoints_and_one_without_a_journal_none_of_that():
    names = {name for name, *_ in samples(shard(replace(REPORT, storage=ms.StorageStatus())))}
    assert [name for name in names if name.startswith(("checkpoint", "journal", "storage"))] == []
    names = {name for name, *_ in samples(shard(replace(REPORT, storage=ms.StorageStatus(folder="run"))))}
    assert {name for name in names if name.startswith("journal")} == set()
    assert "checkpoint_duration_seconds_count" in names


def test_labels_of_workers_variables_and_queues_are_bounded_and_those_of_live_workers_and_large_variables_come_first():
    workers = [replace(WORKER, name=f"w{n}", number=n, state="live" if n else "left") for n in reversed(range(1000))]
    variables = [replace(VARIABLE, spec=TensorSpec(f"V{n}", (1,), "float32"), nbytes=n) for n in range(1000)]
    queues = [replace(QUEUE, spec=replace(QUEUE.spec, name=f"q{n}")) for n in range(100)]
    found = samples(shard(replace(REPORT, workers=(*workers,), variables=(*variables,), queues=(*queues,))))
    labelled = {
        kind: [name[1] for name in found if name[0] == kind] for kind in ("worker_cost", "variable_bytes", "epoch")
    }
    assert labelled["worker_cost"] == [f"w{n}" for n in range(1, MAX_LABELLED + 1)]
    assert labelled["variable_bytes"] == [f"V{n}" for n in range(999, 999 - MAX_LABELLED, -1)]
    assert labelled["epoch"] == [f"q{n}" for n in range(100 - MAX_QUEUES, 100)]


def test_a_minimization_has_metrics_of_its_last_accepted_point_when_there_is_one():
    def found(report):
        every = samples(shard(report))
        return {name[0].removeprefix("minimization_"): value for name, value in every.items() if name[1:] == ("fit",)}

    counts = {"backups_total": 3, "backups_won_total": 1}
    point = {"iterations": 12, "evaluations": 13, "loss": 0.25, "gradient": 0.5, "step": 1}
    assert found(REPORT) == counts | point
    assert found(replace(REPORT, minimizations=(replace(REPORT.minimizations[0], point=None),))) == counts


def test_names_with_quotes_and_newlines_stay_one_label():
    name = 'w"0\\\n} 1'
    assert samples(shard(replace(REPORT, workers=(replace(WORKER, name=name),))))["worker_steps_total", name] == 8


def test_a_client_that_accepts_openmetrics_gets_it():
    text, kind = shard(accept="application/openmetrics-text; version=1.0.0; q=0.9, text/plain; q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    assert shard()[1] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_metrics_of_a_job_say_which_shards_answer_and_what_the_guard_has_found():
    job = merge_reports([ShardAnswer("a:1", replace(REPORT, shard=0)), ShardAnswer("b:2", problem="b:2 is silent")])
    found = samples(job_metrics(job, findings=["momentum", "momentum", "worker"]))
    expected = {
        ("job_shard_up", "a:1"): 1,
        ("job_shard_up", "b:2"): 0,
        ("job_shards",): 2,
        ("job_global_step",): 8,
        ("job_workers", "lost"): 1,
        ("job_problems",): len(job.problems),
        ("guard_findings", "momentum"): 2,
        ("guard_findings", "worker"): 1,
        ("guard_findings", "rounding"): 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert [name for name in samples(job_metrics(job)) if name[0] == "guard_findings"] == [], "there is no guard"


def test_however_often_they_are_asked_for_metrics_are_made_once_a_second_for_each_format(monkeypatch):
    now, made = 100.0, []
    monkeypatch.setattr("psserver.monitor.metrics.time.monotonic", lambda: now)

    def make(accept):
        made.append(accept)
        return accept.encode(), "text"

    metrics = FreshMetrics(make)
    accepted = ["", "text/html", f"{FORMATS[0]}; q=0.9, text/plain", f"{FORMATS[0]}; version=0.0.1", "*/*"]
    assert [metrics(accept)[0].decode() for accept in accepted] == ["", "", FORMATS[0], FORMATS[0], ""]
    assert made == ["", FORMATS[0]]
    now += 1.0
    metrics("")
    assert made == ["", FORMATS[0], ""]
    monkeypatch.setattr("psserver.monitor.metrics.PATIENCE", 0.01)
    with metrics._lock, pytest.raises(Unavailable, match="try again"):
        metrics("")


def test_without_prometheus_client_the_error_names_the_extra(monkeypatch):
    shard()
    monkeypatch.delattr("psserver.monitor.prometheus")
    monkeypatch.delitem(sys.modules, "psserver.monitor.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"-m pip install 'prometheus-client>="):
        shard()
