"""`run.json`: what is written is read again, cut or foreign files are named, and killed launchers are noticed."""

import json
import math
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pswire.errors import DamagedFile
from psworker.runs import run_file
from psworker.runs.process_identity import ProcessIdentity
from psworker.runs.run_file import MAX_LIVES, Results, Run, WorkerResult, read_run, write_run
from tests.unit.psworker.runs.conftest import BEGIN, life


def a_run():
    worker = WorkerResult("worker-0", "left", 12, 1, 0.5, None, 2)
    first = life(results=Results(0, 100, 8.5, 0.25, None, 3, (worker,)), threads=None, journal=True, rate=0.5)
    return Run(id="x", lives=(first, life(BEGIN + 60, state="failed")))


def test_a_run_that_was_written_is_read_again_with_all_its_values(tmp_path):
    run = a_run()
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    data = json.loads((tmp_path / "run.json").read_text())
    assert (data["format"], data["lives"][0]["start"]["options"]["journal"]) == (1, True)
    data["lives"][0]["later"] = data["new"] = 1  # of a later version
    (tmp_path / "run.json").write_text(json.dumps(data))
    assert read_run(tmp_path) == run


def test_a_number_that_is_not_finite_is_null_because_json_has_none(tmp_path):
    write_run(tmp_path, Run(id="x", lives=(life(results=Results(cost=math.nan)),)))
    assert read_run(tmp_path).lives[0].results.cost is None


def test_the_file_may_be_read_by_whom_its_folder_may_be_read(tmp_path):
    for mode, expected in ((0o755, 0o644), (0o700, 0o600), (0o750, 0o640)):
        tmp_path.chmod(mode)
        write_run(tmp_path, a_run())
        assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "damaged, or no file of a run"),
        (lambda text: "", "damaged, or no file of a run"),
        (lambda text: "[1]", "it is no object"),
        (lambda text: '{"format": 1, "id": "x", "lives": []}', "it has no life"),
        (lambda text: '{"name": "another program"}', "it has no id"),
        (lambda text: text.replace('"step": 100', '"step": "100"'), r"lives\[0\].results.step is '100'"),
        (lambda text: text.replace('"step": 100', '"step": true'), r"lives\[0\].results.step is 'True'"),
        (lambda text: text.replace('"seconds": 8.5', '"seconds": 1e999'), r"lives\[0\].results.seconds is 'inf'"),
        (lambda text: text.replace('"seconds": 8.5', f'"seconds": 1{"0" * 400}'), "damaged, or no file of a run"),
        (lambda text: text.replace('"host"', '"guest"'), r"it has no lives\[0\].start.process.host"),
        (lambda text: "[" * 100_000, "damaged, or no file of a run"),
    ],
)
def test_a_file_that_is_cut_or_of_another_program_is_refused_with_its_name_and_the_reason(tmp_path, change, reason):
    write_run(tmp_path, a_run())
    path = tmp_path / "run.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(DamagedFile, match=f"{path}.*{reason}"):
        read_run(tmp_path)


def test_a_file_that_is_not_there_too_large_or_no_text_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DamagedFile, match=r"run.json cannot be read: No such file or directory"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedFile, match="damaged"):
        read_run(tmp_path)
    monkeypatch.setattr(run_file, "MAX_BYTES", 1)
    with pytest.raises(DamagedFile, match="has more than 1 bytes"):
        read_run(tmp_path)


def test_a_run_keeps_its_first_life_and_the_newest_others():
    run = Run(id="x", lives=())
    for number in range(MAX_LIVES + 5):
        run = run.with_life(life(BEGIN + number))
    assert (len(run.lives), run.omitted) == (MAX_LIVES, 5)
    assert [one.begin - BEGIN for one in run.lives] == [0, *range(6, MAX_LIVES + 5)]


def test_a_run_whose_launcher_lives_is_running_and_one_whose_launcher_is_gone_was_interrupted():
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = replace(ProcessIdentity.of_this_process(), process=ended.pid)
    if sys.platform == "linux":
        started = Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[19]
        other = replace(other, started=int(started))
    living = life(state="running", process=other)
    assert living.state_now() == "running"
    ended.communicate()
    assert living.state_now() == "interrupted"
    this = ProcessIdentity.of_this_process()
    assert life(state="running", process=this).state_now() == "running"
    booted = replace(this, boot="before")
    assert life(state="running", process=booted).state_now() == "interrupted"
    if sys.platform == "linux":
        same_id = replace(this, started=this.started - 1)
        assert life(state="running", process=same_id).state_now() == "interrupted", "another process with its id"
    assert life(state="completed", process=booted).state_now() == "completed"


def test_a_run_on_another_host_is_running_while_its_file_changes():
    elsewhere = ProcessIdentity("another host", os.getpid())
    now = life(time.time(), 0.0, state="running", process=elsewhere)
    assert now.state_now() == "running"
    assert replace(now, updated=now.updated - 1000).state_now() == "interrupted"
