"""What a worker is told, by arguments, the environment, or defaults."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from pswire.errors import ConfigurationError
from pswire.specs.encodings import ENCODINGS, NONE, Int8, TopK, parse_compression
from psworker import config
from psworker.config import DEFAULT_TIMEOUT, EncodingConfig, StrategyConfig, worker_config
from psworker.launch import cli
from psworker.launch.cli import main


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    strategy = config.PUSH_EVERY, config.PULL_EVERY, config.OVERLAP, config.LOCAL_STEPS
    travel = config.ENCODING, config.COMPRESS, config.SHARED_MEMORY
    for name in (config.SERVERS, config.NAME, config.TIMEOUT, config.KEEP_MEMORY, *strategy, *travel):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cli, "end_at_once", lambda number, code: None)  # it is for a process of its own


def test_an_argument_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert worker_config().servers == ()
    assert worker_config().timeout == DEFAULT_TIMEOUT
    monkeypatch.setenv(config.SERVERS, "h:1, h:2")
    monkeypatch.setenv(config.NAME, "w7")
    monkeypatch.setenv(config.TIMEOUT, "7.5")
    told = worker_config()
    assert (told.servers, told.name, told.timeout) == (("h:1", "h:2"), "w7", 7.5)
    told = worker_config(["h:3"], "w8", 9)
    assert (told.servers, told.name, told.timeout) == (("h:3",), "w8", 9)


@pytest.mark.parametrize(
    ("text", "kept"), [(None, True), ("", True), ("1", True), ("Yes", True), ("0", False), ("false", False)]
)
def test_memory_is_kept_unless_the_environment_says_no(monkeypatch, text, kept):
    if text is not None:
        monkeypatch.setenv(config.KEEP_MEMORY, text)
    assert worker_config().keep_memory is kept


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (config.SERVERS, " , ", "no server is named"),
        (config.SERVERS, "h:1,h:1", "a server is named twice"),
        (config.TIMEOUT, "soon", "PSWORKER_TIMEOUT must be a number of seconds, got 'soon'"),
        (config.TIMEOUT, "-1", "the timeout must be a positive number"),
        (config.KEEP_MEMORY, "maybe", "PSWORKER_KEEP_MEMORY must be 1 or 0, got 'maybe'"),
        (config.PUSH_EVERY, "often", "PSWORKER_PUSH_EVERY must be a whole number, got 'often'"),
        (config.PULL_EVERY, "0", "pull_every must be a whole number of steps from 1 up, got 0"),
        (config.OVERLAP, "2", "PSWORKER_OVERLAP must be 1 or 0, got '2'"),
        (config.LOCAL_STEPS, "-1", "local_steps must be a whole number of steps from 0 up, got -1"),
        (config.ENCODING, "float8", "'float8' is no encoding: write float32, bfloat16 or float16"),
        (config.COMPRESS, "zip", "'zip' is no compression: write none; int8; or topk:FRACTION, such as topk:0.01"),
        (config.SHARED_MEMORY, "maybe", "PSWORKER_SHARED_MEMORY must be 1 or 0, got 'maybe'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(monkeypatch, name, text, complaint):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config()


def test_whole_numbers_of_numpy_are_whole_numbers():
    strategy = worker_config(push_every=np.int64(2), pull_every=np.uint8(3)).strategy
    assert strategy == StrategyConfig(2, 3)
    assert type(strategy.push_every) is int
    for value in (2.0, "2", True, np.bool_(True), np.float64(2), None):
        with pytest.raises(ConfigurationError, match="push_every must be a whole number of steps from 1 up, got"):
            StrategyConfig(value)


def test_when_to_push_and_pull_is_an_argument_or_the_environment_or_every_step(monkeypatch):
    assert worker_config().strategy == StrategyConfig(push_every=1, pull_every=1, overlap=False, local_steps=0)
    for name, text in StrategyConfig(3, 5, True).environment().items():
        monkeypatch.setenv(name, text)
    assert worker_config().strategy == StrategyConfig(3, 5, True)
    assert worker_config(push_every=2, overlap=False).strategy == StrategyConfig(2, 5, False)
    assert worker_config(push_every=1, pull_every=1, overlap=False, local_steps=7).strategy.steps == 7


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"push_every": 0}, "push_every must be a whole number of steps from 1 up, got 0"),
        ({"push_every": True}, "push_every must be a whole number of steps from 1 up, got True"),
        ({"pull_every": 2.0}, "pull_every must be a whole number of steps from 1 up, got 2.0"),
        ({"local_steps": -3}, "local_steps must be a whole number of steps from 0 up, got -3"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"local_steps": 4, "push_every": 2}, "local_steps=4 .* cannot go with push_every=2"),
        ({"local_steps": 4, "overlap": True}, "local_steps=4 .* cannot go with .*overlap=True: leave those out, or it"),
    ],
)
def test_steps_that_cannot_be_are_refused_by_name(arguments, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config(**arguments)


def test_how_gradients_travel_is_an_argument_or_the_environment_or_as_they_are(monkeypatch):
    assert worker_config().travel == EncodingConfig(encoding="float32", compression=NONE, shared_memory=True)
    told = EncodingConfig("bfloat16", TopK(0.01), shared_memory=False)
    for name, text in told.environment().items():
        monkeypatch.setenv(name, text)
    assert worker_config().travel == told
    travel = worker_config(encoding="float32", compress="int8", shared_memory=True).travel
    assert travel == EncodingConfig("float32", Int8(), shared_memory=True)
    assert worker_config(encoding="float16", compress=TopK(0.5)).travel == EncodingConfig("float16", TopK(0.5), False)


@pytest.mark.parametrize(
    "compression", [NONE, Int8(), TopK(1), TopK(0.01), TopK(1e-30), TopK(1 / 3), TopK(np.float32(0.1))]
)
def test_a_compression_is_read_as_it_was_written(compression):
    assert parse_compression(str(compression)) == compression


@pytest.mark.parametrize("text", ["", "topk", "topk:", "topk:x", "topk:1.2.3", "top:0.1", "int8:2", "INT8", "topk:nan"])
def test_what_is_no_compression_is_refused_with_those_that_there_are(text):
    with pytest.raises(ConfigurationError, match=re.escape(f"{text!r}") + ".*(write none; int8; or topk:|could not)"):
        parse_compression(text)


@pytest.mark.parametrize("text", ["topk:0", "topk:-0.1", "topk:1.01", "topk:1e400"])
def test_a_fraction_is_over_0_and_1_at_most(text):
    with pytest.raises(ConfigurationError, match="TopK: fraction must be more than 0 and at most 1, got"):
        parse_compression(text)
    with pytest.raises(TypeError, match="fraction must be an int or a float"):
        TopK("0.1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"encoding": ""}, "'' is no encoding"),
        ({"compress": 0.01}, "'0.01' is no compression"),
        ({"shared_memory": 1}, "shared_memory must be True or False, got 1"),
    ],
)
def test_a_way_to_travel_that_cannot_be_is_refused(arguments, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config(**arguments)
    with pytest.raises(ConfigurationError, match="compression must be one of"):
        EncodingConfig(compression="int8")


def test_the_command_line_takes_what_the_environment_does_and_refuses_the_rest_before_anything_starts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)")
    for command in (["run", "--servers", "h:1"], ["local"]):
        for option, text, complaint in [
            ("--encoding", "float8", "'float8' is not one of 'float32', 'bfloat16', 'float16'"),
            ("--compress", "topk:2", "fraction must be more than 0 and at most 1, got 2"),
            ("--compress", "zip", "'zip' is no compression"),
        ]:
            done = CliRunner().invoke(main, [*command, option, text, str(script)])
            assert done.exit_code == 2
            assert complaint in " ".join(done.output.split())
    assert [parameter.type.choices for parameter in main.commands["run"].params if parameter.name == "encoding"] == [
        ("float32", *ENCODINGS)
    ]


@pytest.mark.parametrize(
    ("servers", "complaint"),
    [
        (",", "no server is named"),
        ("ps-0", "'ps-0' is no address"),
        ("ps-0:5000,unix:ps.sock", "needs unix: and an absolute path"),
        ("ps-0:5000,ps-0:5000", "named twice"),
    ],
)
def test_servers_that_cannot_be_are_a_wrong_use_of_the_command(servers, complaint, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    done = CliRunner().invoke(main, ["run", "--servers", servers, str(script)])
    assert done.exit_code == 2
    assert "--servers" in done.output
    assert complaint in " ".join(done.output.split())
