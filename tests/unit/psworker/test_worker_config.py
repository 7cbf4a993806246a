"""Configuration of a worker: arguments, the environment, defaults, and the command line."""

import numpy as np
import pytest
from click.testing import CliRunner

from pswire.errors import ConfigurationError
from pswire.specs.encodings import ENCODINGS, NONE, Int8, TopK, parse_compression
from psworker import config
from psworker.config import DEFAULT_TIMEOUT, StrategyConfig, TransferConfig, WorkerConfig, worker_config
from psworker.launch import cli
from psworker.launch.cli import main


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    defaults = StrategyConfig().environment() | TransferConfig().environment()
    for name in (config.SERVERS, config.NAME, config.TIMEOUT, config.KEEP_MEMORY, *defaults):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cli, "end_at_once", lambda number, code: None)  # it is for a process of its own


def test_an_argument_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    default = worker_config()
    assert (default.servers, default.timeout, default.keep_memory) == ((), DEFAULT_TIMEOUT, True)
    assert default.strategy == StrategyConfig(push_every=1, pull_every=1, overlap=False, local_steps=0)
    assert default.transfer == TransferConfig(encoding="float32", compression=NONE, shared_memory=True)
    strategy, transfer = StrategyConfig(3, 5, True), TransferConfig("bfloat16", TopK(0.01), shared_memory=False)
    environment = {config.SERVERS: "h:1, h:2", config.NAME: "w7", config.TIMEOUT: "7.5", config.KEEP_MEMORY: "false"}
    for name, text in (environment | strategy.environment() | transfer.environment()).items():
        monkeypatch.setenv(name, text)
    assert worker_config() == WorkerConfig(("h:1", "h:2"), "w7", 7.5, False, strategy, transfer)
    other = worker_config(["h:3"], "w8", 9, push_every=2, overlap=False, compress="int8", shared_memory=True)
    strategy, transfer = StrategyConfig(2, 5, False), TransferConfig("bfloat16", Int8(), shared_memory=True)
    assert other == WorkerConfig(("h:3",), "w8", 9, False, strategy, transfer)
    assert worker_config(push_every=1, pull_every=1, overlap=False, local_steps=7).strategy.steps == 7


@pytest.mark.parametrize(("text", "kept"), [("", True), ("1", True), ("Yes", True), ("0", False), ("false", False)])
def test_a_flag_in_the_environment_is_what_click_takes(monkeypatch, text, kept):
    monkeypatch.setenv(config.KEEP_MEMORY, text)
    assert worker_config().keep_memory is kept


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (config.SERVERS, " , ", "no server in"),
        (config.SERVERS, "h:1,h:1", "a server is listed twice"),
        (config.TIMEOUT, "soon", "PSWORKER_TIMEOUT must be a number of seconds, got 'soon'"),
        (config.TIMEOUT, "-1", "the timeout must be a positive number"),
        (config.KEEP_MEMORY, "maybe", "PSWORKER_KEEP_MEMORY must be 1 or 0, got 'maybe'"),
        (config.PUSH_EVERY, "often", "PSWORKER_PUSH_EVERY must be a whole number, got 'often'"),
        (config.PULL_EVERY, "0", "pull_every must be an integer of at least 1, got 0"),
        (config.OVERLAP, "2", "PSWORKER_OVERLAP must be 1 or 0, got '2'"),
        (config.LOCAL_STEPS, "-1", "local_steps must be an integer of at least 0, got -1"),
        (config.ENCODING, "float8", "'float8' is not an encoding: use float32, bfloat16 or float16"),
        (
            config.COMPRESS,
            "zip",
            "'zip' is not a valid compression: use none; int8; or topk:FRACTION, such as topk:0.01",
        ),
        (config.SHARED_MEMORY, "maybe", "PSWORKER_SHARED_MEMORY must be 1 or 0, got 'maybe'"),
    ],
)
def test_an_invalid_variable_is_refused_by_name(monkeypatch, name, text, complaint):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        *[({"push_every": value}, "push_every must be an integer of at least") for value in (0, True, "2", 2.0)],
        ({"push_every": np.bool_(True)}, "push_every must be an integer of at least"),
        ({"pull_every": np.float64(2)}, "pull_every must be an integer of at least 1"),
        ({"local_steps": -3}, "local_steps must be an integer of at least 0, got -3"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"local_steps": 4, "push_every": 2}, "local_steps=4 .* cannot be combined with push_every=2"),
        ({"local_steps": 4, "overlap": True}, "cannot be combined with .*overlap=True: leave those out, or it"),
        ({"encoding": ""}, "'' is no"),
        ({"compress": 0.01}, "'0.01' is not a valid compression"),
        ({"shared_memory": 1}, "shared_memory must be True or False, got 1"),
    ],
)
def test_an_invalid_argument_is_refused_by_name(arguments, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config(**arguments)


def test_a_compression_that_is_text_is_refused_and_numpy_integers_become_int():
    with pytest.raises(ConfigurationError, match="compression must be one of"):
        TransferConfig(compression="int8")
    strategy = worker_config(push_every=np.int64(2), pull_every=np.uint8(3)).strategy
    assert (strategy, type(strategy.push_every)) == (StrategyConfig(2, 3), int)


@pytest.mark.parametrize(
    "compression", [NONE, Int8(), TopK(1), TopK(0.01), TopK(1e-30), TopK(1 / 3), TopK(np.float32(0.1))]
)
def test_a_compression_is_read_as_it_was_written(compression):
    assert parse_compression(str(compression)) == compression


@pytest.mark.parametrize("text", ["topk:0", "topk:-0.1", "topk:1.01", "topk:1e400"])
def test_a_fraction_is_over_0_and_1_at_most(text):
    with pytest.raises(ConfigurationError, match="TopK: fraction must be more than 0 and at most 1, got"):
        parse_compression(text)
    with pytest.raises(TypeError, match="fraction must be an int or a float"):
        TopK("0.1")


@pytest.mark.parametrize(
    ("command", "options", "complaint"),
    [
        *[
            (command, options, complaint)
            for command in (["run", "--servers", "h:1"], ["local"])
            for options, complaint in [
                (["--encoding", "float8"], "'float8' is not one of 'float32', 'bfloat16', 'float16'"),
                (["--compress", "topk:2"], "fraction must be more than 0 and at most 1, got 2"),
                (["--local-steps", "2", "--overlap"], "cannot be combined with"),
            ]
        ],
        (["run"], ["--servers", ","], "no server in"),
        (["run"], ["--servers", "ps-0"], "'ps-0' is not an address"),
        (["run"], ["--servers", "ps-0:5000,unix:ps.sock"], "needs unix: and an absolute path"),
        (["run"], ["--servers", "ps-0:5000,ps-0:5000"], "listed twice"),
    ],
)
def test_an_invalid_option_is_a_wrong_use_of_the_command_before_anything_starts(command, options, complaint, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    done = CliRunner().invoke(main, [*command, *options, str(script)])
    assert done.exit_code == 2
    assert options[0] in done.output
    assert complaint in " ".join(done.output.split())


def test_every_option_has_its_environment_variable_of_the_configuration():
    options = {option.name: option for command in ("run", "local") for option in main.commands[command].params}
    assert options["encoding"].type.choices == ("float32", *ENCODINGS)
    variables = StrategyConfig().environment() | TransferConfig().environment()
    names = ("servers", "name", "timeout", "keep_memory", "push_every", "pull_every", "overlap", "local_steps")
    expected = (config.SERVERS, config.NAME, config.TIMEOUT, config.KEEP_MEMORY, *variables)
    assert [options[name].envvar for name in (*names, "encoding", "compress", "shared_memory")] == list(expected)
