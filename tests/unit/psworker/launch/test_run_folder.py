"""The folder of a run: new, resumed, in use or not usable; the options of its servers; logs."""

import os
import queue
import signal
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from psserver.cli.main import main as psserver
from pswire.errors import ConfigurationError
from pswire.specs.checkpoints import EverySeconds, EverySteps
from psworker.launch import cluster
from psworker.launch.cli import main
from psworker.launch.job import Job
from psworker.launch.processes import ParentPipe, Process
from psworker.launch.run_folder import RunFolder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working directory for the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entries(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_a_new_or_empty_folder_gets_its_folders_and_has_nothing_to_resume_from(runs, resume, empty):
    if empty:
        (runs / "runs" / "a").mkdir(parents=True)
    folder = RunFolder(Path("runs/a"), resume=resume)
    assert not folder.has_checkpoints()
    with folder.opened():
        assert not folder.has_checkpoints()
    assert entries(runs / "runs" / "a") == ["checkpoints", "logs"]
    (folder.checkpoints / "shard-0.lock").touch()
    assert not folder.has_checkpoints(), "a server that was killed before it wrote anything"


def test_what_is_made_of_a_folder_is_for_its_user_alone_and_what_is_there_keeps_its_mode(runs):
    (runs / "a").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        for name in ("a", "b"):
            with RunFolder(Path(name)).opened():
                pass
    finally:
        os.umask(before)
    modes = {str(one.relative_to(runs)): f"{one.stat().st_mode & 0o777:o}" for one in runs.rglob("*")}
    private = dict.fromkeys(("a/checkpoints", "a/logs", "b", "b/checkpoints", "b/logs"), "700")
    assert modes == {"a": "755"} | private


def test_a_folder_with_anything_in_it_is_used_to_resume_only_and_stays_as_it_was(runs):
    checkpoint = runs / "a" / "checkpoints" / "step-000000012"
    checkpoint.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"the folder a is not empty: use --resume .* or another folder"):
        RunFolder(Path("a")).opened().__enter__()
    assert entries(runs) == ["a", "a/checkpoints", "a/checkpoints/step-000000012"]
    folder = RunFolder(Path("a"), resume=True)
    assert folder.has_checkpoints()
    with folder.opened():
        assert checkpoint.is_dir()


def test_a_folder_belongs_to_one_job_at_a_time(runs):
    folder = RunFolder(Path("a"), resume=True)
    in_use = pytest.raises(ConfigurationError, match="the folder a is in use by another psworker local")
    with folder.opened(), in_use:
        folder.opened().__enter__()
    with folder.opened():
        pass


def test_a_folder_is_in_use_until_the_servers_that_a_killed_launcher_has_left_have_ended(runs):
    ended, folder = queue.SimpleQueue(), RunFolder(Path("a"), resume=True)
    with ParentPipe() as parent:
        with folder.opened() as opened:
            command = ["http.server", "--bind", "127.0.0.1", "0"]
            child = Process("server-0", command, os.environ, parent, lambda *_: None, ended.put, [opened.lock])
        with pytest.raises(ConfigurationError, match="by servers that it has left and that end within seconds"):
            folder.opened().__enter__()
        child.kill(signal.SIGKILL)
        ended.get(timeout=20)
    with folder.opened():
        pass


def test_a_folder_that_cannot_be_made_is_named_with_the_reason(runs):
    (runs / "file").touch()
    for path, reason in (("file", "Not a directory"), ("file/a", "Not a directory")):
        with pytest.raises(ConfigurationError, match=f"cannot use the folder {path}: {reason}"):
            RunFolder(Path(path)).opened().__enter__()


def test_servers_get_the_folder_of_checkpoints_and_how_often_they_are_written(runs):
    folder = RunFolder(Path("a"), EverySteps(1000), keep=3, journal=True)
    every = f"--checkpoint-dir {runs}/a/checkpoints --checkpoint-every 1000steps --keep 3 --journal"
    assert " ".join(Job("train.py", run_folder=folder).server_command(0, "127.0.0.1:0")).endswith(f"none {every}")
    assert RunFolder(Path("a")).server_options()[2:] == ["--checkpoint-every", "60s", "--keep", "5", "--no-journal"]
    known = {flag for option in psserver.commands["serve"].params for flag in [*option.opts, *option.secondary_opts]}
    assert {text for text in folder.server_options() if text.startswith("--")} < known


def test_lines_are_appended_to_the_log_of_their_process(runs):
    for life in (1, 2):
        with RunFolder(Path("a"), resume=True).opened() as folder:
            assert folder.log("worker-0", [f"grün {life}", ""]) == folder.log("server-0", ["up"]) == ""
    assert (runs / "a/logs/worker-0.log").read_text() == "grün 1\n\ngrün 2\n\n"
    assert (runs / "a/logs/server-0.log").read_text() == "up\nup\n"


def test_a_log_that_cannot_be_written_is_reported_once_and_the_others_go_on(runs):
    with RunFolder(Path("a")).opened() as folder:
        (runs / "a/logs/worker-0.log").mkdir()
        problems = [folder.log("worker-0", ["lost"]) for _ in range(3)]
        assert problems == ["the log a/logs/worker-0.log ends here: Is a directory", "", ""]
        assert folder.log("worker-1", ["kept"]) == ""
    assert (runs / "a/logs/worker-1.log").read_text() == "kept\n"


@pytest.mark.parametrize("option", ["--checkpoint-every=5m", "--keep=2", "--journal", "--resume"])
def test_options_of_the_run_folder_need_one(runs, option):
    (runs / "train.py").touch()
    result = CliRunner().invoke(main, ["local", option, "train.py"])
    assert (result.exit_code, f"{option.partition('=')[0]} needs --run-dir" in result.output) == (2, True)


def test_options_of_servers_in_the_environment_are_for_the_run_folder_and_left_to_the_servers_without_one(
    runs, monkeypatch
):
    (runs / "train.py").touch()
    jobs = []
    monkeypatch.setattr(cluster, "Cluster", lambda job, display, _: jobs.append(job) or mock.MagicMock())
    environment = {"PSSERVER_CHECKPOINT_EVERY": "7s", "PSSERVER_KEEP": "2", "PSSERVER_JOURNAL": "1"}
    for options in ([], ["--run-dir", "a"], ["--run-dir", "a", "--keep", "3"]):
        CliRunner().invoke(main, ["local", *options, "train.py"], env=environment)
    folder = RunFolder(Path("a"), EverySeconds(7.0), keep=2, journal=True)
    assert [job.run_folder for job in jobs] == [None, folder, replace(folder, keep=3)]


def test_a_folder_that_is_not_empty_ends_the_command_before_anything_is_started(runs):
    (runs / "train.py").write_text("print('in')")
    result = CliRunner().invoke(main, ["local", "--run-dir", str(runs), "train.py"])
    assert (result.exit_code, result.output) == (
        1,
        f"Error: the folder {runs} is not empty: use --resume to continue its run, or another folder\n",
    )
