"""The record of a run: how it was started, without secrets; each life; its end, however it comes."""

import hashlib
import json
import os
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from pswire.errors import ConfigurationError
from pswire.messages import StatusReport
from pswire.specs.checkpoints import EverySteps
from pswire.specs.consistency import Synchronous
from psworker.launch import run_recorder
from psworker.launch.job import Job
from psworker.launch.run_folder import RunFolder
from psworker.launch.run_recorder import RunRecorder, results, start_of, without_secrets
from psworker.runs.run_file import read_run
from tests.unit.psjob.status.views import status

SECRET = "c2VjcmV0IHdvcmRz"


def a_start(folder):
    (folder / "train.py").write_text("print(1)\n")
    return start_of(Job(str(folder / "train.py")), {})


def test_a_start_has_the_program_the_options_and_the_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.setattr("sys.argv", ["/somewhere/psworker", "local", "--workers", "3", "train.py", "--rate", "1"])
    folder = RunFolder(Path("a"), EverySteps(500), keep=2, journal=True)
    options = {"consistency": Synchronous(2), "worker_options": {"push_every": 4}, "run_folder": folder}
    job = Job("train.py", ("--rate", "1"), 3, **options)
    start = start_of(job, {"PSSERVER_LEASE": "3", "HOME": "/root", "PSWORKER_NAME_KEY": SECRET})
    assert start.command == ("psworker", "local", "--workers", "3", "train.py", "--rate", "1")
    assert (start.script, start.arguments, start.directory) == ("train.py", ("--rate", "1"), str(tmp_path))
    assert start.script_sha256 == hashlib.sha256(b"print(1)\n").hexdigest()
    assert start.options == {
        "workers": 3,
        "shards": 1,
        "threads": None,
        "consistency": "sync:2",
        "staleness": "none",
        "restarts": None,
        "guard": "warn",
        "push_every": 4,
        "checkpoint_every": "500steps",
        "keep": 2,
        "journal": True,
    }
    assert start.environment == {"PSSERVER_LEASE": "3"}
    assert start.versions["numpy"] == version("numpy")
    assert start.versions["protocol"].startswith("paramserver.v1 ")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["--api-key", SECRET, "--rate", "1"], ["--api-key", "***", "--rate", "1"]),
        ([f"--password={SECRET}", "x"], ["--password=***", "x"]),
        (["--hf_token", SECRET], ["--hf_token", "***"]),
        (["--use-token", "--rate", "1"], ["--use-token", "--rate", "1"]),
        (["--token-file", "tokens", "--keys", "4"], ["--token-file", "tokens", "--keys", "4"]),
    ],
)
def test_the_value_of_an_argument_that_names_a_secret_is_not_kept(typed, kept):
    assert without_secrets(typed) == kept


def test_no_token_of_the_cluster_is_in_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["psworker", "local", "train.py", "--token", SECRET])
    environment = dict.fromkeys(("PSWORKER_NAME_KEY", "PSSERVER_TOKEN_FILE", "PSWORKER_TLS_KEY_PASSWORD"), SECRET)
    with RunRecorder(tmp_path, start_of(Job("train.py", ("--token", SECRET)), environment)):
        assert SECRET not in (tmp_path / "run.json").read_text()


def progress_of(*workers, step=10, seconds=2.0):
    report = StatusReport(shards=1, global_step=step, workers=workers)
    none = StatusReport(shards=1)
    before, now = [merge_reports([ShardAnswer("h:1", one)]) for one in (none, report)]
    return JobView(["worker-0"]).follow(before, 0.0).follow(now, seconds)


def a_worker(name, steps, staleness_sum, cost, dropped=0):
    return status(name, steps=steps, staleness_sum=staleness_sum, cost=cost, epoch=1, dropped=dropped)


def test_results_are_means_over_workers_and_over_all_their_pushes():
    progress = progress_of(a_worker("worker-0", 30, 30, 0.5), a_worker("worker-1", 10, 30, 0.3, 4), step=40)
    found = results(progress, {"worker-1": 2})
    assert (found.first_step, found.step, found.cost, found.dropped) == (0, 40, 0.4, 4)
    assert found.staleness == 60 / 40
    assert [(one.name, one.steps, one.restarts) for one in found.workers] == [("worker-0", 30, 0), ("worker-1", 10, 2)]


def test_the_end_of_a_life_is_written_with_what_it_has_reached(tmp_path):
    with RunRecorder(tmp_path, a_start(tmp_path)) as recorder:
        (life,) = read_run(tmp_path).lives
        assert (life.state, life.end, life.state_now()) == ("running", None, "running")
        recorder.end("failed", 3, "worker-0 ended with exit code 3", progress_of(a_worker("worker-0", 10, 0, 0.5)))
    (life,) = read_run(tmp_path).lives
    assert (life.state, life.exit_code, life.error) == ("failed", 3, "worker-0 ended with exit code 3")
    assert (life.results.step, life.results.cost, life.begin <= life.end) == (10, 0.5, True)


def test_an_exception_in_the_launcher_is_the_end_of_a_life(tmp_path):
    with pytest.raises(BrokenPipeError), RunRecorder(tmp_path, a_start(tmp_path)):
        raise BrokenPipeError("the reader has closed the output")
    (life,) = read_run(tmp_path).lives
    assert (life.state, life.exit_code, life.error) == ("failed", 1, "the reader has closed the output")


def test_a_resumed_run_has_the_same_id_another_life_and_an_interrupted_one_before(tmp_path):
    RunRecorder(tmp_path, a_start(tmp_path))  # as one that is killed
    first = read_run(tmp_path)
    with RunRecorder(tmp_path, a_start(tmp_path)) as recorder:
        recorder.end("completed", 0)
    run = read_run(tmp_path)
    assert run.id == first.id
    assert [life.state for life in run.lives] == ["interrupted", "completed"]
    assert run.lives[0].begin == first.lives[0].begin


def test_a_damaged_file_is_put_aside_when_its_run_is_resumed(tmp_path):
    (tmp_path / "run.json").write_text('{"format": 1, "id"')
    with RunRecorder(tmp_path, a_start(tmp_path)):
        assert len(read_run(tmp_path).lives) == 1
    assert (tmp_path / "run.damaged").read_text() == '{"format": 1, "id"'


def test_results_are_written_now_and_then_while_a_run_lasts(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run_recorder.time, "monotonic", lambda: now[0])
    recorder = RunRecorder(tmp_path, a_start(tmp_path))
    steps = []
    for second in range(100):
        now[0] = 100.0 + second
        recorder.follow(progress_of(a_worker("worker-0", 1, 0, None), step=second))
        steps.append(read_run(tmp_path).lives[0].results.step)
    written = sorted(set(steps))
    gaps = [after - before for before, after in pairwise(written)]
    assert (gaps[:5], gaps[-3:]) == ([1] * 5, [10] * 3)
    assert gaps == sorted(gaps), "the longer a run lasts the rarer"
    assert read_run(tmp_path).lives[0].seconds == written[-1]


def test_a_folder_that_is_full_is_an_error_at_the_start_and_a_problem_later(tmp_path, monkeypatch):
    recorder = RunRecorder(tmp_path, a_start(tmp_path))
    before = json.loads((tmp_path / "run.json").read_text())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    recorder.end("completed", 0)
    assert recorder.problem == f"{tmp_path / 'run.json'} cannot be written: No space left on device"
    assert json.loads((tmp_path / "run.json").read_text()) == before
    with pytest.raises(ConfigurationError, match="No space left on device"):
        RunRecorder(tmp_path, a_start(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["run.json", "train.py"]
