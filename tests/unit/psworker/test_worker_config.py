"""Configuration of a worker: arguments, the environment, defaults, and the command line."""

import os
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from click.testing import CliRunner

from psjob.terminal.log_options import LogOptions
from pswire.errors import ConfigurationError
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.specs.checkpoints import EverySeconds, EverySteps
from pswire.specs.encodings import NONE, Int8, TopK, parse_compression
from psworker.config import OPTIONS, WorkerConfig, worker_config
from psworker.environment import of_worker
from psworker.launch import cli
from psworker.launch.cli import main
from psworker.sessions.opening import session


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PSWORKER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cli, "end_at_once", lambda number, code: None)  # it is for a process of its own
    monkeypatch.setattr(LogOptions, "set_up", lambda self, program: None)  # so is this


def test_an_argument_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert worker_config(name="w0") == WorkerConfig(name="w0")
    assert worker_config([], name="w0") == WorkerConfig(name="w0"), "no server: embedded"
    options = {"servers": "h:1, h:2", "name": "w7", "job": "mine", "resume": True, "timeout": 7.5, "keep_memory": False}
    options |= {"encoding": "bfloat16", "compress": TopK(0.01), "shared_memory": False, "push_every": 3}
    options |= {"pull_every": 5, "overlap": True}
    for name, text in of_worker(options | {"local_steps": None}).items():
        monkeypatch.setenv(name, text)
    found = WorkerConfig(**options | {"servers": ("h:1", "h:2")})
    assert worker_config() == found
    other = worker_config(["h:3"], "w8", timeout=9, push_every=2, overlap=False, compress="int8", shared_memory=True)
    changed = {"push_every": 2, "overlap": False, "compress": Int8(), "shared_memory": True}
    assert other == replace(found, servers=("h:3",), name="w8", timeout=9, **changed)
    assert worker_config(push_every=1, pull_every=1, overlap=False, local_steps=7).steps == 7
    strategy = worker_config(push_every=np.int64(2), pull_every=np.uint8(3), overlap=False)
    assert (strategy.push_every, strategy.pull_every, type(strategy.push_every)) == (2, 3, int)
    with pytest.raises(TypeError, match="push_evry"):
        worker_config(push_evry=2)


def test_a_session_has_an_argument_for_each_option_of_its_type_and_describes_it():
    arguments = signature(session).parameters
    expected = {name: kind for name, (kind, option) in OPTIONS.items() if option.argument}
    assert set(arguments) == {*expected, "outer"}
    described = {"servers": str | Sequence[str], "compress": str, "checkpoint_every": str}
    for name, kind in get_type_hints(session).items():
        if name in expected:
            path = os.PathLike[str] if OPTIONS[name][1].path else None
            assert kind == described.get(name, expected[name]) | path | None, name
            assert f"\n        {name}: " in session.__doc__, name


def test_an_option_with_a_help_text_is_a_flag_of_the_commands_in_its_section():
    flags = {name: {one.name: one for one in main.commands[name].params} for name in ("run", "local", "ray")}
    for name, (_, option) in OPTIONS.items():
        for command in ["run", "local", "ray"] if option.cluster else ["run"]:
            if option.help:
                flag = flags[command][name]
                assert (flag.help, flag.section) == (option.help, option.section), name
    assert not flags["run"].keys() & {name for name, (_, option) in OPTIONS.items() if not option.help}


def test_checkpoints_are_configured_like_everything_else(monkeypatch, tmp_path):
    assert _checkpoints(worker_config()) == ("", EverySeconds(60.0), 5)
    assert worker_config().folder is None
    monkeypatch.setenv("PSWORKER_CHECKPOINT_DIR", "runs/a")
    monkeypatch.setenv("PSWORKER_CHECKPOINT_EVERY", "5m")
    monkeypatch.setenv("PSWORKER_KEEP", "3")
    config = worker_config()
    assert _checkpoints(config) == ("runs/a", EverySeconds(300.0), 3)
    assert config.folder == Path.cwd() / "runs/a"
    given = worker_config(checkpoint_dir=tmp_path, checkpoint_every="7steps", keep=np.int64(2))
    assert (_checkpoints(given), type(given.keep)) == ((str(tmp_path), EverySteps(7), 2), int)


def _checkpoints(config):
    return config.checkpoint_dir, config.checkpoint_every, config.keep


def test_credentials_are_configured_like_everything_else_and_an_empty_variable_is_none(monkeypatch, tmp_path):
    assert worker_config().credentials == NO_CREDENTIALS
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE"):
        monkeypatch.setenv(f"PSWORKER_{name}", name.lower())
    assert worker_config().credentials == Credentials("tls_ca", "tls_cert", "tls_key", "token_file")
    given = worker_config(tls_ca=tmp_path, token_file="mine").credentials
    assert given == Credentials(str(tmp_path), "tls_cert", "tls_key", "mine")
    for name in ("TLS_CERT", "TLS_KEY", "TOKEN_FILE"):
        monkeypatch.setenv(f"PSWORKER_{name}", "")
    assert worker_config().credentials == Credentials("tls_ca")
    monkeypatch.setenv("PSWORKER_TLS_KEY", "alone")
    with pytest.raises(ConfigurationError, match="--tls-key needs --tls-cert"):
        worker_config()


def test_the_folder_of_summaries_is_configured_like_everything_else(monkeypatch, tmp_path):
    assert worker_config().summary_dir == ""
    monkeypatch.setenv("PSWORKER_SUMMARY_DIR", "runs/a")
    assert worker_config().summary_dir == "runs/a"
    assert worker_config(summary_dir=tmp_path).summary_dir == str(tmp_path)


def test_the_worker_of_an_embedded_job_with_checkpoints_or_summaries_keeps_its_name():
    assert worker_config(checkpoint_dir="a").name == worker_config(summary_dir="a").name == "worker-0"
    assert worker_config(checkpoint_dir="a", name="w7").name == "w7"
    assert worker_config("h:1", checkpoint_dir="a").name == worker_config().name != "worker-0"


@pytest.mark.parametrize(("text", "kept"), [("", True), ("1", True), ("Yes", True), ("0", False), ("false", False)])
def test_a_flag_in_the_environment_is_what_click_takes(monkeypatch, text, kept):
    monkeypatch.setenv("PSWORKER_KEEP_MEMORY", text)
    assert worker_config().keep_memory is kept


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"SERVERS": " , "}, "no server in"),
        ({"SERVERS": "h:1,h:1"}, "a server is listed twice"),
        ({"TIMEOUT": "soon"}, "PSWORKER_TIMEOUT must be a number of seconds, got 'soon'"),
        ({"TIMEOUT": "-1"}, "the timeout must be a positive number"),
        ({"PUSH_EVERY": "often"}, "PSWORKER_PUSH_EVERY must be a whole number, got 'often'"),
        ({"LOCAL_STEPS": "-1"}, "local_steps must be an integer of at least 0, got -1"),
        ({"OVERLAP": "2"}, "PSWORKER_OVERLAP must be 1 or 0, got '2'"),
        ({"ENCODING": "float8"}, "'float8' is not an encoding: use float32, bfloat16 or float16"),
        ({"CHECKPOINT_EVERY": "often"}, "'often' is not a valid interval between checkpoints: use 60s"),
        ({"KEEP": "0"}, "keep must be an integer of at least 1, got 0"),
        ({"checkpoint_every": "0s"}, "'0s'"),
        ({"COMPRESS": "zip"}, "'zip' is not a valid compression: use none; int8; or topk:FRACTION"),
        *[({"push_every": value}, "push_every must be an integer of at least 1") for value in (0, True, np.float64(2))],
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"local_steps": 4, "push_every": 2}, "local_steps=4 .* cannot be combined with push_every=2"),
        ({"local_steps": 4, "overlap": True}, "cannot be combined with .*overlap=True: leave those out, or it"),
        ({"encoding": ""}, "'' is not an encoding"),
        ({"compress": 0.01}, "'0.01' is no"),
        ({"shared_memory": 1}, "shared_memory must be True or False, got 1"),
        ({"PROGRESS": "loud"}, "progress must be one of auto, live, plain, off, got 'loud'"),
    ],
)
def test_an_invalid_variable_or_argument_is_refused_by_name(monkeypatch, given, complaint):
    for name in filter(str.isupper, given):
        monkeypatch.setenv(f"PSWORKER_{name}", given[name])
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config(**{name: value for name, value in given.items() if name.islower()})


def test_a_compression_is_read_as_it_was_written_and_its_fraction_is_over_0_and_1_at_most():
    for compression in (NONE, Int8(), TopK(1), TopK(1e-30), TopK(1 / 3), TopK(np.float32(0.1))):
        assert parse_compression(str(compression)) == compression
    for text in ("topk:0", "topk:-0.1", "topk:1.01", "topk:1e400"):
        with pytest.raises(ConfigurationError, match="TopK: fraction must be more than 0 and at most 1, got"):
            parse_compression(text)
    with pytest.raises(TypeError, match="fraction must be an int or a float"):
        TopK("0.1")


@pytest.mark.parametrize(
    ("command", "options", "complaint"),
    [
        (["local"], ["--encoding", "float8"], "'float8' is not one of 'float32', 'bfloat16', 'float16'"),
        (["local"], ["--compress", "topk:2"], "fraction must be more than 0 and at most 1, got 2"),
        (["local"], ["--local-steps", "2", "--overlap"], "cannot be combined with"),
        (["local"], ["--staleness", "drop"], "drop:T"),
        (["local"], ["--workers", "2", "--consistency", "sync:3"], "update waits for 3 workers, and there are 2"),
        (["run"], ["--servers", "ps-0"], "'ps-0' is not an address"),
        (["run"], ["--servers", "ps-0:5000,unix:ps.sock"], "needs unix: and an absolute path"),
        (["run", "--servers", "h:1"], ["--push-every", "0"], "0 is not in the range x>=1"),
        (["run", "--servers", "h:1"], ["--sigterm-code", "256"], "256 is not in the range 0<=x<=255"),
        (["local", "nowhere.py"], [], "Invalid value for 'SCRIPT': File 'nowhere.py' does not exist."),
    ],
)
def test_an_invalid_option_is_a_wrong_use_of_the_command_before_anything_starts(command, options, complaint, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    done = CliRunner().invoke(main, [*command, *options, str(script)])
    assert done.exit_code == 2
    assert all(option in done.output for option in options[:1])
    assert complaint in " ".join(done.output.split())
