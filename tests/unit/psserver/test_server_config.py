"""What a server can be told, and what it refuses to be told."""

import dataclasses
import signal

import pytest
from click.testing import CliRunner

from psserver.cli import main, serve
from psserver.config import ServerConfig, parse_shard, parse_size
from psserver.rpc import server
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError
from pswire.specs.consistency import Asynchronous, DropStalePushes, IgnoreStaleness, Synchronous
from pswire.system import host


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("1K", 1024), ("8G", 8 * 1024**3), ("1.5m", 1536 * 1024), (" 2T ", 2 * 1024**4)],
)
def test_a_size_is_bytes_or_powers_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "8 GB", "1e9", "lots", "0x10", "٣"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigurationError, match="8G"):
        parse_size(text)


@pytest.mark.parametrize(("text", "pair"), [("0/1", (0, 1)), ("1/2", (1, 2)), (" 09/10 ", (9, 10))])
def test_a_shard_is_its_place_and_the_count(text, pair):
    assert parse_shard(text) == pair


@pytest.mark.parametrize("text", ["", "1", "1/1", "2/1", "-1/2", "0/0", "a/b", "0/1/2", "٠/١"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ConfigurationError, match="0/2 and 1/2"):
        parse_shard(text)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"bind": "nonsense"}, "nonsense"),
        ({"bind": "127.0.0.1:65536"}, "65536"),
        ({"shard": 1}, "shard 1 of 1"),
        ({"shard": -1}, "shard -1 of 1"),
        ({"lease": 0.0}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"grace": -1.0}, "grace"),
        ({"grace": float("nan")}, "grace"),
        ({"linger": -1.0}, "lingers for 0 seconds or more, got -1"),
        ({"linger": float("inf")}, "lingers"),
        ({"linger": float("nan")}, "lingers"),
        ({"memory_limit": 0}, "memory limit"),
        ({"max_calls": 0}, "max_calls"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(fields, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        ServerConfig(**fields)


def test_variables_and_traffic_share_the_memory_limit():
    config = ServerConfig(memory_limit=1001)
    assert config.variables_limit + config.traffic_limit == 1001


def test_the_default_leaves_a_fifth_of_the_memory_to_others(monkeypatch):
    monkeypatch.setattr(host, "memory", lambda: 1001)
    assert ServerConfig().memory_limit == 800


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerConfig().lease = 1.0


def test_nobody_waits_and_nothing_is_done_about_staleness_unless_asked_for():
    assert (ServerConfig().consistency, ServerConfig().staleness) == (Asynchronous(), IgnoreStaleness())


@pytest.fixture
def served(monkeypatch):
    """The configs that `psserver serve` would have served."""
    configs = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(serve, "serve_until_signal", configs.append)
    return configs


def invoke_serve(*options):
    return CliRunner().invoke(main.main, ["serve", "--no-keep-memory", *options])


def test_options_become_the_fields_of_their_names(served):
    options = ["--bind", "127.0.0.1:5000", "--shard", "1/3", "--lease", "7", "--memory-limit", "2K", "--grace", "1.5"]
    done = invoke_serve(*options, "--consistency", "sync:3,backup=1", "--staleness", "drop:4", "--max-calls", "9")
    assert done.exit_code == 0, done.output
    assert served == [
        ServerConfig(
            bind="127.0.0.1:5000",
            shard=1,
            shards=3,
            lease=7.0,
            consistency=Synchronous(3, backup=1),
            staleness=DropStalePushes(4),
            memory_limit=2048,
            grace=1.5,
            max_calls=9,
            keep_memory=False,
        )
    ]


def test_a_server_stays_unless_an_option_or_the_environment_says_how_long_it_lingers(served, monkeypatch):
    assert invoke_serve().exit_code == 0
    assert invoke_serve("--linger", "0").exit_code == 0
    monkeypatch.setenv("PSSERVER_SERVE_LINGER", "2.5")
    assert invoke_serve().exit_code == 0
    assert [config.linger for config in served] == [None, 0.0, 2.5]


def test_no_options_are_the_defaults(served):
    assert invoke_serve().exit_code == 0
    assert served == [ServerConfig(keep_memory=False)]


def test_memory_is_shared_unless_an_option_or_the_environment_says_no(served, monkeypatch):
    assert ServerConfig().shared_memory
    assert invoke_serve("--no-shared-memory").exit_code == 0
    monkeypatch.setenv("PSSERVER_SERVE_SHARED_MEMORY", "0")
    assert invoke_serve().exit_code == 0
    assert invoke_serve("--shared-memory").exit_code == 0
    assert [config.shared_memory for config in served] == [False, False, True]


def test_a_server_that_shares_memory_first_removes_what_the_dead_have_left(monkeypatch, caplog):
    monkeypatch.setattr(server, "sweep", lambda: 2)
    with ServerThread(ServerConfig(shared_memory=False)):
        assert not caplog.messages
    with ServerThread(ServerConfig()):
        assert caplog.messages == ["removed 2 segments of shared memory of killed processes"]


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("--consistency", "sometimes", "'sometimes' is no consistency: write async; or bounded:S"),
        ("--consistency", "sync:0", "workers must be at least 1"),
        ("--staleness", "drop", "'drop' is no way to handle staleness: write none; or scale; or"),
    ],
)
def test_a_policy_that_there_is_not_is_a_usage_error_that_lists_those_there_are(served, option, text, complaint):
    refused = invoke_serve(option, text)
    assert (refused.exit_code, served) == (2, [])
    assert f"Invalid value for '{option}'" in refused.output
    assert complaint in " ".join(refused.output.split())
